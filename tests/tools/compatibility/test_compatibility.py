"""Every client is tried on every server, and the page shows the results."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import generated
import pytest
from environments import require

require("mcp>=2")

from compatibility import matrix
from compatibility.host import hosting
from compatibility.visit import TRIALS, Result, visit, works
from integration.serving import Peer


def rows(page: Path) -> dict[str, list[str]]:
    """Return the cells of each client on a page."""
    lines = [line.strip("| ").split(" | ") for line in generated.part(page, matrix.COMMAND).splitlines()]
    return {client: cells for client, *cells in lines[2:]}


def test_the_page_promises_sessions_for_every_client() -> None:
    """In their default settings all clients have sessions with every server, as has the draft where it is spoken."""
    found = rows(matrix.PAGE)
    assert ["`" in client for client in found] == [False] * 6 + [True] * 3
    for client, marks in found.items():
        assert len(marks) == 8
        if "versionNegotiation" in client:
            assert set(marks) == {"U", matrix.NOTHING}  # in the modern era, Node keeps no cookies
        else:
            assert set(marks) == {"U" if client.startswith("TypeScript") else "U D"}


@pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # uvicorn runs on nothing else
async def test_every_client_visits_every_server(capsys: pytest.CaptureFixture[str]) -> None:
    """Python and JavaScript clients visit by HTTP, and each result is printed as a line."""
    async with hosting(["sdk2"]) as urls:
        assert len(urls) == 4
        [(server, url)] = [(server, url) for server, url in urls.items() if server.endswith("|stateful|SSE")]
        await visit({server: url}, ["sdk2"])
        [typescript] = await matrix.visited_by_javascript({server: url}, ["typescript 1"])
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["works"] for result in results] == ["UD", "UD"]
    assert (typescript.server, typescript.works) == (server, "U")


def test_servers_and_clients_run_in_their_own_environments(tmp_path: Path) -> None:
    """Hosts and visitors start with an environment's Python; without a framework the table is empty."""
    page = Path(shutil.copy(matrix.PAGE, tmp_path))
    choice = ["--python", sys.executable, "--framework", "none", "--page", str(page)]
    command = [sys.executable, "-m", "tests.tools.compatibility", *choice]
    subprocess.run(command, cwd=matrix.ROOT, stdout=subprocess.DEVNULL, timeout=120, check=True)
    assert rows(page) == {}


async def test_a_failure_of_a_client_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    """On a server without sessions nothing works, and the reason is printed to standard error."""

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        return SimpleNamespace(content=[SimpleNamespace(text="nobody")])

    sessionless = Peer(call, session=None, capabilities=None, progress="")
    assert [await works(sessionless, mark) for mark in TRIALS] == ["", ""]
    assert capsys.readouterr().err.startswith("D: AttributeError")


@pytest.mark.parametrize(
    ("forms", "cell"),
    [
        ([("JSON", "UD"), ("SSE", "UD")], "U D"),
        ([("JSON", ""), ("SSE", "")], "–"),
        ([("JSON", ""), ("SSE", "D")], "JSON: –, SSE: D"),
    ],
)
def test_a_cell_separates_forms_that_differ(forms: Sequence[tuple[str, str]], cell: str) -> None:
    """A cell shows JSON and SSE separately where only one of them works."""
    results = [Result("a client", f"a server|stateful|{form}", marks) for form, marks in forms]
    assert matrix.table(results).splitlines() == [
        "| client | a server, stateful |",
        "| --- | --- |",
        f"| a client | {cell} |",
    ]

"""The official conformance suite finds the same with sessions as without, and the page shows it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import generated
import pytest
from environments import require
from httpx import AsyncClient
from starlette.types import ASGIApp, Receive, Scope, Send

require("mcp>=2")

from conformance import comparison, suite
from conformance.columns import COLUMNS, ECHOED
from conformance.suite import Outcome
from integration.serving import serving
from mcp_sessions._session.claims import looks_like_session_id

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*deprecated as of 2026-07-28"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]

PAGE = generated.DOCS / comparison.PAGE


asyncio_alone = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # as Uvicorn


def on_page(requirements: str, column: str) -> dict[str, str]:
    """Return a column of the page, by scenario."""
    _, _, part = generated.part(PAGE, comparison.COMMAND).partition(f"### Requirement set {requirements}\n")
    lines = [line.strip("| ").split(" | ") for line in part.partition("\n###")[0].splitlines() if line.startswith("|")]
    place = lines[0].index(column)
    return {line[0]: line[place] for line in lines[2:-1]}


@asyncio_alone
@pytest.mark.parametrize("requirements", suite.SETS)
async def test_the_suite_finds_what_the_page_shows(requirements: str) -> None:
    """With a session in every request, the suite's outcomes are those on the page."""
    expected = on_page(requirements, ECHOED)

    def is_expected(outcomes: Mapping[str, Outcome]) -> bool:
        return {scenario: str(outcome) for scenario, outcome in outcomes.items()} == expected

    async with serving(await COLUMNS[ECHOED]()) as url:
        assert is_expected(await comparison.steadily(url, requirements, is_expected))


@pytest.mark.parametrize("requirements", suite.SETS)
def test_every_column_of_the_page_is_as_good_as_the_bare_server(requirements: str) -> None:
    """Columns differ from the bare server only by design."""
    bare = on_page(requirements, "bare")
    assert len(bare) > 30
    for column in COLUMNS:
        changed = {scenario for scenario, cell in on_page(requirements, column).items() if cell != bare[scenario]}
        assert changed == {scenario for scenario, where in comparison.BY_DESIGN if where == column} & bare.keys()


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@asyncio_alone
@pytest.mark.parametrize("column", COLUMNS)
async def test_our_transport_id_is_seen_behind_the_bridge_alone(column: str) -> None:
    """In the other columns a handshake is answered with the server's own id."""
    accepts = {"accept": "application/json, text/event-stream"}
    async with serving(await COLUMNS[column]()) as url, AsyncClient() as client:
        answer = await client.post(url, json=INITIALIZE, headers=accepts)
    assert answer.status_code == 200
    assert looks_like_session_id(answer.headers["mcp-session-id"]) == (column == "behind the bridge")


# --- differences ---------------------------------------------------------------------------------

GOOD, BAD = Outcome((("ping", "SUCCESS"),)), Outcome((("ping", "FAILURE"),))


class Recorded:
    """A suite with given outcomes, one mapping for each run."""

    def __init__(self, *found: Mapping[str, Outcome]) -> None:
        self.runs = 0
        self._found = found

    async def run(self, url: str, requirements: str) -> Mapping[str, Outcome]:
        self.runs += 1
        return self._found[min(self.runs, len(self._found)) - 1]


async def nothing() -> ASGIApp:
    return unreached


async def unreached(scope: Scope, receive: Receive, send: Send) -> None: ...


def compared(monkeypatch: pytest.MonkeyPatch, docs: Path, found: Recorded, *arguments: str, name: str = "ours") -> int:
    """Return the exit status of the command line, whose first column is `bare`."""
    monkeypatch.setattr(suite, "run", found.run)
    return comparison.main(["--set", "2025-11-25", *arguments], docs, {"bare": nothing, name: nothing})


@pytest.mark.parametrize("worse", [{"ping": BAD}, {}, {"ping": GOOD, "pong": BAD}], ids=["fails", "gone", "new"])
def test_a_permanent_difference_is_reported(
    worse: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A difference that stays over all tries is printed by scenario and column, and the exit status is 1."""
    found = Recorded({"ping": GOOD}, worse)
    assert compared(monkeypatch, tmp_path, found) == 1
    assert found.runs == 1 + comparison.TRIES
    assert ": ours: " in capsys.readouterr().out.splitlines()[-1]


def test_a_temporary_difference_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A difference that another run does not show is due to the suite's short timeouts."""
    assert compared(monkeypatch, tmp_path, Recorded({"ping": GOOD}, {"ping": BAD}, {"ping": GOOD})) == 0


def test_a_failure_by_design_is_not_a_difference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A failure that is listed for its column is accepted."""
    found = Recorded({"ping": GOOD}, {"ping": BAD})
    assert compared(monkeypatch, tmp_path, found, name=ECHOED) == 0


def test_the_page_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The table is written between the page's comments, and the rest is unchanged."""
    page = tmp_path / comparison.PAGE
    page.parent.mkdir()
    shutil.copy(PAGE, page)
    found = Recorded({"ping": GOOD, "pong": Outcome((("pong", "SKIPPED"),))})
    assert compared(monkeypatch, tmp_path, found, "--write-docs") == 0
    assert generated.part(page, comparison.COMMAND).splitlines()[-5:] == [
        "| scenario | bare | ours |",
        "| --- | --- | --- |",
        "| ping | 1 of 1 | 1 of 1 |",
        "| pong | skipped | skipped |",
        "| **checks passed** | **1 of 1** | **1 of 1** |",
    ]
    assert page.read_text("utf-8").partition("<!-- begin")[0] == PAGE.read_text("utf-8").partition("<!-- begin")[0]


def test_the_command_line_has_a_help_text() -> None:
    """`--help` lists the option that `make conformance` uses."""
    command = [sys.executable, "-m", "tests.tools.conformance", "--help"]
    done = subprocess.run(command, cwd=generated.DOCS.parent, capture_output=True, text=True, timeout=60, check=True)
    assert "--write-docs" in done.stdout

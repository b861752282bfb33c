"""The official conformance suite finds the same with sessions as without, and the page says what it finds."""

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


@pytest.fixture
def anyio_backend() -> str:
    """Uvicorn runs on asyncio alone."""
    return "asyncio"


def on_page(requirements: str, column: str) -> dict[str, str]:
    """What the page says of a column, by scenario."""
    _, _, part = generated.part(PAGE, comparison.COMMAND).partition(f"### Requirement set {requirements}\n")
    lines = [line.strip("| ").split(" | ") for line in part.partition("\n###")[0].splitlines() if line.startswith("|")]
    place = lines[0].index(column)
    return {line[0]: line[place] for line in lines[2:-1]}


@pytest.mark.parametrize("requirements", suite.SETS)
async def test_the_suite_finds_what_the_page_says(requirements: str) -> None:
    """Where every request carries a session: what was found before is found again."""
    said = on_page(requirements, ECHOED)

    def is_as_said(outcomes: Mapping[str, Outcome]) -> bool:
        return {scenario: str(outcome) for scenario, outcome in outcomes.items()} == said

    async with serving(await COLUMNS[ECHOED]()) as url:
        assert is_as_said(await comparison.steadily(url, requirements, is_as_said))


@pytest.mark.parametrize("requirements", suite.SETS)
def test_no_column_of_the_page_is_worse_than_the_bare_server(requirements: str) -> None:
    """But for what the draft asks of a result."""
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


@pytest.mark.parametrize("column", COLUMNS)
async def test_clients_see_a_transport_id_of_ours_behind_the_bridge_alone(column: str) -> None:
    """Each column is the same stateful server, which answers a handshake with an id of its own."""
    accepts = {"accept": "application/json, text/event-stream"}
    async with serving(await COLUMNS[column]()) as url, AsyncClient() as client:
        answer = await client.post(url, json=INITIALIZE, headers=accepts)
    assert answer.status_code == 200
    assert looks_like_session_id(answer.headers["mcp-session-id"]) == (column == "behind the bridge")


# --- differences ---------------------------------------------------------------------------------

GOOD, BAD = Outcome((("ping", "SUCCESS"),)), Outcome((("ping", "FAILURE"),))


class Recorded:
    """A suite that finds what it is told to, one mapping a run."""

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
    """The exit status of the command line, of which the first column is `bare`."""
    monkeypatch.setattr(suite, "run", found.run)
    return comparison.main(["--set", "2025-11-25", *arguments], docs, {"bare": nothing, name: nothing})


@pytest.mark.parametrize("worse", [{"ping": BAD}, {}, {"ping": GOOD, "pong": BAD}], ids=["fails", "gone", "new"])
def test_a_difference_that_stays_is_told(
    worse: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By scenario and column; the exit status is 1."""
    found = Recorded({"ping": GOOD}, worse)
    assert compared(monkeypatch, tmp_path, found) == 1
    assert found.runs == 1 + comparison.TRIES
    assert ": ours: " in capsys.readouterr().out.splitlines()[-1]


def test_a_difference_that_goes_is_the_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The suite gives a server half a second here and there."""
    assert compared(monkeypatch, tmp_path, Recorded({"ping": GOOD}, {"ping": BAD}, {"ping": GOOD})) == 0


def test_what_fails_by_design_is_no_difference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the column of which it is said, and in no other."""
    found = Recorded({"ping": GOOD}, {"ping": BAD})
    assert compared(monkeypatch, tmp_path, found, name=ECHOED) == 0


def test_the_page_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Between its comments; what stands around them stays."""
    shutil.copy(PAGE, tmp_path)
    found = Recorded({"ping": GOOD, "pong": Outcome((("pong", "SKIPPED"),))})
    assert compared(monkeypatch, tmp_path, found, "--write-docs") == 0
    page = tmp_path / comparison.PAGE
    assert generated.part(page, comparison.COMMAND).splitlines()[-5:] == [
        "| scenario | bare | ours |",
        "| --- | --- | --- |",
        "| ping | 1 of 1 | 1 of 1 |",
        "| pong | skipped | skipped |",
        "| **checks passed** | **1 of 1** | **1 of 1** |",
    ]
    assert page.read_text("utf-8").partition("<!-- begin")[0] == PAGE.read_text("utf-8").partition("<!-- begin")[0]


def test_the_command_line_says_what_it_takes() -> None:
    """As `make conformance` calls it."""
    command = [sys.executable, "-m", "tests.conformance", "--help"]
    done = subprocess.run(command, cwd=generated.DOCS.parent, capture_output=True, text=True, timeout=60, check=True)
    assert "--write-docs" in done.stdout

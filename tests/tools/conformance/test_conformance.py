"""The official conformance suite finds the same with sessions as without, and the page shows it."""

from __future__ import annotations

from collections.abc import Mapping

import generated
import pytest
from environments import require
from httpx import AsyncClient

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


@pytest.mark.nightly
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

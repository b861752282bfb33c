"""The official conformance suite finds the same with sessions as without."""

from __future__ import annotations

import pytest
from environments import require
from httpx import AsyncClient

require("mcp>=2")

from conformance import comparison, suite
from conformance.columns import COLUMNS
from integration.serving import serving
from mcp_sessions._session.claims import looks_like_session_id

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*deprecated as of 2026-07-28"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]

asyncio_alone = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # as Uvicorn


@pytest.mark.nightly
@asyncio_alone
@pytest.mark.parametrize("requirements", suite.SETS)
async def test_no_column_is_worse_than_the_bare_server(requirements: str) -> None:
    """The official suite finds the same with sessions as without, but for what differs by design."""
    results = await comparison.compare([requirements], COLUMNS)
    assert len(results[requirements]["bare"]) > 30
    assert comparison.differences(results) == []


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

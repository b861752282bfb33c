"""The example `cluster_counter`: a count without a missing call."""

from __future__ import annotations

import os

import pytest
from example_servers import connected
from mcp import MCPError

from session_client import HeldSession
from stage import together


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the store in memory."""
    monkeypatch.setenv("MCP_SESSION_STORE", "memory:")


async def test_parallel_calls_all_count() -> None:
    """Parallel calls return different numbers, and another session counts for itself."""
    async with connected("cluster_counter") as client:
        session, other = await HeldSession.create(client), await HeldSession.create(client)
        assert sorted(await together([session.call("count") for _ in range(8)])) == list("12345678")
        assert await other.call("count") == 1


async def test_a_session_lists_the_processes_that_served_it() -> None:
    """The list is empty before the first call, and has this process afterwards."""
    async with connected("cluster_counter") as client:
        session = await HeldSession.create(client)
        assert await session.call("workers") == []
        await session.call("count")
        assert await session.call("workers") == [os.getpid()]


async def test_a_count_needs_a_session() -> None:
    """A call in no session is refused before the tool sees it."""
    async with connected("cluster_counter") as client:
        with pytest.raises(MCPError, match="Session required"):
            await client.call_tool("count")

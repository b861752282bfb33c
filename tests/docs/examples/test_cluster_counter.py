"""The example `cluster_counter`: a count that no call is missing from."""

from __future__ import annotations

import os

import pytest
from example_servers import connected
from mcp import MCPError

from session_client import HeldSession
from stage import together


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that needs nothing beside it."""
    monkeypatch.setenv("MCP_SESSION_STORE", "memory:")


async def test_calls_at_the_same_moment_all_count() -> None:
    """Each answers with another number, and another session counts for itself."""
    async with connected("cluster_counter") as client:
        session, other = await HeldSession.create(client), await HeldSession.create(client)
        assert sorted(await together([session.call("count") for _ in range(8)])) == list("12345678")
        assert await other.call("count") == 1


async def test_a_session_knows_which_processes_served_it() -> None:
    """None before the first call, and this one afterwards."""
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

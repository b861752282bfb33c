"""The example `progressive_tools`: tools that a session gets when it has earned them."""

from __future__ import annotations

import pytest
from example_servers import connected
from mcp import Client

from session_client import HeldSession, ToolFailed


@pytest.fixture
def anyio_backend() -> str:
    """asyncio, which closes the event streams that the SDK's client leaves open in the legacy era."""
    return "asyncio"


async def listed(client: Client, session: HeldSession | None = None) -> set[str]:
    """The names of the tools that a client is shown."""
    tools = await client.list_tools(meta=None if session is None else session.meta)
    return {tool.name for tool in tools.tools}


async def test_the_call_guards_in_the_modern_era() -> None:
    """The list is the same for everybody; who calls too early is told what to call first."""
    async with connected("progressive_tools") as client:
        early, late = await HeldSession.create(client), await HeldSession.create(client)
        with pytest.raises(ToolFailed, match="that is not the word"):
            await late.call("unlock", word="now")
        assert await late.call("unlock", word="please") == "restart is unlocked"
        assert await late.call("restart") == "restarted"
        with pytest.raises(ToolFailed, match="locked in this session; call unlock first"):
            await early.call("restart")
        assert [await listed(client, session) for session in (early, late, None)] == [{"unlock", "restart"}] * 3


async def test_lists_change_with_the_session_in_the_legacy_era() -> None:
    """One session's list grows when it has earned it, another's does not, and the call guards all the same."""
    async with connected("progressive_tools", mode="legacy") as client:
        early, late = await HeldSession.create(client), await HeldSession.create(client)
        assert [await listed(client, session) for session in (early, late)] == [{"unlock"}, {"unlock"}]
        await late.call("unlock", word="please")
        assert [await listed(client, session) for session in (early, late)] == [{"unlock"}, {"unlock", "restart"}]
        assert await late.call("restart") == "restarted"
        with pytest.raises(ToolFailed, match="locked in this session; call unlock first"):
            await early.call("restart")

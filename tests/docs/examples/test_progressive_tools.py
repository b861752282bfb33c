"""The example `progressive_tools`: tools that a session unlocks."""

from __future__ import annotations

import pytest
from example_servers import connected
from mcp import Client

from session_client import HeldSession, ToolFailed

# asyncio closes the event streams that the SDK's client leaves open in the legacy era.
pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])


async def listed(client: Client, session: HeldSession | None = None) -> set[str]:
    """Return the names of the listed tools."""
    tools = await client.list_tools(meta=None if session is None else session.meta)
    return {tool.name for tool in tools.tools}


async def test_the_modern_era_guards_calls() -> None:
    """The list is the same for all sessions, and the error of an early call names the tool to call first."""
    async with connected("progressive_tools") as client:
        early, late = await HeldSession.create(client), await HeldSession.create(client)
        with pytest.raises(ToolFailed, match="that is not the word"):
            await late.call("unlock", word="now")
        assert await late.call("unlock", word="please") == "restart is unlocked"
        assert await late.call("restart") == "restarted"
        with pytest.raises(ToolFailed, match="locked in this session; call unlock first"):
            await early.call("restart")
        assert [await listed(client, session) for session in (early, late, None)] == [{"unlock", "restart"}] * 3


async def test_the_legacy_era_changes_lists() -> None:
    """The list of the session that unlocked the tool grows, and calls are guarded too."""
    async with connected("progressive_tools", mode="legacy") as client:
        early, late = await HeldSession.create(client), await HeldSession.create(client)
        assert [await listed(client, session) for session in (early, late)] == [{"unlock"}, {"unlock"}]
        await late.call("unlock", word="please")
        assert [await listed(client, session) for session in (early, late)] == [{"unlock"}, {"unlock", "restart"}]
        assert await late.call("restart") == "restarted"
        with pytest.raises(ToolFailed, match="locked in this session; call unlock first"):
            await early.call("restart")

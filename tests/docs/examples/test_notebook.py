"""The example `notebook`: notes that the client holds, a notebook for each session."""

from __future__ import annotations

import pytest
from example_servers import connected
from mcp import MCPError

from session_client import HeldSession, ToolFailed


async def test_a_notebook_holds_its_own_notes_in_order() -> None:
    """Notes come back oldest first, without those of another session."""
    async with connected("notebook") as client:
        a, b = await HeldSession.create(client), await HeldSession.create(client)
        assert await a.call("append", note="one") == ["one"]
        assert await b.call("append", note="other") == ["other"]
        assert await a.call("append", note="two") == ["one", "two"]
        assert await a.call("read") == ["one", "two"]
        assert await b.call("read") == ["other"]


async def test_a_new_notebook_is_empty() -> None:
    """A notebook can be read before it is written."""
    async with connected("notebook") as client:
        assert await (await HeldSession.create(client)).call("read") == []


@pytest.mark.parametrize("tool", ["append", "read"])
async def test_both_tools_need_a_session(tool: str) -> None:
    """A call without a session is refused before the tool sees it."""
    async with connected("notebook") as client:
        with pytest.raises(MCPError, match="Session required") as refusal:
            await client.call_tool(tool, {"note": "lost"})
        assert refusal.value.code == -31044


async def test_a_note_beyond_the_limit_is_refused() -> None:
    """A note that does not fit is refused with the limit, and the notes before it are kept."""
    async with connected("notebook") as client:
        session = await HeldSession.create(client)
        await session.call("append", note="short")
        with pytest.raises(ToolFailed, match="the limit is 4096"):
            await session.call("append", note="long" * 2000)
        assert await session.call("read") == ["short"]


async def test_a_model_does_not_see_the_session() -> None:
    """The schema of a tool has its own arguments alone."""
    async with connected("notebook") as client:
        asked = {tool.name: sorted(tool.input_schema["properties"]) for tool in (await client.list_tools()).tools}
        assert asked == {"append": ["note"], "read": []}

"""The example `fastmcp_app`: FastMCP's state, kept for a session."""

from __future__ import annotations

import pytest
from example_servers import connected

from session_client import HeldSession, ToolFailed, answer

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")


async def test_a_session_keeps_its_language() -> None:
    """A session keeps its language, though every request has a connection of its own."""
    async with connected("fastmcp_app") as client:
        a, b = await HeldSession.create(client), await HeldSession.create(client)
        assert await a.call("choose_language", language="Greek") == "From now on: Greek."
        assert await a.call("say", word="moon") == "moon, in Greek"
        assert await b.call("say", word="moon") == "moon, in English"
        assert await a.call("say", word="sun") == "sun, in Greek"
        assert [await a.call("history"), await b.call("history")] == [["moon", "sun"], ["moon"]]


async def test_a_call_without_a_session_fails() -> None:
    """The error of a call without a session names what is missing."""
    async with connected("fastmcp_app") as client:
        with pytest.raises(ToolFailed, match="Session required"):
            answer(await client.call_tool("say", {"word": "moon"}))


async def test_a_model_does_not_see_the_session() -> None:
    """The schema of a tool has its own arguments alone."""
    async with connected("fastmcp_app") as client:
        asked = {tool.name: sorted(tool.input_schema["properties"]) for tool in (await client.list_tools()).tools}
        assert asked == {"choose_language": ["language"], "say": ["word"], "history": []}

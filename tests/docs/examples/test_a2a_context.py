"""The example `a2a_context`: a foreign context id is passed on."""

from __future__ import annotations

from typing import Any, cast

from example_servers import connected
from mcp import Client

from session_client import HeldSession


async def delegated(client: Client, session: HeldSession, context: str | None) -> dict[str, Any]:
    """Return the next agent's message for a call that names a context."""
    named = {} if context is None else {"a2a/contextId": context}
    meta = cast("Any", {**session.meta, **named})
    result = await client.call_tool("delegate", {"task": "look"}, meta=meta)
    return cast("dict[str, Any]", result.structured_content)


async def test_the_context_is_passed_on_and_the_data_is_the_sessions() -> None:
    """A call counts in its session, whatever context it names."""
    async with connected("a2a_context") as client:
        a, b = await HeldSession.create(client), await HeldSession.create(client)
        calls = [(a, "ctx-1"), (a, "ctx-2"), (b, "ctx-1"), (b, None)]
        messages = [await delegated(client, session, context) for session, context in calls]
    assert [message.get("contextId") for message in messages] == ["ctx-1", "ctx-2", "ctx-1", None]
    assert [message["metadata"]["number"] for message in messages] == [1, 2, 1, 2]
    assert len({message["metadata"]["session"] for message in messages}) == 2
    assert messages[0]["parts"] == [{"kind": "text", "text": "look"}]

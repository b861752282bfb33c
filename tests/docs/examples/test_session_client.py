"""`session_client`: sessions held with the official SDK's client."""

from __future__ import annotations

from typing import Any

import pytest
from example_servers import connected
from mcp import MCPError

from session_client import KEY, HeldSession, ToolFailed


def carried(session: HeldSession) -> dict[str, Any]:
    """Return the metadata that a session sends."""
    metadata: dict[str, Any] = dict(session.meta)[KEY]  # type: ignore[assignment]
    return metadata


async def test_a_new_session_sends_its_id_alone() -> None:
    """The time of expiry is not sent."""
    async with connected("notebook") as client:
        assert list(carried(await HeldSession.create(client))) == ["sessionId"]


async def test_the_last_state_is_sent() -> None:
    """A call may replace the state, a call without a new state keeps it, and the id never changes."""
    async with connected("notebook") as client:
        session = await HeldSession.create(client)
        created = carried(session)
        await session.call("append", note="a note")
        written = carried(session)
        await session.call("read")
        assert sorted(written) == ["sessionId", "state"]
        assert written["sessionId"] == created["sessionId"]
        assert carried(session)["sessionId"] == created["sessionId"]
        assert "state" in carried(session)
        assert await session.call("read") == ["a note"]


async def test_a_deleted_session_is_refused() -> None:
    """The refusal reaches the caller with its code, and other sessions live on."""
    async with connected("notebook") as client:
        session, other = await HeldSession.create(client), await HeldSession.create(client)
        await session.delete()
        with pytest.raises(MCPError) as refusal:
            await session.call("read")
        assert refusal.value.code == -32043
        assert await other.call("read") == []


async def test_a_failed_tool_raises_its_message() -> None:
    """A failed tool raises another error than a refused call."""
    async with connected("notebook") as client:
        session = await HeldSession.create(client)
        with pytest.raises(ToolFailed, match="note"):
            await session.call("append")

"""The example `two_workers`: any worker takes any call."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from example_servers import client_of, running
from mcp import MCPError

from session_client import HeldSession
from stage import together


async def test_calls_may_go_to_any_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parallel votes on both workers all count, and a session deleted on one is refused by the other."""
    monkeypatch.setenv("POLL_DB", str(tmp_path / "poll.db"))
    keys = secrets.token_urlsafe(32)
    async with (
        running("two_workers", keys) as one,
        running("two_workers", keys) as other,
        client_of(one) as here,
        client_of(other) as there,
    ):
        session = await HeldSession.create(here)
        elsewhere = HeldSession(there, session.metadata)
        await together([worker.call("vote", option="yes") for worker in (session, elsewhere) for _ in range(4)])
        await elsewhere.call("vote", option="no")
        assert await session.call("result") == {"no": 1, "yes": 8}
        await session.delete()
        with pytest.raises(MCPError, match="Session not found"):
            await elsewhere.call("result")

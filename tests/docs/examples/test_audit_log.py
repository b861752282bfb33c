"""The example `audit_log`: users, actions and sessions as JSON lines."""

from __future__ import annotations

import json

import pytest
from example_servers import client_of, running
from mcp import MCPError

from session_client import HeldSession, ToolFailed


async def test_each_line_names_the_user_the_action_and_the_session(capsys: pytest.CaptureFixture[str]) -> None:
    """The log covers a session from its beginning to its end, with a failed and a refused call."""
    async with running("audit_log") as app:
        async with client_of(app, token="token-of-ann") as client:
            session = await HeldSession.create(client)
            assert await session.call("pay", amount=5) == "paid 5"
            with pytest.raises(ToolFailed, match="more than 100"):
                await session.call("pay", amount=500)
            await session.delete()
        async with client_of(app, token="token-of-bob") as client:
            with pytest.raises(MCPError, match="Session not found"):
                await HeldSession(client, session.metadata).call("pay", amount=5)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ref = lines[0]["session"]
    assert ref.startswith("ses_")
    assert [{name: line[name] for name in line if name != "time"} for line in lines] == [
        {"who": "ann", "session": ref, "what": "begin"},
        {"who": "ann", "session": ref, "what": "call", "tool": "pay", "outcome": "done"},
        {"who": "ann", "session": ref, "what": "call", "tool": "pay", "outcome": "failed"},
        {"who": None, "session": ref, "what": "end", "reason": "deleted"},
        {"who": None, "session": ref, "what": "refuse", "reason": "token_principal"},
    ]

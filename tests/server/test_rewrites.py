"""Changes of a response that the corpus does not show."""

from __future__ import annotations

import pytest
from apps import sessions
from clients import Client
from starlette.types import Receive, Scope, Send

from mcp_sessions import Session
from mcp_sessions._server import principal

HEADER = b"mcp-session-id"


async def test_a_stream_whose_start_waits_can_be_cut() -> None:
    """The session of an `initialize` ends before the server has answered: the start goes out, and the error."""
    held: list[Session] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        held.append(scope["mcp_session"])
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": hello\n\n", "more_body": True})
        middleware = client.app
        await middleware._runtime.terminator.end(held[0]._active.claims, "over")  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b"data: {}\n\n"})

    client = Client(sessions(app, admission="own"), modern=False)
    answer = await client.send("initialize", session=await client.create())
    assert [message["type"] for message in answer.messages] == ["http.response.start", *["http.response.body"] * 2]
    assert HEADER not in answer.headers
    assert answer.error["code"] == -32043


def test_of_sessions_that_wait_to_be_confirmed_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of clients that never came back is bounded."""
    monkeypatch.setattr(principal, "MAX_WAITING", 1)
    pending = principal.PendingInitialized()
    pending.add("first")
    pending.add("second")
    assert [transport in pending for transport in ("first", "second")] == [False, True]

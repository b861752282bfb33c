"""How a request ended is told by its answer, its status or our refusal, and never in a server's or a client's words."""

from __future__ import annotations

import pytest

from mcp_sessions.errors import SessionExpired, SessionNotFound
from mcp_sessions.telemetry.outcome import SUCCESS, Outcome, answered, raised, refused, responded

ANSWERS: dict[bytes, Outcome | None] = {
    b'{"jsonrpc":"2.0","id":1,"result":{}}': SUCCESS,
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":false}}': SUCCESS,
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}': Outcome("tool_error"),
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"\\"isError\\":true"}]}}': SUCCESS,
    b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no basket 7"}}': Outcome("-32602", "-32602"),
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}': None,
    b'{"jsonrpc":"2.0","id":9,"method":"roots/list"}': None,
    b'{"jsonrpc":"2.0","id":1,"error":{"code":"odd"}}': None,
    b'{"error"': None,
}


@pytest.mark.parametrize("text", ANSWERS, ids=bytes.decode)
def test_an_answer_tells_its_outcome(text: bytes) -> None:
    """An error is its code, a tool's own failure `tool_error`; other messages on the same stream tell nothing."""
    assert answered(text) == ANSWERS[text]


@pytest.mark.parametrize(("status", "outcome"), [(200, SUCCESS), (202, SUCCESS), (401, Outcome("401"))])
def test_where_no_answer_is_seen_the_status_tells(status: int, outcome: Outcome) -> None:
    """As for a notification, or a guard's refusal."""
    assert responded(status) == outcome


def test_a_refusal_of_ours_has_its_code_its_reason_and_its_own_fixed_text() -> None:
    """The client is told less: every bad id is `Session not found`."""
    refusal = SessionNotFound("token_signature")
    assert refused(refusal, -32043) == Outcome("-32043", "-32043", "token_signature", "Session not found")
    assert refused(SessionExpired(), -31999).reason == "expired"


def test_an_exception_is_the_name_of_its_class() -> None:
    """What it says may hold anything."""
    assert raised(ValueError("secret")) == Outcome("ValueError")

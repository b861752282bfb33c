"""What an answer becomes: sessions advertised, the session echoed, and everything else left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps import Server, sessions
from clients import SESSION_KEY
from mcp_sessions.jsonrpc import Message, parse
from mcp_sessions.live import Live
from mcp_sessions.writeback import WriteBack

SETTINGS = b'{"required":"never"}'


def live(**options: Any) -> Live:
    return Live.mint(sessions(Server(), **options)._options, principal=None)


def request(method: str = "tools/call", id: str = "1") -> Message:
    parsed = parse(f'{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}'.encode())
    assert isinstance(parsed, Message)
    return parsed


def writes(message: Message, live: Live | None) -> WriteBack:
    found = WriteBack.of(message, live, SETTINGS)
    assert found is not None
    return found


def answer(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, **members}).encode()


@pytest.mark.parametrize("text", ['{"jsonrpc":"2.0","method":"tools/call"}', '{"jsonrpc":"2.0","id":1,"result":{}}'])
def test_only_a_request_has_an_answer_to_change(text: str) -> None:
    """Notifications and posted responses are answered with nothing."""
    parsed = parse(text.encode())
    assert isinstance(parsed, Message)
    assert WriteBack.of(parsed, live(), SETTINGS) is None


def test_a_request_without_a_session_needs_no_change() -> None:
    """So its response is not even read, unless it tells what the server can do."""
    assert WriteBack.of(request(), None, SETTINGS) is None
    assert writes(request("initialize"), None).live is None


def test_the_session_is_merged_into_the_result() -> None:
    """What stands in `_meta` stays, and nothing else changes."""
    session = live()
    changed = json.loads(writes(request(), session)(answer(result={"content": [], "_meta": {"own": 1}})) or b"")
    assert changed["result"] == {"content": [], "_meta": {"own": 1, SESSION_KEY: session.metadata()}}


@pytest.mark.parametrize(
    "text",
    [
        answer(error={"code": 1, "message": "no"}),
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}',
        b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}',
        answer(id=2, result={}),
        answer(result=[]),
        b"not json",
        b"",
    ],
)
def test_nothing_but_the_success_itself_is_changed(text: bytes) -> None:
    """Errors, notifications, the server's own requests, other answers and what is not JSON keep their bytes."""
    session = live()
    session.session.state["n"] = 1
    assert writes(request("initialize"), session)(text) is None
    session.session.state["n"] = 2  # and the state is still open, since the answer has not left


@pytest.mark.parametrize("method", ["initialize", "server/discover"])
@pytest.mark.parametrize("attached", [True, False])
def test_sessions_are_advertised(method: str, attached: bool) -> None:
    """By the draft's capability and by the experimental one, with or without a session on the request."""
    session = live() if attached else None
    text = answer(result={"capabilities": {"tools": {}, "experimental": {"own": {}}}})
    result = json.loads(writes(request(method), session)(text) or b"")["result"]
    assert result["capabilities"] == {
        "tools": {},
        "experimental": {"own": {}, "sessions": {"required": "never"}},
        "sessions": {},
    }
    assert ("_meta" in result) is attached


def test_state_that_cannot_be_kept_makes_the_answer_an_error() -> None:
    """A success would tell the client that everything was kept: size and limit stand in the message."""
    session = live(max_state_bytes=120)
    session.session.state["list"] = []
    session.session.state["list"].extend(range(100))
    error = json.loads(writes(request(), session)(answer(result={})) or b"")
    assert (error["id"], error["error"]["code"]) == (1, -32603)
    assert "the limit is 120 (max_state_bytes)" in error["error"]["message"]
    assert "result" not in error


def test_an_id_is_the_same_however_it_is_spelt() -> None:
    """Servers decode and encode ids anew."""
    changed = writes(request(id='"\\u0061"'), live())(b'{"jsonrpc":"2.0","id":"a","result":{}}')
    assert changed is not None
    assert SESSION_KEY.encode() in changed

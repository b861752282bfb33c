"""What an answer becomes: sessions advertised, the session echoed, and everything else left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apps import Server, sessions
from clients import SESSION_KEY, http

from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._server import sessions as minting
from mcp_sessions._server.response import WriteBack
from mcp_sessions._server.sessions import ActiveSession
from mcp_sessions._session.claims import SESSION, TRANSPORT, Kind
from mcp_sessions.errors import StateClosed

SETTINGS = b'{"required":"never"}'


async def live(kind: Kind = SESSION, **options: Any) -> ActiveSession:
    made = sessions(Server(), **options)._options
    return await minting.mint(made, principal=None, params={}, scope=http(), kind=kind)


def request(method: str = "tools/call", id: str = "1") -> Message:
    parsed = parse(f'{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}'.encode())
    assert isinstance(parsed, Message)
    return parsed


def writes(message: Message, live: ActiveSession | None) -> WriteBack:
    found = WriteBack.of(message, live, SETTINGS)
    assert found is not None
    return found


def answer(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, **members}).encode()


@pytest.mark.parametrize("text", ['{"jsonrpc":"2.0","method":"tools/call"}', '{"jsonrpc":"2.0","id":1,"result":{}}'])
async def test_only_a_request_has_an_answer_to_change(text: str) -> None:
    """Notifications and posted responses are answered with nothing."""
    parsed = parse(text.encode())
    assert isinstance(parsed, Message)
    assert WriteBack.of(parsed, await live(), SETTINGS) is None


def test_a_request_without_a_session_needs_no_change() -> None:
    """So its response is not even read, unless it tells what the server can do."""
    assert WriteBack.of(request(), None, SETTINGS) is None
    assert writes(request("initialize"), None).live is None
    assert repr(writes(request("initialize"), None)) == "<WriteBack>"


async def test_the_session_is_merged_into_the_result() -> None:
    """What stands in `_meta` stays, and nothing else changes."""
    session = await live()
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
async def test_nothing_but_the_success_itself_is_changed(text: bytes) -> None:
    """Errors, notifications, the server's own requests, other answers and what is not JSON keep their bytes."""
    session = await live()
    session.session.state["n"] = 1
    assert writes(request("initialize"), session)(text) is None
    session.session.state["n"] = 2  # and the state is still open, since the answer has not left


@pytest.mark.parametrize("method", ["initialize", "server/discover"])
@pytest.mark.parametrize("attached", [True, False])
async def test_sessions_are_advertised(method: str, attached: bool) -> None:
    """By the draft's capability and by the experimental one, with or without a session on the request."""
    session = await live() if attached else None
    text = answer(result={"capabilities": {"tools": {}, "experimental": {"own": {}}}})
    result = json.loads(writes(request(method), session)(text) or b"")["result"]
    assert result["capabilities"] == {
        "tools": {},
        "experimental": {"own": {}, "sessions": {"required": "never"}},
        "sessions": {},
    }
    assert ("_meta" in result) is attached


async def test_state_that_cannot_be_kept_makes_the_answer_an_error() -> None:
    """A success would tell the client that everything was kept: size and limit stand in the message."""
    session = await live(max_state_bytes=120)
    session.session.state["list"] = []
    session.session.state["list"].extend(range(100))
    error = json.loads(writes(request(), session)(answer(result={})) or b"")
    assert (error["id"], error["error"]["code"]) == (1, -32603)
    assert "the limit is 120 (max_state_bytes)" in error["error"]["message"]
    assert "result" not in error


async def test_an_id_is_the_same_however_it_is_spelt() -> None:
    """Servers decode and encode ids anew."""
    changed = writes(request(id='"\\u0061"'), await live())(b'{"jsonrpc":"2.0","id":"a","result":{}}')
    assert changed is not None
    assert SESSION_KEY.encode() in changed


class TestASessionWhoseClientCarriesNothing:
    """Its state is kept before its answer leaves, and nothing is written into the answer."""

    async def test_what_the_application_wrote_is_kept_with_the_answer(self) -> None:
        """With no other message: the application may yet write more."""
        session = await live(TRANSPORT)
        writing = writes(request(), session)
        session.session.state["n"] = 1
        assert await writing.save(b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}') is None
        session.session.state["n"] = 2
        assert await writing.save(answer(result={})) is None
        with pytest.raises(StateClosed):
            session.session.state["n"] = 3

    async def test_what_cannot_be_kept_makes_the_answer_an_error(self) -> None:
        """The client learns that something is lost."""
        session = await live(TRANSPORT)
        session.session.state["list"] = []
        session.session.state["list"].append({1})
        error = json.loads(await writes(request(), session).save(answer(result={})) or b"")["error"]
        assert error["code"] == -32603
        assert "session state must be JSON" in error["message"]

    async def test_sessions_are_advertised_there_too(self) -> None:
        """As in any answer that says what the server can do."""
        writing = writes(request("initialize"), await live(TRANSPORT))
        result = json.loads(await writing.save(answer(result={"capabilities": {}})) or b"")["result"]
        assert result["capabilities"]["sessions"] == {}

    async def test_it_alone_is_saved(self) -> None:
        """A session of the draft carries its own."""
        assert writes(request(), await live(TRANSPORT)).saves
        assert not writes(request(), await live()).saves
        assert not writes(request("initialize"), None).saves

"""The response on its way out: what is held, what passes at once, and what is never touched."""

import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import DEADLINE, Answer, Client, Incoming, http
from failing import Failing
from sources import claims
from starlette.types import Message, Receive, Scope, Send

from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._server import response as room
from mcp_sessions._server.context import RequestContext
from mcp_sessions._server.response import Response, Rewrite, close_session
from mcp_sessions._server.resumption import StreamRequest, Streams

JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


CLAIMS = claims(issued_at=0, expires_at=2**40)
ERROR = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32043,"message":"Session not found"}}'
AWAY = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"Session store unavailable"}}'
TOLD, TOLD_AWAY = (b"\n\ndata: %b\n\n" % error for error in (ERROR, AWAY))


def start(*headers: tuple[bytes, bytes]) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": list(headers)}


def body(text: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": text, "more_body": more}


async def shout(text: bytes) -> bytes | None:
    """Change one message and leave all others."""
    return b'{"HELLO":"there"}' if text == b'{"hello":1}' else None


class Rewriting(Rewrite, kw_only=True):
    """Changes messages by a function."""

    by: Callable[[bytes], Awaitable[bytes | None]]

    async def on_text(self, text: bytes, response: Response) -> bytes | None:
        return await self.by(text)


class Watch:
    """What stands in for `send` while an application answers a request of a session, and what leaves of it."""

    def __init__(self, send: Send | None = None, *, limit: int = 100, by: Any = shout) -> None:
        self.answer = Answer()
        self.session: Any = SimpleNamespace(ended_by_own_request=False, close=lambda: None)
        self.runtime = sessions(Server(), **{"limits.event_bytes": limit}, clock=lambda: 0.0)._runtime
        send = send or self.answer
        ctx = RequestContext(self.runtime, Server(), http(), Incoming(), send, RequestHeaders([]), at_endpoint=True)
        request = StreamRequest(CLAIMS, b"1", "tools/call", "t", session=self.session)
        self.response = Response(ctx, send, b"1", (Rewriting(by=by),), request=request)

    async def say(self, *messages: Message) -> None:
        for message in messages:
            await self.response.send(message)

    async def end(self) -> None:
        with anyio.fail_after(DEADLINE):
            await self.runtime.streams.end(CLAIMS.ref)

    @property
    def is_open(self) -> bool:
        return bool(self.runtime.streams._open)


async def respond_with(*messages: Message, limit: int = 100) -> Answer:
    watch = Watch(limit=limit)
    await watch.say(*messages)
    return watch.answer


async def test_headers_that_spoke_of_the_old_body_go_with_it() -> None:
    """A tag or a digest of other bytes would make others throw the answer away; the application's list stays."""
    told = [(b"ETag", b"1"), (b"content-digest", b"x"), (b"transfer-encoding", b"chunked"), (b"vary", b"origin")]
    headers = [(b"Content-Type", b"application/json"), (b"content-length", b"11"), *told]
    message: Message = {"type": "http.response.start", "status": 200, "headers": [*headers]}
    answer = await respond_with(message, body(b'{"hello":1}'))
    assert answer.headers == {b"Content-Type": JSON[1], b"vary": b"origin", b"content-length": b"17"}
    assert message["headers"] == headers


async def test_an_event_too_large_to_hold_passes_with_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It goes out unchanged rather than filling the memory, and the operator learns which option to raise."""
    text = b'data: {"hello":1}\n\n'
    answer = await respond_with(start(EVENTS), body(text[:10], more=True), body(text[10:]), limit=12)
    assert answer.body == text
    (line,) = caplog.messages
    assert "over 12 bytes without its session (Limits.event_bytes)" in line


async def test_a_compressed_response_passes_with_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It cannot be read, so it is not touched; the log says what to turn round."""
    messages = [start(EVENTS, (b"content-encoding", b"gzip"), (b"content-length", b"3")), body(b"\x1f\x8b\x00")]
    assert (await respond_with(*messages)).messages == messages
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "put compression outside MCPSessionMiddleware" in caplog.text


async def test_a_response_without_headers_passes() -> None:
    messages: list[Message] = [{"type": "http.response.start", "status": 202}, body(b"")]
    assert (await respond_with(*messages)).messages == messages


async def test_messages_of_other_types_pass_at_once() -> None:
    """Early hints, what ASGI may invent, what follows a whole body, and trailers that were promised."""
    hint: Message = {"type": "http.response.early_hint", "links": []}
    trailers: Message = {"type": "http.response.trailers", "headers": [(b"x", b"1")], "more_trailers": False}
    whole = {**start(JSON), "trailers": True}, hint, body(b'{"hello":1}'), trailers, body(b"again")
    sent = (await respond_with(hint, *whole)).messages
    assert (sent[:2], sent[4:]) == ([hint, hint], [trailers, body(b"again")])
    assert (sent[2]["trailers"], sent[3]["body"]) == (True, b'{"HELLO":"there"}')


class TestASessionThatEnds:
    @pytest.mark.parametrize(
        ("said", "is_settled"),
        [
            (b'{"jsonrpc":"2.0","id":1,"result":{}}', True),
            (b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}', True),
            (b'{"jsonrpc":"2.0","id":2,"result":{}}', False),
            (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', False),
            (b'{"jsonrpc":"2.0","method":"notifications/message"}', False),
            (b"[", False),
        ],
    )
    async def test_one_that_has_its_answer_ends_without_a_word(self, said: bytes, is_settled: bool) -> None:
        """A request has one answer, be it an error; a second one is a fault to its client."""
        watch = Watch()
        await watch.say(start(EVENTS), body(b"data: %b\n\n" % said, more=True))
        await watch.end()
        assert watch.answer.messages[2:] == [body(b"" if is_settled else TOLD)]
        assert not watch.is_open

    async def test_what_the_application_goes_on_to_say_is_dropped(self) -> None:
        """It need not know; even one that waits for nothing else lets others run."""
        watch, ran = Watch(), anyio.Event()
        await watch.say(start(EVENTS))
        await watch.end()

        async def other() -> None:
            ran.set()

        async with anyio.create_task_group() as group:
            group.start_soon(other)
            for _ in range(10):
                await watch.say(body(b'data: {"hello":1}\n\n', more=True))
            assert ran.is_set()
        await watch.say(body(b""))
        close_session(watch.response, watch.session)
        assert watch.answer.messages[1:] == [body(TOLD)]

    @pytest.mark.parametrize("more", [True, False])
    async def test_an_event_on_its_way_goes_out_whole_before(self, more: bool) -> None:
        """Two tasks never send at the same time, and nothing follows what the application ended itself."""
        answer, inside, go = Answer(), anyio.Event(), anyio.Event()

        async def slow(message: Message) -> None:
            if message.get("body") == b"data: a\n\n":
                inside.set()
                await go.wait()
            await answer(message)

        watch = Watch(slow)
        await watch.say(start(EVENTS))
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: watch.say(body(b"data: a\n\n", more=more)))
            await inside.wait()
            await watch.end()
            assert len(answer.messages) == 1
            go.set()
        assert answer.messages[1:] == [body(b"data: a\n\n", more=more), *[body(TOLD)] * more]
        assert not watch.is_open

    async def test_an_event_that_was_being_kept_does_not_follow_the_end(self) -> None:
        inside, go = anyio.Event(), anyio.Event()

        async def save(text: bytes) -> None:
            inside.set()
            await go.wait()

        watch = Watch(by=save)
        await watch.say(start(EVENTS))
        async with anyio.create_task_group() as group:
            group.start_soon(watch.say, body(b"data: a\n\n"))
            await inside.wait()
            await watch.end()
            go.set()
        assert watch.answer.messages[1:] == [body(TOLD)]

    @pytest.mark.parametrize(("limit", "sent"), [(100, 0), (5, 1)])
    async def test_half_an_event_is_not_taken_for_the_beginning_of_ours(self, limit: int, sent: int) -> None:
        """What was held goes nowhere; what was too large to be held and is half sent ends before ours."""
        watch = Watch(limit=limit)
        await watch.say(start(EVENTS), body(b"data: half an event", more=True))
        await watch.end()
        assert watch.answer.messages[1 + sent :] == [body(TOLD)]

    @pytest.mark.parametrize("survives", [False, True])
    async def test_an_answer_waits_for_no_store_that_is_away(self, survives: bool) -> None:
        """In an open stream notes go on; the answer does not, since its session may have ended, nor is it rewritten."""
        rewritten: list[bytes] = []

        async def keep(text: bytes) -> None:
            rewritten.append(text)

        watch = Watch(by=keep)
        watch.runtime.store = Failing("statuses")
        watch.runtime.streams = Streams(watch.runtime.store)
        watch.session.ended_by_own_request = survives
        note, answer = b'{"method":"n"}', b'{"id":1,"result":{}}'
        sent = [body(b"data: %b\n\n" % text, more=True) for text in (note, answer)]
        await watch.say(start(EVENTS))
        await watch.runtime.streams._check_once()
        await watch.say(*sent)
        assert watch.answer.messages[1:] == (sent if survives else [sent[0], body(TOLD_AWAY)])
        assert rewritten == [note, answer][: 1 + survives]

    @pytest.mark.parametrize("left", ["unread", "gone"])
    async def test_whoever_ends_it_does_not_wait_for_the_client(
        self, left: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that does not read, and one that has gone, whose server says so by an error."""
        monkeypatch.setattr(room, "_LAST_EVENT_TIMEOUT", 0.01)

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                if left == "gone":
                    raise OSError
                await anyio.sleep_forever()

        watch = Watch(send)
        await watch.say(start(EVENTS))
        await watch.end()
        assert not watch.is_open

    async def test_a_send_that_failed_leaves_the_stream_to_be_ended(self) -> None:
        """The application may catch the error and go on."""
        answer, fails = Answer(), [OSError()]

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body" and fails:
                raise fails.pop()
            await answer(message)

        watch = Watch(send)
        await watch.say(start(EVENTS))
        with pytest.raises(OSError):  # noqa: PT011  # made above
            await watch.say(body(b"data: a\n\n", more=True))
        await watch.end()
        assert answer.messages[1:] == [body(TOLD)]


async def test_a_stream_whose_start_waits_can_be_cut() -> None:
    """The session of an `initialize` ends before the server has answered: the start goes out, and the error."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        session = scope["mcp_session"]
        await send(start(EVENTS))
        await send(body(b": hello\n\n", more=True))
        await middleware._runtime.terminator.end(session._active.claims, "over")
        await send(body(b"data: {}\n\n"))

    middleware = sessions(app, admission="own")
    client = Client(middleware, modern=False)
    answer = await client.send("initialize", session=await client.create())
    assert [message["type"] for message in answer.messages] == ["http.response.start", *["http.response.body"] * 2]
    assert b"mcp-session-id" not in answer.headers
    assert answer.error["code"] == -32043

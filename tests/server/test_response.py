"""The response on its way out: what is held, what passes at once, and what is never touched."""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from apps import sessions
from clients import DEADLINE, Answer, Client, Incoming, chunks, http
from starlette.types import Message, Receive, Scope, Send

from mcp_sessions._errors import SessionNotFound
from mcp_sessions._server import early_end as room

JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
RESULT = b'{"jsonrpc":"2.0","id":1,"result":{}}'


def start(*headers: tuple[bytes, bytes]) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": list(headers)}


def body(text: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": text, "more_body": more}


NOTE = body(b"data: a\n\n", more=True)


class Call:
    """One call in a session: what its server sends, what happens in between, and what leaves."""

    def __init__(self, *steps: Message | Callable[[Any], Awaitable[object]], **options: Any) -> None:
        self.steps = steps
        self.answer = Answer()
        self.client = Client(sessions(self.app, admission="own", **options), modern=False)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.send = scope, send
        for step in self.steps:
            await (step(self) if callable(step) else send(step))

    async def end(self) -> None:
        """End its session, as another request does."""
        await self.client.delete(self.session)

    async def run(self, send: Send | None = None, *, method: str = "tools/call") -> Answer:
        self.session = await self.client.create()
        scope = http(headers=self.client.headers(method))
        request = json.dumps(self.client.message(method, session=self.session)).encode()
        with anyio.fail_after(DEADLINE):
            await self.client.app(scope, Incoming(*chunks(request)), send or self.answer)
        assert not self.client.app._runtime.streams._open  # type: ignore[attr-defined]
        return self.answer


def last_error(answer: Answer) -> int | None:
    """The code of the error that ends a stream; None where it ends without a word."""
    last = answer.messages[-1]
    assert not last["more_body"]
    return json.loads(last["body"].removeprefix(b"\n\ndata: "))["error"]["code"] if last["body"] else None


async def test_headers_that_spoke_of_the_old_body_go_with_it() -> None:
    """A tag or a digest of other bytes would make others throw the answer away; the application's list stays."""
    told = [(b"ETag", b"1"), (b"content-digest", b"x"), (b"transfer-encoding", b"chunked"), (b"vary", b"origin")]
    headers = [(b"Content-Type", b"application/json"), (b"content-length", b"%d" % len(RESULT)), *told]
    message: Message = {"type": "http.response.start", "status": 200, "headers": [*headers]}
    answer = await Call(message, body(RESULT)).run()
    assert b"sessionId" in answer.body
    length = b"%d" % len(answer.body)
    assert answer.headers == {b"Content-Type": JSON[1], b"vary": b"origin", b"content-length": length}
    assert message["headers"] == headers


async def test_an_event_too_large_to_hold_passes_with_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It goes out unchanged rather than filling the memory, and the operator learns which option to raise."""
    text = b"data: %b\n\n" % RESULT
    caplog.clear()
    answer = await Call(start(EVENTS), body(text[:10], more=True), body(text[10:]), max_event_bytes=12).run()
    assert answer.body == text
    assert "over 12 bytes without its session (Limits.event_bytes)" in caplog.text


async def test_a_compressed_response_passes_with_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It cannot be read, so it is not touched; the log says what to turn round. One without headers passes, too."""
    messages = [start(JSON, (b"content-encoding", b"gzip"), (b"content-length", b"3")), body(b"\x1f\x8b\x00")]
    assert (await Call(*messages).run()).messages == messages
    messages = [{"type": "http.response.start", "status": 202}, body(b"")]
    assert (await Call(*messages).run()).messages == messages
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "put compression outside MCPSessionMiddleware" in line


async def test_compressed_event_stream_of_session_is_refused() -> None:
    """It could neither be signed nor end with its session, and the server was asked not to compress it."""
    call = Call(start(EVENTS, (b"content-encoding", b"gzip")), body(b"\x1f", more=True), body(b"\x8b"))
    answer = await call.run()
    assert (answer.status, answer.error["code"], answer.json["id"]) == (500, -32603, 1)
    assert answer.error["message"] == "Internal error: the event stream is compressed"


async def test_messages_of_other_types_pass_at_once() -> None:
    """Early hints, what ASGI may invent, what follows a whole body, and trailers that were promised."""
    hint: Message = {"type": "http.response.early_hint", "links": []}
    trailers: Message = {"type": "http.response.trailers", "headers": [(b"x", b"1")], "more_trailers": False}
    whole = {**start(JSON), "trailers": True}, hint, body(RESULT), trailers, body(b"again")
    sent = (await Call(hint, *whole).run()).messages
    assert (sent[:2], sent[4:]) == ([hint, hint], [trailers, body(b"again")])
    assert (sent[2]["trailers"], b"sessionId" in sent[3]["body"]) == (True, True)


class TestASessionThatEnds:
    @pytest.mark.parametrize(
        ("said", "is_settled"),
        [
            (RESULT, True),
            (b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}', True),
            (b'{"jsonrpc":"2.0","id":2,"result":{}}', False),
            (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', False),
            (b"[", False),
        ],
    )
    async def test_one_that_has_its_answer_ends_without_a_word(self, said: bytes, is_settled: bool) -> None:
        """A request has one answer, be it an error; a second one is a fault to its client."""
        answer = await Call(start(EVENTS), body(b"data: %b\n\n" % said, more=True), Call.end).run()
        assert (len(answer.messages), last_error(answer)) == (3, None if is_settled else -32043)

    async def test_what_the_application_goes_on_to_say_is_dropped(self) -> None:
        """It need not know; even one that waits for nothing else lets others run."""
        ran: list[int] = []

        async def goes_on(call: Call) -> None:
            async def other() -> None:
                ran.append(1)

            async with anyio.create_task_group() as group:
                group.start_soon(other)
                for _ in range(10):
                    await call.send(NOTE)
                assert ran

        answer = await Call(start(EVENTS), Call.end, goes_on, body(b"")).run()
        assert (len(answer.messages), last_error(answer)) == (2, -32043)

    @pytest.mark.parametrize("more", [True, False])
    async def test_an_event_on_its_way_goes_out_whole_before(self, more: bool) -> None:
        """Two tasks never send at the same time, and nothing follows what the application ended itself."""
        sent = {**NOTE, "more_body": more}
        call = Call(start(EVENTS), sent)

        async def slow(message: Message) -> None:
            if message == sent:
                await call.end()
                assert len(call.answer.messages) == 1
            await call.answer(message)

        answer = await call.run(slow)
        assert answer.messages[1] == sent
        assert len(answer.messages) == 2 + more
        assert not more or last_error(answer) == -32043

    @pytest.mark.parametrize(("limit", "sent"), [(100, 0), (5, 1)])
    async def test_half_an_event_is_not_taken_for_the_beginning_of_ours(self, limit: int, sent: int) -> None:
        """What was held goes nowhere; what was too large to be held and is half sent ends before ours."""
        half = body(b"data: half an event", more=True)
        answer = await Call(start(EVENTS), half, Call.end, max_event_bytes=limit).run()
        assert answer.messages[1:-1] == [half] * sent
        assert last_error(answer) == -32043

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

        await Call(start(EVENTS), Call.end).run(send)

    async def test_a_send_that_failed_leaves_the_stream_to_be_ended(self) -> None:
        """The application may catch the error and go on."""
        fails = [OSError()]

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body" and fails:
                raise fails.pop()
            await call.answer(message)

        async def goes_on(call: Call) -> None:
            with pytest.raises(OSError):  # noqa: PT011  # made above
                await call.send(NOTE)

        call = Call(start(EVENTS), goes_on, Call.end)
        assert last_error(await call.run(send)) == -32043

    async def test_response_whose_start_waits_is_refused(self) -> None:
        """The session of an `initialize` ends before the server has answered: nothing of its stream leaves."""
        call = Call(start(EVENTS), body(b": hello\n\n", more=True), Call.end, body(b"data: {}\n\n"))
        answer = await call.run(method="initialize")
        assert [message["type"] for message in answer.messages] == ["http.response.start", "http.response.body"]
        assert (answer.error["code"], b"mcp-session-id" in answer.headers) == (-32043, False)


async def test_response_is_refused_once() -> None:
    """What is refused again, be it cut or complete, gets no second end."""

    async def refuse(call: Any) -> None:
        response = call.send.__self__
        for reason in ("event_unknown", "event_foreign"):
            await response.refuse(SessionNotFound(reason))

    answer = await Call(start(JSON), refuse).run()
    assert answer.error["code"] == -32043
    assert [message["type"] for message in answer.messages] == ["http.response.start", "http.response.body"]

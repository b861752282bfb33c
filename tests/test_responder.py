"""The response on its way out: what is held, what passes at once, and what is never touched."""

from __future__ import annotations

import logging

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from clients import Answer
from mcp_sessions.responder import Responder, respond

JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


def shout(text: bytes) -> bytes | None:
    """A rewrite that changes one message and leaves all others."""
    return b'{"HELLO":"there"}' if text == b'{"hello":1}' else None


def start(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(text: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": text, "more_body": more}


async def respond_with(*messages: Message, limit: int = 100) -> Answer:
    answer = Answer()
    responder = Responder(answer, shout, max_event_bytes=limit)
    for message in messages:
        await responder(message)
    return answer


class TestJSON:
    @pytest.mark.parametrize("pieces", [[b'{"hello":1}'], [b'{"hel', b"", b'lo":1}']])
    async def test_a_changed_body_has_its_own_length(self, pieces: list[bytes]) -> None:
        """One start, one body, one true `content-length`; all other headers stay."""
        parts = [body(piece, more=place < len(pieces) - 1) for place, piece in enumerate(pieces)]
        answer = await respond_with(start(JSON, (b"Content-Length", b"11"), (b"x-own", b"1")), *parts)
        assert answer.body == b'{"HELLO":"there"}'
        assert answer.headers == {JSON[0]: JSON[1], b"x-own": b"1", b"content-length": b"17"}
        assert len(answer.messages) == 2

    async def test_headers_that_spoke_of_the_old_body_go_with_it(self) -> None:
        """A tag or a digest of other bytes would make a cache or a client throw the answer away."""
        told = [(b"ETag", b"1"), (b"content-digest", b"x"), (b"transfer-encoding", b"chunked"), (b"vary", b"origin")]
        answer = await respond_with(start((b"Content-Type", b"application/json"), *told), body(b'{"hello":1}'))
        assert answer.headers == {b"Content-Type": JSON[1], b"vary": b"origin", b"content-length": b"17"}

    async def test_an_unchanged_body_leaves_as_it_came(self) -> None:
        """The very start message, and the bytes as the server wrote them."""
        begin = start(JSON, (b"content-length", b"2"))
        answer = await respond_with(begin, body(b"{}"))
        assert answer.messages == [begin, body(b"{}")]
        assert answer.messages[0] is begin

    async def test_the_start_waits_for_the_body(self) -> None:
        """The length is not known before the last byte."""
        assert (await respond_with(start(JSON), body(b'{"hel', more=True))).messages == []

    async def test_the_application_s_own_header_list_is_not_changed(self) -> None:
        """Others may hold the list that was handed over."""
        headers = [JSON, (b"content-length", b"11")]
        await respond_with({"type": "http.response.start", "status": 200, "headers": headers}, body(b'{"hello":1}'))
        assert headers == [JSON, (b"content-length", b"11")]

    async def test_trailers_that_were_promised_still_follow(self) -> None:
        """Members of the messages that we do not know are kept."""
        trailers: Message = {"type": "http.response.trailers", "headers": [(b"x", b"1")], "more_trailers": False}
        answer = await respond_with({**start(JSON), "trailers": True}, body(b'{"hello":1}'), trailers)
        assert answer.start["trailers"] is True
        assert answer.messages[-1] is trailers


class TestEvents:
    async def test_only_the_event_that_must_change_is_changed(self) -> None:
        """The events around it keep every byte, and the length goes, since it is not known."""
        stream = b': hi\n\ndata: {"note":1}\n\nid: 7\ndata: {"hello":1}\n\ndata: rest'
        answer = await respond_with(start(EVENTS, (b"content-length", b"99")), body(stream))
        assert answer.body == b': hi\n\ndata: {"note":1}\n\nid: 7\ndata: {"HELLO":"there"}\n\ndata: rest'
        assert answer.headers == dict([EVENTS])

    async def test_an_event_leaves_with_the_byte_that_completes_it(self) -> None:
        """Nothing waits for the next event; what is incomplete is held."""
        begin = await respond_with(start(EVENTS))
        assert [message["type"] for message in begin.messages] == ["http.response.start"]
        held = await respond_with(start(EVENTS), body(b'data: {"hello":1}\n', more=True))
        assert len(held.messages) == 1
        done = await respond_with(start(EVENTS), body(b'data: {"hello":1}\n', more=True), body(b"\n", more=True))
        assert done.messages[1:] == [body(b'data: {"HELLO":"there"}\n\n', more=True)]

    @given(st.lists(st.sampled_from([b"data: ", b'{"hello":1}', b"\n", b"\r\n", b"id: 1", b": x"]), max_size=12))
    def test_cutting_the_stream_differently_changes_nothing(self, pieces: list[bytes]) -> None:
        """Whole, or byte by byte: the same bytes come out."""
        whole = b"".join(pieces)

        async def run() -> tuple[bytes, bytes]:
            at_once = await respond_with(start(EVENTS), body(whole))
            parts = [body(whole[at : at + 1], more=True) for at in range(len(whole))]
            return at_once.body, (await respond_with(start(EVENTS), *parts, body(b""))).body

        assert len(set(anyio.run(run))) == 1

    async def test_an_event_too_large_to_hold_passes_with_an_error_in_the_log(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It goes out unchanged rather than filling the memory, and the operator learns which option to raise."""
        text = b'data: {"hello":1}\n\n'
        answer = await respond_with(start(EVENTS), body(text[:10], more=True), body(text[10:]), limit=12)
        assert answer.body == text
        (line,) = caplog.messages
        assert "over 12 bytes passed without its session (max_event_bytes)" in line

    async def test_backpressure_reaches_the_server(self) -> None:
        """The application's `send` returns when the server's own has."""
        order: list[str] = []

        async def slow(message: Message) -> None:
            await checkpoint()
            order.append("sent")

        responder = Responder(slow, shout, max_event_bytes=100)
        await responder(start(EVENTS))
        await responder(body(b"data: x\n\n"))
        order.append("returned")
        assert order == ["sent", "sent", "returned"]


class TestEverythingElse:
    @pytest.mark.parametrize("kind", [b"text/html", b"application/jsonp", b""])
    async def test_other_types_pass_as_they_are(self, kind: bytes) -> None:
        """Message by message, the same objects."""
        messages = [start((b"content-type", kind)), body(b'{"hello":1}', more=True), body(b"")]
        assert all(a is b for a, b in zip((await respond_with(*messages)).messages, messages, strict=True))

    async def test_a_response_without_headers_passes(self) -> None:
        """`headers` is optional in ASGI."""
        messages: list[Message] = [{"type": "http.response.start", "status": 202}, body(b"")]
        assert (await respond_with(*messages)).messages == messages

    @pytest.mark.parametrize("kind", [JSON, EVENTS])
    async def test_a_compressed_response_passes_with_an_error_in_the_log(
        self, kind: tuple[bytes, bytes], caplog: pytest.LogCaptureFixture
    ) -> None:
        """It cannot be read, so it is not touched; the log says what to turn round."""
        messages = [start(kind, (b"content-encoding", b"gzip"), (b"content-length", b"3")), body(b"\x1f\x8b\x00")]
        assert (await respond_with(*messages)).messages == messages
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert "put compression outside MCPSessionMiddleware" in caplog.text

    async def test_identity_is_no_compression(self) -> None:
        """A response that says so is read as any other."""
        answer = await respond_with(start(JSON, (b"content-encoding", b"Identity")), body(b'{"hello":1}'))
        assert answer.body == b'{"HELLO":"there"}'

    @pytest.mark.parametrize("kind", ["http.response.early_hint", "http.response.debug", "later.extension"])
    async def test_messages_of_other_types_pass(self, kind: str) -> None:
        """Early hints, and what ASGI may invent, go out at once, before and after the start."""
        hint: Message = {"type": kind, "links": []}
        answer = await respond_with(hint, start(JSON), hint, body(b"{}"))
        assert [message["type"] for message in answer.messages] == [
            kind,
            kind,
            "http.response.start",
            "http.response.body",
        ]

    async def test_a_status_of_any_kind_is_kept(self) -> None:
        """A JSON error of the server's is read like everything else and keeps its status."""
        assert (await respond_with(start(JSON, status=400), body(b'{"hello":1}'))).status == 400


async def test_an_answer_of_our_own_is_json_that_nobody_may_cache() -> None:
    """It may hold a credential, so `no-store` stands there."""
    answer = Answer()
    await respond(answer, 503, b"{}", (b"retry-after", b"1"))
    assert answer.messages == [
        {
            "type": "http.response.start",
            "status": 503,
            "headers": [JSON, (b"content-length", b"2"), (b"cache-control", b"no-store"), (b"retry-after", b"1")],
        },
        {"type": "http.response.body", "body": b"{}"},
    ]

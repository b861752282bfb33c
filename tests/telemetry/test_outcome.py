"""A message's outcome is read from its answer or its status, in any form, and the answer passes as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from apps import sessions
from clients import call, http
from opentelemetry.trace import StatusCode
from recorded import process_wide
from starlette.types import Message, Receive, Scope, Send

JSON, EVENTS, TEXT = b"Application/JSON; charset=utf-8", b"text/event-stream", b"text/plain"
ERROR = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no basket 7"}}'
STREAM = b": hello\n\ndata: " + ERROR + b"\n\n"
LONG = b" " * (1 << 20)
FAILED = {"rpc.response.status_code": "-32602"}  # by its client's mistake
TOOL_ERROR = {"error.type": "tool_error"}

ANSWERS: dict[bytes, dict[str, str]] = {
    b'{"jsonrpc":"2.0","id":1,"result":{}}': {},
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":false}}': {},
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}': TOOL_ERROR,
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"\\"isError\\":true"}]}}': {},
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"\\"error\\""}]}}': {},
    ERROR: FAILED,
    **{
        b'{"jsonrpc":"2.0","id":1,"error":{"code":%d}}' % code: {"rpc.response.status_code": str(code)}
        for code in (-32700, -32600, -32601, -32002)
    },
    **{
        b'{"jsonrpc":"2.0","id":1,"error":{"code":%d}}' % code: {
            "error.type": str(code),
            "rpc.response.status_code": str(code),
        }
        for code in (-32603, -32000, -32043, 42)
    },
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"error":1}}': {},
    b'{"jsonrpc":"2.0","id":9,"method":"roots/list","params":{"error":{}}}': {},
    b'{"jsonrpc":"2.0","id":1,"error":{"code":"odd"}}': {},
    b'{"error"': {},
    b"{}": {},
}


def response(media_type: bytes, *parts: bytes, status: int = 200) -> list[Message]:
    """A response in so many parts, and an empty last one."""
    start = {"type": "http.response.start", "status": status, "headers": [(b"Content-Type", media_type)]}
    last = {"type": "http.response.body", "body": b""}
    return [start, *({"type": "http.response.body", "body": part, "more_body": True} for part in parts), last]


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    return (body[start : start + size] for start in range(0, len(body), size))


async def outcome(messages: Sequence[Message]) -> dict[str, Any]:
    """The error on the span of a call that an application answers so; its messages must pass as the same objects."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    with process_wide().recording() as spans:
        answer = await call(sessions(app), http(), b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    assert all(one is other for one, other in zip(answer.messages, messages, strict=True))
    (span,) = [span for span in spans if span.name == "ping"]
    assert "basket" not in span.to_json()  # the server's own text of an error
    assert (span.status.status_code is StatusCode.ERROR) == ("error.type" in (span.attributes or {}))
    assert span.status.description is None
    names = "error.type", "rpc.response.status_code", "http.response.status_code", "mcp_sessions.reason"
    return {name: value for name, value in (span.attributes or {}).items() if name in names}


@pytest.mark.parametrize("text", ANSWERS, ids=bytes.decode)
async def test_an_answer_has_its_outcome(text: bytes) -> None:
    """An error is its code, a tool's own failure `tool_error`; notifications and requests on a stream have none."""
    assert await outcome(response(JSON, text)) == ANSWERS[text]
    assert (
        await outcome(response(EVENTS, b"data: " + text + b"\n\n" + b'data: {"method":"later"}\n\n')) == ANSWERS[text]
    )


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(("media_type", "body"), [(JSON, ERROR), (EVENTS, STREAM)], ids=["json", "events"])
async def test_an_answer_is_read_however_it_is_cut(media_type: bytes, body: bytes, size: int) -> None:
    assert await outcome(response(media_type, *pieces(body, size))) == FAILED


@pytest.mark.parametrize(
    ("media_type", "body", "expected"),
    [(JSON, ERROR, FAILED), (EVENTS, STREAM, FAILED), (TEXT, ERROR, {}), (JSON, b"{}", {})],
    ids=["json", "events", "text", "success"],
)
async def test_an_answer_in_one_part_is_read_if_it_has_an_error(
    media_type: bytes, body: bytes, expected: dict[str, str]
) -> None:
    start, part, _ = response(media_type, body)
    whole = {"type": part["type"], "body": part["body"]}
    assert await outcome([start, whole]) == expected
    assert await outcome([start, whole, {"type": "http.response.trailers", "headers": []}]) == expected


async def test_without_an_answer_the_status_decides() -> None:
    """For a page of a proxy or a guard; a message without a body, and other ASGI messages, pass, too."""
    assert await outcome(response(TEXT, ERROR, status=502)) == {"error.type": "502", "http.response.status_code": 502}
    assert await outcome(response(JSON, b'{"error":"invalid_token"}', status=401)) == {"http.response.status_code": 401}
    bare: Message = {"type": "http.response.start", "status": 202}
    assert await outcome([bare, {"type": "http.response.body"}]) == {}
    unnamed: Message = {**bare, "headers": [(b"x-content-type", JSON)]}
    assert await outcome([unnamed, *response(JSON, ERROR)[1:]]) == {}
    assert await outcome([{"type": "http.response.debug"}, *response(JSON, ERROR)]) == FAILED


@pytest.mark.parametrize(
    ("media_type", "body"), [(JSON, ERROR), (EVENTS, STREAM.replace(b"{", b"{ ", 1))], ids=["json", "events"]
)
async def test_an_answer_that_is_too_long_is_not_read(media_type: bytes, body: bytes) -> None:
    """An error has no megabyte, so nothing of it is held either."""
    before, brace, after = body.partition(b"{")
    assert await outcome(response(media_type, before + brace + LONG, after)) == {}

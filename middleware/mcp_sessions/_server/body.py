"""The body of a request: read whole, bounded in bytes and seconds, before anything is decided.

The application's `receive` then returns exactly those bytes in one message, and after that what the server's own
returns: an invented `http.disconnect` before the response starts breaks every SSE mode of the official SDK.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

import anyio
from starlette.types import Message as ASGIMessage
from starlette.types import Receive

from .._protocol.headers import CODING, LENGTH, RequestHeaders
from .._refusals import refusal

_BEFORE_JSON: Final = b" \t\r\n\0\xef\xbb\xbf\xfe\xff"  # blanks, marks of UTF-8 and UTF-16, and what these pad with
_MAX_DIGITS: Final = 20  # of a length that is read; more of them are too large for any limit


async def read_body(receive: Receive, headers: RequestHeaders, *, max_bytes: int, timeout: float) -> bytes:
    """Return the whole body of a request.

    Most bodies arrive with the headers, so a timer begins only where more is to come. A client that sends headers and
    nothing more is left to the server and the proxy, as in any ASGI application.

    Args:
        receive: The server's `receive`.
        headers: The request's headers; a declared length that is too large is refused unread.
        max_bytes: Size limit of the body.
        timeout: Seconds within which the rest of the body must arrive.

    Raises:
        Refusal: `content_encoding`, compressed, so others may read something else in it; `body_too_large`, as declared
            or as it arrives; `body_timeout`; or `body_cut_short`, the client left before the end.
    """
    if CODING in headers.by_name and (", ".join(headers.all(CODING)) or "identity").strip().lower() != "identity":
        raise refusal("content_encoding")
    declared = headers.by_name.get(LENGTH, b"")  # the last copy, since servers refuse a second one
    if declared.isdigit() and int(declared[:_MAX_DIGITS]) > max_bytes:
        raise refusal("body_too_large")
    first = await receive()
    if first["type"] == "http.request" and not first.get("more_body", False):
        whole: bytes = first.get("body", b"")
        if len(whole) > max_bytes:
            raise refusal("body_too_large")
        return whole
    with anyio.move_on_after(timeout):
        return await _read_rest(first, receive, max_bytes)
    raise refusal("body_timeout")


async def peek(receive: Receive) -> tuple[bool, Receive]:
    """Return whether a body may be JSON by its first character, and a `receive` that begins again.

    Byte order marks and other encodings count, too: some parsers read them. What begins with blanks alone counts.
    """
    first = await receive()
    while first.get("more_body", False) and not first.get("body"):
        first = await receive()
    start = first.get("body", b"").lstrip(_BEFORE_JSON)
    may_be_json = start[:1] in {b"{", b"["} if start else first.get("more_body", False)
    return may_be_json, _again(first, receive)


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body once, and from then on what the server's own returns."""
    return _again({"type": "http.request", "body": body, "more_body": False}, receive)


def _again(message: ASGIMessage, receive: Receive) -> Receive:
    pending: ASGIMessage | None = message

    async def receive_wrapper() -> ASGIMessage:
        nonlocal pending
        if pending is None:
            return await receive()
        taken, pending = pending, None
        return taken

    return receive_wrapper


async def _read_rest(message: ASGIMessage, receive: Receive, max_bytes: int) -> bytes:
    body = BytesIO()  # a list of small pieces would take twenty times their bytes
    while True:
        if message["type"] != "http.request":
            raise refusal("body_cut_short")
        body.write(message.get("body", b""))
        if body.tell() > max_bytes:
            raise refusal("body_too_large")
        if not message.get("more_body", False):
            return body.getvalue()
        message = await receive()

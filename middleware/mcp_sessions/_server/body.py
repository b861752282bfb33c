"""Reading a request: its body, bounded in bytes and seconds, and the message in it.

The body is read once, as a whole, before anything is decided. Afterwards the application's `receive` gets exactly those
bytes in one message, and then the server's own `receive` takes over: a made-up `http.disconnect` before the response
starts breaks every SSE mode of the official SDK.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Coroutine, Generator
from types import CoroutineType, coroutine
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from starlette.types import Message as ASGIMessage
from starlette.types import Receive

from .._protocol import jsonrpc
from .._protocol.decision import speaks_of_sessions
from .._protocol.headers import CODING, LENGTH, RequestHeaders
from .._protocol.jsonrpc import Message
from .._protocol.strict_json import is_deeper
from ..errors import NOT_JSONRPC, InvalidRequest, refuse

if TYPE_CHECKING:
    from .context import RequestContext

Steps = Coroutine[Any, Any, ASGIMessage] | Generator[Any, Any, ASGIMessage]
"""A `receive` that is stepped by hand."""

_BITS_OF_A_DIGIT: Final = 4  # or less
_HAS_TIMEOUT: Final = sys.version_info >= (3, 11)  # `asyncio.timeout`


def read_body(receive: Receive, headers: RequestHeaders, *, max_bytes: int, timeout: float) -> bytes | Awaitable[bytes]:
    """Read the whole request body: at once where it came with the headers, as most do, else to be awaited.

    Args:
        receive: The server's `receive`.
        headers: The request's headers; a length that is declared too large is refused unread.
        max_bytes: Bytes that the body may have.
        timeout: Seconds that it may take to arrive.

    Raises:
        Refusal: `content_encoding`: The body is compressed, so others may read something else in it.
        Refusal: `body_too_large`: It has more bytes, or declares more.
        Refusal: `body_timeout`: It did not arrive in time.
        Refusal: `body_cut_short`: The client left before the end.
    """
    declared = headers.by_name.get(LENGTH)  # the last copy, since servers refuse a second one
    if CODING in headers.by_name:
        _check_coding(headers.content_encoding)
    if declared is not None and len(declared) * _BITS_OF_A_DIGIT >= max_bytes.bit_length():  # else it is below it
        _check_length(declared, max_bytes)
    if not _HAS_TIMEOUT or ("trio" in sys.modules and not _is_on_asyncio()):  # where no timer can begin later
        return _read_under_timer(receive, max_bytes, timeout)
    # No timer where the body came with the headers: one costs as much as all the rest.
    arriving = receive()
    steps: Steps = arriving if type(arriving) is CoroutineType else arriving.__await__()
    try:
        pending = steps.send(None)
    except StopIteration as arrived:
        first: ASGIMessage = arrived.value
        if first["type"] == "http.request" and not first.get("more_body", False):
            body: bytes = first.get("body", b"")
            if len(body) <= max_bytes:
                return body
        return _read_on_asyncio(_rest(first, receive, max_bytes), timeout)
    return _read_on_asyncio(_suspended(steps, pending, receive, max_bytes), timeout)


def read_message(body: bytes, ctx: RequestContext) -> Message | None:
    """Read the one message in a body, or return None for a body that passes as it came: a batch, or not JSON-RPC.

    Raises:
        Refusal: Another parser may read something else in the body, or it is a batch that concerns a session.
    """
    runtime = ctx.runtime
    if len(body) > runtime.max_nesting and is_deeper(body, runtime.max_nesting):
        raise refuse("nesting_too_deep")
    try:
        parsed = jsonrpc.parse(body, max_batch=runtime.max_batch)
    except InvalidRequest as refusal:
        if ctx.strict or refusal.reason != NOT_JSONRPC:
            raise
    else:
        if isinstance(parsed, Message):
            return parsed
        if any(speaks_of_sessions(item, runtime.rules) for item in parsed.items):
            raise refuse("batch")
    if ctx.headers.session_id is not None:
        raise refuse("session_header_alone")
    return None


def _check_coding(coding: str | None) -> None:
    if coding and coding.strip().lower() != "identity":
        raise refuse("content_encoding")


def _check_length(declared: bytes, max_bytes: int) -> None:
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise refuse("body_too_large")


def _is_on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # trio
        return False
    return True


async def _read_under_timer(receive: Receive, max_bytes: int, timeout: float) -> bytes:
    with anyio.move_on_after(timeout):
        return await _rest(await receive(), receive, max_bytes)
    raise refuse("body_timeout")


async def _read_on_asyncio(rest: Coroutine[Any, Any, bytes], timeout: float) -> bytes:
    timer = asyncio.timeout(timeout)  # type: ignore[attr-defined]  # from 3.11, as was asked before coming here
    # Not a cancel scope: `receive` may have opened scopes before it waited, and those must be left in turn.
    try:
        async with timer:
            return await rest
    except TimeoutError:
        if timer.expired():
            raise refuse("body_timeout") from None
        raise


async def _suspended(steps: Steps, pending: Any, receive: Receive, max_bytes: int) -> bytes:
    return await _rest(await _resume(steps, pending), receive, max_bytes)


async def _rest(first: ASGIMessage, receive: Receive, max_bytes: int) -> bytes:
    chunks, size, message = [_chunk(first)], 0, first
    while message.get("more_body", False):
        size += len(chunks[-1])
        if size > max_bytes:
            raise refuse("body_too_large")
        message = await receive()
        chunks.append(_chunk(message))
    if size + len(chunks[-1]) > max_bytes:
        raise refuse("body_too_large")
    return b"".join(chunks)


def _chunk(message: ASGIMessage) -> bytes:
    if message["type"] != "http.request":
        raise refuse("body_cut_short")
    body: bytes = message.get("body", b"")
    return body


@coroutine
def _resume(steps: Steps, pending: Any) -> Generator[Any, Any, ASGIMessage]:
    """Go on with a coroutine that was stepped once by hand, as if it had been awaited from the start."""
    try:
        while True:
            try:
                sent = yield pending
            except BaseException as error:  # noqa: BLE001  # cancellation belongs to the inner coroutine
                pending = steps.throw(error)
            else:
                pending = steps.send(sent)
    except StopIteration as arrived:
        message: ASGIMessage = arrived.value
        return message


class Replay(msgspec.Struct):
    """A `receive` that gives the body once and is the server's own from then on.

    Args:
        body: What is given; None once it was.
        receive: The server's own.
    """

    body: bytes | None
    receive: Receive

    async def __call__(self) -> ASGIMessage:
        if self.body is None:
            return await self.receive()
        body, self.body = self.body, None
        return {"type": "http.request", "body": body, "more_body": False}

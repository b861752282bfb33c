"""Taking a request body in, bounded in bytes and seconds, and giving it back to the application.

The body is read once, as a whole, before anything is decided. Afterwards the application's
`receive` gets exactly those bytes in one message, and then the server's own `receive` takes over: a
made-up `http.disconnect` before the response starts breaks every SSE mode of the official SDK.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Generator, Iterator
from types import coroutine
from typing import Any, Final

import anyio
from starlette.types import Message, Receive

from .errors import BodyCutShort, BodyTimeout, BodyTooLarge, EncodingRefused
from .head import LENGTH, Head

_HAS_TIMEOUT: Final = sys.version_info >= (3, 11)  # `asyncio.timeout`


def read_body(receive: Receive, head: Head, *, max_bytes: int, timeout: float) -> Awaitable[bytes]:
    """The whole request body, to be awaited.

    Args:
        receive: The server's `receive`.
        head: The request's head; a length that is declared too large is refused unread.
        max_bytes: How many bytes the body may have.
        timeout: Seconds that it may take to arrive.

    Raises:
        EncodingRefused: The body is compressed, so others may read something else in it.
        BodyTooLarge: It has more bytes, or says that it has.
        BodyTimeout: It did not arrive in time.
        BodyCutShort: The client left before the end.
    """
    coding = head.content_encoding
    if coding and coding.strip().lower() != "identity":
        raise EncodingRefused
    declared = head.first(LENGTH)
    if declared is not None and declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise BodyTooLarge
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # trio
        return _read_under_timer(receive, max_bytes, timeout)
    read = _read_on_asyncio if _HAS_TIMEOUT else _read_under_timer
    return read(receive, max_bytes, timeout)


async def _read_under_timer(receive: Receive, max_bytes: int, timeout: float) -> bytes:
    with anyio.move_on_after(timeout):
        return await _rest(await receive(), receive, max_bytes)
    raise BodyTimeout


async def _read_on_asyncio(receive: Receive, max_bytes: int, timeout: float) -> bytes:
    """The body, with no timer where it came with the head, as most do: one costs as much as all the rest."""
    steps = receive().__await__()
    try:
        pending = next(steps)
    except StopIteration as arrived:
        first: Message = arrived.value
        body = _chunk(first)
        if len(body) <= max_bytes and not first.get("more_body", False):
            return body
        rest = _rest(first, receive, max_bytes)
    else:
        rest = _suspended(steps, pending, receive, max_bytes)
    timer = asyncio.timeout(timeout)  # type: ignore[attr-defined]  # from 3.11, as was asked before coming here
    # Not a cancel scope: `receive` may have opened scopes before it waited, and those must be left in turn.
    try:
        async with timer:
            return await rest
    except TimeoutError:
        if timer.expired():
            raise BodyTimeout from None
        raise


async def _suspended(steps: Iterator[Any], pending: Any, receive: Receive, max_bytes: int) -> bytes:
    return await _rest(await _resume(steps, pending), receive, max_bytes)


async def _rest(first: Message, receive: Receive, max_bytes: int) -> bytes:
    chunks, size, message = [_chunk(first)], 0, first
    while message.get("more_body", False):
        size += len(chunks[-1])
        if size > max_bytes:
            raise BodyTooLarge
        message = await receive()
        chunks.append(_chunk(message))
    if size + len(chunks[-1]) > max_bytes:
        raise BodyTooLarge
    return b"".join(chunks)


def _chunk(message: Message) -> bytes:
    if message["type"] != "http.request":
        raise BodyCutShort
    body: bytes = message.get("body", b"")
    return body


@coroutine
def _resume(steps: Iterator[Any], pending: Any) -> Generator[Any, Any, Message]:
    """Go on with a coroutine that was stepped once by hand, as if it had been awaited from the start."""
    generator: Generator[Any, Any, Message] = steps  # type: ignore[assignment]  # every awaitable's iterator is one
    try:
        while True:
            try:
                sent = yield pending
            except BaseException as error:  # noqa: BLE001  # cancellation belongs to the inner coroutine
                pending = generator.throw(error)
            else:
                pending = generator.send(sent)
    except StopIteration as arrived:
        message: Message = arrived.value
        return message


class Replay:
    """A `receive` that gives the body once and is the server's own from then on."""

    __slots__ = ("_body", "_receive")

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

"""Read a request: its body, bounded in bytes and seconds, and the message in it.

The whole body is read before anything is decided. The application's `receive` then returns exactly those bytes in one
message, and after that what the server's own returns: an invented `http.disconnect` before the response starts breaks
every SSE mode of the official SDK.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Coroutine, Generator
from io import BytesIO
from types import coroutine
from typing import Any, Final

import anyio
import msgspec
from starlette.types import Message as ASGIMessage
from starlette.types import Receive

from .._errors import Refusal, refuse
from .._protocol import _native
from .._protocol.decision import Rules, speaks_of_sessions
from .._protocol.headers import CODING, LENGTH, RequestHeaders
from .._protocol.jsonrpc import Batch

Steps = Coroutine[Any, Any, ASGIMessage] | Generator[Any, Any, ASGIMessage]  # a `receive` that is stepped by hand

_FEW_DIGITS: Final = 6  # to read the length of every body would cost each request
FEW: Final = 10**_FEW_DIGITS
"""Where bodies may have so many bytes, headers may be read in C, which passes over a length of few digits."""
_modules: Final = sys.modules
_HAS_TIMEOUT: Final = sys.version_info >= (3, 11)  # `asyncio.timeout`


def read_body(receive: Receive, headers: RequestHeaders, max_bytes: int, timeout: float) -> bytes | Awaitable[bytes]:
    """Return the whole request body where it came with the headers, as most do, else an awaitable of it.

    Args:
        receive: The server's `receive`.
        headers: The request's headers; a declared length that is too large is refused unread.
        max_bytes: Size limit of the body.
        timeout: Seconds within which the body must arrive.

    Raises:
        Refusal: `content_encoding`, compressed, so others may read something else in it; `body_too_large`, as declared
            or as it arrives; `body_timeout`; or `body_cut_short`, the client left before the end.
    """
    if headers.common is None:  # else there is no coding, and a length of few digits
        by_name = headers.found or headers.by_name
        if CODING in by_name and (", ".join(headers.all(CODING)) or "identity").strip().lower() != "identity":
            raise refuse("content_encoding")
        declared = by_name.get(LENGTH)  # the last copy, since servers refuse a second one
        if declared is not None and (len(declared) > _FEW_DIGITS or max_bytes < FEW):  # else it is below it
            _check_length(declared, max_bytes)
    if not _HAS_TIMEOUT or ("trio" in _modules and not _is_on_asyncio()):  # where no timer can begin later
        return _read_under_timer(receive, max_bytes, timeout)
    # No timer where the body came with the headers: one costs as much as all the rest.
    first = _native.step(receive())
    if type(first) is tuple:
        return _read_on_asyncio(_suspended(receive, max_bytes, *first), timeout)
    try:
        body: bytes = first["body"]
        if first["type"] == "http.request" and not first["more_body"] and len(body) <= max_bytes:
            return body
    except KeyError:  # both may be left out
        pass
    return _read_on_asyncio(_rest(first, receive, max_bytes), timeout)


def refusal_of_batch(batch: Batch, rules: Rules) -> Refusal | None:
    """Return why a batch is refused, or None: it is forwarded as it comes, so nothing in it may concern a session."""
    return refuse("batch") if any(speaks_of_sessions(item, rules) for item in batch.items) else None


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
    timer = asyncio.timeout(timeout)  # type: ignore[attr-defined]  # from 3.11, as the caller checks
    # Not a cancel scope: `receive` may have opened scopes before it waited, and those must be left in turn.
    try:
        async with timer:
            return await rest
    except TimeoutError:
        if timer.expired():
            raise refuse("body_timeout") from None
        raise


async def _suspended(receive: Receive, max_bytes: int, steps: Steps, pending: Any) -> bytes:
    return await _rest(await _resume(steps, pending), receive, max_bytes)


async def _rest(message: ASGIMessage, receive: Receive, max_bytes: int) -> bytes:
    body = BytesIO()  # a list of small pieces would take twenty times their bytes
    while True:
        if message["type"] != "http.request":
            raise refuse("body_cut_short")
        body.write(message.get("body", b""))
        if body.tell() > max_bytes:
            raise refuse("body_too_large")
        if not message.get("more_body", False):
            return body.getvalue()
        message = await receive()


@coroutine
def _resume(steps: Steps, pending: Any) -> Generator[Any, Any, ASGIMessage]:
    """Continue a coroutine that was stepped once by hand, as if it had been awaited from the start."""
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


class Replay(msgspec.Struct, eq=False):
    """A `receive` that returns the body once, and from then on what the server's own returns."""

    body: bytes | None  # None once it was returned
    receive: Receive  # the server's own

    async def __call__(self) -> ASGIMessage:
        body = self.body
        if body is None:
            return await self.receive()
        self.body = None
        return {"type": "http.request", "body": body, "more_body": False}

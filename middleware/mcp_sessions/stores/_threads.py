"""Calls between threads and the event loop, asyncio's or Trio's: drivers that block, and handlers that do.

Calls of drivers make no spans of their own.
"""

from __future__ import annotations

import sys
from asyncio import AbstractEventLoop, _get_running_loop, run_coroutine_threadsafe
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import anyio
from anyio import RunFinishedError, from_thread
from anyio.lowlevel import EventLoopToken, current_token

from .._errors import DataError

T = TypeVar("T")
_PLAIN: Final = "suppress_instrumentation"  # the key of older instrumentations
BLOCKS: Final = (
    "session.data.sync waits for the store, so only worker threads may use it. On the event loop, await session.data "
    "instead: where a framework calls plain functions there, as SDK 1.x does with tools, make yours `async def`"
)
ENDED: Final = "session.data.sync waits for the event loop of the session's request, which has ended: use it before"
Loop = AbstractEventLoop | EventLoopToken
CallSoon = Callable[[Callable[[], object]], object]


def call_soon() -> CallSoon:
    """Return what calls a function in this event loop, asyncio's or Trio's, from any thread."""
    loop: Any = current_token().native_token
    found: CallSoon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    return found


async def wait_for_future(future: Future[T]) -> T:
    """Wait for a future in whichever event loop this is. A caller that gives up cancels what has not begun."""
    soon, done = call_soon(), anyio.Event()

    def wake(_future: object) -> None:
        with suppress(RuntimeError):  # that event loop has ended, and with it the caller
            soon(done.set)

    future.add_done_callback(wake)
    try:
        await done.wait()
        return future.result()
    finally:
        future.cancel()
        del future  # an error's traceback holds this frame, which would hold the error


@contextmanager
def suppress_instrumentation() -> Iterator[None]:
    """Keep instrumentations of drivers from making spans: most of what a store sends belongs to no request."""
    contexts: Any = sys.modules.get("opentelemetry.context")  # what was never imported instruments nothing
    if contexts is None:
        yield
        return
    key = getattr(contexts, "_SUPPRESS_INSTRUMENTATION_KEY", _PLAIN)
    token = contexts.attach(contexts.set_value(_PLAIN, True, contexts.set_value(key, True)))
    try:
        yield
    finally:
        contexts.detach(token)


def call_suppressed(work: Callable[..., T], *arguments: Any) -> T:
    """Return what a call returns that is made on a thread, which has another context."""
    with suppress_instrumentation():
        return work(*arguments)


def running_loop() -> Loop:
    """Return the event loop that runs here, asyncio's or Trio's."""
    return _get_running_loop() or current_token()  # each request in a session asks, and the first is quick


def wait_from_thread(loop: Loop, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Call a coroutine function on an event loop, from any other thread, and return its result.

    Raises:
        DataError: This is the event loop's own thread, which would wait for itself, or the loop has ended.
    """
    with suppress(RuntimeError):  # no event loop runs here
        if running_loop() == loop:
            raise DataError(BLOCKS)
    if isinstance(loop, EventLoopToken):
        try:
            return from_thread.run(call, token=loop)
        except RunFinishedError:
            raise DataError(ENDED) from None
    if loop.is_closed():
        raise DataError(ENDED)
    return run_coroutine_threadsafe(call(), loop).result()


def is_detached() -> bool:
    """Whether this thread has neither an event loop nor, as its worker, the context of a task there."""
    try:
        current_token()
    except RuntimeError:
        try:
            from_thread.check_cancelled()
        except RuntimeError:
            return True
    return False

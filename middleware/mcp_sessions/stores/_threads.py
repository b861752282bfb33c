"""Calls on threads, for drivers that block: awaited from asyncio or Trio alike, and without spans of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import anyio
from anyio.lowlevel import current_token

T = TypeVar("T")
_PLAIN: Final = "suppress_instrumentation"  # the key of older instrumentations
CallSoon = Callable[[Callable[[], object]], object]


def call_soon() -> CallSoon:
    """Return what calls a function in this event loop, asyncio's or Trio's, from any thread."""
    loop: Any = current_token().native_token
    found: CallSoon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    return found


async def outcome(future: Future[T]) -> T:
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
    """Return what a call returns that is made on a thread, which has a context of its own."""
    with suppress_instrumentation():
        return work(*arguments)

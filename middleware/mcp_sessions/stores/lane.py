"""A thread of its own for calls that block, reached from any event loop.

The thread makes one thing (such as a database connection) and is the only one that ever touches it.
Whoever gives up waiting is free at once: a call that has not begun is dropped, one that has begun runs
to its end. What a fork inherits is never touched: the new process gets a thread and a thing of its own.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

import anyio
from anyio.lowlevel import current_token

T = TypeVar("T")
R = TypeVar("R")


class _Call(Generic[R, T]):
    """One call, and what came of it."""

    __slots__ = ("_done", "_error", "_result", "_wake", "_work", "wanted")

    def __init__(self, work: Callable[[R], T]) -> None:
        self._work = work
        self._wake = _waker()
        self._done = anyio.Event()
        self._result: T
        self._error: BaseException | None = None
        self.wanted = True

    def make(self, resource: R) -> None:
        """On the thread: do it, and tell the event loop."""
        try:
            self._result = self._work(resource)
        except BaseException as error:  # noqa: BLE001  # it belongs to whoever called
            self._error = error
        try:
            self._wake(self._done.set)
        except RuntimeError:  # that event loop has ended, and with it whoever waited
            self.wanted = False

    async def outcome(self) -> T:
        """On the event loop: wait for it."""
        try:
            await self._done.wait()
        finally:
            self.wanted = False
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            self._error = None  # its traceback holds this frame, and this frame holds it


class _Crew(Generic[R]):
    """The thread of one process, which is there while it is needed."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.calls: SimpleQueue[_Call[R, Any] | None] | None = None


class Lane(Generic[R]):
    """Calls on one thread, one after the other.

    Args:
        name: What the thread is called.
        make: Makes, on the thread, what every call is given; it is left when the thread ends. It must not fail, and
            must not know who holds the lane, or neither is ever let go.
    """

    def __init__(self, name: str, make: Callable[[], AbstractContextManager[R]]) -> None:
        self._name = name
        self._make = make
        self._crews: dict[int, _Crew[R]] = {}

    async def run(self, work: Callable[[R], T]) -> T:
        """What `work` returns, or raises, when it is its turn.

        Args:
            work: Called on the thread with what was made there.
        """
        call = _Call(work)
        crew = self._crew()
        with crew.lock:
            if crew.calls is None:
                crew.calls = SimpleQueue()
                Thread(target=_serve, args=(crew.calls, self._make), name=self._name, daemon=True).start()
                weakref.finalize(self, crew.calls.put, None).atexit = False
            crew.calls.put(call)
        return await call.outcome()

    def stop(self) -> None:
        """Let the thread end after the calls that were made so far. A later call starts another."""
        crew = self._crew()
        with crew.lock:
            if crew.calls is not None:
                crew.calls.put(None)
                crew.calls = None

    def _crew(self) -> _Crew[R]:
        """By process, since threads and locks do not survive a fork."""
        crew = self._crews.get(os.getpid())
        return crew if crew is not None else self._crews.setdefault(os.getpid(), _Crew())


def _serve(calls: SimpleQueue[_Call[R, Any] | None], make: Callable[[], AbstractContextManager[R]]) -> None:
    with make() as resource:
        while (call := calls.get()) is not None:
            if call.wanted:
                call.make(resource)
            del call  # or it would be kept, with all that it holds, until the next one comes


def _waker() -> Callable[[Callable[[], object]], object]:
    """How the running event loop is told something from another thread, without waiting for it."""
    loop: Any = current_token().native_token
    wake: Callable[[Callable[[], object]], object] = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    return wake

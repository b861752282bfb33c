"""The threads that alone touch a SQLite file, and the queue from which one of them commits changes in groups.

A commit waits for the disk, however much it holds. So what is asked for while the thread waits goes into its next
transaction together, each change behind a savepoint of its own, and is acknowledged after the commit.
"""

from __future__ import annotations

import copy
import os
import sqlite3
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, TypeVar

import anyio
from anyio.lowlevel import current_token

from ..errors import StoreFull, StoreUnavailable
from .sqlite_file import LOCKED, Job, Setting, SQLiteFile

T = TypeVar("T")
CallSoon = Callable[[Callable[[], object]], object]
GROUP: Final = 128  # changes in one transaction at the most; then others have their turn


class WorkerThread:
    """A file and the thread that alone touches it, reached from any event loop; started when it is needed.

    A caller that gives up waiting is free at once: a call that has not begun is dropped, one that has runs to its end.
    """

    def __init__(self, name: str, setting: Setting) -> None:
        self._name = name
        self._setting = setting
        self._lock = Lock()
        self._running: tuple[ThreadPoolExecutor, SQLiteFile] | None = None
        _workers.add(self)

    async def run(self, work: Callable[[SQLiteFile], T]) -> T:
        """Return what `work` returns, or raise what it raises, when it is its turn."""
        with self._lock:
            future = self._submit(work)
        return await _outcome(future)

    def _submit(self, work: Callable[[SQLiteFile], T]) -> Future[T]:
        if self._running is None:
            self._running = (ThreadPoolExecutor(1, thread_name_prefix=self._name), SQLiteFile(self._setting))
        executor, file = self._running
        return executor.submit(work, file)

    async def close(self) -> None:
        """Close the file and let the thread end, after the calls so far. A later call starts another."""
        if self._running is None:
            return
        try:
            await self.run(SQLiteFile.close)
        finally:
            with self._lock:
                running, self._running = self._running, None
            if running is not None:  # else another task has closed it meanwhile
                running[0].shutdown(wait=False)

    def after_fork(self) -> None:
        """Start afresh in the new process: neither threads, connections nor locks survive a fork."""
        self._setting.shared.leave_behind()
        if self._running is not None:
            self._running[1].leave_behind()
        self._lock, self._running = Lock(), None


def _call_soon() -> CallSoon:
    """Return what calls a function in this event loop, from any thread."""
    loop: Any = current_token().native_token
    call_soon: CallSoon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon  # asyncio's, or Trio's
    return call_soon


async def _outcome(future: Future[T]) -> T:
    """Wait for a future in whichever event loop this is."""
    call_soon, done = _call_soon(), anyio.Event()

    def wake(_future: object) -> None:
        with suppress(RuntimeError):  # that event loop has ended, and with it the caller
            call_soon(done.set)

    future.add_done_callback(wake)
    try:
        await done.wait()
        return future.result()
    finally:
        future.cancel()
        del future  # an error's traceback holds this frame, which would hold the error


_workers: Final[weakref.WeakSet[WorkerThread]] = weakref.WeakSet()


def _after_fork() -> None:
    for worker in tuple(_workers):
        worker.after_fork()


os.register_at_fork(after_in_child=_after_fork)


@dataclass
class _Change:
    job: Job[Any]
    frees: bool
    deadline: float  # of the wait for its turn, by the monotonic clock
    future: Future[Any] = field(default_factory=Future)

    def try_in(self, connection: sqlite3.Connection, now: float) -> tuple[Any, Exception | None]:
        """Return the result and no error, or the error and nothing changed."""
        connection.execute("SAVEPOINT change")
        result, failed = None, None
        try:
            result = self.job(connection, now)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001  # its caller's
            connection.execute("ROLLBACK TO change")
            failed = error
        connection.execute("RELEASE change")
        return result, failed

    def finish(self, result: object, failed: Exception | None) -> None:
        if failed is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(failed)


class ChangeThread(WorkerThread):
    """The thread that changes the file."""

    def __init__(self, name: str, setting: Setting) -> None:
        super().__init__(name, setting)
        self._waiting: deque[_Change] = deque()

    async def change(self, job: Job[T], *, frees: bool = False) -> T:
        """Return what a job returns, once all that it changed is on the disk.

        Args:
            job: It may be called more than once. Where it raises, nothing changes.
            frees: Whether it makes room, and may therefore use what is kept for that.
        """
        change = _Change(job, frees, time.monotonic() + self._setting.busy_timeout)
        with self._lock:
            # The first one that waits asks for the thread, unless it gave up, maybe with its event loop.
            is_first = not self._waiting or self._waiting[0].future.cancelled()
            self._waiting.append(change)
        if is_first:
            # Not before the event loop has come round: who asks in the same moment is in the same group, and the
            # thread, which then holds up every other process, need not share the interpreter with the loop so much.
            _call_soon()(self._start_draining)
        outcome: T = await _outcome(change.future)
        return outcome

    def after_fork(self) -> None:
        """Leave what waits to the process that it waits in."""
        super().after_fork()
        self._waiting.clear()

    def _start_draining(self) -> None:
        with self._lock:
            self._submit(self._drain)

    def _drain(self, file: SQLiteFile) -> None:
        while self._waiting:
            self._commit_group(file, self._waiting[0].deadline)

    def _commit_group(self, file: SQLiteFile, deadline: float) -> None:
        group: list[_Change] = []

        def job(connection: sqlite3.Connection, now: float) -> list[tuple[Any, Exception | None]]:
            group.extend(() if group else self._take())
            return [change.try_in(connection, now) for change in group]

        try:
            outcomes = file.change(job, deadline=deadline)
        except StoreFull:
            group = group or self._take()
            outcomes = [self._alone(file, change) for change in group]
        except Exception as error:  # noqa: BLE001  # its callers'
            is_late = isinstance(error, StoreUnavailable) and error.reason == LOCKED
            group = group or self._take(until=time.monotonic() if is_late else None)
            outcomes = [(None, copy.copy(error)) for _ in group]
        for change, outcome in zip(group, outcomes, strict=True):
            change.finish(*outcome)

    def _alone(self, file: SQLiteFile, change: _Change) -> tuple[Any, Exception | None]:
        """There is no room for all of a group; there may be for a smaller one, or for what makes room."""
        try:
            deadline = time.monotonic() + self._setting.busy_timeout
            return file.attempt(change.job, deadline=deadline, frees=change.frees), None
        except Exception as error:  # noqa: BLE001  # its caller's
            return None, error

    def _take(self, until: float | None = None) -> list[_Change]:
        """Return the changes whose turn has come, or whose deadline has, but those that nobody waits for."""
        taken: list[_Change] = []
        while self._waiting and len(taken) < GROUP and (until is None or self._waiting[0].deadline <= until):
            change = self._waiting.popleft()
            if change.future.set_running_or_notify_cancel():
                taken.append(change)
        return taken

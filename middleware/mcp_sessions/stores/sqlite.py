"""A store in a file: for all processes of one machine, and through restarts.

Whatever a method returned from is on the disk. Reads and changes have a connection and a thread each, so that no
request waits for another's lock, and no call blocks the event loop. The file must lie on a local disk.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from sqlite3 import Connection
from threading import Lock
from typing import Any, Final, TypeVar, get_args

import anyio
from anyio.lowlevel import current_token

from ..errors import ConfigurationError
from .base import ByName, Forgotten, Reach
from .sqlite_file import Setting, SQLiteFile, checked_path
from .sqlite_tables import Transaction, sweep

T = TypeVar("T")
_HOUR: Final = 3600  # seconds
_LEAST_BYTES: Final = 1 << 18
_READS: Final = {"status", "statuses", "look", "sessions", "forks", "find", "read"}  # all else may change something


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
        loop: Any = current_token().native_token
        call_soon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon  # asyncio's, or Trio's
        done = anyio.Event()

        def wake(_future: object) -> None:
            with suppress(RuntimeError):  # that event loop has ended, and with it the caller
                call_soon(done.set)

        with self._lock:
            if self._running is None:
                self._running = (ThreadPoolExecutor(1, thread_name_prefix=self._name), SQLiteFile(self._setting))
            executor, file = self._running
            future = executor.submit(work, file)
        future.add_done_callback(wake)
        try:
            await done.wait()
            return future.result()
        finally:
            future.cancel()
            del future  # an error's traceback holds this frame, which would hold the error

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
        """Start afresh in the new process: neither threads nor connections survive a fork."""
        if self._running is not None:
            self._running[1].leave_behind()
        self._lock, self._running = Lock(), None


_workers: Final[weakref.WeakSet[WorkerThread]] = weakref.WeakSet()


def _after_fork() -> None:
    for worker in tuple(_workers):
        worker.after_fork()


with suppress(AttributeError):  # Windows has no forks
    os.register_at_fork(after_in_child=_after_fork)


class SQLiteStore(ByName):
    """Sessions of one machine, in one file, with its log (`-wal`) and an index (`-shm`) beside it.

    A file that is made anew remembers nothing of what came before: a session that had been ended would work again. So
    sessions that were issued before it was made are refused (`Standing.LOST`), as if not found. That concerns you
    twice: **when you add this store to a deployment that has sessions, they end**, and when you delete the file, those
    end that it knew. `forgotten="accept"` lets both in.

    A file that is deleted or replaced while it is in use is noticed, and the same holds. A backup that is put back
    while no process uses it is not: what was ended since then works again, so delete the file instead, and never the
    log or the index alone. The file and what is beside it can be read by its owner alone (mode 0600) where this made
    it. It does not shrink: the room of what is over is used again. A forked process gets connections of its own.
    """

    reach: Final = Reach.MACHINE

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        leeway: float = 60,  # seconds
        busy_timeout: float = 5,  # seconds
        max_bytes: int = 1 << 30,
        forgotten: Forgotten = "refuse",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Args:
            path: The file; its folder must exist. `~` is not expanded.
            leeway: Seconds for which what is kept outlives its token, for clocks that disagree.
            busy_timeout: Seconds to wait for a lock that another process holds.
            max_bytes: How large the file may grow. A full one refuses what is new, and evicts nothing.
            forgotten: What becomes of sessions that were issued before the file was made: `"refuse"` or `"accept"`.
            clock: Unix seconds; a test passes its own.

        Raises:
            ConfigurationError: An option is wrong, or the path cannot be one of a file; the message says the remedy.
        """
        for is_right, rule in (
            (forgotten in get_args(Forgotten), f"forgotten={forgotten!r} must be 'refuse' or 'accept'"),
            (leeway >= 0, f"leeway={leeway!r} must be a number of seconds, 0 or more"),
            (0 < busy_timeout <= _HOUR, f"busy_timeout={busy_timeout!r} must be a number of seconds, more than 0"),
            (max_bytes >= _LEAST_BYTES, f"max_bytes={max_bytes!r} must be {_LEAST_BYTES} or more"),
        ):
            if not is_right:
                raise ConfigurationError(rule)
        self._leeway = leeway
        self._vouches_always = forgotten == "accept"
        self._path = checked_path(path)
        setting = Setting(self._path, clock, busy_timeout, max_bytes, lambda file, now: sweep(file, now - leeway))
        self._reads = WorkerThread("mcp-sessions-sqlite-reads", setting)
        self._changes = WorkerThread("mcp-sessions-sqlite-changes", setting)

    async def open(self) -> None:
        """Open the file, make it where there is none, and delete what is over, in small steps."""
        await self._changes.run(SQLiteFile.open)
        await self._reads.run(SQLiteFile.open)
        while await self._changes.run(SQLiteFile.sweep):
            """Other calls have their turn."""

    async def close(self) -> None:
        try:
            await self._reads.close()
        finally:
            await self._changes.close()

    async def admit(self, claims: object) -> None:
        """Nothing is to be noted: a file that was replaced is met by the second."""

    async def touch(self, *args: Any, **kwargs: Any) -> Any:
        """Look first, since a use must rarely be noted, and a change waits for others."""
        standing, is_due = await self._call("look", args, kwargs)
        return await self._call("touch", args, kwargs) if is_due else standing

    async def _call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what the method of `Transaction` with that name returns."""
        step, asked_at = getattr(Transaction, name), time.monotonic()

        def job(connection: Connection, now: float) -> Any:
            return step(Transaction(connection, now, self._leeway, self._vouches_always), *args, **kwargs)

        if name in _READS:
            return await self._reads.run(lambda file: file.read(job))
        return await self._changes.run(lambda file: file.change(job, asked_at=asked_at))

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path}>"

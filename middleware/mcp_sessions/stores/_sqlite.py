"""A store in a file: for all processes of one machine, and through restarts.

Whatever a method returned from is on the disk. Reads and changes have a connection and a thread each, so that no
request waits for another's lock, and no call blocks the event loop. A commit waits for the disk however much it holds:
what is asked for meanwhile goes into the next one together. The file must lie on a local disk.
"""

from __future__ import annotations

import copy
import os
import sqlite3
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Final, TypeVar, get_args

from .._errors import ConfigurationError, StoreFull, StoreUnavailable
from .._session.claims import Claims
from ._base import LIVE, Forgotten, Reach, Standing
from ._sql import SQLStore, call_hidden, call_soon, outcome
from ._sqlite_file import LOCKED, Job, Setting, SQLiteFile, checked_path
from ._sqlite_shared import KnownSessions, SharedFile
from ._sqlite_tables import Transaction, sweep

T = TypeVar("T")
GROUP: Final = 256  # changes in one transaction at the most; then others have their turn
_HOUR: Final = 3600  # seconds
_LEAST_BYTES: Final = 1 << 18
_READING: Final = {"statuses", "look", "sessions", "find", "roster", "count", "read", "filling"}
_FREEING: Final = {"claim_ended", "purge", "elect"}  # may use the room that is kept for what makes room


class SQLiteStore(SQLStore):
    """Sessions of one machine, in one SQLite file, with `-wal`, `-shm` and `-shared` beside it.

    A new file does not know which older sessions were ended, so sessions issued before its creation are refused
    (`Standing.LOST`), as if not found. **Adding this store to a deployment that already has sessions ends them**, and
    so does deleting the file. `forgotten="accept"` accepts such sessions.

    The store detects when the file is deleted or replaced while in use, and does the same. It cannot detect a backup
    restored while no process uses it: sessions ended since the backup would work again, so delete the file instead, and
    never `-wal` or `-shm` alone. New files are readable by their owner only (mode 0600). A file does not shrink; free
    space in it is reused. Forked processes open their own connections.
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
            leeway: Seconds to keep entries after their token expires, for clocks that disagree.
            busy_timeout: Seconds to wait for a lock that another process holds.
            max_bytes: The maximum size of the file. A full file refuses new entries and evicts nothing; the last
                sixteenth is reserved for changes that free space.
            forgotten: What to do with sessions issued before the file was created: `"refuse"` or `"accept"` them.
            clock: Returns Unix seconds; for tests.

        Raises:
            ConfigurationError: An option is wrong, or the path cannot be that of a file; the message names the remedy.
        """
        for is_right, rule in (
            (forgotten in get_args(Forgotten), f"forgotten={forgotten!r} must be 'refuse' or 'accept'"),
            (leeway >= 0, f"leeway={leeway!r} must be a number of seconds, 0 or more"),
            (0 < busy_timeout <= _HOUR, f"busy_timeout={busy_timeout!r} must be a number of seconds, more than 0"),
            (max_bytes >= _LEAST_BYTES, f"max_bytes={max_bytes!r} must be {_LEAST_BYTES} or more"),
        ):
            if not is_right:
                raise ConfigurationError(rule)
        super().__init__()
        self._path = checked_path(path)
        self.where: str = f"SQLite file {self._path}"  # for the log
        self._clock = clock
        shared = SharedFile(self._path, max_bytes)
        self._known = KnownSessions(shared)
        self._transaction = partial(Transaction, leeway, forgotten == "accept", move=shared.move)
        setting = Setting(self._path, clock, busy_timeout, max_bytes, shared, partial(sweep, leeway=leeway))
        self._reads = WorkerThread("mcp-sessions-sqlite-reads", setting)
        self._changes = ChangeThread("mcp-sessions-sqlite-changes", setting)

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

    def knows_live(self, claims: Claims, *, is_use: bool = False) -> bool:
        """Whether a session is known to live without a question; and where `is_use`, also that this need be noted."""
        until = self._known.find(claims)
        return until is not None and (not is_use or self._clock() < until)

    async def status(self, claims: Claims) -> Standing:
        return (await self.statuses((claims,)))[0]

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        if all(self.knows_live(one) for one in claims):
            return [LIVE] * len(claims)
        stamps = [self._known.stamp(one) for one in claims]
        found: list[Standing] = await self._call("statuses", (claims,), {})
        for one, stamp, standing in zip(claims, stamps, found, strict=True):
            if standing is LIVE:
                self._known.keep(one, stamp)
        return found

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        """Look first, since a use must rarely be noted, and a change waits for others."""
        if self.knows_live(claims, is_use=True):
            return LIVE
        stamp, option = self._known.stamp(claims), {"idle_timeout": idle_timeout}
        found: tuple[Standing, float] = await self._call("look", (claims,), option)
        standing, due_at = found
        if self._clock() >= due_at:
            standing = await self._call("touch", (claims,), option)
        elif standing is LIVE:
            self._known.keep(claims, stamp, due_at)
        return standing

    async def _transact(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        def job(connection: sqlite3.Connection, now: float) -> Any:
            return getattr(self._transaction(connection, now), name)(*args, **kwargs)

        if name in _READING:
            return await self._reads.run(lambda file: file.read(job))
        return await self._changes.change(job, frees=name in _FREEING)

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path}>"


_workers: Final[weakref.WeakSet[WorkerThread]] = weakref.WeakSet()


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
        return await outcome(self._submit(work))

    def _submit(self, work: Callable[[SQLiteFile], T]) -> Future[T]:
        with self._lock:
            if self._running is None:
                self._running = (ThreadPoolExecutor(1, thread_name_prefix=self._name), SQLiteFile(self._setting))
            executor, file = self._running
            return executor.submit(call_hidden, work, file)

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


class ChangeThread(WorkerThread):
    """The thread that changes the file in groups: a savepoint for each change, one commit, and then the answers."""

    def __init__(self, name: str, setting: Setting) -> None:
        super().__init__(name, setting)
        self._waiting: deque[_Change] = deque()

    async def change(self, job: Job[T], *, frees: bool = False) -> T:
        """Return what a job returns, once all that it changed is on the disk; where it raises, nothing changes.

        It may be called more than once. One that frees room may use what is kept for that.
        """
        change = _Change(job, frees, time.monotonic() + self._setting.busy_timeout)
        with self._lock:
            # The first one that waits asks for the thread, unless it gave up, maybe with its event loop.
            is_first = not self._waiting or self._waiting[0].future.cancelled()
            self._waiting.append(change)
        if is_first:
            # Not before the event loop has come round: who asks in the same moment is in the same group, and the
            # thread, which then holds up every other process, need not share the interpreter with the loop so much.
            call_soon()(partial(self._submit, self._drain))
        result: T = await outcome(change.future)
        return result

    def after_fork(self) -> None:
        """Leave what waits to the process that it waits in."""
        super().after_fork()
        self._waiting.clear()

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
        for change, (result, failed) in zip(group, outcomes, strict=True):
            if failed is None:
                change.future.set_result(result)
            else:
                change.future.set_exception(failed)

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
        with self._lock:  # who comes meanwhile would rely on one that is waiting, and then be left alone
            while self._waiting and len(taken) < GROUP and (until is None or self._waiting[0].deadline <= until):
                change = self._waiting.popleft()
                if change.future.set_running_or_notify_cancel():
                    taken.append(change)
        return taken

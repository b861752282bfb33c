"""A store in a file: for all processes of one machine, and through restarts.

Whatever a method returned from is on the disk. Single rows are read on the event loop, from the write-ahead log, which
waits for nobody; lists and changes have a thread. A commit waits for the disk however much it holds: what is asked for
meanwhile goes into the next one together. The file must lie on a local disk.
"""

from __future__ import annotations

import copy
import os
import sqlite3
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from threading import Lock
from typing import Final, TypeVar, get_args

from .._errors import ConfigurationError, StoreFull, StoreUnavailable
from .._session.claims import Claims
from . import _sql_text as sql
from ._base import LIVE, Facts, Forgotten, SessionStatus, StoreScope, is_touch_due
from ._sql import Rows, SQLStore, Statement, asking, sweep
from ._sqlite_file import DIALECT, LOCKED, Job, Setting, SQLiteFile, checked_path
from ._threads import call_soon, call_suppressed, outcome

T = TypeVar("T")
GROUP: Final = 256  # changes in one transaction at the most; then others have their turn
_NAME: Final = "mcp-sessions-sqlite"
_HOUR: Final = 3600  # seconds
_LEAST_BYTES: Final = 1 << 18
_SINGLE: Final = frozenset({sql.FACTS, sql.GET, sql.READ})  # what looks at a few rows
_render: Final = cache(DIALECT.render)


class SQLiteStore(SQLStore):
    """Sessions of one machine, in one SQLite file, with `-wal` and `-shm` beside it.

    A new file does not know which older sessions were ended, so sessions issued before its creation are refused
    (`SessionStatus.UNKNOWN`), as if not found. **Adding this store to a deployment that already has sessions ends
    them**, and so does deleting the file. `forgotten="accept"` accepts such sessions.

    The store detects when the file is deleted or replaced while in use, and does the same. It cannot detect a backup
    restored while no process uses it: sessions ended since the backup would work again, so delete the file instead, and
    never `-wal` or `-shm` alone. New files are readable by their owner only (mode 0600). A file does not shrink; free
    space in it is reused. Forked processes open their own connections.

    Args:
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

    scope: Final = StoreScope.MACHINE

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
        for valid, rule in (
            (forgotten in get_args(Forgotten), f"forgotten={forgotten!r} must be 'refuse' or 'accept'"),
            (leeway >= 0, f"leeway={leeway!r} must be a number of seconds, 0 or more"),
            (0 < busy_timeout <= _HOUR, f"busy_timeout={busy_timeout!r} must be a number of seconds, more than 0"),
            (max_bytes >= _LEAST_BYTES, f"max_bytes={max_bytes!r} must be {_LEAST_BYTES} or more"),
        ):
            if not valid:
                raise ConfigurationError(rule)
        super().__init__(leeway=leeway, clock=clock, accept_older=forgotten == "accept")
        self._path = checked_path(path)
        self.location: str = f"SQLite file {self._path}"  # for the log
        setting = Setting(self._path, clock, busy_timeout, max_bytes)
        self._nowait = SQLiteFile(setting, reads=True)  # for the event loop
        # It does not lead back here, so that a store that nothing holds ends it.
        self._thread = FileThread(setting, self._nowait, leeway)
        self._is_open = False

    async def open(self) -> None:
        """Open the file, make it where there is none, and delete what has expired, in small steps."""
        if self._is_open:
            return
        await self._thread.run(SQLiteFile.open)
        await self._thread.run(lambda _: self._nowait.open())
        is_more = True
        while is_more:  # other calls have their turn in between
            is_more = await self._thread.run(self._thread.sweep)
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        self._nowait.close()
        await self._thread.close()

    async def _read(self, *statements: Statement) -> list[Rows]:
        job: Job[list[Rows]] = partial(_execute, statements)
        is_quick = all(text in _SINGLE for text, _ in statements)
        if is_quick and (found := self._nowait.read_nowait(job)) is not None:
            return found

        def read(file: SQLiteFile) -> list[Rows]:
            rows = file.read(job)
            if is_quick:
                with suppress(StoreUnavailable, ConfigurationError):
                    self._nowait.open()
            return rows

        return await self._thread.run(read)

    async def _change(self, *statements: Statement, repeatable: bool = True, frees: bool = False) -> list[Rows]:  # noqa: ARG002  # nothing is lost on the way
        return await self._thread.change(statements, frees=frees)

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> SessionStatus:
        """Read first, since a use must rarely be noted."""
        ((row,),) = await self._read(asking((claims,)))
        facts, now = Facts(*row), self._clock()
        status = self._status_with_idle(claims, facts, now, idle_timeout)
        if status is LIVE and facts.seen_at is not None and is_touch_due(facts.seen_at, now, idle_timeout):
            return await super().touch(claims, idle_timeout=idle_timeout)  # it may have ended meanwhile
        return status

    async def register_at_epoch(self, claims: Claims) -> None:
        if await self.status(claims) is SessionStatus.UNKNOWN:
            await super().register_at_epoch(claims)

    def _sweep_soon(self) -> None:
        self._thread.submit(self._thread.sweep_all)

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path}>"


def _execute(statements: Sequence[Statement], connection: sqlite3.Connection) -> list[Rows]:
    return [connection.execute(_render(text), values).fetchall() for text, values in statements]


_threads: Final[weakref.WeakSet[FileThread]] = weakref.WeakSet()
_at_rest: Final[list[FileThread]] = []


def _before_fork() -> None:
    """Wait until no connection is at work: SQLite's own locks, too, are copied as they are, and would stay locked."""
    for thread in tuple(_threads):
        thread.rest()
        _at_rest.append(thread)


def _after_fork(*, is_child: bool) -> None:
    while _at_rest:
        _at_rest.pop().go_on(is_child=is_child)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, is_child=False),
    after_in_child=partial(_after_fork, is_child=True),
)


@dataclass
class _Change:
    statements: Sequence[Statement]
    frees: bool
    deadline: float  # of the wait for its turn, by the monotonic clock
    future: Future[list[Rows]] = field(default_factory=Future)


class FileThread:
    """The thread that alone changes the file, reached from any event loop, and started when it is needed.

    It changes the file in groups: one commit for all that came meanwhile, and then the answers. A caller that gives up
    waiting is free at once: a call that has not begun is dropped, one that has runs to its end.
    """

    def __init__(self, setting: Setting, nowait: SQLiteFile, leeway: float) -> None:
        self._setting = setting
        self._nowait = nowait
        self._leeway = leeway
        self._at_work = Lock()
        self._lock = Lock()
        self._running: tuple[ThreadPoolExecutor, SQLiteFile] | None = None
        self._waiting: deque[_Change] = deque()
        _threads.add(self)

    async def run(self, work: Callable[[SQLiteFile], T]) -> T:
        """Return what `work` returns, or raise what it raises, when it is its turn."""
        return await outcome(self.submit(work))

    def submit(self, work: Callable[[SQLiteFile], T]) -> Future[T]:
        with self._lock:
            if self._running is None:
                self._running = (ThreadPoolExecutor(1, thread_name_prefix=_NAME), SQLiteFile(self._setting))
            executor, file = self._running
            return executor.submit(self._work, work, file)

    def _work(self, work: Callable[[SQLiteFile], T], file: SQLiteFile) -> T:
        with self._at_work:
            return call_suppressed(work, file)

    async def change(self, statements: Sequence[Statement], *, frees: bool = False) -> list[Rows]:
        """Return the rows of statements, once all that they changed is on the disk; they may be tried again."""
        change = _Change(statements, frees, time.monotonic() + self._setting.busy_timeout)
        with self._lock:
            # The first one that waits asks for the thread, unless it gave up, maybe with its event loop.
            is_first = not self._waiting or self._waiting[0].future.cancelled()
            self._waiting.append(change)
        if is_first:
            # Not before the event loop has come round: who asks in the same moment is in the same group, and the
            # thread, which then holds up every other process, need not share the interpreter with the loop so much.
            call_soon()(partial(self.submit, self._drain))
        return await outcome(change.future)

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

    def sweep(self, file: SQLiteFile) -> bool:
        """Delete some of what has expired, with the room that is kept for that; whether there may be more."""
        now = self._setting.clock()

        def job(connection: sqlite3.Connection) -> bool:
            return sweep(lambda *statements: _execute(statements, connection), now=now, leeway=self._leeway)

        return self._change_now(file, job, frees=True)

    def sweep_all(self, file: SQLiteFile) -> None:
        with suppress(StoreUnavailable):  # which the next call has logged
            while self.sweep(file):
                """There may be more."""

    def rest(self) -> None:
        """Wait until neither this thread nor the event loop is at work in the file, and hold both up."""
        self._at_work.acquire()
        self._lock.acquire()
        self._nowait.lock.acquire()

    def go_on(self, *, is_child: bool) -> None:
        """Go on after a fork; a child starts afresh, since neither threads, connections nor callers survive it."""
        if is_child:
            self._nowait.abandon()
            if self._running is not None:
                self._running[1].abandon()
            self._running = None
            self._waiting.clear()
        self._nowait.lock.release()
        self._lock.release()
        self._at_work.release()

    def _drain(self, file: SQLiteFile) -> None:
        while self._waiting:
            self._commit_group(file, self._waiting[0].deadline)

    def _commit_group(self, file: SQLiteFile, deadline: float) -> None:
        group: list[_Change] = []

        def job(connection: sqlite3.Connection) -> list[list[Rows]]:
            group.extend(self._take())
            return [_execute(change.statements, connection) for change in group]

        try:
            results = file.change(job, deadline=deadline)
        except StoreFull:  # there may be room for some, or for what makes room
            self.sweep_all(file)
            for change in group:
                self._commit_alone(file, change)
        except Exception as error:  # noqa: BLE001  # its callers'
            is_late = isinstance(error, StoreUnavailable) and error.reason == LOCKED
            for change in group or self._take(until=time.monotonic() if is_late else None):
                change.future.set_exception(copy.copy(error))
        else:
            for change, result in zip(group, results, strict=True):
                change.future.set_result(result)

    def _commit_alone(self, file: SQLiteFile, change: _Change) -> None:
        try:
            change.future.set_result(self._change_now(file, partial(_execute, change.statements), frees=change.frees))
        except Exception as error:  # noqa: BLE001  # its caller's
            change.future.set_exception(error)

    def _change_now(self, file: SQLiteFile, job: Job[T], *, frees: bool) -> T:
        """Change the file with or without the room that is kept for what makes room."""

        def limited(connection: sqlite3.Connection) -> T:
            file.limit_size(connection, frees=frees)
            try:
                return job(connection)
            finally:
                file.limit_size(connection, frees=False)

        return file.change(limited, deadline=time.monotonic() + self._setting.busy_timeout)

    def _take(self, until: float | None = None) -> list[_Change]:
        """Return the changes whose turn has come, or whose deadline has, but those that nobody waits for."""
        taken: list[_Change] = []
        with self._lock:  # who comes meanwhile would rely on one that is waiting, and then be left alone
            while self._waiting and len(taken) < GROUP and (until is None or self._waiting[0].deadline <= until):
                change = self._waiting.popleft()
                if change.future.set_running_or_notify_cancel():
                    taken.append(change)
        return taken

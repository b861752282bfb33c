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
from .._session.functions import check_clock
from .._session.keywords import known_keywords
from . import _sql_text as sql
from ._base import LIVE, Forgotten, SessionStatus, StoreScope, is_touch_due
from ._clocks import MachineClock
from ._sql import Rows, SQLStore, Statement, asking, facts_of, sweep
from ._sqlite_file import DIALECT, LOCKED, SQLiteFile, checked_path
from ._threads import call_soon, call_suppressed, outcome

T = TypeVar("T")
GROUP: Final = 256  # changes in one transaction at the most; then others have their turn
_NAME: Final = "mcp-sessions-sqlite"
_HOUR: Final = 3600  # seconds
_LEAST_BYTES: Final = 1 << 18
_SINGLE: Final = frozenset({sql.FACTS, sql.GET, sql.READ})  # what looks at a few rows
_render: Final = cache(DIALECT.render)


@dataclass
class _Change:
    statements: Sequence[Statement]
    frees: bool
    deadline: float  # of the wait for its turn, by the monotonic clock
    future: Future[list[Rows]] = field(default_factory=Future)


class SQLiteStore(SQLStore):
    """Sessions of one machine, in one SQLite file, with `-wal` and `-shm` beside it, which nobody else may write to.

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

    @known_keywords
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
        self._path = checked_path(path)
        self.location: str = f"SQLite file {self._path}"  # for the log
        machine = MachineClock(check_clock(clock), self.location)
        super().__init__(leeway=leeway, clock=clock, store_clock=machine, accept_older=forgotten == "accept")
        self._file = SQLiteFile(self._path, clock=clock, busy_timeout=busy_timeout, max_bytes=max_bytes)
        self._thread = _new_thread()
        self._waiting: deque[_Change] = deque()
        self._busy_timeout = busy_timeout
        self._lock = Lock()  # of what waits, and of the thread
        self._at_work = Lock()  # of the thread
        self._is_open = False
        _watch_forks()
        _stores.add(self)

    async def open(self) -> None:
        """Open the file, make it where there is none, and delete what has expired, in small steps."""
        if self._is_open:
            return
        await self._run(self._file.open)
        is_more = True
        while is_more:  # other calls have their turn in between
            is_more = await self._run(self._sweep)
        self._is_open = True

    async def close(self) -> None:
        """Close the file and let the thread end, after the calls so far. A later call starts another."""
        self._is_open = False
        try:
            await self._run(self._file.close)
        finally:
            with self._lock:
                thread, self._thread = self._thread, _new_thread()
            thread.shutdown(wait=False)

    async def _ask_time(self) -> None:
        """Do nothing: a file has no clock."""

    async def _read(self, *statements: Statement) -> list[Rows]:
        job = partial(_execute, statements)
        if all(text in _SINGLE for text, _ in statements) and (found := self._file.read_nowait(job)) is not None:
            return found
        return await self._run(partial(self._file.read, job))

    async def _change(self, *statements: Statement, repeatable: bool = True, frees: bool = False) -> list[Rows]:  # noqa: ARG002  # nothing is lost on the way
        change = _Change(statements, frees, time.monotonic() + self._busy_timeout)
        with self._lock:
            # The first one that waits asks for the thread, unless it gave up, maybe with its event loop.
            is_first = not self._waiting or self._waiting[0].future.cancelled()
            self._waiting.append(change)
        if is_first:
            # Not before the event loop has come round: who asks in the same moment is in the same group, and the
            # thread, which then holds up every other process, need not share the interpreter with the loop so much.
            call_soon()(partial(self._submit, self._drain))
        return await outcome(change.future)

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> SessionStatus:
        """Read first, since a use must rarely be noted."""
        (rows,) = await self._read(asking(claims.by_owner()))
        facts, now = facts_of(rows), self._clock()
        status = self._status_with_idle(claims, facts, now, idle_timeout)
        if status is LIVE and facts.seen_at is not None and is_touch_due(facts.seen_at, now, idle_timeout):
            return await super().touch(claims, idle_timeout=idle_timeout)  # it may have ended meanwhile
        return status

    async def register_at_epoch(self, claims: Claims) -> None:
        if await self.status(claims) is SessionStatus.UNKNOWN:
            await super().register_at_epoch(claims)

    # --- the thread, reached from any event loop --------------------------------------------------

    async def _run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises, when it is its turn.

        A caller that gives up waiting is free at once: a call that has not begun is dropped, one that has runs to its
        end.
        """
        return await outcome(self._submit(work))

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            return self._thread.submit(self._work, work)

    def _work(self, work: Callable[[], T]) -> T:
        with self._at_work:
            return call_suppressed(work)

    def _sweep_soon(self) -> None:
        self._submit(self._sweep_all)

    def _sweep_all(self) -> None:
        with suppress(StoreUnavailable, ConfigurationError):  # which the next call has logged
            while self._sweep():
                """There may be more."""

    def _sweep(self) -> bool:
        """Delete some of what has expired; whether there may be more."""

        def job(connection: sqlite3.Connection) -> bool:
            return sweep(lambda *some: _execute(some, connection), now=self._store_clock(), leeway=self._leeway)

        return self._file.change(job, frees=True)

    def _drain(self) -> None:
        while self._waiting:
            self._commit_group(self._waiting[0].deadline)

    def _commit_group(self, deadline: float) -> None:
        """Change the file with one commit for all that came meanwhile, and then answer."""
        group: list[_Change] = []

        def job(connection: sqlite3.Connection) -> list[list[Rows]]:
            group.extend(self._take())
            return [_execute(change.statements, connection) for change in group]

        try:
            results = self._file.change(job, deadline=deadline)
        except StoreFull:  # there may be room for some, or for what makes room
            self._sweep_all()
            for change in group:
                self._commit_alone(change)
        except Exception as error:  # noqa: BLE001  # its callers'
            is_late = isinstance(error, StoreUnavailable) and error.reason == LOCKED
            for change in group or self._take(until=time.monotonic() if is_late else None):
                change.future.set_exception(copy.copy(error))
        else:
            for change, result in zip(group, results, strict=True):
                change.future.set_result(result)

    def _commit_alone(self, change: _Change) -> None:
        try:
            change.future.set_result(self._file.change(partial(_execute, change.statements), frees=change.frees))
        except Exception as error:  # noqa: BLE001  # its caller's
            change.future.set_exception(error)

    def _take(self, until: float | None = None) -> list[_Change]:
        """Return the changes whose turn has come, or whose deadline has, but those that nobody waits for."""
        taken: list[_Change] = []
        with self._lock:  # who comes meanwhile would rely on one that is waiting, and then be left alone
            while self._waiting and len(taken) < GROUP and (until is None or self._waiting[0].deadline <= until):
                change = self._waiting.popleft()
                if change.future.set_running_or_notify_cancel():
                    taken.append(change)
        return taken

    # --- forks ------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        """Wait until no connection is at work: SQLite's own locks, too, are copied as they are, and stay locked."""
        for lock in (self._at_work, self._lock, self._file.lock):
            lock.acquire()

    def _after_fork(self, *, is_child: bool) -> None:
        """Go on; a child starts afresh, since neither threads, connections nor callers survive a fork."""
        if is_child:
            self._file.abandon()
            self._thread = _new_thread()
            self._waiting.clear()
        for lock in (self._file.lock, self._lock, self._at_work):
            lock.release()

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path}>"


def _execute(statements: Sequence[Statement], connection: sqlite3.Connection) -> list[Rows]:
    return [connection.execute(_render(text), values).fetchall() for text, values in statements]


def _new_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=_NAME)  # which it starts when it is needed


_stores: Final[weakref.WeakSet[SQLiteStore]] = weakref.WeakSet()
_at_rest: Final[list[SQLiteStore]] = []


def _before_fork() -> None:
    for store in tuple(_stores):
        store._before_fork()  # noqa: SLF001  # of this file
        _at_rest.append(store)


def _after_fork(*, is_child: bool) -> None:
    while _at_rest:
        _at_rest.pop()._after_fork(is_child=is_child)  # noqa: SLF001  # of this file


@cache
def _watch_forks() -> None:
    """Have them called, once a store exists: Windows, which has no forks, can import this file."""
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=partial(_after_fork, is_child=False),
        after_in_child=partial(_after_fork, is_child=True),
    )

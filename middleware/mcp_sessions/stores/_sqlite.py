"""A store in a file: for all processes of one machine, and through restarts.

Whatever a method returned from is on the disk. Single rows are read on the event loop, from the write-ahead log, which
waits for nobody; lists and changes have a thread. A commit waits for the disk however much it holds: what is asked for
meanwhile goes into the next one together. The file must lie on a local disk.

Reads stay on the event loop: behind the commits of the thread, they take 1 to 12 ms instead of 0.1 ms.
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
from ._base import LIVE, Forgotten, Found, SessionStatus, StoreScope, is_touch_due
from ._clocks import MachineClock
from ._sql import EPOCH, SEEN_AT, Rows, SQLStore, Statement, asking, sweep
from ._sqlite_file import DIALECT, NEVER_WORKS, SQLiteFile, checked_path
from ._threads import call_soon, call_suppressed, wait_for_future

T = TypeVar("T")
GROUP: Final = 256  # changes in one transaction at the most; then others have their turn
_NAME: Final = "mcp-sessions-sqlite"
_HOUR: Final = 3600  # seconds
_LEAST_BYTES: Final = 1 << 18
_SINGLE: Final = frozenset({sql.look_up(state=False), sql.look_up(state=True), sql.GET, sql.READ, sql.COUNT})
"""Statements that look at a few rows, and so may run on the event loop."""
_render: Final = cache(DIALECT.render)


@dataclass
class _Change:
    statements: Sequence[Statement]
    frees: bool
    future: Future[list[Rows]] = field(default_factory=Future)


class SQLiteStore(SQLStore):
    """Sessions of one machine, in one SQLite file, with `-wal` and `-shm` beside it, which no other user may write to.

    A new file does not know which older sessions were ended, so sessions issued before its creation are refused
    (`SessionStatus.UNKNOWN`), as if not found. **Adding this store to a deployment that already has sessions ends
    them**, and so does deleting the file. `forgotten="accept"` accepts such sessions.

    The store detects when an older copy is written over the file while in use, and does the same. It cannot detect that
    the file is deleted or moved while in use, nor a backup restored while no process uses it: sessions ended since the
    backup would work again, so delete the file instead, and never `-wal` or `-shm` alone. New files are readable by
    their owner only (mode 0600). A file does not shrink; free space in it is reused. Forked processes open their own
    connections.

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
    writes_to_disk: Final = True

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
        self._machine_clock = MachineClock(check_clock(clock), self.location)
        accept = forgotten == "accept"
        super().__init__(leeway=leeway, clock=clock, store_clock=self._machine_clock, accept_older=accept)
        self._file = SQLiteFile(self._path, clock=clock, busy_timeout=busy_timeout, max_bytes=max_bytes)
        self._thread = _new_thread()
        self._waiting: deque[_Change] = deque()
        self._lock = Lock()  # of what waits, and of the thread
        self._busy_lock = Lock()  # of the thread
        self._is_open = False
        _watch_forks()
        _stores.add(self)

    async def open(self) -> None:
        """Open the file, create it if missing, and delete what has expired, in small steps."""
        if self._is_open:
            return
        try:
            await self._run(self._file.open)
        except StoreUnavailable as error:
            if error.reason in NEVER_WORKS:
                raise ConfigurationError(f"{self.location}: {error.cause}") from None
            raise
        await self._ask_time()
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
        """Compare this worker's clock with that of the other workers of the machine."""
        await self._run(self._agree_on_time)

    def _agree_on_time(self) -> None:
        (known,) = self._file.read(partial(_execute, [(sql.ANCHOR, {})]))
        new = self._machine_clock.agree(*known[0]) if known else None
        if new is not None:
            values = dict(zip(("boot", "ahead_of_steady", "confirmed_at"), new, strict=True))
            self._file.change(partial(_execute, [(sql.SET_ANCHOR, values)]), frees=True)

    async def _read(self, *statements: Statement) -> list[Rows]:
        job = partial(_execute, statements)
        if all(text in _SINGLE for text, _ in statements) and (found := self._file.read_nowait(job)) is not None:
            return found
        return await self._run(partial(self._file.read, job))

    async def _change(self, *statements: Statement, repeatable: bool = True, frees: bool = False) -> list[Rows]:  # noqa: ARG002  # nothing is lost on the way
        change = _Change(statements, frees)
        with self._lock:
            # The first one that waits asks for the thread, unless it gave up, maybe with its event loop.
            is_first = not self._waiting or self._waiting[0].future.cancelled()
            self._waiting.append(change)
        if is_first:
            # Not before the event loop has come round: who asks in the same moment is in the same group, and the
            # thread, which then holds up every other process, need not share the interpreter with the loop so much.
            call_soon()(partial(self._submit, self._drain))
        return await wait_for_future(change.future)

    async def look_up(
        self, *claims: Claims, state: bool = False, touch: bool = False, idle_timeout: int | None = None
    ) -> list[Found]:
        """Read first, since a use must rarely be noted, and a file that an older copy replaced must not be believed."""
        look, now = asking(claims, state=state), self._clock()
        (rows,) = await self._read(look)
        is_due = touch and any(
            row[SEEN_AT] is not None and is_touch_due(row[SEEN_AT], now, idle_timeout) for row in rows
        )
        if is_due or any(row[EPOCH] is None for row in rows):
            return await super().look_up(*claims, state=state, touch=touch, idle_timeout=idle_timeout)
        found = self._found(claims, rows, now, touch=touch, idle_timeout=idle_timeout)
        if not all(one.status is LIVE for one in found) and self._file.is_older_copy():
            await self._change()  # which notices it, too
            return await self.look_up(*claims, state=state, touch=touch, idle_timeout=idle_timeout)
        return found

    async def register_at_epoch(self, claims: Claims) -> None:
        (found,) = await self.look_up(claims)
        if found.status is SessionStatus.UNKNOWN:
            await super().register_at_epoch(claims)

    # --- the thread, reached from any event loop --------------------------------------------------

    async def _run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises, when it is its turn.

        A caller that gives up waiting is free at once: a call that has not begun is dropped, one that has runs to its
        end.
        """
        return await wait_for_future(self._submit(work))

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            return self._thread.submit(self._work, work)

    def _work(self, work: Callable[[], T]) -> T:
        with self._busy_lock:
            return call_suppressed(work)

    def _sweep_soon(self) -> None:
        self._submit(partial(self._sweep_all, self._agree_on_time))

    def _sweep_all(self, first: Callable[[], object] = bool) -> None:
        with suppress(StoreUnavailable, ConfigurationError):  # which the next call has logged
            first()
            while self._sweep():
                """There may be more."""

    def _sweep(self) -> bool:
        """Delete some of what has expired; return whether there may be more."""
        find, delete = sweep(now=self._store_clock(), leeway=self._leeway)

        def job(connection: sqlite3.Connection) -> bool:
            (rows,) = _execute([find], connection)
            _execute(delete(rows), connection)
            return len(rows) == int(find[1]["rows"])

        return self._file.change(job, frees=True)

    def _drain(self) -> None:
        while self._waiting:
            self._commit_group(len(self._waiting))

    def _commit_group(self, waiting: int) -> None:
        """Change the file with one commit for all that came meanwhile, and then answer."""
        group: list[_Change] = []

        def job(connection: sqlite3.Connection) -> list[list[Rows]]:
            group.extend(self._take(GROUP))
            return [_execute(change.statements, connection) for change in group]

        try:
            results = self._file.change(job)
        except StoreFull:  # there may be room for some, or for what makes room
            self._sweep_all()
            for change in group:
                self._commit_alone(change)
        except Exception as error:  # noqa: BLE001  # its callers'
            for change in group or self._take(waiting):  # those that came later have not waited long enough
                change.future.set_exception(copy.copy(error))
        else:
            for change, result in zip(group, results, strict=True):
                change.future.set_result(result)

    def _commit_alone(self, change: _Change) -> None:
        try:
            change.future.set_result(self._file.change(partial(_execute, change.statements), frees=change.frees))
        except Exception as error:  # noqa: BLE001  # its caller's
            change.future.set_exception(error)

    def _take(self, number: int) -> list[_Change]:
        """Return the changes whose turn has come, except those whose caller has gone."""
        with self._lock:  # a newcomer would rely on one that is waiting, and then be left alone
            taken = [self._waiting.popleft() for _ in range(min(number, len(self._waiting)))]
        return [change for change in taken if change.future.set_running_or_notify_cancel()]

    # --- forks ------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        """Wait until no connection is at work: SQLite's own locks, too, are copied as they are, and stay locked."""
        for lock in (self._busy_lock, self._lock, self._file.lock):
            lock.acquire()

    def _after_fork(self, *, is_child: bool) -> None:
        """Go on; a child starts afresh, since neither threads, connections nor callers survive a fork."""
        if is_child:
            self._file.abandon()
            self._thread = _new_thread()
            self._waiting.clear()
        for lock in (self._file.lock, self._lock, self._busy_lock):
            lock.release()

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path}>"


def _execute(statements: Sequence[Statement], connection: sqlite3.Connection) -> list[Rows]:
    return [connection.execute(_render(text), values).fetchall() for text, values in statements]


def _new_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=_NAME)  # which it starts when it is needed


_stores: Final[weakref.WeakSet[SQLiteStore]] = weakref.WeakSet()
_locked_for_fork: Final[list[SQLiteStore]] = []


def _before_fork() -> None:
    for store in tuple(_stores):
        store._before_fork()  # noqa: SLF001  # of this file
        _locked_for_fork.append(store)


def _after_fork(*, is_child: bool) -> None:
    while _locked_for_fork:
        _locked_for_fork.pop()._after_fork(is_child=is_child)  # noqa: SLF001  # of this file


@cache
def _watch_forks() -> None:
    """Have them called, once a store exists: Windows, which has no forks, can import this file."""
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=partial(_after_fork, is_child=False),
        after_in_child=partial(_after_fork, is_child=True),
    )

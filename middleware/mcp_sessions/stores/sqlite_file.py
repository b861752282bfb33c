"""A SQLite file as one thread sees it: opened, watched, and opened again after a fault.

Before every use the file is looked for where it should be. One that vanished is made anew, and one that
was put in its place is not trusted with the past: either way a fence goes up, before which no session is
vouched for. Every fault of SQLite becomes `StoreUnavailable` with its cause, and leaves no transaction
open. No event loop is known here.
Sources: sqlite.org on write-ahead logging, and on how to corrupt a database file.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from ..errors import ConfigurationError, StoreFull, StoreUnavailable
from . import sqlite_schema as schema
from .sqlite_place import Identity, find, inode, make_private

T = TypeVar("T")
Job = Callable[[sqlite3.Connection, float], T]
"""Reads or changes, at a time in Unix seconds."""

LOCKED: Final = "store_locked"
FULL: Final = "store_full_disk"
CAUSES: Final = {
    # Words of SQLite's own messages: its codes cannot be asked for before Python 3.11.
    "locked": LOCKED,
    "locking": LOCKED,
    "full": FULL,
    "readonly": "store_read_only",
    "not a database": "store_corrupt",
    "malformed": "store_corrupt",
    "unable to open": "store_cannot_open",
    "disk I/O": "store_io_error",
}
_ANOTHER_TRY: Final = 0.01  # seconds
_SWEEP_EVERY: Final = 60  # seconds
_LOG_BYTES: Final = 16 << 20  # what the write-ahead log may keep of its size after a burst

logger = logging.getLogger("mcp_sessions")

_left_behind: Final[list[sqlite3.Connection]] = []
"""Connections to files that are no longer in their place. Closing one would delete the log that lies under its
name, and that may be the log of the file that is there now."""


@dataclass(frozen=True)
class Setting:
    """How a file is used.

    Args:
        path: Where it is, absolute.
        clock: Unix seconds.
        busy_timeout: Seconds to wait for another process's lock.
        max_bytes: How large the file may grow.
        sweep: Deletes some of what is over; returns whether there may be more.
    """

    path: str
    clock: Callable[[], float]
    busy_timeout: float
    max_bytes: int
    sweep: Job[bool]


class SQLiteFile:
    """A connection, made when it is needed. All calls come from one thread, `close` included."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._connection: sqlite3.Connection | None = None
        self._identity: Identity | None = None  # of the file that was opened last
        self._seen_at = -math.inf  # when that was last found where it should be
        self._swept_at = -math.inf

    def open(self) -> None:
        """Connect.

        Raises:
            ConfigurationError: The file is not one that we may write.
            StoreUnavailable: It cannot be opened now.
        """
        with self._judging():
            self._current()

    def read(self, job: Job[T]) -> T:
        """What a job reads.

        Raises:
            StoreUnavailable: The file could not be read.
        """
        with self._judging(), _misfits_judged():
            return job(self._current(), self._setting.clock())

    def change(self, job: Job[T], *, asked_at: float) -> T:
        """What a job returns, once all that it changed is on the disk.

        Args:
            job: Changes all or, when it raises, nothing. It may be called twice.
            asked_at: When this was asked for (`time.monotonic`): the wait for a lock begins there.

        Raises:
            StoreFull: There is no room.
            StoreUnavailable: It was not done, or it is not certain that it was.
        """
        with self._judging(), _misfits_judged():
            try:
                return self._transact(self._with_sweep(job), asked_at)
            except sqlite3.Error as error:
                if cause(error) != FULL:
                    raise
            self._transact(self._setting.sweep, asked_at)  # what it frees can be written again
            return self._transact(job, asked_at)

    def _transact(self, job: Job[T], asked_at: float) -> T:
        connection = self._current()
        patience = asked_at + self._setting.busy_timeout - time.monotonic()
        if patience <= 0:  # whoever stood before this in the queue had no luck either
            raise StoreUnavailable(LOCKED)
        connection.execute(f"PRAGMA busy_timeout = {math.ceil(patience * 1000)}")
        with _transaction(connection):
            result = job(connection, self._setting.clock())
        if not self._is_in_place():
            raise StoreUnavailable("store_vanished")  # and what was written with it
        return result

    def _with_sweep(self, job: Job[T]) -> Job[T]:
        """A job that first deletes some of what is over, where there may be some."""

        def both(connection: sqlite3.Connection, now: float) -> T:
            if not self._swept_at <= now < self._swept_at + _SWEEP_EVERY:
                more = self._setting.sweep(connection, now)
                self._swept_at = -math.inf if more else now
            return job(connection, now)

        return both

    # --- the connection ----------------------------------------------------------------------

    def _current(self) -> sqlite3.Connection:
        """A connection to the file that is in its place now."""
        if self._connection is not None and not self._is_in_place():
            logger.error("the session store's file was deleted or replaced: older sessions may be refused")
            self.close()
        if self._connection is None:
            self._connection = self._connected()
        return self._connection

    def _is_in_place(self) -> bool:
        now = self._setting.clock()
        found = find(self._setting.path)
        if self._identity is None or found is None or found.file != self._identity.file:
            return False
        if found.log != self._identity.log:
            # Others write a log that this connection does not see, and SQLite would go on with its own.
            logger.error("the session store's log (-wal) was deleted while in use: restart every server that uses it")
            raise StoreUnavailable("store_log_vanished")
        self._seen_at = now
        return True

    def _connected(self) -> sqlite3.Connection:
        deadline = time.monotonic() + self._setting.busy_timeout
        while True:
            try:
                return self._connect()
            except sqlite3.Error as error:
                # Another process makes the file or changes to WAL, and SQLite does not always wait for that.
                if cause(error) != LOCKED or time.monotonic() >= deadline:
                    raise
            time.sleep(_ANOTHER_TRY)

    def _connect(self) -> sqlite3.Connection:
        path, setting = self._setting.path, self._setting
        make_private(path)
        before = find(path)
        connection = sqlite3.connect(path, timeout=setting.busy_timeout, isolation_level=None)
        try:
            schema.check(connection)
            _prepare(connection, setting.max_bytes)
            self._fence(connection, before)
            self._identity, self._seen_at = _same(before, find(path)), setting.clock()
        except BaseException:
            connection.close()
            raise
        return connection

    def _fence(self, connection: sqlite3.Connection, found: Identity | None) -> None:
        """Make the tables; and where the file is not the one that it was, vouch for nothing older than now.

        This writes in any case, so that a file that can only be read fails here: a connection to it would keep the
        others of this process from writing, even when they may again.
        """
        known = self._identity
        replaced = known is not None and found is not None and known.file != found.file
        now = math.floor(self._setting.clock())
        next_second = now + 1  # what was told to the vanished file within this second is lost as well
        with _transaction(connection):
            made = schema.create(connection, fence=now if known is None else next_second)
            # A fence that went up since the old file was last seen was put up by another process for the same reason.
            if replaced and not made and schema.fenced_before(connection) < self._seen_at:
                schema.raise_fence(connection, next_second)
            schema.touch(connection)
        if made:
            logger.warning("the session store's file is new: sessions issued before now may be refused")

    def close(self) -> None:
        """Let go of the file. A later call opens it again."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(OSError, sqlite3.Error):
            if self._identity is not None and inode(self._setting.path) == self._identity.file:
                connection.close()
                return
        _left_behind.append(connection)

    @contextmanager
    def _judging(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            reason = cause(error)
            if reason not in {LOCKED, FULL}:
                self.close()
            raise (StoreFull if reason == FULL else StoreUnavailable)(reason) from error
        except OSError as error:
            raise StoreUnavailable("store_cannot_open") from error


def _same(before: Identity | None, after: Identity | None) -> Identity:
    """The file that was opened, if it is certain which that is."""
    if before is not None and after is not None and before.file == after.file:
        return after
    raise StoreUnavailable("store_vanished")


def cause(error: sqlite3.Error) -> str:
    """Why SQLite refused, as a reason for logs and spans."""
    text = str(error)
    return next((reason for words, reason in CAUSES.items() if words in text), "store_unavailable")


def _prepare(connection: sqlite3.Connection, max_bytes: int) -> None:
    """What holds for one connection, and the log, without which readers and writers would wait for each other.

    Raises:
        ConfigurationError: The file system cannot have such a log.
    """
    for pragma in ("synchronous = FULL", "fullfsync = ON", "cell_size_check = ON", "trusted_schema = OFF"):
        connection.execute(f"PRAGMA {pragma}")
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise ConfigurationError(
            "the SQLite file's file system has no shared memory (a network share?); give a path on a local disk"
        )
    if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":  # or a lost page might read as "never ended"
        raise sqlite3.DatabaseError("the file is malformed")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}").fetchone()
    page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // page_bytes)}").fetchone()


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, and nobody else writes meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself takes some errors for the end of it
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


@contextmanager
def _misfits_judged() -> Iterator[None]:
    """A file that is not ours to write is an error of configuration only for who opens it."""
    try:
        yield
    except ConfigurationError as error:
        raise StoreUnavailable("store_misfit") from error

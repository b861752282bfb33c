"""A SQLite file as one thread sees it: opened, watched, and opened again after a fault.

Before every use the file is looked for in its place. One that vanished is made anew, and one that was put in its place
is not trusted with the past: either way the epoch is raised, before which no session is vouched for. Every fault
becomes `StoreUnavailable` with its cause, and leaves no transaction open.
Sources: sqlite.org on write-ahead logging; "How To Corrupt An SQLite Database File", sections 2.2 and 4.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from .._errors import ConfigurationError, StoreFull, StoreUnavailable
from ._sqlite_shared import PAGE, SHARE, SharedFile
from ._sqlite_tables import check, create, epoch_of, raise_epoch

T = TypeVar("T")
Job = Callable[[sqlite3.Connection, float], T]  # reads or changes, at a time in Unix seconds
Inode = tuple[int, int]

LOCKED: Final = "store_locked"
FULL: Final = "store_full_disk"
CAUSES: Final = {  # by words of SQLite's own messages: its codes cannot be read before Python 3.11
    **dict.fromkeys(("locked", "locking"), LOCKED),
    "full": FULL,
    "readonly": "store_read_only",
    **dict.fromkeys(("not a database", "malformed"), "store_corrupt"),
    "unable to open": "store_cannot_open",
    "disk I/O": "store_io_error",
}
_ANOTHER_TRY: Final = 0.01  # seconds
_SWEEP_EVERY: Final = 60  # seconds
_LOG_BYTES: Final = 16 << 20  # what the write-ahead log may keep of its size after a burst
_SWEPT: Final = 200  # rows of a table that one sweep deletes
_SWEPT_WHEN_FULL: Final = 20  # for which there is room
_STALE: Final = 10  # seconds after which a process that makes a file must have died

logger: Final = logging.getLogger("mcp_sessions")
_left_behind: Final[list[sqlite3.Connection | None]] = []
"""Connections to files that are no longer in their place, or that a fork inherited. Closing one would delete the log
that lies under its name, and that may be the log of the file that is there now."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A database as it lies on the disk: device and inode of the file, and of its write-ahead log if it has one."""

    file: Inode
    log: Inode | None


def checked_path(path: object) -> str:
    """Return the absolute path of a file that could be made or opened; `ConfigurationError` if it could not."""
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigurationError("SQLiteStore takes the path of a file, as in SQLiteStore('/var/lib/app/sessions.db')")
    given = os.fspath(path)
    if not isinstance(given, str) or not given or given.startswith((":", "file:")) or "\0" in given:
        raise ConfigurationError(
            "SQLiteStore takes the path of a file, as in '/var/lib/app/sessions.db'; without one, use store='memory:'"
        )
    place = Path(given).absolute()
    if os.path.isdir(place):  # noqa: PTH112  # where a name is too long, Path.is_dir raises
        raise ConfigurationError(f"the SQLite path {given!r} is a folder; name a file in it, as in 'sessions.db'")
    if not os.path.isdir(place.parent):  # noqa: PTH112
        raise ConfigurationError(f"the folder of the SQLite path {given!r} does not exist; create it, or give another")
    return str(place)


def identify(path: str) -> Identity | None:
    """Return which database lies there now, or None."""
    file = _inode(path)
    return None if file is None else Identity(file, _inode(f"{path}-wal"))


def _inode(path: str) -> Inode | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def make_private(path: str) -> None:
    """Make an empty file that only its owner may read, where there is none.

    The log and the index of a file that was there before are removed first: processes that still have that file open
    share the index with any that opens it, under its name. One process at a time does this: another that finds `-new`
    there waits for it. (`O_EXCL` on the file itself would let that other one open it before they are removed.)
    """
    if _inode(path) is not None:
        return
    new = Path(f"{path}-new")
    try:
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        with suppress(FileNotFoundError):
            if new.stat().st_mtime + _STALE < time.time():
                new.unlink()
        raise sqlite3.OperationalError("the file is locked by the process that creates it") from None
    if _inode(path) is not None:  # it was made in between
        new.unlink()
        return
    for part in ("-wal", "-shm"):
        Path(path + part).unlink(missing_ok=True)
    new.rename(path)


@dataclass(frozen=True)
class Setting:
    path: str  # absolute
    clock: Callable[[], float]  # Unix seconds
    busy_timeout: float  # seconds to wait for another process's lock
    max_bytes: int  # how large the file may grow
    shared: SharedFile
    sweep: Callable[[sqlite3.Connection, float, int], bool]  # deletes so many rows of what is over; are there more?

    @property
    def usual_bytes(self) -> int:  # how large it may grow by what frees no room
        return self.max_bytes - self.max_bytes // SHARE


class SQLiteFile:
    """A connection, made when it is needed, for one call at a time."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._shared = setting.shared
        self._connection: sqlite3.Connection | None = None
        self._identity: Identity | None = None  # of the file that was opened last
        self._seen_at = -math.inf  # when that was last found in its place
        self._swept_at = -math.inf

    def open(self) -> None:
        """Connect; only here a file that is not ours to write is an error of configuration."""
        with self._faults(opening=True):
            self._current()

    def read(self, job: Job[T]) -> T:
        with self._faults():
            return job(self._current(), self._setting.clock())

    def change(self, job: Job[T], *, deadline: float) -> T:
        """Return what a job returns, once all that it changed is on the disk.

        A job may be called twice; where it raises, nothing changes. `deadline`, by the monotonic clock, is when to
        stop waiting for a lock.
        """
        with suppress(StoreFull):
            return self.attempt(self._with_sweep(job), deadline=deadline)
        self._make_room(deadline)  # which can be written again
        return self.attempt(job, deadline=deadline)

    def attempt(self, job: Job[T], *, deadline: float, frees: bool = False) -> T:
        """Do as `change` does, once. A job that frees room may take what is kept for that."""
        with self._faults():
            return self._transact(job, deadline, frees)

    def sweep(self) -> bool:
        """Delete some of what is over, and return whether there may be more."""
        deadline = time.monotonic() + self._setting.busy_timeout
        return self.change(self._sweeping(_SWEPT), deadline=deadline)

    def close(self) -> None:
        """Let go of the file. A later call opens it again."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(OSError, sqlite3.Error):
            if self._identity is not None and _inode(self._setting.path) == self._identity.file:
                connection.close()
                return
        _left_behind.append(connection)

    def __del__(self) -> None:
        self.close()

    def leave_behind(self) -> None:
        """Never touch the connection again: it belongs to the process that this one was forked from."""
        _left_behind.append(self._connection)
        self._connection = None

    def _transact(self, job: Job[T], deadline: float, frees: bool) -> T:
        connection = self._current()
        max_bytes = self._max_bytes(frees)
        with self._shared.turn():
            left = deadline - time.monotonic()
            if left <= 0:  # the call before this one in the queue had no luck either
                raise StoreUnavailable(LOCKED)
            connection.execute(f"PRAGMA busy_timeout = {math.ceil(left * 1000)}")
            with _transaction(connection), self._grown_to(connection, max_bytes):
                result = job(connection, self._setting.clock())
        if not self._is_in_place():
            raise StoreUnavailable("store_vanished")  # and what was written with it
        self._open_shared()  # or who has opened another one was not told of what has just ended
        return result

    def _max_bytes(self, frees: bool) -> int:
        """Return how large the file may grow now: not at all on a full disk, where the log needs what is left."""
        if frees:
            self._shared.give_spare()
            return self._setting.max_bytes
        return self._setting.usual_bytes if self._shared.fill_spare() else 1

    @contextmanager
    def _grown_to(self, connection: sqlite3.Connection, max_bytes: int) -> Iterator[None]:
        usual = self._setting.usual_bytes
        if max_bytes == usual:
            yield
            return
        _limit_size(connection, max_bytes)
        try:
            yield
        finally:
            _limit_size(connection, usual)

    def _with_sweep(self, job: Job[T]) -> Job[T]:
        def both(connection: sqlite3.Connection, now: float) -> T:
            if not self._swept_at <= now < self._swept_at + _SWEEP_EVERY:
                more = self._setting.sweep(connection, now, _SWEPT)
                self._swept_at = -math.inf if more else now
            return job(connection, now)

        return both

    def _sweeping(self, rows: int) -> Job[bool]:
        return lambda connection, now: self._setting.sweep(connection, now, rows)

    def _make_room(self, deadline: float) -> None:
        """Delete some of what is over, with what is kept for that."""
        self._shared.give_spare()
        with suppress(StoreFull):
            with suppress(sqlite3.Error):  # the log gives back the room that it has taken
                self._current().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self.attempt(self._sweeping(_SWEPT_WHEN_FULL), deadline=deadline, frees=True)

    def _open_shared(self) -> None:
        if not self._shared.is_in_place():
            self._shared.open()

    def _current(self) -> sqlite3.Connection:
        """Return a connection to the file that is in its place now."""
        if self._connection is not None and not self._is_in_place():
            logger.error("the session store's file was deleted or replaced: older sessions may be refused")
            self.close()
        self._open_shared()
        if self._connection is None:
            self._connection = self._connected()
        return self._connection

    def _is_in_place(self) -> bool:
        now = self._setting.clock()
        found = identify(self._setting.path)
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
        before = identify(path)
        connection = sqlite3.connect(path, timeout=setting.busy_timeout, isolation_level=None, check_same_thread=False)
        try:
            check(connection)
            _configure(connection, setting.usual_bytes, self._shared.spare())
            self._raise_epoch(connection, before)
            self._identity, self._seen_at = _same(before, identify(path)), setting.clock()
        except BaseException:
            connection.close()
            raise
        return connection

    def _raise_epoch(self, connection: sqlite3.Connection, found: Identity | None) -> None:
        """Make the tables; and where the file is not the one that it was, vouch for nothing of this second or before.

        This writes in any case, so that a file that can only be read fails here: a connection to it would keep the
        others of this process from writing, even when they may again.
        """
        known = self._identity
        replaced = known is not None and found is not None and known.file != found.file
        now = self._setting.clock()
        next_second = math.ceil(now) if known is None else math.floor(now) + 1
        with self._shared.turn(), _transaction(connection):
            self._shared.move(None)
            made = create(connection, epoch=next_second)
            # An epoch raised since the old file was last seen was raised by another process for the same reason.
            if replaced and not made and epoch_of(connection) < self._seen_at:
                raise_epoch(connection, next_second)
            connection.execute("UPDATE facts SET value = value")
        if made:
            logger.warning("the session store's file is new: sessions issued before now may be refused")

    @contextmanager
    def _faults(self, *, opening: bool = False) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            reason = cause(error)
            if reason not in {LOCKED, FULL}:
                self.close()
            raise (StoreFull if reason == FULL else StoreUnavailable)(reason, cause=str(error)) from error
        except OSError as error:
            raise StoreUnavailable("store_cannot_open", cause=error.strerror or "") from error
        except ConfigurationError as error:
            if opening:
                raise
            raise StoreUnavailable("store_misfit", cause=str(error)) from error


def _same(before: Identity | None, after: Identity | None) -> Identity:
    if before is not None and after is not None and before.file == after.file:
        return after
    raise StoreUnavailable("store_vanished")  # which file was opened is not certain


def cause(error: sqlite3.Error) -> str:
    """Return why SQLite refused, as a reason for logs and spans."""
    text = str(error)
    return next((reason for words, reason in CAUSES.items() if words in text), "store_unavailable")


def _configure(connection: sqlite3.Connection, max_bytes: int, spare: int) -> None:
    for pragma in ("synchronous = FULL", "fullfsync = ON", "cell_size_check = ON", "trusted_schema = OFF"):
        connection.execute(f"PRAGMA {pragma}")
    # The log, without which readers and writers would wait for each other.
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise ConfigurationError(
            "the SQLite file's file system has no shared memory (a network share?); give a path on a local disk"
        )
    if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":  # or a lost page might read as "never ended"
        raise sqlite3.DatabaseError("the file is malformed")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}").fetchone()
    # So that on a full disk the spare room takes what the log holds.
    connection.execute(f"PRAGMA wal_autocheckpoint = {max(8, min(1000, spare // PAGE // 2))}").fetchone()
    _limit_size(connection, max_bytes)


def _limit_size(connection: sqlite3.Connection, max_bytes: int) -> None:
    page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // page_bytes)}").fetchone()


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself takes some errors for the end of it
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise

"""A SQLite file as one thread sees it: opened, watched, and opened again after a fault.

Before every use the file is looked for in its place. One that vanished is made anew, and one that was put in its place
is not trusted with the past: either way the epoch is raised, before which no session is vouched for. Every fault
becomes `StoreUnavailable` with its cause, and leaves no transaction open.
Sources: sqlite.org on write-ahead logging; "How To Corrupt An SQLite Database File", sections 2.2 and 4.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, TypeVar

from .._errors import ConfigurationError, DataNotInteger, StoreFull, StoreUnavailable
from .._files import SQLITE_ENDS, check_private, open_files, require_posix, was_exchanged
from . import _sql_text as sql
from ._base import checked_add, logger
from ._minute_log import MinuteLog

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]
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
DIALECT: Final = sql.Dialect(
    sorted_text="text",
    blob="blob",
    asked="""(SELECT key AS place, json_extract(value, '$[0]') AS ref, json_extract(value, '$[1]') AS subject,
        json_extract(value, '$[2]') AS audience FROM json_each(:asked))""",
    refs="(SELECT value FROM json_each(:refs))",
    sum="checked_sum(old.value, :by)",
    lock="",
    skip_locked="",
)
_ANOTHER_TRY: Final = 0.01  # seconds
_LOG_BYTES: Final = 16 << 20  # what the write-ahead log may keep of its size after a burst
_STALE: Final = 10  # seconds after which a process that makes a file must have died
_RESERVED: Final = 16  # one part in so many of the file is kept for what makes room

_abandoned: Final[list[sqlite3.Connection | None]] = []
"""Connections to files that are no longer in their place, or that a fork inherited. Closing one would delete the log
that lies under its name, and that may be the log of the file that is there now."""


class Identity(NamedTuple):
    """A database as it lies on the disk: device and inode of the file, and of its write-ahead log if it has one."""

    file: Inode
    log: Inode | None


def checked_path(path: object) -> str:
    """Return the absolute path of a file that could be made or opened; `ConfigurationError` if it could not."""
    require_posix("the SQLite store", "use store='memory:', 'redis://...' or 'postgresql://...'")
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


def create_owner_only(path: str) -> None:
    """Make an empty file that only its owner may read, where there is none.

    The log, the index and the journal of a file that was there before are removed first: processes that still have that
    file open share the index with any that opens it, under its name. One process at a time does this: another that
    finds `-new` there waits for it. (`O_EXCL` on the file itself would let that other one open it before they are
    removed.)
    """
    if _inode(path) is not None:
        return
    new = Path(f"{path}-new")
    try:
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        with suppress(FileNotFoundError):
            if new.lstat().st_mtime + _STALE < time.time():
                new.unlink()
        raise sqlite3.OperationalError("the file is locked by the process that creates it") from None
    if _inode(path) is not None:  # it was made in between
        new.unlink()
        return
    for part in SQLITE_ENDS:
        Path(path + part).unlink(missing_ok=True)
    new.rename(path)


class SQLiteFile:
    """Two connections, made when they are needed: one for a thread, and one that only reads, for the event loop."""

    def __init__(self, path: str, *, clock: Callable[[], float], busy_timeout: float, max_bytes: int) -> None:
        self._path = path  # absolute
        self._clock = clock
        self._busy_timeout = busy_timeout  # seconds to wait for another process's lock
        self._max_bytes = max_bytes  # how large the file may grow
        self._log = MinuteLog()
        self.lock = Lock()  # held by what opens, closes, or reads without waiting
        self._connection: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._identity: Identity | None = None  # of the file that was opened last
        self._seen_at = -math.inf  # when that was last found in its place

    def open(self) -> None:
        """Connect; a file that is not ours to write is an error of configuration, here and later."""
        with self._faults():
            self._current()

    def read(self, job: Job[T]) -> T:
        with self._faults():
            return job(self._current())

    def read_nowait(self, job: Job[T]) -> T | None:
        """Return what a job returns, or None where the file has to be opened or waited for."""
        if not self.lock.acquire(blocking=False):
            return None
        try:
            if self._reader is None or not self._file_unchanged():
                return None
            return job(self._reader)
        except (sqlite3.Error, OSError):  # to be tried again by one that can wait, and names the cause
            return None
        finally:
            self.lock.release()

    def change(self, job: Job[T], *, deadline: float = math.inf, frees: bool = False) -> T:
        """Return what a job returns, once all that it changed is on the disk; where it raises, nothing changes.

        `deadline`, by the monotonic clock, is when to stop waiting for a lock; what makes room may take the part that
        is kept for that.
        """
        with self._faults():
            connection = self._current()
            remaining = min(deadline - time.monotonic(), self._busy_timeout)
            if remaining <= 0:  # the call before this one in the queue was not served either
                raise StoreUnavailable(LOCKED)
            connection.execute(f"PRAGMA busy_timeout = {math.ceil(remaining * 1000)}")
            limit = self._max_bytes - (0 if frees else self._max_bytes // _RESERVED)
            pages = limit // connection.execute("PRAGMA page_size").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {max(1, pages)}").fetchone()
            with _transaction(connection):
                result = job(connection)
            if not self._file_unchanged():
                raise StoreUnavailable("store_vanished")  # and what was written with it
            return result

    def close(self) -> None:
        """Let go of the file. A later call opens it again."""
        with self.lock:
            self._close()

    def _close(self) -> None:
        connections, self._connection, self._reader = (self._reader, self._connection), None, None
        with suppress(OSError, sqlite3.Error):
            if self._identity is not None and _inode(self._path) == self._identity.file:
                for one in connections:  # the last one to be closed removes the log, and may write
                    if one is not None:
                        one.close()
                return
        _abandoned.extend(connections)

    def __del__(self) -> None:
        self._close()

    def abandon(self) -> None:
        """Never touch the connections again: they belong to the process that this one was forked from."""
        _abandoned.extend((self._reader, self._connection))
        self._connection = self._reader = None

    def _current(self) -> sqlite3.Connection:
        """Return a connection to the file that is in its place now."""
        if self._connection is not None and not self._file_unchanged():
            logger.error("the session store's file was deleted or replaced: older sessions may be refused")
            self.close()
        if self._connection is None:
            with self.lock:
                self._connection = self._connected()
        return self._connection

    def _file_unchanged(self) -> bool:
        now = self._clock()
        found = identify(self._path)
        if self._identity is None or found is None or found.file != self._identity.file:
            return False
        if found.log != self._identity.log:
            # Others write a log that this connection does not see, and SQLite would go on with its own.
            if self._log.is_due("vanished"):
                logger.error(
                    "the session store's log (-wal) was deleted while in use: restart every server that uses it"
                )
            raise StoreUnavailable("store_log_vanished")
        self._seen_at = now
        return True

    def _connected(self) -> sqlite3.Connection:
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                return self._connect()
            except sqlite3.Error as error:
                # Another process makes the file or changes to WAL, and SQLite does not always wait for that.
                if cause(error) != LOCKED or time.monotonic() >= deadline:
                    raise
            time.sleep(_ANOTHER_TRY)

    def _connect(self) -> sqlite3.Connection:
        path = self._path
        check_private(path, beside=SQLITE_ENDS)
        create_owner_only(path)
        before, opened_before = identify(path), open_files()
        with ExitStack() as opened:
            connection = opened.enter_context(closing(self._open(path, "rw")))
            has_tables(connection)
            self._configure(connection)
            self._create(connection, before)
            now, after = self._clock(), identify(path)
            if before is None or after is None or after.file != before.file:
                raise StoreUnavailable("store_vanished")  # which file was opened is not certain
            self._identity, self._seen_at = after, now
            reader = opened.enter_context(closing(self._open(path, "ro")))
            reader.execute(sql.FORMAT_OF).fetchone()  # by which it opens the log
            if was_exchanged(path, opened_before):
                raise StoreUnavailable("store_vanished")
            opened.pop_all()
        self._reader = reader
        return connection

    def _open(self, path: str, mode: str) -> sqlite3.Connection:
        timeout, uri = self._busy_timeout, f"{Path(path).as_uri()}?mode={mode}"
        return sqlite3.connect(uri, timeout=timeout, isolation_level=None, check_same_thread=False, uri=True)

    def _configure(self, connection: sqlite3.Connection) -> None:
        for pragma in ("synchronous = FULL", "fullfsync = ON", "cell_size_check = ON", "trusted_schema = OFF"):
            connection.execute(f"PRAGMA {pragma}")
        # The log, without which readers and writers would wait for each other.
        if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise ConfigurationError(
                "the SQLite file's file system has no shared memory (a network share?); give a path on a local disk"
            )
        # Or a lost page might read as "never ended".
        if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("the file is malformed")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}").fetchone()
        connection.create_function("checked_sum", 2, _checked_sum)

    def _create(self, connection: sqlite3.Connection, found: Identity | None) -> None:
        """Make the tables; and where the file is not the one that it was, vouch for nothing of this second or before.

        This writes in any case, so that a file that can only be read fails here: a connection to it would keep the
        others of this process from writing, even when they may again.
        """
        known = self._identity
        replaced = known is not None and found is not None and known.file != found.file
        now = self._clock()
        next_second = math.ceil(now) if known is None else math.floor(now) + 1
        with _transaction(connection):
            made = not has_tables(connection)  # another process may have made them just now
            if made:
                for text in sql.TABLES:
                    connection.execute(DIALECT.render(text))
                connection.execute(sql.FOUND, {"format": sql.FORMAT, "epoch": next_second})
                connection.execute(f"PRAGMA application_id = {sql.APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {sql.FORMAT}")
            # An epoch raised since the old file was last seen was raised by another process for the same reason.
            if replaced and not made:
                (epoch,) = connection.execute("SELECT epoch FROM store").fetchone()
                if epoch < self._seen_at:
                    connection.execute(sql.RAISE_EPOCH, {"epoch": next_second})
            connection.execute("UPDATE store SET format = format")
        if made:
            logger.info("created the session store: it accepts sessions that begin from now on")

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            reason = cause(error)
            if reason not in {LOCKED, FULL}:
                self.close()
            raise (StoreFull if reason == FULL else StoreUnavailable)(reason, cause=str(error)) from error
        except OSError as error:
            raise StoreUnavailable("store_cannot_open", cause=error.strerror or "") from error


_OWNER: Final = """SELECT application_id, user_version, NOT EXISTS (SELECT 1 FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version"""
"""One statement, which sees one moment: between two of them another process may make the tables."""


def has_tables(connection: sqlite3.Connection) -> bool:
    """Whether the tables are there; a file that is not ours to write is refused with `ConfigurationError`."""
    application, version, empty = connection.execute(_OWNER).fetchone()
    if application == sql.APPLICATION_ID and version != sql.FORMAT:
        raise ConfigurationError(
            f"the SQLite file was written by another version (it has format {version}, this one knows {sql.FORMAT}); "
            "give another path, or delete the file, which ends all sessions"
        )
    if application != sql.APPLICATION_ID and not (application == 0 and version == 0 and empty):
        raise ConfigurationError("the SQLite file belongs to another program; give the path of a file of its own")
    return bool(application == sql.APPLICATION_ID)


def _checked_sum(value: bytes | None, by: int) -> bytes | None:
    try:
        return b"%d" % checked_add(value, by)
    except DataNotInteger:
        return None


def cause(error: sqlite3.Error) -> str:
    """Return why SQLite refused, as a reason for logs and spans."""
    text = str(error)
    return next((reason for words, reason in CAUSES.items() if words in text), "store_unavailable")


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

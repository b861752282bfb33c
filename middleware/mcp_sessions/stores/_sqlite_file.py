"""A SQLite file as one thread sees it, with a second connection for reads, which wait for no writer.

Every fault becomes `StoreUnavailable` with its cause, and leaves no transaction open. Each change is counted in the
file: a lower number than before is that of an older copy, which does not know what has ended since.
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
from typing import Any, Final, TypeVar

from .._errors import ConfigurationError, DataNotInteger, StoreFull, StoreUnavailable
from .._files import SQLITE_ENDS, check_private, open_files, require_posix, was_exchanged
from . import _sql_text as sql
from ._base import checked_add, logger

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

LOCKED: Final = "store_locked"
FULL: Final = "store_full_disk"
READ_ONLY: Final = "store_read_only"
CORRUPT: Final = "store_corrupt"
CANNOT_OPEN: Final = "store_cannot_open"
_REASONS: Final = {  # by words of SQLite's own messages: its codes cannot be read before Python 3.11
    **dict.fromkeys(("locked", "locking"), LOCKED),
    "full": FULL,
    "readonly": READ_ONLY,
    **dict.fromkeys(("not a database", "malformed"), CORRUPT),
    "unable to open": CANNOT_OPEN,
    "disk I/O": "store_io_error",
}
_REMEDIES: Final = {
    LOCKED: "another process holds the file's lock for too long, or its disk is too slow",
    READ_ONLY: "the file cannot be written: let it and its folder belong to the server's user, on a file system that "
    "is not read-only",
    CORRUPT: "it is no SQLite database, or damaged: move it, -wal and -shm away together, which ends all sessions",
    CANNOT_OPEN: "it cannot be opened: let it and its folder belong to the server's user",
    "store_io_error": "its disk cannot be read or written",
}
NEVER_WORKS: Final = {READ_ONLY, CORRUPT, CANNOT_OPEN}
"""Faults that only an operator can mend."""
DIALECT: Final = sql.Dialect(
    sorted_text="text",
    blob="blob",
    asked="""(SELECT key AS place, json_extract(value, '$[0]') AS ref, json_extract(value, '$[1]') AS subject,
        json_extract(value, '$[2]') AS audience FROM json_each(:asked))""",
    refs="(SELECT value FROM json_each(:refs))",
    sum="checked_sum(old.value, :by)",
    lock="",
    skip_locked="",
    is_in="IN",
    end="",
    lock_store="SELECT 1",  # each change has the file for itself
)
_ANOTHER_TRY: Final = 0.01  # seconds
_LOG_BYTES: Final = 16 << 20  # what the write-ahead log may keep of its size after a burst
_RESERVED: Final = 16  # one part in so many of the file is kept for what makes room

_abandoned: Final[list[sqlite3.Connection | None]] = []
"""Connections that a fork inherited. Closing one would release the locks of the connections that this process makes."""


def checked_path(path: object) -> str:
    """Return the absolute path of a file that could be created or opened; `ConfigurationError` if it could not."""
    require_posix("the SQLite store", "use store='memory:', 'redis://...' or 'postgresql://...'")
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigurationError("SQLiteStore takes the path of a file, as in SQLiteStore('/var/lib/app/sessions.db')")
    given = os.fspath(path)
    if not isinstance(given, str) or not given or given.startswith((":", "file:")) or "\0" in given:
        raise ConfigurationError(
            "SQLiteStore takes the path of a file, as in '/var/lib/app/sessions.db'; without one, use store='memory:'"
        )
    place = Path(given).absolute()
    if os.path.isdir(place):  # noqa: PTH112  # if a name is too long, Path.is_dir raises
        raise ConfigurationError(f"the SQLite path {given!r} is a folder; name a file in it, as in 'sessions.db'")
    if not os.path.isdir(place.parent):  # noqa: PTH112
        raise ConfigurationError(f"the folder of the SQLite path {given!r} does not exist; create it, or give another")
    return str(place)


class SQLiteFile:
    """Two connections, made when they are needed: one for a thread, and one that only reads, for the event loop."""

    def __init__(self, path: str, *, clock: Callable[[], float], busy_timeout: float, max_bytes: int) -> None:
        self._path = path  # absolute
        self._clock = clock
        self._busy_timeout = busy_timeout  # seconds to wait for another process's lock
        self._max_bytes = max_bytes  # how large the file may grow
        self.lock = Lock()  # held by what opens, closes, or reads without waiting
        self._connection: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._changes = 0  # that the file had when it was last looked at

    def open(self) -> None:
        """Connect; the file of another program is a `ConfigurationError`, here and later."""
        with self._faults():
            self._current()

    def read(self, job: Job[T]) -> T:
        with self._faults():
            return job(self._current())

    def read_nowait(self, job: Job[T]) -> T | None:
        """Return what a job returns, or None if the file has to be opened or waited for."""
        if not self.lock.acquire(blocking=False):
            return None
        try:
            return None if self._reader is None else job(self._reader)
        except sqlite3.Error:  # the caller tries again on the thread, which names the cause
            return None
        finally:
            self.lock.release()

    def change(self, job: Job[T], *, frees: bool = False) -> T:
        """Return what a job returns, once all that it changed is on the disk; if it raises, nothing changes.

        What makes room may take the part of the file that is kept for that.
        """
        with self._faults():
            connection = self._current()
            limit = self._max_bytes - (0 if frees else self._max_bytes // _RESERVED)
            pages = limit // _pragma(connection, "page_size")
            _pragma(connection, f"max_page_count = {max(1, pages)}")
            before = connection.total_changes
            with _transaction(connection):
                result = job(connection)
                changes = self._counted(connection, is_changed=connection.total_changes != before)
            self._changes = changes
            return result

    def is_older_copy(self) -> bool:
        """True if the file holds fewer changes than before: an older copy was put in its place."""
        found = self.read_nowait(lambda connection: connection.execute("SELECT changes FROM store").fetchone())
        return found is not None and found[0] < self._changes

    def close(self) -> None:
        """Let go of the file. A later call opens it again."""
        with self.lock:
            self._close()

    def _close(self) -> None:
        connections, self._connection, self._reader = (self._reader, self._connection), None, None
        for one in connections:  # the last one to be closed removes the log, and may write
            if one is not None:
                with suppress(sqlite3.Error):
                    one.close()

    def __del__(self) -> None:
        self._close()

    def abandon(self) -> None:
        """Never touch the connections again: they belong to the process that this one was forked from."""
        _abandoned.extend((self._reader, self._connection))
        self._connection = self._reader = None

    def _counted(self, connection: sqlite3.Connection, *, is_changed: bool) -> int:
        """Count a change, and vouch for no earlier session if this is an older copy of the file."""
        found = connection.execute("SELECT changes FROM store").fetchone()
        changes = self._changes if found is None else int(found[0])  # without a row, the tables are repaired
        if changes < self._changes:
            is_changed = True
            connection.execute(sql.RAISE_EPOCH, {"epoch": math.floor(self._clock()) + 1})
            logger.warning(
                "the session store's file %s was replaced by an older copy while it was in use: sessions from before "
                "are refused, since some of them may have ended; to restore a copy, stop all servers first",
                self._path,
            )
        if is_changed:  # otherwise the commit need not wait for the disk
            connection.execute("UPDATE store SET changes = changes + 1")
        return changes + is_changed

    def _current(self) -> sqlite3.Connection:
        if self._connection is None:
            with self.lock:
                self._connection = self._connected()
        return self._connection

    def _connected(self) -> sqlite3.Connection:
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                return self._connect()
            except sqlite3.Error as error:
                # Another process creates the file or changes to WAL, and SQLite does not always wait for that.
                if reason_of(error) != LOCKED or time.monotonic() >= deadline:
                    raise
            time.sleep(_ANOTHER_TRY)

    def _connect(self) -> sqlite3.Connection:
        path = self._path
        check_private(path, beside=SQLITE_ENDS)
        if not os.path.lexists(path):  # closing a file that this process has open would release its locks
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        opened_before = open_files()
        with ExitStack() as opened:
            connection = opened.enter_context(closing(self._open("rw")))
            check_owner(connection)
            self._configure(connection)
            self._create(connection)
            reader = opened.enter_context(closing(self._open("ro")))
            reader.execute(sql.FORMAT_OF).fetchone()  # which opens the log
            if was_exchanged(path, opened_before):
                raise StoreUnavailable("store_vanished", cause="another file was put in its place while it was opened")
            opened.pop_all()
        self._reader = reader
        return connection

    def _open(self, mode: str) -> sqlite3.Connection:
        timeout, uri = self._busy_timeout, f"{Path(self._path).as_uri()}?mode={mode}"
        return sqlite3.connect(uri, timeout=timeout, isolation_level=None, check_same_thread=False, uri=True)

    def _configure(self, connection: sqlite3.Connection) -> None:
        for setting in ("synchronous = FULL", "fullfsync = ON", "cell_size_check = ON", "trusted_schema = OFF"):
            connection.execute(f"PRAGMA {setting}")
        # The log, without which readers and writers would wait for each other.
        if _pragma(connection, "journal_mode = WAL") != "wal":
            raise ConfigurationError(
                "the SQLite file's file system has no shared memory (a network share?); give a path on a local disk"
            )
        _pragma(connection, f"journal_size_limit = {_LOG_BYTES}")
        connection.create_function("checked_sum", 2, _checked_sum)

    def _create(self, connection: sqlite3.Connection) -> None:
        """Create the tables if they are missing, or upgrade them.

        This writes in any case, so that a file that can only be read fails here: a connection to it would keep the
        others of this process from writing, even when they may again.
        """
        with _transaction(connection):
            found = check_owner(connection)  # another process may have created the tables just now
            statements = sql.TABLES if found is None else sql.upgrade(found)
            values = {"format": sql.FORMAT, "epoch": math.ceil(self._clock())}
            for text in (*statements, *([sql.FOUND] if found is None else [])):
                connection.execute(DIALECT.render(text), values)
            connection.execute(f"PRAGMA application_id = {sql.APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {sql.FORMAT}")
            connection.execute("UPDATE store SET changes = changes + 1")
        if found is None:
            logger.info("created the session store: it accepts sessions that begin from now on")
        elif statements:
            logger.warning(sql.UPGRADED, found, sql.FORMAT, self._path)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            reason = reason_of(error)
            cause = f"{error}; {self._cause_of_full() if reason == FULL else _REMEDIES.get(reason, '')}".rstrip("; ")
            if reason not in {LOCKED, FULL}:
                self.close()
            raise (StoreFull if reason == FULL else StoreUnavailable)(reason, cause=cause) from error
        except OSError as error:
            cause = f"{error.strerror}; {_REMEDIES[CANNOT_OPEN]}"
            raise StoreUnavailable(CANNOT_OPEN, cause=cause) from error

    def _cause_of_full(self) -> str:
        """Return what is full: the file, which may not grow any more, or its disk."""
        with suppress(OSError):
            if os.stat(self._path).st_size < self._max_bytes - self._max_bytes // _RESERVED - (1 << 20):
                return f"the disk of {self._path} is full: free space on it"
        return f"{self._path} is as large as it may be: raise max_bytes=, or end sessions"


_OWNER: Final = """SELECT application_id, user_version, NOT EXISTS (SELECT 1 FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version"""
"""One statement, which sees one moment: between two of them another process may create the tables."""


def check_owner(connection: sqlite3.Connection) -> int | None:
    """Return the format of the tables, or None if there are none yet.

    Raises:
        ConfigurationError: The file belongs to another program, or to a version that this one does not know.
    """
    application, found, is_empty = connection.execute(_OWNER).fetchone()
    if application == 0 and found == 0 and is_empty:
        return None
    if application != sql.APPLICATION_ID:
        raise ConfigurationError("the SQLite file belongs to another program; give the path of a file of its own")
    if found != sql.FORMAT and not sql.upgrade(found):
        raise ConfigurationError(
            f"the SQLite file was written by another version (it has format {found}, this one knows {sql.FORMAT}); "
            "install that version again, or give another path, which ends all sessions"
        )
    return int(found)


def reason_of(error: sqlite3.Error) -> str:
    """Return why SQLite refused, as a reason for logs and spans."""
    text = str(error)
    return next((reason for words, reason in _REASONS.items() if words in text), "store_unavailable")


def _pragma(connection: sqlite3.Connection, text: str) -> Any:
    return connection.execute(f"PRAGMA {text}").fetchone()[0]


def _checked_sum(value: bytes | None, by: int) -> bytes | None:
    try:
        return b"%d" % checked_add(value, by)
    except DataNotInteger:
        return None


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

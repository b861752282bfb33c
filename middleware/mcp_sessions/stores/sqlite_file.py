"""A thread of its own for calls that block, reached from any event loop.

The thread makes one thing (such as a database connection) and is the only one that ever touches it.
Whoever gives up waiting is free at once: a call that has not begun is dropped, one that has begun runs
to its end. What a fork inherits is never touched: the new process gets a thread and a thing of its own.

The tables of a SQLite store, and how a file comes to have them.

A file says what it is (`application_id`), in which version (`user_version`) and since when it has
remembered what it was told (the fence). Several processes may find a new file at once: one makes the
tables, in one transaction, and the others see them. A file that is not ours is refused untouched.

Where a SQLite file lies: which file it is, and how an empty one comes to be there.

The file and its write-ahead log are told apart from others by device and inode. A database that exists is
never opened here: closing it again would drop the locks that SQLite holds in the same process.
Sources: sqlite.org, "How To Corrupt An SQLite Database File", sections 2.2 and 4.

A SQLite file as one thread sees it: opened, watched, and opened again after a fault.

Before every use the file is looked for where it should be. One that vanished is made anew, and one that
was put in its place is not trusted with the past: either way a fence goes up, before which no session is
vouched for. Every fault of SQLite becomes `StoreUnavailable` with its cause, and leaves no transaction
open. No event loop is known here.
Sources: sqlite.org on write-ahead logging, and on how to corrupt a database file.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, Generic, TypeVar

import anyio
from anyio.lowlevel import current_token

from ..errors import ConfigurationError, StoreFull, StoreUnavailable

T = TypeVar("T")
R = TypeVar("R")


class _Call(Generic[R, T]):
    """One call, and what came of it."""

    __slots__ = ("_done", "_error", "_result", "_wake", "_work", "wanted")

    def __init__(self, work: Callable[[R], T]) -> None:
        self._work = work
        self._wake = _waker()
        self._done = anyio.Event()
        self._result: T
        self._error: BaseException | None = None
        self.wanted = True

    def make(self, resource: R) -> None:
        """On the thread: do it, and tell the event loop."""
        try:
            self._result = self._work(resource)
        except BaseException as error:  # noqa: BLE001  # it belongs to whoever called
            self._error = error
        try:
            self._wake(self._done.set)
        except RuntimeError:  # that event loop has ended, and with it whoever waited
            self.wanted = False

    async def outcome(self) -> T:
        """On the event loop: wait for it."""
        try:
            await self._done.wait()
        finally:
            self.wanted = False
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            self._error = None  # its traceback holds this frame, and this frame holds it


class _Crew(Generic[R]):
    """The thread of one process, which is there while it is needed."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.calls: SimpleQueue[_Call[R, Any] | None] | None = None


class Lane(Generic[R]):
    """Calls on one thread, one after the other.

    Args:
        name: What the thread is called.
        make: Makes, on the thread, what every call is given; it is left when the thread ends. It must not fail, and
            must not know who holds the lane, or neither is ever let go.
    """

    def __init__(self, name: str, make: Callable[[], AbstractContextManager[R]]) -> None:
        self._name = name
        self._make = make
        self._crews: dict[int, _Crew[R]] = {}

    async def run(self, work: Callable[[R], T]) -> T:
        """What `work` returns, or raises, when it is its turn.

        Args:
            work: Called on the thread with what was made there.
        """
        call = _Call(work)
        crew = self._crew()
        with crew.lock:
            if crew.calls is None:
                crew.calls = SimpleQueue()
                Thread(target=_serve, args=(crew.calls, self._make), name=self._name, daemon=True).start()
                weakref.finalize(self, crew.calls.put, None).atexit = False
            crew.calls.put(call)
        return await call.outcome()

    def stop(self) -> None:
        """Let the thread end after the calls that were made so far. A later call starts another."""
        crew = self._crew()
        with crew.lock:
            if crew.calls is not None:
                crew.calls.put(None)
                crew.calls = None

    def _crew(self) -> _Crew[R]:
        """By process, since threads and locks do not survive a fork."""
        crew = self._crews.get(os.getpid())
        return crew if crew is not None else self._crews.setdefault(os.getpid(), _Crew())


def _serve(calls: SimpleQueue[_Call[R, Any] | None], make: Callable[[], AbstractContextManager[R]]) -> None:
    with make() as resource:
        while (call := calls.get()) is not None:
            if call.wanted:
                call.make(resource)
            del call  # or it would be kept, with all that it holds, until the next one comes


def _waker() -> Callable[[Callable[[], object]], object]:
    """How the running event loop is told something from another thread, without waiting for it."""
    loop: Any = current_token().native_token
    wake: Callable[[Callable[[], object]], object] = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    return wake


APPLICATION_ID: Final = 0x6D637073  # "mcps"
VERSION: Final = 2  # 1 knew no audiences

_TABLES: Final = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE revoked (ref TEXT PRIMARY KEY, expires_at INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX revoked_ends ON revoked (expires_at)",
    # Everybody's cut-off stands under the subject ''.
    """CREATE TABLE cut_offs (
        subject TEXT NOT NULL, audience TEXT NOT NULL, moment INTEGER NOT NULL, until INTEGER NOT NULL,
        PRIMARY KEY (subject, audience)
    ) WITHOUT ROWID""",
    "CREATE INDEX cut_offs_ends ON cut_offs (until)",
    """CREATE TABLE records (
        ref TEXT PRIMARY KEY, subject TEXT, created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
        seen_at REAL NOT NULL, root TEXT, trace TEXT, audience TEXT NOT NULL, reason TEXT, lease_until REAL
    ) WITHOUT ROWID""",
    "CREATE INDEX records_of ON records (subject, audience, created_at) WHERE subject IS NOT NULL",
    "CREATE INDEX records_forks ON records (root, created_at) WHERE root IS NOT NULL",
    "CREATE INDEX records_ends ON records (audience, expires_at) WHERE reason IS NULL",
    "CREATE INDEX records_seen ON records (audience, seen_at) WHERE reason IS NULL",
    "CREATE INDEX records_leases ON records (audience, lease_until) WHERE reason IS NOT NULL",
    # A recorded session's data stays until it is finished: its `until` is NULL, which no sweep finds.
    "CREATE TABLE shelves (owner TEXT PRIMARY KEY, until INTEGER) WITHOUT ROWID",
    "CREATE INDEX shelves_ends ON shelves (until) WHERE until IS NOT NULL",
    """CREATE TABLE items (
        owner TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, expires_at REAL, PRIMARY KEY (owner, key)
    ) WITHOUT ROWID""",
    "CREATE TABLE leaders (audience TEXT PRIMARY KEY, worker TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID",
)

# In one statement, which sees one moment: between two of them another process may make the tables.
_WHOSE: Final = """SELECT application_id, user_version, NOT EXISTS (SELECT 1 FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version"""


def check(connection: sqlite3.Connection) -> None:
    """Refuse a file that is not ours to write.

    Raises:
        ConfigurationError: It is another program's, or was written by another version of this one.
        sqlite3.Error: It cannot be read.
    """
    application, version, empty = connection.execute(_WHOSE).fetchone()
    if application == APPLICATION_ID and version != VERSION:
        age, remedy = ("a newer", "install that version, or ") if version > VERSION else ("an older", "")
        raise ConfigurationError(
            f"the SQLite file was written by {age} version (it has format {version}, this one knows {VERSION}); "
            f"{remedy}give another path"
        )
    if application != APPLICATION_ID and not (application == 0 and version == 0 and empty):
        raise ConfigurationError("the SQLite file belongs to another program; give the path of a file of its own")


def create(connection: sqlite3.Connection, *, fence: int) -> bool:
    """Make the tables where there are none. Inside a transaction that has begun to write.

    Args:
        connection: To the file.
        fence: Sessions issued before this moment cannot be vouched for, Unix seconds.

    Returns:
        Whether this call made them.
    """
    check(connection)
    if is_made(connection):  # by another process, just now
        return False
    for table in _TABLES:
        connection.execute(table)
    raise_fence(connection, fence)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    return True


def is_made(connection: sqlite3.Connection) -> bool:
    """Whether the tables are there."""
    return _number(connection, "user_version") == VERSION


def fenced_before(connection: sqlite3.Connection) -> int:
    """Since when the file has remembered what it was told, Unix seconds."""
    moment: int = connection.execute("SELECT value FROM facts WHERE name = 'fence'").fetchone()[0]
    return moment


def raise_fence(connection: sqlite3.Connection, moment: int) -> None:
    """Vouch for no session issued before a moment."""
    connection.execute(
        "INSERT INTO facts VALUES ('fence', ?) ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
        (moment,),
    )


def touch(connection: sqlite3.Connection) -> None:
    """Write something that changes nothing, or fail."""
    connection.execute("UPDATE facts SET value = value")


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    number: int = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    return number


_STALE: Final = 10  # seconds after which whoever makes a file must have died

Inode = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Identity:
    """A database as it lies on the disk.

    Args:
        file: Device and inode.
        log: Those of its write-ahead log, or None where there is none.
    """

    file: Inode
    log: Inode | None


def checked(path: object) -> str:
    """The absolute path of a file that could be made or opened.

    Raises:
        ConfigurationError: It could not; the message says the remedy.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigurationError("SQLiteStore takes the path of a file, as in SQLiteStore('/var/lib/app/sessions.db')")
    given = os.fspath(path)
    if not isinstance(given, str) or not given or given.startswith((":", "file:")) or "\0" in given:
        raise ConfigurationError(
            "SQLiteStore takes the path of a file, as in '/var/lib/app/sessions.db'; without one, use store='memory:'"
        )
    place = Path(given).absolute()
    if _is_folder(place):
        raise ConfigurationError(f"the SQLite path {given!r} is a folder; name a file in it, as in 'sessions.db'")
    if not _is_folder(place.parent):
        raise ConfigurationError(f"the folder of the SQLite path {given!r} does not exist; create it, or give another")
    return str(place)


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112  # where a name is too long, Path.is_dir raises


def find(path: str) -> Identity | None:
    """The database that lies there now, or None.

    Raises:
        OSError: It cannot be told.
    """
    file = inode(path)
    return None if file is None else Identity(file, inode(f"{path}-wal"))


def inode(path: str) -> Inode | None:
    """Which file lies there, or None.

    Raises:
        OSError: It cannot be told.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def make_private(path: str) -> None:
    """Make an empty file that nobody else may read, where there is none.

    What is left of a file that was there before is removed first, or SQLite would take its log for the new
    one's. One process at a time does this: who finds `-new` there waits for who made it.

    Raises:
        sqlite3.OperationalError: Another process is about to make it; to be tried again.
        OSError: It cannot be made.
    """
    if inode(path) is not None:
        return
    new = Path(f"{path}-new")
    try:
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        _remove_stale(new)
        raise sqlite3.OperationalError("the file is locked by who makes it") from None
    if inode(path) is not None:  # it was made in between
        new.unlink()
        return
    for part in ("-wal", "-shm"):
        Path(path + part).unlink(missing_ok=True)
    new.rename(path)


def _remove_stale(new: Path) -> None:
    with suppress(FileNotFoundError):
        if new.stat().st_mtime + _STALE < time.time():
            new.unlink()


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
            check(connection)
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
            made = create(connection, fence=now if known is None else next_second)
            # A fence that went up since the old file was last seen was put up by another process for the same reason.
            if replaced and not made and fenced_before(connection) < self._seen_at:
                raise_fence(connection, next_second)
            touch(connection)
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

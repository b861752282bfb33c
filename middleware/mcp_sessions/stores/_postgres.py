"""A store in PostgreSQL: for all machines that reach one database, and durable by nature.

Each call runs on one of a few threads, with a connection that no other call uses meanwhile: so it serves asyncio and
Trio alike, and a caller that gives up leaves no connection in the middle of something. No text here repeats a URL.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

import anyio

from .._errors import ConfigurationError, StoreFull, StoreUnavailable
from ._base import Forgotten, Reach
from ._postgres_tables import Transaction, migrate
from ._sql import SQLStore, call_hidden, outcome

if TYPE_CHECKING:
    from psycopg import Connection

T = TypeVar("T")
Durability = Literal["warn", "refuse", "ignore"]
logger: Final = logging.getLogger("mcp_sessions")

INSTALL: Final = "store='postgresql://...' needs a driver: pip install \"mcp-sessions[postgres]\""
NOT_A_URL: Final = (
    "store= is not a valid PostgreSQL URL, which looks like 'postgresql://USER:PASSWORD@HOST:5432/DATABASE', with "
    "'?sslmode=verify-full&sslrootcert=FILE' for TLS"
)
DENIED: Final = (
    "PostgreSQL refuses this user, or has no such database: check the store's URL, and let the user create its tables: "
    "CREATE SCHEMA {schema} AUTHORIZATION the_user"
)
UNSAFE: Final = (
    "PostgreSQL runs with fsync or full_page_writes off: after a crash of its machine, deleted sessions may work again"
)
SWEEP_EVERY: Final = 60  # seconds
FULL: Final = "store_full_disk"
FORBIDDEN: Final = "store_forbidden"
NO_DATABASE: Final = "store_no_database"
NO_TABLES: Final = "store_no_tables"
_PAUSES: Final = (0.1, 0.2, 0.3, 0.4, 0.5)  # seconds between the tries of a migration
_DEFAULTS: Final[Mapping[str, Any]] = {  # the driver's own words; what the URL says goes first
    "application_name": "mcp-sessions",
    "target_session_attrs": "read-write",
    "connect_timeout": 5,  # seconds
    "tcp_user_timeout": 5000,  # milliseconds
    "keepalives_idle": 5,  # seconds
    "keepalives_interval": 2,  # seconds
    "keepalives_count": 3,
}
_CODES: Final = {  # by the beginning of the SQLSTATE
    "25006": "store_readonly",
    "28": FORBIDDEN,
    "3D": NO_DATABASE,
    "3F": NO_TABLES,
    "40P01": "store_locked",
    "42501": FORBIDDEN,
    "42P01": NO_TABLES,
    "53100": FULL,
    "53200": "store_out_of_memory",
    "53300": "store_too_many_connections",
    "55P03": "store_locked",
    "57014": "store_timeout",
    "57P": "store_restarting",
    "58": "store_io_error",
    "XX": "store_corrupt",
}
_WORDS: Final = {  # of errors from before there is a connection, which have no code; the first that is found counts
    **dict.fromkeys(("certificate", "SSL"), "store_tls"),
    **dict.fromkeys(("authentication", "password", "pg_hba", "role "), FORBIDDEN),
    **dict.fromkeys(("starting up", "shutting down"), "store_restarting"),
    **dict.fromkeys(("too many", "slots"), "store_too_many_connections"),
    **dict.fromkeys(("read-only", "hot standby", "recovery"), "store_readonly"),
    "database ": NO_DATABASE,
    "timeout": "store_timeout",
}
_GREET: Final = b"""
    SELECT set_config('statement_timeout', %s, false), set_config('idle_in_transaction_session_timeout', %s, false),
        set_config('default_transaction_isolation', 'read committed', false),
        set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), false),
        pg_is_in_recovery(), current_setting('fsync')::bool AND current_setting('full_page_writes')::bool
"""
_QUESTIONS: Final = {"status", "statuses", "touch", "sessions", "find", "count", "read", "elect", "filling"}

_ROWS_AT_ONCE: Final = 1000
_ENDED: Final = "DELETE FROM ~.{0} WHERE ref IN (SELECT ref FROM ~.{0} WHERE expires_at <= %s LIMIT %s)"
_FORGET: Final = (
    *map(_ENDED.format, ("revoked", "admitted")),
    """DELETE FROM ~.cut_offs WHERE (subject, audience) IN (
        SELECT subject, audience FROM ~.cut_offs WHERE until <= %s LIMIT %s
    )""",
    """DELETE FROM ~.anonymous WHERE (audience, hour, part) IN (
        SELECT audience, hour, part FROM ~.anonymous WHERE sessions = 0 AND hour < %s / 3600 - 1 LIMIT %s
    )""",
    # A recorded session's data stays until `purge`, since its `on_end` may read it.
    """DELETE FROM ~.items WHERE (owner, key) IN (
        SELECT owner, key FROM ~.items
        WHERE until <= %s AND NOT EXISTS (SELECT FROM ~.records WHERE ref = owner) LIMIT %s
    )""",
)


def cause(error: Exception) -> str:
    """Return why PostgreSQL refused, as a reason for logs and spans."""
    code, text = getattr(error, "sqlstate", None), str(error)
    if code is not None:
        return next((reason for start, reason in _CODES.items() if code.startswith(start)), "store_error")
    return next((reason for words, reason in _WORDS.items() if words in text), "store_unreachable")


class PostgresStore(SQLStore):
    """Sessions in a PostgreSQL database, version 13 or newer, in a schema that this store creates.

    Acknowledged changes are on the server's disk (`synchronous_commit` is turned on if it is off), and with
    `synchronous_standby_names` also on a standby's; otherwise a failover may lose the last changes. New tables do not
    know which older sessions were ended, so sessions issued before their creation are refused (`Standing.LOST`), also
    when you add this store to a running deployment. A restored backup goes undetected: drop the schema instead.
    PgBouncer must run in session mode.

    Args:
        url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, with any parameter of libpq, such as `sslmode`. Of
            several hosts, the one that accepts writes is used.
        schema: The schema of the tables. Give each deployment that shares a database its own.
        leeway: Seconds to keep entries after their token expires, for clocks that disagree.
        clock: Returns Unix seconds; for tests.
        durability: What to do about a server that may lose acknowledged changes: log a warning (`"warn"`), refuse to
            start (`"refuse"`), or nothing (`"ignore"`).
        forgotten: What to do with sessions issued before the tables were created: `"refuse"` or `"accept"` them.
        timeout: Seconds, at least 1, after which the server cancels a statement.
        connections: The number of calls of one process that may run at once; further ones wait.

    Raises:
        ConfigurationError: The driver is missing, or an option cannot be used; the message names the remedy.
    """

    reach: Final = Reach.NETWORK

    def __init__(
        self,
        url: str,
        *,
        schema: str = "mcp_sessions",
        leeway: float = 60,
        clock: Callable[[], float] = time.time,
        durability: Durability = "warn",
        forgotten: Forgotten = "refuse",
        timeout: float = 0.25,
        connections: int = 10,
    ) -> None:
        for is_right, rule in (
            (re.fullmatch("[a-z_][a-z0-9_]{0,50}", schema), "schema= must be lower-case letters, digits and '_'"),
            (durability in get_args(Durability), "durability= must be one of 'warn', 'refuse', 'ignore'"),
            (forgotten in get_args(Forgotten), "forgotten= must be one of 'refuse', 'accept'"),
            (connections >= 1, "connections= must be at least 1"),
        ):
            if not is_right:
                raise ConfigurationError(rule)
        super().__init__()
        self._options = _options(url)
        self._pool = Pool(self._connect, connections)
        self._schema = schema
        self._leeway = leeway
        self._clock = clock
        self._durability = durability
        self._vouches_always = forgotten == "accept"
        self._patience = str(round(1000 * max(1, timeout)))  # milliseconds
        self._was_there = False
        self._swept_at = -math.inf
        host, port, database = (self._options.get(name, "") for name in ("host", "port", "dbname"))
        self._place = f"{host}:{port}/{database}"
        self.where: str = f"PostgreSQL at {self._place}"

    async def open(self) -> None:
        """Connect, and make the tables or bring them up to date."""
        try:
            await self._run(lambda _: None)
        except StoreUnavailable as error:
            if error.reason in {FORBIDDEN, NO_DATABASE}:
                raise ConfigurationError(DENIED.format(schema=self._schema)) from None
            raise

    async def close(self) -> None:
        await self._pool.close()

    async def _transact(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        step, call = getattr(Transaction, name), Transaction(self._schema, self._leeway, self._vouches_always)

        def work(connection: Connection[Any]) -> Any:
            call.connection, call.now = connection, self._clock()
            return step(call, *args, **kwargs)

        try:
            return await self._run(work, lambda: not call.is_changing)
        except ConfigurationError as error:
            raise StoreUnavailable("store_misconfigured", cause=str(error)) from None
        finally:
            now = self._clock()
            if name not in _QUESTIONS and not self._swept_at <= now < self._swept_at + SWEEP_EVERY:
                self._swept_at = now
                self._pool.submit(lambda connection: sweep(connection, self._schema, now - self._leeway))

    async def _run(self, work: Callable[[Connection[Any]], T], may_repeat: Callable[[], bool] = lambda: True) -> T:
        from psycopg import Error

        try:
            return await outcome(self._pool.submit(work, may_repeat))
        except Error as error:
            reason, name = cause(error), type(error).__name__  # its text may quote the URL
        raise (StoreFull if reason == FULL else StoreUnavailable)(reason, cause=name)

    def _connect(self) -> Connection[Any]:
        from psycopg import IsolationLevel, connect

        connection = connect(**self._options, autocommit=True)
        try:
            connection.isolation_level = IsolationLevel.READ_COMMITTED
            *_, is_replica, is_safe = connection.execute(_GREET, [self._patience] * 2).fetchall()[0]
            self._check(is_replica=is_replica, is_safe=is_safe)
            if self._migrate(connection):
                logger.warning("the session store's tables are new: sessions issued before now may be refused")
        except BaseException:
            connection.close()
            raise
        self._was_there = True
        return connection

    def _migrate(self, connection: Connection[Any]) -> bool:
        """Bring the tables up to date; a migration gives way to calls that need what it holds, and tries again."""
        from psycopg.errors import LockNotAvailable

        # What tables that vanished were given within this second is lost as well.
        now = self._clock()
        fence = math.floor(now) + 1 if self._was_there else math.ceil(now)
        pauses = iter(_PAUSES)
        while True:
            try:
                return migrate(connection, self._schema, fence=fence)
            except LockNotAvailable:
                if (pause := next(pauses, None)) is None:
                    raise
                time.sleep(pause)

    def _check(self, *, is_replica: bool, is_safe: bool) -> None:
        if is_replica:  # it would answer, from the past
            raise StoreUnavailable("store_readonly")
        if is_safe or self._durability == "ignore":
            return
        if self._durability == "refuse":
            raise ConfigurationError(UNSAFE)
        if not self._was_there:
            logger.warning(UNSAFE)

    def __repr__(self) -> str:
        return f"<PostgresStore {self._place}>"


def _options(url: str) -> dict[str, Any]:
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise ConfigurationError(INSTALL) from None
    try:
        return {**_DEFAULTS, **conninfo_to_dict(url)}
    except ProgrammingError:
        raise ConfigurationError(NOT_A_URL) from None


def sweep(connection: Connection[Any], schema: str, over: float) -> None:
    """Delete what ended by a moment."""
    for sql in _FORGET:
        statement, values = sql.replace("~", schema).encode(), (math.floor(over), _ROWS_AT_ONCE)
        while connection.execute(statement, values).rowcount == _ROWS_AT_ONCE:
            """There may be more."""


class Pool:
    """Connections and the threads that use them, reached from any event loop, and made when they are needed.

    A caller that gives up waiting is free at once: a call that has not begun is dropped, one that has runs to its end.
    """

    def __init__(self, connect: Callable[[], Connection[Any]], most: int) -> None:
        self._connect = connect
        self._most = most
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._idle: deque[Connection[Any]] = deque()
        self._threads = ThreadPoolExecutor(self._most, thread_name_prefix="mcp-sessions-postgres")

    def submit(self, work: Callable[[Connection[Any]], T], may_repeat: Callable[[], bool] = lambda: True) -> Future[T]:
        """Do work on a thread when it is its turn; again where its connection turns out to be dead, if it may be."""
        if self._process != os.getpid():  # neither threads nor connections survive a fork
            self._start()
        return self._threads.submit(call_hidden, self._attempt, self._idle, work, may_repeat)

    async def close(self) -> None:
        """Close all connections, after the calls so far. A later call makes others."""
        threads, idle = self._threads, self._idle
        self._start()
        await anyio.to_thread.run_sync(threads.shutdown, abandon_on_cancel=True)
        _close_all(idle)

    def _attempt(
        self, idle: deque[Connection[Any]], work: Callable[[Connection[Any]], T], may_repeat: Callable[[], bool]
    ) -> T:
        from psycopg import Error

        while True:
            try:
                connection, is_new = idle.pop(), False
            except IndexError:
                connection, is_new = self._connect(), True
            try:
                return work(connection)
            except Error as error:
                if cause(error) == NO_TABLES:
                    connection.close()  # who connects makes them
                if is_new or not connection.closed or not may_repeat():
                    raise
            finally:
                if connection.closed:
                    _close_all(idle)  # what is wrong with one is likely wrong with all
                else:
                    idle.append(connection)


def _close_all(idle: deque[Connection[Any]]) -> None:
    with suppress(IndexError):
        while True:
            idle.pop().close()

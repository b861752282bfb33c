"""A store in PostgreSQL: for all machines that reach one database, and durable by nature.

The statements of a call are sent together, as one transaction, so that it costs one round trip and holds no lock for
longer. Calls run on threads: so it serves asyncio and Trio alike, and a caller that gives up leaves no connection in
the middle of something. No text here repeats a URL or the driver's words.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, get_args

from .._errors import ConfigurationError, StoreFull, StoreUnavailable
from .._session.functions import check_clock
from .._session.keywords import known_keywords
from . import _sql_text as sql
from ._base import Durability, Forgotten, StoreScope, logger, split_options
from ._clocks import ServerClock
from ._place import check_place
from ._postgres_pool import CAUSES, FORBIDDEN, FULL, NO_DATABASE, Pool, reason_of
from ._sql import Rows, SQLStore, Statement, sweep
from ._threads import outcome
from ._timeout import checked_freshness

if TYPE_CHECKING:
    from psycopg import Connection

INSTALL: Final = "store='postgresql://...' needs a driver: pip install \"psycopg[binary,pool]>=3.2\""
NOT_A_URL: Final = (
    "store= is not a valid PostgreSQL URL, which looks like 'postgresql://USER:PASSWORD@HOST:5432/DATABASE', with "
    "'?sslmode=verify-full&sslrootcert=FILE' for TLS; in a password, write ':', '/' and '@' as %3A, %2F and %40"
)
DENIED: Final = (
    "PostgreSQL refuses this user, or has no such database: check the store's URL, and let the user create its tables: "
    "CREATE SCHEMA {schema} AUTHORIZATION the_user"
)
OTHER_FORMAT: Final = (
    "the PostgreSQL schema {schema} was made by another version (it has format {found}, this one knows {known}); give "
    "another schema, or drop this one, which ends all sessions: DROP SCHEMA {schema} CASCADE"
)
UNSAFE: Final = (
    "PostgreSQL runs with fsync or full_page_writes off: after a crash of its machine, deleted sessions may work again"
)
_DEFAULTS: Final[Mapping[str, Any]] = {  # the driver's own words; what the URL says goes first
    "application_name": "mcp-sessions",
    "target_session_attrs": "read-write",
    "connect_timeout": 5,  # seconds
    "tcp_user_timeout": 5000,  # milliseconds
    "keepalives_idle": 5,  # seconds
    "keepalives_interval": 2,  # seconds
    "keepalives_count": 3,
}
# The catalog itself is asked, since what functions such as `to_regclass` know may be from before a lock.
_HAS_TABLES: Final = """SELECT 1 FROM pg_class JOIN pg_namespace AS space ON space.oid = relnamespace
    WHERE nspname = %s AND relname = 'store'"""
_CONFIGURE: Final = f"""
    SELECT set_config('statement_timeout', %s, false), set_config('idle_in_transaction_session_timeout', %s, false),
        set_config('default_transaction_isolation', 'read committed', false), set_config('search_path', %s, false),
        set_config('jit', 'off', false),
        set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), false),
        date_part('epoch', clock_timestamp()), pg_is_in_recovery(),
        current_setting('fsync')::bool AND current_setting('full_page_writes')::bool, EXISTS ({_HAS_TABLES})"""
_TIME: Final = "SELECT date_part('epoch', clock_timestamp())"
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
_DIALECT: Final = sql.Dialect(
    sorted_text='text COLLATE "C"',
    blob="bytea",
    asked="""(SELECT place, one ->> 0 AS ref, one ->> 1 AS subject, one ->> 2 AS audience
        FROM jsonb_array_elements(CAST(:asked AS jsonb)) WITH ORDINALITY AS each (one, place))""",
    refs="(SELECT jsonb_array_elements_text(CAST(:refs AS jsonb)))",
    sum="""CASE WHEN old.value IS NULL THEN convert_to(CAST(CAST(:by AS bigint) AS text), 'UTF8')
        WHEN encode(old.value, 'escape') ~ '^(0|-?[1-9][0-9]{0,18})$' THEN
            CASE WHEN CAST(encode(old.value, 'escape') AS numeric) BETWEEN -9223372036854775808 AND 9223372036854775807
                AND CAST(encode(old.value, 'escape') AS numeric) + :by
                    BETWEEN -9223372036854775808 AND 9223372036854775807
            THEN convert_to(CAST(CAST(encode(old.value, 'escape') AS numeric) + :by AS text), 'UTF8') END
        END""",
    lock="FOR UPDATE",
    skip_locked="FOR UPDATE SKIP LOCKED",
)


@cache
def _render(text: str) -> bytes:
    return re.sub(r":(\w+)", r"%(\1)s", _DIALECT.render(text)).encode()


class PostgresStore(SQLStore):
    """Sessions in a PostgreSQL database, version 13 or newer, in a schema that this store creates.

    Acknowledged changes are on the server's disk (`synchronous_commit` is turned on if it is off), and with
    `synchronous_standby_names` also on a standby's; otherwise a failover may lose the last changes. New tables do not
    know which older sessions were ended, so sessions issued before their creation are refused
    (`SessionStatus.UNKNOWN`), also when you add this store to a running deployment. A restored backup goes undetected:
    drop the schema instead. PgBouncer must run in session mode.

    Args:
        url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, with any parameter of libpq, such as `sslmode`. Of
            several hosts, the one that accepts writes is used.
        schema: The schema of the tables. Give each deployment that shares a database its own.
        leeway: Seconds to keep entries after their token expires, for clocks that disagree.
        clock: Returns Unix seconds; for tests.
        durability: What to do about a server that may lose acknowledged changes: log a warning (`"warn"`), refuse to
            start (`"refuse"`), or nothing (`"ignore"`).
        freshness: Seconds, at most 5, for which a worker may rely on the last status of a session, so that requests
            need no round trip; a session that another worker ends is accepted for so long.
        forgotten: What to do with sessions issued before the tables were created: `"refuse"` or `"accept"` them.
        timeout: Seconds, at least 1, after which the server cancels a statement.
        connections: The number of calls of one process that may run at once; further ones wait.

    Raises:
        ConfigurationError: The driver is missing, or an option cannot be used; the message names the remedy.
    """

    scope: Final = StoreScope.NETWORK

    @known_keywords
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
        freshness: float = 0,
    ) -> None:
        url, options = split_options(url, ("freshness",))
        self.freshness: float = checked_freshness(freshness or options.get("freshness", 0))
        for valid, rule in (
            (re.fullmatch("[a-z_][a-z0-9_]{0,50}", schema), "schema= must be lower-case letters, digits and '_'"),
            (durability in get_args(Durability), "durability= must be one of 'warn', 'refuse', 'ignore'"),
            (forgotten in get_args(Forgotten), "forgotten= must be one of 'refuse', 'accept'"),
            (connections >= 1, "connections= must be at least 1"),
        ):
            if not valid:
                raise ConfigurationError(rule)
        self._server_clock = ServerClock(check_clock(clock))
        accept = forgotten == "accept"
        super().__init__(leeway=leeway, clock=clock, store_clock=self._server_clock, accept_older=accept)
        self._options = _options(url)
        self._schema = schema
        self._durability = durability
        self._timeout = max(1.0, timeout)
        self._was_connected = False
        self._number = count()  # of the next connection
        self._pool = Pool(self._options, self._configure, connections, timeout)
        host, port, database = (self._options.get(name, "") for name in ("host", "port", "dbname"))
        self._place = f"{host}:{port}/{database}"
        self.location: str = f"PostgreSQL at {self._place}"

    async def open(self) -> None:
        """Connect, and make the tables where there are none."""
        if self._was_connected:
            return
        try:
            with _named_faults():
                await outcome(self._pool.connect())
        except StoreUnavailable as error:
            if error.reason in {FORBIDDEN, NO_DATABASE}:
                raise ConfigurationError(DENIED.format(schema=self._schema)) from None
            raise

    async def close(self) -> None:
        await self._pool.close()

    async def _change(self, *statements: Statement, repeatable: bool = True, frees: bool = False) -> list[Rows]:  # noqa: ARG002  # the server's matter
        work = self._pool.submit(lambda connection: _execute(connection, *statements), repeatable=repeatable)
        with _named_faults():
            return await outcome(work)

    async def _ask_time(self) -> None:
        (((now,),),) = await self._read((_TIME, {}))
        self._server_clock.set(now, self.location)

    def _sweep_soon(self) -> None:
        def work(connection: Connection[Any]) -> None:
            self._server_clock.set(connection.execute(_TIME).fetchone()[0], self.location)  # type: ignore[index]
            while sweep(partial(_execute, connection), now=self._server_clock(), leeway=self._leeway):
                """There may be more."""

        def log(swept: Future[None]) -> None:
            if not swept.cancelled() and (error := swept.exception()) is not None:
                logger.warning("expired sessions were not deleted from the store yet (%s)", reason_of(error))

        self._pool.submit(work).add_done_callback(log)

    def _configure(self, connection: Connection[Any]) -> None:
        """Set up a new connection, and make the tables where there are none."""
        milliseconds = str(round(1000 * self._timeout))
        values = [milliseconds, milliseconds, self._schema, self._schema]
        ((*_, time_there, is_replica, is_safe, has_tables),) = connection.execute(_CONFIGURE, values)
        self._server_clock.set(time_there, self.location)  # now, since making tables takes time
        if is_replica:  # it would answer, from the past
            raise StoreUnavailable("store_readonly", cause=CAUSES["store_readonly"])
        if not is_safe and self._durability == "refuse":
            raise ConfigurationError(UNSAFE)
        if not has_tables:
            self._create(connection)
        ((found,),) = connection.execute(sql.FORMAT_OF)
        if found != sql.FORMAT:
            raise ConfigurationError(OTHER_FORMAT.format(schema=self._schema, found=found, known=sql.FORMAT))
        self._was_connected = True
        # Once, however many connect at the same time.
        if next(self._number) == 0 and not is_safe and self._durability == "warn":
            logger.warning(UNSAFE)

    def _create(self, connection: Connection[Any]) -> None:
        """Make the tables, one worker at a time: vouch for no session of this second or before if some vanished."""
        now = self._clock()
        epoch = math.floor(now) + 1 if self._was_connected else math.ceil(now)
        with connection.transaction():
            connection.execute("SET LOCAL statement_timeout = 0")
            connection.execute(_LOCK, [f"mcp-sessions {self._schema}"])
            if connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self._schema]).fetchone() is None:
                connection.execute(f"CREATE SCHEMA {self._schema}".encode())
            if connection.execute(_HAS_TABLES, [self._schema]).fetchone() is not None:
                return  # another worker has made them meanwhile
            for text in sql.TABLES:
                connection.execute(_render(text))
            connection.execute(_render(sql.FOUND), {"format": sql.FORMAT, "epoch": epoch})
        if self._was_connected:
            logger.error("the session store's tables were dropped and are made anew: older sessions are refused")
        else:
            logger.info("created the session store's tables: it accepts sessions that begin from now on")

    def __repr__(self) -> str:
        return f"<PostgresStore {self._place}>"


def _execute(connection: Connection[Any], *statements: Statement) -> list[Rows]:
    """Run statements in one transaction and one round trip."""
    with connection.pipeline() if len(statements) > 1 else nullcontext():
        cursors = [connection.execute(_render(text), values) for text, values in statements]
    return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


@contextmanager
def _named_faults() -> Iterator[None]:
    """Turn errors of the driver into ours, since their texts may quote the URL."""
    from psycopg import Error

    try:
        yield
    except Error as error:
        reason = reason_of(error)
        kind = StoreFull if reason == FULL else StoreUnavailable
        raise kind(reason, cause=CAUSES.get(reason, "an error of the server")) from None


def _options(url: str) -> dict[str, Any]:
    try:
        import psycopg_pool  # noqa: F401  # of the same extra
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise ConfigurationError(INSTALL) from None
    try:
        options = {**_DEFAULTS, **conninfo_to_dict(url)}
        hosts, ports = (str(options.get(name, "")).split(",") for name in ("host", "port"))
        check_place([host for host in hosts if host[:1] != "/"], ports, options.get("dbname", ""))
        check_place([host for host in hosts if host[:1] == "/"], (), "", is_file=True)
    except (ProgrammingError, ValueError):
        raise ConfigurationError(NOT_A_URL) from None
    return options

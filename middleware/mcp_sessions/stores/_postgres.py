"""A store in PostgreSQL: for all machines that reach one database, and durable by nature.

The statements of a call are sent together, as one transaction, so that it costs one round trip and holds no lock for
longer. No text here repeats a URL or the driver's words.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any, Final, get_args

from .._errors import ConfigurationError, StoreUnavailable
from .._session.functions import check_clock
from .._session.keywords import known_keywords
from . import _sql_text as sql
from ._base import Durability, Forgotten, StoreScope, logger, split_options
from ._clocks import ServerClock
from ._place import check_place
from ._postgres_faults import STANDBY, named_faults
from ._postgres_pool import Connection, Pool, in_new_context
from ._sql import Rows, SQLStore, Statement, sweep
from ._timeout import checked_freshness

INSTALL: Final = "store='postgresql://...' needs a driver: pip install \"psycopg[binary]>=3.2\""
NOT_A_URL: Final = (
    "store= is not a valid PostgreSQL URL, which looks like 'postgresql://USER:PASSWORD@HOST:5432/DATABASE', with "
    "'?sslmode=verify-full&sslrootcert=FILE' for TLS; in a password, write ':', '/' and '@' as %3A, %2F and %40"
)
OTHER_FORMAT: Final = (
    "the PostgreSQL schema {schema} was made by another version (it has format {found}, this one knows {known}); "
    "install that version again, give another schema, or drop this one, which ends all sessions: DROP SCHEMA {schema} "
    "CASCADE"
)
UNSAFE: Final = (
    "PostgreSQL runs with fsync or full_page_writes off: after a crash of its machine, deleted sessions may work again"
)
_DEFAULTS: Final[Mapping[str, Any]] = {  # libpq parameters; the URL overrides them
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
    WHERE nspname = :schema AND relname = 'store'"""
_SETTINGS: Final = """
    SELECT set_config('statement_timeout', :timeout, :is_local),
        set_config('idle_in_transaction_session_timeout', :timeout, :is_local),
        set_config('default_transaction_isolation', 'read committed', :is_local),
        set_config('search_path', :schema, :is_local), set_config('jit', 'off', :is_local),
        set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), :is_local)"""
_SERVER: Final = f"""
    SELECT pg_backend_pid(), date_part('epoch', clock_timestamp()), pg_is_in_recovery(),
        current_setting('fsync')::bool AND current_setting('full_page_writes')::bool, EXISTS ({_HAS_TABLES})"""
_TIME: Final = "SELECT date_part('epoch', clock_timestamp())"
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
    is_in="= ANY (ARRAY",
    end=")",
    lock_store="SELECT pg_advisory_xact_lock(hashtextextended('mcp-sessions ' || current_setting('search_path'), 0))",
)


@cache
def _render(text: str) -> bytes:
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", _DIALECT.render(text)).encode()


class PostgresStore(SQLStore):
    """Sessions in a PostgreSQL database, version 13 or newer, in a schema that this store creates.

    Acknowledged changes are on the server's disk (`synchronous_commit` is turned on if it is off), and with
    `synchronous_standby_names` also on a standby's; otherwise a failover may lose the last changes. New tables do not
    know which older sessions were ended, so sessions issued before their creation are refused
    (`SessionStatus.UNKNOWN`), also when you add this store to a running deployment. A restored backup goes undetected:
    drop the schema instead. PgBouncer may run in session or transaction mode. Needs asyncio.

    Args:
        url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, with any parameter of libpq, such as `sslmode`. Of
            several hosts, the one that accepts writes is used.
        schema: The schema of the tables. Give each deployment that shares a database another one.
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
        self._was_connected = False
        self._is_pooled = False  # whether another program hands out the server's connections
        self._settings = {"timeout": str(round(1000 * max(1.0, timeout))), "schema": schema}  # in milliseconds
        self.connections: int = connections  # so many calls may run at once
        self._pool = Pool(self._options, self._configure, connections, timeout)
        self._sweeps: set[asyncio.Task[None]] = set()
        host, port, database = (self._options.get(name, "") for name in ("host", "port", "dbname"))
        self._place = f"{host}:{port}/{database}"
        self.location: str = f"PostgreSQL at {self._place}"

    async def open(self) -> None:
        """Connect, and create the tables if they are missing."""
        if not self._was_connected:
            with named_faults(self._schema, at_start=True):
                await self._pool.connect()

    async def close(self) -> None:
        """Close the connections of this event loop, after the sweeps under way."""
        if under_way := [task for task in self._sweeps if not task.done()]:
            await asyncio.wait(under_way)
        await self._pool.close()

    async def _change(self, *statements: Statement, repeatable: bool = True, frees: bool = False) -> list[Rows]:  # noqa: ARG002  # the server's matter
        with named_faults(self._schema):
            return await self._pool.run(partial(self._execute, statements), repeatable=repeatable)

    async def _execute(self, statements: Sequence[Statement], connection: Connection) -> list[Rows]:
        """Run statements in one transaction and one round trip."""
        if self._is_pooled:  # settings last for a transaction only
            statements = ((_SETTINGS, {**self._settings, "is_local": True}), *statements)
        async with connection.pipeline() if len(statements) > 1 else nullcontext():
            cursors = [await connection.execute(_render(text), values) for text, values in statements]
        rows = [await cursor.fetchall() if cursor.description else [] for cursor in cursors]
        return rows[self._is_pooled :]

    async def _ask_time(self) -> None:
        (((now,),),) = await self._read((_TIME, {}))
        self._server_clock.set(now, self.location)

    def _sweep_soon(self) -> None:
        self._sweeps = {task for task in self._sweeps if not task.done()} | {in_new_context(self._sweep)}

    async def _sweep(self) -> None:
        try:
            now, is_more = await self._store_time(ask=True), True
            while is_more:
                find, delete = sweep(now=now, leeway=self._leeway)
                (rows,) = await self._change(find)
                await self._change(*delete(rows))
                is_more = len(rows) == find[1]["rows"]
        except (StoreUnavailable, ConfigurationError) as error:
            reason = getattr(error, "reason", "store_misconfigured")
            logger.warning("expired sessions were not deleted from the store yet (%s)", reason)

    async def _configure(self, connection: Connection) -> None:
        """Set up a new connection, and create or upgrade the tables."""
        from psycopg import IsolationLevel

        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        async with connection.transaction():
            pid, time_there, is_replica, is_safe, has_tables = await self._ask(connection, _SERVER)
            self._is_pooled = pid != connection.info.backend_pid  # that of PgBouncer, say
            await self._set(connection)
            self._server_clock.set(time_there, self.location)  # now, since creating tables takes time
            if is_replica:  # it would answer, from the past
                raise StoreUnavailable(STANDBY.reason, cause=STANDBY.cause)
            if not is_safe and self._durability == "refuse":
                raise ConfigurationError(UNSAFE)
            if not has_tables:
                await self._create(connection)
            found = await self._ask(connection, sql.FORMAT_OF)
        if found is not None and found[0] != sql.FORMAT:  # an empty table is repaired later
            await self._upgrade(connection)
        if self._is_pooled:  # the next transaction may run in another session of the server
            connection.prepare_threshold = None
        if not self._was_connected and not is_safe and self._durability == "warn":
            logger.warning(UNSAFE)
        self._was_connected = True

    async def _create(self, connection: Connection) -> None:
        """Create the tables, one worker at a time; if they vanished, vouch for no session of this second or before."""
        now = self._clock()
        epoch = math.floor(now) + 1 if self._was_connected else math.ceil(now)
        await connection.execute("SET LOCAL statement_timeout = 0")
        await self._ask(connection, _DIALECT.lock_store)
        if await self._ask(connection, "SELECT 1 FROM pg_namespace WHERE nspname = :schema") is None:
            await connection.execute(f"CREATE SCHEMA {self._schema}".encode())
        if await self._ask(connection, _HAS_TABLES) is not None:
            return  # another worker has created them meanwhile
        for text in sql.TABLES:
            await connection.execute(_render(text))
        await connection.execute(_render(sql.FOUND), {"format": sql.FORMAT, "epoch": epoch})
        if self._was_connected:
            logger.error("the session store's tables were dropped and are created again: older sessions are refused")
        else:
            logger.info("created the session store's tables: it accepts sessions that begin from now on")

    async def _upgrade(self, connection: Connection) -> None:
        """Upgrade the tables of an older version, one worker at a time."""
        async with connection.transaction():
            await self._set(connection)
            await connection.execute("SET LOCAL statement_timeout = 0")
            await self._ask(connection, _DIALECT.lock_store)
            (found,) = await self._ask(connection, sql.FORMAT_OF)  # another worker may have been faster
            statements = sql.upgrade(found)
            if found != sql.FORMAT and not statements:
                raise ConfigurationError(OTHER_FORMAT.format(schema=self._schema, found=found, known=sql.FORMAT))
            for text in statements:
                await connection.execute(_render(text), {"format": sql.FORMAT})
        if statements:
            logger.warning(sql.UPGRADED, found, sql.FORMAT, self.location)

    async def _set(self, connection: Connection) -> None:
        await self._ask(connection, _SETTINGS, is_local=self._is_pooled)

    async def _ask(self, connection: Connection, text: str, **values: object) -> Any:
        cursor = await connection.execute(_render(text), {**self._settings, **values})
        return await cursor.fetchone()

    def __repr__(self) -> str:
        return f"<PostgresStore {self._place}>"


def _options(url: str) -> dict[str, Any]:
    try:
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

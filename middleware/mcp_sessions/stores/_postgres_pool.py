"""Connections to PostgreSQL, the threads that use them, and why they fail: reached from any event loop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from selectors import EVENT_READ, DefaultSelector
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from anyio import to_thread

from .._errors import StoreUnavailable
from ._threads import call_suppressed, suppress_instrumentation

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg_pool import ConnectionPool

T = TypeVar("T")
FULL: Final = "store_full_disk"
FORBIDDEN: Final = "store_forbidden"
NO_DATABASE: Final = "store_no_database"
NO_TABLES: Final = "store_no_tables"
UNREACHABLE: Final = "store_unreachable"
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
CAUSES: Final = {  # in plain words, for the log
    FORBIDDEN: "it refuses this user: check the user and the password in the URL, and its permissions",
    FULL: "its disk is full",
    NO_DATABASE: "it has no such database",
    "store_locked": "another transaction holds what this one needs",
    "store_readonly": "this server is a standby, or read-only",
    "store_restarting": "it starts or stops",
    "store_timeout": "no answer in time",
    "store_tls": "TLS: the certificate cannot be verified, or the server does not speak it",
    "store_too_many_connections": "it has no connection left for this worker (max_connections)",
    UNREACHABLE: "no connection: is it running, and is the host in the URL right?",
}
_NAME: Final = "mcp-sessions"
_SHARE: Final = 0.8  # of the time of a call, in which it waits for a connection
_RETRY: Final = 0.1  # seconds between two attempts to connect while a call waits


def reason_of(error: BaseException) -> str:
    """Return why PostgreSQL refused, as a reason for logs and spans."""
    code, text = getattr(error, "sqlstate", None), str(error)
    if code is not None:
        return next((reason for start, reason in _CODES.items() if code.startswith(start)), "store_error")
    return next((reason for words, reason in _WORDS.items() if words in text), UNREACHABLE)


def _is_readable(number: int) -> bool:
    """Whether something waits to be read from a socket."""
    with DefaultSelector() as selector:
        selector.register(number, EVENT_READ)
        return bool(selector.select(0))


def _is_of_others(record: logging.LogRecord) -> bool:
    """Whether the driver logs about another pool: its texts may quote a URL, and what matters is logged here."""
    named = record.args if isinstance(record.args, tuple) else ()
    return not any(one == _NAME or type(one).__module__ == __name__ for one in named)


logging.getLogger("psycopg.pool").addFilter(_is_of_others)


class Pool:
    """The driver's pool of connections and the threads that use them, made when they are needed, in each process.

    A caller that gives up waiting is free at once: a call that has not begun is dropped, one that has runs to its end.
    """

    def __init__(
        self, options: Mapping[str, Any], configure: Callable[[Connection[Any]], None], connections: int, timeout: float
    ) -> None:
        self._options = {**options, "autocommit": True}
        self._configure = configure
        self._connections = connections
        self._timeout = timeout  # seconds of a call
        self._fault: Exception | None = None  # why the last connection could not be made
        self._made: tuple[int, ThreadPoolExecutor, ConnectionPool[Any]] | None = None

    def _start(self) -> tuple[ThreadPoolExecutor, ConnectionPool[Any]]:
        from psycopg_pool import ConnectionPool

        if self._made is None or self._made[0] != os.getpid():  # neither threads nor connections survive a fork
            pool = ConnectionPool(
                kwargs=self._options,
                connection_class=self._connection_class(),
                min_size=0,
                max_size=self._connections,
                reconnect_timeout=0,  # the next call tries again
                open=True,
                name=_NAME,
            )
            # Threads of our own: with the event loop's, half as many calls of a burst are answered in time.
            threads = ThreadPoolExecutor(self._connections, thread_name_prefix="mcp-sessions-postgres")
            self._made = (os.getpid(), threads, pool)
        return self._made[1:]

    def _connection_class(self) -> type[Connection[Any]]:
        """Return a class whose connections are set up, and that notes why one could not be made."""
        from psycopg import Connection

        pool = self

        class Configured(Connection[Any]):
            @classmethod
            def connect(cls, *args: Any, **kwargs: Any) -> Any:
                connection = None
                try:
                    with suppress_instrumentation():  # this is a thread of the driver's
                        connection = super().connect(*args, **kwargs)
                        pool._configure(connection)
                except Exception as error:
                    pool._fault = error
                    if connection is not None:
                        connection.close()
                    raise
                pool._fault = None
                return connection

        return Configured

    def submit(self, work: Callable[[Connection[Any]], T], *, repeatable: bool = True) -> Future[T]:
        """Do work on a thread, with a connection, when it is its turn."""
        threads, pool = self._start()
        return threads.submit(call_suppressed, self._do, pool, work, repeatable)

    def connect(self) -> Future[None]:
        """Make a connection of its own, whose error says why it cannot be made."""
        threads, pool = self._start()
        return threads.submit(call_suppressed, lambda: pool.connection_class.connect(**self._options).close())

    async def close(self) -> None:
        """Close all connections, after the calls so far. A later call makes others."""
        if self._made is not None and self._made[0] == os.getpid():
            _, threads, pool = self._made
            self._made = None
            for end in (threads.shutdown, pool.close):
                await to_thread.run_sync(end, abandon_on_cancel=True)

    def _do(self, pool: ConnectionPool[Any], work: Callable[[Connection[Any]], T], repeatable: bool) -> T:
        """Do work, and again once its connection was found broken or there are tables."""
        from psycopg import Error

        with self._connection(pool) as connection:
            try:
                return work(connection)
            except Error as error:
                if reason_of(error) == NO_TABLES:
                    self._configure(connection)  # which makes them
                elif not (connection.closed and repeatable):
                    raise
        with self._connection(pool) as connection:
            return work(connection)

    @contextmanager
    def _connection(self, pool: ConnectionPool[Any]) -> Iterator[Connection[Any]]:
        """Provide a connection that was not found broken, or wait for one that others use, or for the server."""
        from psycopg_pool import PoolTimeout

        until = monotonic() + _SHARE * self._timeout
        while True:
            left = until - monotonic()
            try:
                connection = pool.getconn(min(_RETRY, left))
            except PoolTimeout:
                if left > _RETRY:
                    continue  # the driver's pool tries to connect for a call that begins to wait, and only once
                in_use = StoreUnavailable("store_timeout", cause="all connections are in use")
                raise (self._fault or in_use).with_traceback(None) from None
            try:
                if not _is_readable(connection.fileno()):
                    yield connection
                    return
                connection.close()  # a server that ends a connection says so
            finally:
                pool.putconn(connection)

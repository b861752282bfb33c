"""Connections to PostgreSQL, shared by the calls of one event loop: a connection serves only the loop that made it.

`psycopg_pool` was tried. Its tasks ignore that they are cancelled, so a process that stops while a server accepts
connections and does not answer never ends; after a restart of the server it sleeps for a second between two broken
connections; and a caller does not learn why it gets none.
"""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import Context
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

import anyio

from .._errors import ConfigurationError, StoreUnavailable
from ._postgres_faults import NO_TABLES, fault_of, is_passing
from ._threads import suppress_instrumentation
from ._timeout import time_limit

T = TypeVar("T")
Connection = Any  # psycopg.AsyncConnection[Any], which is imported when it is needed

TRIO: Final = "store='postgresql://...' runs on asyncio alone; serve with asyncio, or use 'sqlite:PATH'"
SLOW: Final = (
    "connecting takes longer than Limits.store_timeout ({:g} s), and goes on: the database may be waking up; if it "
    "always takes so long, raise the limit"
)
_Selector: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)  # which needs no descriptor
_SHARE: Final = 0.8  # of the time of a call, in which it waits for a connection
_ANOTHER_TRY: Final = 0.1  # seconds between two attempts to connect while a call waits


class _OfLoop:
    """The connections of one event loop."""

    def __init__(self, connections: int) -> None:
        self.slots = anyio.Semaphore(connections, fast_acquire=True)
        self.free: list[Connection] = []
        self.connecting: asyncio.Task[None] | None = None
        self.returned = asyncio.Event()  # a call has given its connection back since this was cleared
        self.fault: Exception | None = None  # why the last connection could not be made
        self.is_closed = False

    def take_back(self, connection: Connection, task: asyncio.Task[Any]) -> None:
        """Keep a connection for the next call, unless its task left it in the middle of something."""
        from psycopg.pq import TransactionStatus

        if not task.cancelled():
            task.exception()  # or the event loop reports an error whose caller gave up
        if connection.info.transaction_status != TransactionStatus.IDLE or self.is_closed:
            connection.pgconn.finish()
        else:
            self.free.append(connection)
            self.returned.set()
        self.slots.release()


class Pool:
    """Connections that are made when they are needed, and kept.

    Args:
        options: For the driver.
        configure: Sets a new connection up.
        connections: The number of calls of one event loop that may run at once.
        timeout: Seconds in which the server must answer.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        configure: Callable[[Connection], Awaitable[None]],
        connections: int,
        timeout: float,
    ) -> None:
        self._options = options
        self._configure = configure
        self._most = connections
        self._timeout = timeout
        self._loops: dict[tuple[int, asyncio.AbstractEventLoop], _OfLoop] = {}

    async def connect(self) -> None:
        """Make a connection, and wait for it as long as the driver does; an error says why none can be made."""
        mine = self._here()
        await self._connect(mine)
        if mine.fault is not None:
            raise mine.fault

    async def run(self, work: Callable[[Connection], Awaitable[T]], *, repeatable: bool = True) -> T:
        """Do work; once more if its connection broke and it may be repeated, or if the tables were missing.

        A caller that gives up is free at once: work that has not begun is dropped, work that has runs to its end.
        """
        mine = self._here()
        await mine.slots.acquire()
        try:
            connection = await self._unbroken(mine)
        except BaseException:
            mine.slots.release()
            raise
        held = [connection]
        task = asyncio.ensure_future(self._use(mine, held, work, repeatable))
        # Not by the task itself, which may be cancelled before it begins.
        task.add_done_callback(lambda task: mine.take_back(held[0], task))
        await asyncio.wait([task])
        return task.result()

    async def _use(
        self, mine: _OfLoop, held: list[Connection], work: Callable[[Connection], Awaitable[T]], repeatable: bool
    ) -> T:
        from psycopg import Error

        try:
            return await work(held[0])
        except Error as error:
            if fault_of(error).reason == NO_TABLES:
                await self._configure(held[0])  # which creates them
            elif held[0].closed and repeatable:
                held[0] = await self._unbroken(mine)
            else:
                raise
        return await work(held[0])

    async def close(self) -> None:
        """Close the connections of this event loop. A later call makes others."""
        if not self._loops:
            return
        mine = self._here()
        mine.is_closed = True
        self._loops = {here: one for here, one in self._loops.items() if one is not mine}
        if mine.connecting is not None:
            mine.connecting.cancel()
        while mine.free:
            await mine.free.pop().close()

    async def _unbroken(self, mine: _OfLoop) -> Connection:
        while True:
            while mine.free:
                connection = mine.free.pop()
                if not _is_readable(connection.fileno()):
                    return connection
                await connection.close()  # a server that ends a connection says so
            await self._wait_for_connection(mine)

    async def _wait_for_connection(self, mine: _OfLoop) -> None:
        """Wait until a connection is made, which goes on without its caller, or one that was in use is free.

        If none can be made, try again while there is time.
        """
        deadline = monotonic() + _SHARE * self._timeout
        try:
            with time_limit(_SHARE * self._timeout):
                while not mine.free:
                    if not await self._wait_for_change(mine) or mine.fault is None:
                        continue
                    if not is_passing(mine.fault) or monotonic() + _ANOTHER_TRY >= deadline:
                        raise mine.fault.with_traceback(None)
                    await asyncio.sleep(_ANOTHER_TRY)
        except TimeoutError:
            raise StoreUnavailable("store_timeout", cause=SLOW.format(self._timeout)) from None

    async def _wait_for_change(self, mine: _OfLoop) -> bool:
        """Wait for the attempt to connect, or for a connection that is free; return True if the attempt has ended."""
        if mine.connecting is None:
            mine.connecting = in_new_context(partial(self._connect, mine))
        attempt = mine.connecting
        mine.returned.clear()
        returned = asyncio.ensure_future(mine.returned.wait())
        try:
            await asyncio.wait([attempt, returned], return_when=asyncio.FIRST_COMPLETED)
        finally:
            returned.cancel()
        return attempt.done()

    async def _connect(self, mine: _OfLoop) -> None:
        from psycopg import AsyncConnection

        try:
            connection = await AsyncConnection.connect(**self._options, autocommit=True)
            try:
                await self._configure(connection)
            except BaseException:
                await connection.close()
                raise
            mine.free.append(connection)
            mine.fault = None
        except Exception as error:  # noqa: BLE001  # raised to whoever waits
            mine.fault = error
        finally:
            mine.connecting = None

    def _here(self) -> _OfLoop:
        """Return what belongs to this process and event loop; `ConfigurationError` on Trio."""
        try:
            here = os.getpid(), asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigurationError(TRIO) from None
        if here not in self._loops:
            for pid, loop in list(self._loops):
                if pid == os.getpid() and loop.is_closed():  # what a parent process has stays: it uses it
                    for connection in self._loops.pop((pid, loop)).free:
                        connection.pgconn.finish()
            self._loops[here] = _OfLoop(self._most)
        return self._loops[here]


def in_new_context(call: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """Call a coroutine function in a task that keeps no value of the request under way."""

    async def run() -> None:
        with suppress_instrumentation():
            await call()

    return Context().run(asyncio.ensure_future, run())


def _is_readable(number: int) -> bool:
    """True if something waits to be read from a socket."""
    with _Selector() as selector:
        selector.register(number, selectors.EVENT_READ)
        return bool(selector.select(0))

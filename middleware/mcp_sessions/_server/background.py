"""Work beside requests: tasks that end with the event loop, and services that run until the server stops.

Of all workers that share a store, one elected at a time does the work of a service. `Census` counts the live sessions
in the store, for the gauge, so that it is right across restarts and never below 0.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint

from .._errors import StoreUnavailable
from ..stores._base import Record, Store

INTERVAL: Final = 10.0  # seconds between two counts
TERM: Final = 2.5  # intervals after which another worker counts in place of one that died
SHARE: Final = 20  # of the time; a count that takes long, by way of the roster, comes less often
PAGE: Final = 500

_log: Final = logging.getLogger("mcp_sessions")
_running: Final[set[asyncio.Task[None]]] = set()  # the event loop keeps weak references only


def start(work: Callable[[], Awaitable[None]]) -> None:
    """Start work that belongs to no request and ends with the event loop; an error in it is logged and ends it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        import trio

        trio.lowlevel.spawn_system_task(_logged, work, context=Context())
        return
    # A context of its own: the work must not be taken for a part of the request that happened to start it.
    task = Context().run(loop.create_task, _logged(work))
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _logged(work: Callable[[], Awaitable[Any]]) -> None:
    try:
        await work()
    except Exception as error:  # noqa: BLE001  # whatever it is, the server goes on
        _log.error("background work stopped: %s", type(error).__name__)


class Service(ABC):
    """Work that one elected worker, by an election of this name in the store, repeats until the server stops."""

    def __init__(self, store: Store, election: str) -> None:
        self._store: Final = store
        self._election: Final = election
        self._worker: Final = secrets.token_hex(8)
        self._is_running = False
        self._leads = False

    def start(self) -> None:
        """Work in the background until stopped; a second call changes nothing."""
        if not self._is_running:
            self._is_running = True
            self._stopping, self._stopped = anyio.Event(), anyio.Event()
            start(self._run)

    async def stop(self) -> None:
        """Leave the work to another worker, and finish what was begun."""
        if self._is_running:
            self._stopping.set()
            await self._give_up()
            await self._stopped.wait()

    async def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                with anyio.move_on_after(await self._work()):
                    await self._stopping.wait()
            await self._give_up()  # what was won meanwhile
        finally:
            self._is_running = False
            self._stopped.set()

    @abstractmethod
    async def _work(self) -> float:
        """Work for some time, and return for how many seconds to rest."""

    async def _lead(self, seconds: float) -> bool:
        self._leads = await self._store.elect(self._worker, audience=self._election, seconds=seconds)
        return self._leads

    async def _give_up(self) -> None:
        if self._leads:
            self._leads = False
            with suppress(StoreUnavailable):
                await self._store.elect(self._worker, audience=self._election, seconds=0)


class Census(Service):
    """Counts the recorded sessions of an audience.

    `report` receives their number; None where another worker reports, or the store does not answer.
    """

    def __init__(
        self, store: Store, audience: str, report: Callable[[int | None], object], *, interval: float = INTERVAL
    ) -> None:
        super().__init__(store, f"{audience} census")  # apart from the sweeper's, whose term is longer
        self._audience: Final = audience
        self._report: Final = report
        self._interval: Final = interval
        self._pause = interval

    async def _run(self) -> None:
        try:
            await super()._run()
        finally:
            self._report(None)

    async def _work(self) -> float:
        began = anyio.current_time()
        self._report(await self._count())
        self._pause = max(self._interval, SHARE * (anyio.current_time() - began))
        return self._pause

    async def _count(self) -> int | None:
        try:
            if not await self._lead(TERM * self._pause):
                return None
            count = await self._store.count(audience=self._audience)
            if count is not None:
                return count
            return sum([len(page) async for page in pages(self._store, self._audience, PAGE)])
        except StoreUnavailable:  # which the store has logged
            return None


async def pages(store: Store, audience: str, limit: int) -> AsyncGenerator[list[Record], None]:
    """Yield the recorded sessions of an audience, a page at a time."""
    cursor, is_first = "", True
    while is_first or cursor:
        page, cursor = await store.roster(audience=audience, cursor=cursor, limit=limit)
        is_first = False
        yield page
        await checkpoint()  # a store in memory answers without

"""Background work: tasks that end with the event loop, and services that run until the server stops.

`LiveSessionCounter` counts the live sessions in the store, for the gauge, so that it is right across restarts and never
below 0; every worker that shares the store reports the same number.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, Protocol

import anyio

from .._errors import StoreUnavailable
from ..stores._base import Store

INTERVAL: Final = 10.0  # seconds between two counts
MAX_DUTY: Final = 20  # times as long as a count takes, until the next one begins

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
    # Another context: the work must not be taken for a part of the request that happened to start it.
    task = Context().run(loop.create_task, _logged(work))
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _logged(work: Callable[[], Awaitable[Any]]) -> None:
    try:
        await work()
    except Exception as error:  # noqa: BLE001  # whatever it is, the server goes on
        _log.error("background work stopped: %s", type(error).__name__)


class Background(Protocol):
    """What runs next to the application, from its start to its stop."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


class Service(ABC):
    """Work that a worker repeats until the server stops."""

    _is_running = False

    def start(self) -> None:
        """Work in the background until stopped; a second call changes nothing."""
        if not self._is_running:
            self._is_running = True
            self._stopping, self._stopped = anyio.Event(), anyio.Event()
            start(self._run)

    async def stop(self) -> None:
        """Finish what was begun, and begin no more."""
        if self._is_running:
            self._stopping.set()
            await self._stopped.wait()

    async def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                with anyio.move_on_after(await self._work()):
                    await self._stopping.wait()
        finally:
            self._is_running = False
            self._stopped.set()

    @abstractmethod
    async def _work(self) -> float:
        """Work for some time, and return for how many seconds to rest."""


@dataclass(eq=False)
class LiveSessionCounter(Service):
    """Counts the recorded sessions of an audience."""

    store: Store
    audience: str
    report: Callable[[int | None], object]  # receives their number; None where the store does not answer
    interval: float = INTERVAL

    async def _run(self) -> None:
        try:
            await super()._run()
        finally:
            self.report(None)

    async def _work(self) -> float:
        began = anyio.current_time()
        try:
            self.report(await self.store.count(audience=self.audience))
        except StoreUnavailable:  # which the store has logged
            self.report(None)
        return max(self.interval, MAX_DUTY * (anyio.current_time() - began))

"""How many sessions live, for the gauge: counted in the store, so that it is right across restarts and never below 0.

One worker of all that share the store counts and reports, so that its number is neither doubled nor missing for long:
it asks for that election itself, with a shorter term than the sweeper's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio

from .._errors import StoreUnavailable
from ..stores._base import Store
from .streams import start

INTERVAL: Final = 10.0  # seconds between two counts
TERM: Final = 2.5  # intervals after which another worker counts in place of one that died
SHARE: Final = 20  # of the time; a count that takes long, by way of the roster, comes less often
PAGE: Final = 500


class Census:
    """Counts the recorded sessions of an audience on one elected worker.

    Args:
        store: Where they are recorded.
        audience: Whom they are for.
        report: Receives their number; None where another worker reports, or the store does not answer.
        interval: Seconds between two counts.
    """

    def __init__(
        self, store: Store, audience: str, report: Callable[[int | None], object], *, interval: float = INTERVAL
    ) -> None:
        self._store: Final = store
        self._audience: Final = audience
        self._report: Final = report
        self._interval: Final = interval
        self._pause = interval
        self._worker: Final = secrets.token_hex(8)
        self._is_running = False

    def start(self) -> None:
        """Count in the background until stopped; a second call changes nothing."""
        if not self._is_running:
            self._is_running = True
            self._stopping, self._stopped = anyio.Event(), anyio.Event()
            start(self._run)

    async def stop(self) -> None:
        """Leave the count to another worker."""
        if self._is_running:
            self._stopping.set()
            await self._stopped.wait()

    async def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                began = anyio.current_time()
                self._report(await self._count())
                self._pause = max(self._interval, SHARE * (anyio.current_time() - began))
                with anyio.move_on_after(self._pause):
                    await self._stopping.wait()
            with suppress(StoreUnavailable):
                await self._is_elected(seconds=0)
        finally:
            self._is_running = False
            self._report(None)
            self._stopped.set()

    async def _is_elected(self, *, seconds: float) -> bool:
        return await self._store.elect(self._worker, audience=f"{self._audience} census", seconds=seconds)

    async def _count(self) -> int | None:
        try:
            if not await self._is_elected(seconds=TERM * self._pause):
                return None
            count = await self._store.count(audience=self._audience)
            return await self._walk() if count is None else count
        except StoreUnavailable:  # which the store has logged
            return None

    async def _walk(self) -> int:
        count, cursor, is_first = 0, "", True
        while is_first or cursor:
            page, cursor = await self._store.roster(audience=self._audience, cursor=cursor, limit=PAGE)
            count, is_first = count + len(page), False
        return count

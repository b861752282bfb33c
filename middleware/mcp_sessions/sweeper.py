"""What ends without a request: sessions that expired or stood idle, and endings that a dead worker left.

Runs where sessions are tracked, on one worker at a time: the store says who leads, and gives each
ended session to one taker. Nothing here judges a session; the store does.
"""

from __future__ import annotations

import logging
import secrets
from typing import Final

import anyio

from . import background
from .endings import LEASE, Endings
from .errors import StoreUnavailable
from .stores.base import Ended, Store

BATCH: Final = 20  # endings that run side by side
_log: Final = logging.getLogger("mcp_sessions")


class Sweeper:
    """Ends the sessions that end by themselves.

    Args:
        store: Where sessions are recorded.
        endings: What ends one.
        audience: Whom the sessions are for.
        idle_timeout: Seconds without a request after which a session ends, or None.
        interval: Seconds between two looks.
    """

    def __init__(
        self,
        store: Store,
        endings: Endings,
        *,
        audience: str,
        idle_timeout: int | None,
        interval: float,
    ) -> None:
        self._store = store
        self._endings = endings
        self._audience = audience
        self._idle_timeout = idle_timeout
        self._interval = interval
        self._worker = secrets.token_hex(8)
        self._is_running = False

    def start(self) -> None:
        """Sweep beside the server, once however often this is called."""
        if not self._is_running:
            self._is_running = True
            self._stopping, self._stopped = anyio.Event(), anyio.Event()
            background.start(self._run)

    async def stop(self) -> None:
        """Finish what was taken, and take no more. A hook that is cut off would run again elsewhere."""
        if self._is_running:
            self._stopping.set()
            await self._stopped.wait()

    async def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if not await self._took_all():
                    with anyio.move_on_after(self._interval):
                        await self._stopping.wait()
        finally:
            self._is_running = False
            self._stopped.set()

    async def _took_all(self) -> bool:
        try:
            return await self.sweep()
        except StoreUnavailable as error:
            _log.warning("ended sessions wait, since the store does not answer (%s)", error.reason)
        except Exception as error:  # noqa: BLE001  # a listener that raises must not end the sweeping
            _log.error("ended sessions wait, since sweeping failed: %s", type(error).__name__)
        return False

    async def sweep(self) -> bool:
        """Take some of what has ended, and finish it.

        Returns:
            Whether there may be more.

        Raises:
            StoreUnavailable: The store did not answer; the next look goes on.
        """
        if not await self._store.lead(self._worker, audience=self._audience, seconds=LEASE):
            return False
        batch = await self._store.take_ended(
            audience=self._audience, idle_timeout=self._idle_timeout, lease=LEASE, limit=BATCH
        )
        async with anyio.create_task_group() as group:
            for ended in batch:
                group.start_soon(self._finish, ended)
        return len(batch) == BATCH

    async def _finish(self, ended: Ended) -> None:
        record = ended.record
        self._endings.tell(record.ref, record.created_at, record.expires_at, ended.reason, record.trace)
        await self._endings.finish(record.ref, record.created_at, record.expires_at, ended.reason)

"""The end of a session, in its order: refused everywhere, streams ended, `on_end` run, data forgotten.

The store says who ended a session first, and only that worker runs `on_end`. A worker that dies
before it is done leaves a lease behind, and where sessions are tracked another worker takes over when
it runs out (`sweeper`): then `on_end` runs again, never not at all. A hook that raises has run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import anyio

from . import background, hooks, lineage
from .data import Data
from .errors import StoreUnavailable
from .events import Fact, SessionDeleted
from .hooks import OnEnd
from .session import EndedSession, utc
from .stores.base import Record, Store
from .streams import Streams
from .tokens import Claims

ENDED_ALL: Final = "ended_all"
"""The reason for which a principal's sessions end all at once, as `on_end` is told it."""

ROOT_ENDED: Final = "root_ended"
"""The reason for which forks end with the session at the top of their lineage, likewise."""

NOT_BEGUN: Final = "not_begun"
"""The reason for which a session ends that was made and of which its client could not be told, likewise."""

LEASE: Final = 60.0  # seconds that a worker has for one `on_end`
PATIENCE: Final = 50.0  # seconds after which a hook is stopped, before another worker could start it again
TRIES: Final = 50  # to forget a session while the store does not answer, a second apart
_log: Final = logging.getLogger("mcp_sessions")


class Endings:
    """Ends the sessions of one middleware.

    Args:
        store: Where ended sessions are remembered.
        streams: The event streams that are open in this process.
        on_end: The application's hook, or None.
        emit: Told the facts.
        keep: Gives the data that the server keeps on a shelf.
        clock: Unix seconds.
        patience: Seconds that the hook may take.
        pause: Seconds between two tries to forget a session.
    """

    def __init__(
        self,
        store: Store,
        streams: Streams,
        *,
        on_end: OnEnd | None,
        emit: Callable[[Fact], None],
        keep: Callable[[str, int], Data],
        clock: Callable[[], float],
        patience: float = PATIENCE,
        pause: float = 1.0,
    ) -> None:
        self._store = store
        self._streams = streams
        self._on_end = on_end
        self._emit = emit
        self._keep = keep
        self._clock = clock
        self._patience = patience
        self._pause = pause

    async def end(self, claims: Claims, reason: str) -> None:
        """End a session before its time.

        Args:
            claims: The session.
            reason: Why, for the log and for `on_end`.

        Raises:
            StoreUnavailable: The store did not take it, so the session still lives.
        """
        with anyio.CancelScope(shield=True):  # a client that leaves now must not keep the session half ended
            is_first = await self._store.revoke(
                claims.ref, audience=claims.audience, expires_at=claims.expires_at, reason=reason, lease=LEASE
            )
            await self._streams.end(claims.ref)
            if is_first:
                self.tell(claims.ref, claims.issued_at, claims.expires_at, reason, claims.trace)
                await self.finish(claims.ref, claims.issued_at, claims.expires_at, reason)

    async def end_below(self, root: Claims, *, tracked: bool) -> None:
        """End all forks of a lineage. The root itself lives on, and can have no more.

        Args:
            root: The session at the top.
            tracked: Whether its forks are recorded. Then each has its `on_end` run by one of the servers, soon.

        Raises:
            StoreUnavailable: The store did not take it. Some forks may live.
        """
        mark = lineage.mark(root)
        await self._store.revoke(
            mark.ref, audience=mark.audience, expires_at=mark.expires_at, reason=ROOT_ENDED, lease=0
        )
        if tracked:
            await self.revoke(await self._store.forks(root.ref), ROOT_ENDED)

    async def revoke(self, records: Sequence[Record], reason: str) -> None:
        """End recorded sessions. Their `on_end` is run by the first worker that looks for what has ended.

        Args:
            records: The sessions.
            reason: Why they end.

        Raises:
            StoreUnavailable: The store did not take it. Some may live.
        """
        for record in records:
            await self._store.revoke(
                record.ref, audience=record.audience, expires_at=record.expires_at, reason=reason, lease=0
            )
            await self._streams.end(record.ref)

    def tell(self, ref: str, created_at: int, expires_at: int, reason: str, trace: str | None = None) -> None:
        """Tell that a session has ended.

        Args:
            ref: The session's public name.
            created_at: Unix seconds.
            expires_at: The token's own end, Unix seconds; one that expired has not lived beyond it.
            reason: Why it ended.
            trace: The traceparent of its start, where that is known.
        """
        ended_at = min(int(self._clock()), expires_at)
        self._emit(SessionDeleted(ref, reason, max(ended_at - created_at, 0), trace))

    async def finish(self, ref: str, created_at: int, expires_at: int, reason: str) -> None:
        """Run `on_end` for a session that has ended and is this worker's to finish, and forget it.

        Args:
            ref: The session's public name.
            created_at: Unix seconds.
            expires_at: The token's own end, Unix seconds.
            reason: Why it ended.
        """
        if self._on_end is not None:
            ended = EndedSession(ref, utc(created_at), utc(expires_at), self._keep(ref, expires_at))
            await self._run(self._on_end, ended, reason)
        await self.forget(ref)

    async def _run(self, on_end: OnEnd, ended: EndedSession, reason: str) -> None:
        with anyio.move_on_after(self._patience) as scope:
            # In a task of its own: on asyncio, who awaits what they have cancelled is cancelled themselves.
            async with anyio.create_task_group() as group:
                group.start_soon(_tell, on_end, ended, reason)
        if scope.cancelled_caught:
            _log.error("on_end took more than %g s for session %s and was stopped", self._patience, ended.ref)

    # --- forgotten ----------------------------------------------------------------------------

    async def forget(self, ref: str) -> None:
        """Forget a session that is over, and its data; where the store does not answer, as soon as it does."""
        with anyio.CancelScope(shield=True):
            if not await self._is_forgotten(ref):
                _log.warning("session %s is over, and its data stays until the store answers", ref)
                background.start(partial(self._forget_later, ref))

    async def _forget_later(self, ref: str) -> None:
        for _ in range(TRIES):
            await anyio.sleep(self._pause)
            if await self._is_forgotten(ref):
                return

    async def _is_forgotten(self, ref: str) -> bool:
        try:
            await self._store.finish(ref)
        except StoreUnavailable:
            return False
        return True


async def _tell(on_end: OnEnd, ended: EndedSession, reason: str) -> None:
    try:
        await hooks.call(on_end, ended, reason)
    except Exception as error:  # noqa: BLE001  # it has run, and the session has ended all the same
        _log.exception("on_end raised %s for session %s", type(error).__name__, ended.ref)

"""The end of a session, in its order: refused everywhere, streams ended, `on_end` run, data forgotten.

The store decides who ended a session first, and only that worker runs `on_end`. A worker that dies before it is done
leaves a lease behind, and where sessions are tracked another worker takes over when the lease runs out: `on_end` runs
at least once. `Sweeper` ends what ends without a request: sessions that expired or stood idle, on one elected worker.
"""

from __future__ import annotations

import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from .._session import claims as lineage
from .._session.claims import Claims, utc
from .._session.data import Data
from .._session.events import Fact, SessionDeleted
from .._session.session import EndedSession
from ..errors import StoreUnavailable
from ..stores.base import Ended, Record, Store
from .streams import Streams, start

if TYPE_CHECKING:
    from .options import OnEnd

ENDED_ALL: Final = "ended_all"
"""The reason that `on_end` gets where all sessions of a principal end at once."""

ROOT_ENDED: Final = "root_ended"
"""The reason that `on_end` gets for forks that end with the session at the top of their lineage."""

NOT_BEGUN: Final = "not_begun"
"""The reason that `on_end` gets for a session whose id did not reach its client."""

LEASE: Final = 60.0  # seconds that a worker has for one `on_end`
PATIENCE: Final = 50.0  # seconds after which a hook is stopped, before another worker could start it again
TRIES: Final = 50  # to forget a session while the store does not answer, a second apart
_log: Final = logging.getLogger("mcp_sessions")


async def call_hook(hook: Callable[..., Awaitable[None] | None], *arguments: Any) -> None:
    """Run the application's own code at one end of a session, plain or async, to its end."""
    outcome = hook(*arguments)
    if inspect.isawaitable(outcome):
        await outcome


class Terminator:
    """Ends the sessions of one middleware.

    Args:
        store: Where ended sessions are remembered.
        streams: The event streams that are open in this process.
        on_end: The application's hook, or None.
        emit: Called with each fact.
        data: Returns the data of a session, given its `ref` and its end.
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
        data: Callable[[str, int], Data],
        clock: Callable[[], float],
        patience: float = PATIENCE,
        pause: float = 1.0,
    ) -> None:
        self._store = store
        self._streams = streams
        self._on_end = on_end
        self._emit = emit
        self._data = data
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
                self.report(claims.ref, claims.issued_at, claims.expires_at, reason, claims.trace)
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

    def report(self, ref: str, created_at: int, expires_at: int, reason: str, trace: str | None = None) -> None:
        """Emit the fact that a session has ended.

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
            ended = EndedSession(ref, utc(created_at), utc(expires_at), self._data(ref, expires_at))
            await self._run(self._on_end, ended, reason)
        await self.forget(ref)

    async def _run(self, on_end: OnEnd, ended: EndedSession, reason: str) -> None:
        with anyio.move_on_after(self._patience) as scope:
            # In a task of its own: on asyncio, who awaits what they have cancelled is cancelled themselves.
            async with anyio.create_task_group() as group:
                group.start_soon(_call_on_end, on_end, ended, reason)
        if scope.cancelled_caught:
            _log.error("on_end of session %s stopped: it took more than %g s", ended.ref, self._patience)

    # --- forgotten ----------------------------------------------------------------------------

    async def forget(self, ref: str) -> None:
        """Forget a session that is over, and its data; where the store does not answer, as soon as it does."""
        with anyio.CancelScope(shield=True):
            if not await self._is_forgotten(ref):
                _log.warning("data of ended session %s stays: store unavailable, trying again", ref)
                start(partial(self._forget_later, ref))

    async def _forget_later(self, ref: str) -> None:
        for _ in range(TRIES):
            await anyio.sleep(self._pause)
            if await self._is_forgotten(ref):
                return

    async def _is_forgotten(self, ref: str) -> bool:
        try:
            await self._store.purge(ref)
        except StoreUnavailable:
            return False
        return True


async def _call_on_end(on_end: OnEnd, ended: EndedSession, reason: str) -> None:
    try:
        await call_hook(on_end, ended, reason)
    except Exception as error:  # noqa: BLE001  # it has run, and the session has ended all the same
        _log.exception("on_end of session %s raised %s", ended.ref, type(error).__name__)


SWEEP_BATCH: Final = 20  # endings that run side by side


class Sweeper:
    """Ends the sessions that end by themselves.

    Args:
        store: Where sessions are recorded.
        terminator: What ends one.
        audience: Whom the sessions are for.
        idle_timeout: Seconds without a request after which a session ends, or None.
        interval: Seconds between two looks.
    """

    def __init__(
        self,
        store: Store,
        terminator: Terminator,
        *,
        audience: str,
        idle_timeout: int | None,
        interval: float,
    ) -> None:
        self._store = store
        self._terminator = terminator
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
            start(self._run)

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
            _log.warning("sweep postponed: store unavailable (%s)", error.reason)
        except Exception as error:  # noqa: BLE001  # a listener that raises must not end the sweeping
            _log.error("sweep postponed: %s", type(error).__name__)
        return False

    async def sweep(self) -> bool:
        """Take some of what has ended, and finish it.

        Returns:
            Whether there may be more.

        Raises:
            StoreUnavailable: The store did not answer; the next look goes on.
        """
        if not await self._store.elect(self._worker, audience=self._audience, seconds=LEASE):
            return False
        batch = await self._store.claim_ended(
            audience=self._audience, idle_timeout=self._idle_timeout, lease=LEASE, limit=SWEEP_BATCH
        )
        async with anyio.create_task_group() as group:
            for ended in batch:
                group.start_soon(self._finish, ended)
        return len(batch) == SWEEP_BATCH

    async def _finish(self, ended: Ended) -> None:
        record = ended.record
        self._terminator.report(record.ref, record.created_at, record.expires_at, ended.reason, record.trace)
        await self._terminator.finish(record.ref, record.created_at, record.expires_at, ended.reason)

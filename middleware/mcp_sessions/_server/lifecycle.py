"""The end of a session, in its order: refused everywhere, streams ended, `on_end` run, data forgotten.

The store says who ended a session first, and only that worker runs `on_end`. A worker that dies
before it is done leaves a lease behind, and where sessions are tracked another worker takes over when
it runs out (`sweeper`): then `on_end` runs again, never not at all. A hook that raises has run.

What ends without a request: sessions that expired or stood idle, and endings that a dead worker left.

Runs where sessions are tracked, on one worker at a time: the store says who leads, and gives each
ended session to one taker. Nothing here judges a session; the store does.

Work that belongs to no request: a loop that runs beside the server, on asyncio and on trio.

It is started from inside a request or the server's start, outlives it, inherits nothing from it, and
ends with the event loop. An error in it is logged and ends it; it never ends the server.

Event streams that are open in this process, and ending them when their session ends.

A session that was ended here takes its streams with it at once; one that was ended by another worker
is found by asking the store, twice a second and only while such streams are open. Which request an
event belonged to is remembered for a while, so that a client that resumes a stream (`Last-Event-ID`)
is not served the results of a session that has ended. Nothing here writes to a client.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, Protocol

import anyio
import msgspec

from .._session import claims
from .._session.claims import Claims, utc
from .._session.data import Data
from .._session.events import Fact, SessionDeleted
from .._session.session import EndedSession
from ..errors import StoreUnavailable
from ..stores import base
from ..stores.base import Ended, Record, Standing, Store
from . import options
from .options import OnEnd

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
        mark = claims.mark(root)
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


async def _tell(on_end: OnEnd, ended: EndedSession, reason: str) -> None:
    try:
        await options.call(on_end, ended, reason)
    except Exception as error:  # noqa: BLE001  # it has run, and the session has ended all the same
        _log.exception("on_end raised %s for session %s", type(error).__name__, ended.ref)


SWEEP_BATCH: Final = 20  # endings that run side by side


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
        self._endings.tell(record.ref, record.created_at, record.expires_at, ended.reason, record.trace)
        await self._endings.finish(record.ref, record.created_at, record.expires_at, ended.reason)


_running: Final[set[asyncio.Task[None]]] = set()  # the event loop keeps weak references only


def start(work: Callable[[], Awaitable[None]]) -> None:
    """Start some work beside what runs now.

    Args:
        work: An async function without arguments.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        _start_on_trio(work)
        return
    # A context of its own: the work must not be taken for a part of the request that happened to start it.
    task = Context().run(loop.create_task, _logged(work))
    _running.add(task)
    task.add_done_callback(_running.discard)


def _start_on_trio(work: Callable[[], Awaitable[None]]) -> None:
    import trio

    trio.lowlevel.spawn_system_task(_logged, work, context=Context())


async def _logged(work: Callable[[], Awaitable[Any]]) -> None:
    try:
        await work()
    except Exception as error:  # noqa: BLE001  # whatever it is, the server goes on
        _log.error("work in the background stopped: %s", type(error).__name__)


INTERVAL: Final = 0.5  # seconds between two questions to the store
BATCH: Final = 500  # sessions in one question, which has to be answered within `store_timeout`
MAX_EVENTS: Final = 100_000  # event ids that are remembered; an id takes about 400 bytes with its place


class Origin(msgspec.Struct, frozen=True):
    """The request that a stream answers. Kept long after it, so it holds no more than it must.

    Args:
        claims: The session that it named.
        id: Its id, as JSON; None for a GET, which nothing answers.
        label: Its method, as it may be logged.
    """

    claims: Claims
    id: bytes | None
    label: str


class Stream(Protocol):
    """One open event stream of a session."""

    @property
    def claims(self) -> Claims:
        """The session that it belongs to."""
        ...

    @property
    def survives_end(self) -> bool:
        """Whether it goes on when its session ends: its own request ended it, and still gets its answer."""
        ...

    async def cut(self) -> None:
        """End it: its session has ended. Raises nothing, and does not wait long for its client."""


class Streams:
    """The open streams of one middleware.

    Args:
        store: What knows which sessions have ended.
        interval: Seconds between two questions to it.
        max_events: Event ids that are remembered at the most; the oldest go first.
    """

    def __init__(self, store: Store, *, interval: float = INTERVAL, max_events: int = MAX_EVENTS) -> None:
        self._store = store
        self._interval = interval
        self._max_events = max_events
        self._open: dict[str, list[Stream]] = {}
        self._origins: OrderedDict[tuple[str | None, str], Origin] = OrderedDict()
        self._watching = False

    def add(self, stream: Stream) -> None:
        """Note a stream that has opened."""
        self._open.setdefault(stream.claims.ref, []).append(stream)
        if not self._watching:
            self._watching = True
            start(self._watch)

    def remove(self, stream: Stream) -> None:
        """Forget a stream that has closed, or was forgotten before."""
        ref = stream.claims.ref
        left = [other for other in self._open.get(ref, ()) if other is not stream]
        if left:
            self._open[ref] = left
        else:
            self._open.pop(ref, None)

    async def end(self, ref: str) -> None:
        """End the streams of a session that has ended, but for that of the request that ended it.

        Args:
            ref: The session's public name.
        """
        ending = [stream for stream in self._open.get(ref, ()) if not stream.survives_end]
        async with anyio.create_task_group() as group:  # side by side, or slow clients would add up
            for stream in ending:
                self.remove(stream)
                group.start_soon(stream.cut)

    async def has_ended(self, claims: Claims) -> bool:
        """Whether a session has ended for certain: where the store does not answer, its answers go on as streams do."""
        try:
            standing = await base.status(self._store, claims)
        except StoreUnavailable:
            return False
        return standing is not Standing.LIVE

    # --- what another worker ended ------------------------------------------------------------

    async def _watch(self) -> None:
        try:
            while self._open:
                await anyio.sleep(self._interval)
                await self._look()
        finally:
            self._watching = False

    async def _look(self) -> None:
        claims = [of_session[0].claims for of_session in self._open.values()]
        for start in range(0, len(claims), BATCH):
            await self._ask(claims[start : start + BATCH])

    async def _ask(self, claims: list[Claims]) -> None:
        try:
            standings = await base.statuses(self._store, claims)
        except StoreUnavailable:  # nobody knows, so the streams go on until somebody does
            return
        for claim, standing in zip(claims, standings, strict=True):
            if standing is not Standing.LIVE:
                await self.end(claim.ref)

    # --- what can be resumed ------------------------------------------------------------------

    def remember(self, transport: str | None, event_id: str, origin: Origin) -> None:
        """Note that an event was sent in answer to a request of a session.

        Args:
            transport: The wrapped server's own transport session, within which event ids are unique.
            event_id: The event's id.
            origin: The request.
        """
        self._origins[transport, event_id] = origin
        if len(self._origins) > self._max_events:
            self._origins.popitem(last=False)

    def origin_of(self, transport: str | None, event_id: str | None) -> Origin | None:
        """The request that an event was sent in answer to, or None where that is not known."""
        return None if event_id is None else self._origins.get((transport, event_id))

"""The end of a session, and the server's start and stop.

A session ends in this order: refused everywhere, streams ended, `on_end` run, data purged. The store decides which
worker ended it first, and only that one runs `on_end`; if it dies meanwhile, its lease runs out, and where sessions are
tracked another worker takes over: `on_end` runs at least once. Source of the rest: ASGI, Lifespan Protocol.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager as Async
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from .._errors import ConfigurationError, StoreFull, StoreUnavailable
from .._session.claims import Claims, utc
from .._session.data import Data
from .._session.endings import Ending
from .._session.events import SessionDeleted
from .._session.functions import finish
from .._session.session import EndedSession
from ..stores._base import Ended, Record, Store
from ..telemetry._core import flush_exporters, hook
from .background import Background, Service, start
from .logs import log_extra
from .resumption import Streams

if TYPE_CHECKING:
    from .options import OnEnd

ENDED_ALL: Final = "ended_all"  # the reason where all sessions of a principal end
WITHDRAWN: Final = "withdrawn"  # the reason if it is unknown whether a session was recorded

LOG_INTERVAL: Final = 60.0  # seconds between two log lines about the same outage
LEASE: Final = 60.0  # seconds that a worker has for one `on_end`
HOOK_TIMEOUT: Final = 50.0  # seconds after which a hook is stopped, before another worker could start it again
MAX_ATTEMPTS: Final = 50  # to end or purge a session while the store does not answer, a second apart
SWEEP_BATCH: Final = 500  # endings that run side by side in one worker
BATCH_SIZE: Final = 50  # of them that the store is asked for, or asked to purge, at once

_log: Final = logging.getLogger("mcp_sessions")


@dataclass(frozen=True)
class Terminator:
    """Ends the sessions of one middleware."""

    store: Store
    streams: Streams
    on_end: OnEnd | None
    report: Callable[[SessionDeleted], None]  # that a session has ended
    data: Callable[[str, int], Data]  # returns the data of a session, given its `ref` and its end
    clock: Callable[[], float]  # Unix seconds
    timeout: float = HOOK_TIMEOUT  # seconds that the hook may take
    pause: float = 1.0  # seconds between two attempts to purge a session

    async def end(self, claims: Claims, reason: str) -> None:
        """End a session before its time; the reason is for the log and for `on_end`.

        Raises `StoreFull` where it still lives, and `StoreUnavailable` where it may have ended: this worker then goes
        on asking, so that it ends and `on_end` runs.
        """
        with anyio.CancelScope(shield=True):  # a client that leaves now must not leave the session half ended
            try:
                await self.end_record(Record.of(claims), reason)
            except StoreUnavailable as error:
                if not isinstance(error, StoreFull):
                    start(partial(self._retry, partial(self.end_record, Record.of(claims), reason)))
                raise

    async def end_record(self, one: Record, reason: str) -> bool:
        """End a session, and return whether this call did. After the lease, another worker may run its `on_end`."""
        with self.streams.ending(one.ref):
            is_first = await self.store.revoke(one, reason=reason, lease=None if self.on_end is None else LEASE)
            await self.streams.end(one.ref)
        if is_first and self.on_end is None:  # the store has purged it
            self._report(one, reason)
        elif is_first:
            await self.finish(Ended(one, reason))
        return is_first

    def withdraw(self, record: Record) -> None:
        """End a session that may be recorded or not, so that no record of it counts, now or later."""
        start(partial(self._retry, partial(self.store.revoke, record, reason=WITHDRAWN, lease=None)))

    async def _retry(self, change: Callable[[], Awaitable[object]]) -> None:
        """Make a change that the store did not answer, as soon as it does."""
        for _ in range(MAX_ATTEMPTS):
            await anyio.sleep(self.pause)
            with suppress(StoreUnavailable):
                await change()
                return

    async def finish(self, *batch: Ended) -> None:
        """Report sessions that have ended and are this worker's to finish, run `on_end` for each, and purge them."""
        over: list[str] = []

        async def finish_one(record: Record, reason: str) -> None:
            await self._run_hook(record, reason)
            over.append(record.ref)

        try:
            async with anyio.create_task_group() as group:
                for ended in batch:
                    self._report(ended.record, ended.reason)
                    group.start_soon(finish_one, ended.record, ended.reason)
        finally:  # also if it is cancelled: what has run must not run again
            await self.purge(*over)

    def _report(self, record: Record, reason: str) -> None:
        lasted = min(self.clock(), record.expires_at) - record.created_at  # it has not lived beyond its token
        ending = Ending.from_text(reason)
        self.report(SessionDeleted(record.ref, ending.reason, max(lasted, 0), record.trace, ending.by, ending.name))

    async def _run_hook(self, record: Record, reason: str) -> None:
        """Run `on_end` for a session, which has ended whatever becomes of it."""
        if self.on_end is None:
            return
        ref, data = record.ref, self.data(record.ref, record.expires_at)
        session = EndedSession(ref, utc(record.created_at), utc(record.expires_at), data)
        try:
            with hook(ref, record.trace), anyio.move_on_after(self.timeout) as scope:
                await finish(self.on_end(session, Ending.from_text(reason).reason), option="on_end")
            if scope.cancelled_caught:
                _log.error("on_end of session %s cancelled after %g s", ref, self.timeout, extra=log_extra(ref))
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:  # else asyncio's way to say that what it awaited was
                raise
        except Exception as error:  # noqa: BLE001  # the session has ended all the same
            _log.exception("on_end of session %s raised %s", ref, type(error).__name__, extra=log_extra(ref))

    async def purge(self, *refs: str) -> None:
        """Purge the data of sessions that are over; where the store does not answer, as soon as it does."""
        with anyio.CancelScope(shield=True):
            for first in range(0, len(refs), BATCH_SIZE):
                batch = refs[first : first + BATCH_SIZE]
                try:
                    await self.store.purge(*batch)
                except StoreUnavailable:
                    text = "data of ended session %s not deleted yet: store unavailable"
                    for ref in batch:
                        _log.warning(text, ref, extra=log_extra(ref))
                    start(partial(self._retry, partial(self.store.purge, *batch)))


@dataclass(eq=False)
class Sweeper(Service):
    """Ends the recorded sessions that expired or were idle. Every worker sweeps; the store gives each session to one.

    To stop it finishes what was claimed, and claims no more: a hook that is cut off would run again elsewhere.
    """

    store: Store
    terminator: Terminator
    audience: str
    idle_timeout: int | None  # seconds without a request after which a session ends
    interval: float  # seconds between two sweeps

    _logged_at: float = field(default=-math.inf, init=False)

    async def _work(self) -> float:
        try:
            return 0 if await self.sweep() else self.interval
        except StoreUnavailable as error:
            now = anyio.current_time()
            if not now < self._logged_at + LOG_INTERVAL:
                self._logged_at = now
                _log.warning("sweep postponed: store unavailable (%s)", error.reason)
        except Exception as error:  # noqa: BLE001  # a store that raises must not end the sweeping
            _log.error("sweep postponed: %s", type(error).__name__)
        return self.interval

    async def sweep(self) -> bool:
        """Claim some of what has ended and finish it; return whether there may be more."""
        batch: list[Ended] = []
        try:
            while len(batch) < SWEEP_BATCH:
                claimed = await self.store.claim_ended(
                    audience=self.audience, idle_timeout=self.idle_timeout, lease=LEASE, limit=BATCH_SIZE
                )
                batch += claimed
                if len(claimed) < BATCH_SIZE:
                    break
        except StoreUnavailable:
            if not batch:  # what was claimed must be finished
                raise
        await self.terminator.finish(*batch)
        return len(batch) == SWEEP_BATCH


@dataclass(eq=False)
class Services:
    """What runs next to an application: the open store, and what works for as long as the application runs.

    A hook may need what the application opens at its start, so none runs before that or after the application was asked
    to stop; the store opens first and closes last. An application without lifespan returns or raises at once and is
    served all the same, so only a stop that was asked for stops anything.
    """

    store: Store
    background_services: Sequence[Background]
    closes: bool  # whether the store is ours to close; one that was given as an object belongs to its maker
    on_start: Callable[[], Awaitable[None]]  # called once the application has started, or raises `ConfigurationError`
    has_lifespan: bool = field(default=False, init=False)  # whether one has reached us
    state: Any = field(default_factory=dict, init=False, repr=False)  # what the lifespan has given to requests
    _active: int = field(default=0, init=False)  # lifespans that run now

    async def open(self) -> None:
        """Open the store before the application starts, which it does even if the store does not answer yet."""
        self.has_lifespan = True
        try:
            await self.store.open()
        except StoreUnavailable as error:
            _log.warning("the session store does not answer yet (%s), and requests in sessions need it", error.reason)

    def started(self) -> None:
        """Begin to work: the application has started, or the first request came where no start is seen."""
        for one in self.background_services:
            one.start()

    async def stopping(self) -> None:
        for one in self.background_services:
            await one.stop()

    async def stopped(self) -> None:
        """Export spans and metrics and close the store: the application has stopped, and the event loop still runs."""
        await flush_exporters()
        if self.closes:
            try:
                await self.store.close()
            except StoreUnavailable as error:
                _log.warning("the session store was not closed (%s)", error.reason)

    @asynccontextmanager
    async def around(self, context: Callable[[Any], Async[Any]], app: object) -> AsyncIterator[Any]:
        """Run a router's `lifespan_context` with ours around it; of several (an app mounted twice) the last ends it."""
        await self.open()
        self._active += 1
        try:
            async with context(app) as state:
                self.state = state or {}
                await self.on_start()
                self.started()
                try:
                    yield state
                finally:
                    if self._active == 1:
                        await self.stopping()
        finally:
            self._active -= 1
            if self._active == 0:
                await self.stopped()

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the start and stop on to an application, with ours around them. The store is open by then."""
        failed, self.state = False, scope.get("state", {})

        async def receive_wrapper() -> ASGIMessage:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.stopping()
            return message

        async def send_wrapper(message: ASGIMessage) -> None:
            nonlocal failed
            if failed:  # as the application says, too
                return
            if message["type"] == "lifespan.startup.complete":
                try:
                    await self.on_start()
                except ConfigurationError as error:
                    failed = True
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
            if message["type"] in {"lifespan.shutdown.complete", "lifespan.shutdown.failed"}:
                await self.stopped()
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                self.started()

        await app(scope, receive_wrapper, send_wrapper)

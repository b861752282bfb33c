"""Event streams that are open in this process, and the loop that ends them when their session ends.

A session that was ended here takes its streams with it at once; one that another worker ended is found by asking the
store, twice a second and only while such streams are open. Which request an event answers is remembered for a while, so
that a client that resumes a stream (`Last-Event-ID`) does not get the results of a session that has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Final, Protocol

import anyio
import msgspec

from .._session.claims import Claims
from ..errors import StoreUnavailable
from ..stores import base
from ..stores.base import Standing, Store

_log: Final = logging.getLogger("mcp_sessions")
INTERVAL: Final = 0.5  # seconds between two questions to the store
BATCH: Final = 500  # sessions in one question, which has to be answered within `store_timeout`
MAX_EVENTS: Final = 100_000  # event ids that are remembered; an id takes about 400 bytes with its place

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


class Origin(msgspec.Struct, frozen=True):
    """The request that a stream answers. Kept long after it, so it holds no more than it must."""

    claims: Claims  # the session that it named
    id: bytes | None  # as JSON; None for a GET, which nothing answers
    label: str  # its method, as it may be logged


class Stream(Protocol):
    """One open event stream of a session."""

    @property
    def claims(self) -> Claims:
        """The session that it belongs to."""

    @property
    def survives_end(self) -> bool:
        """Whether it goes on when its session ends: its own request ended it, and still gets its answer."""

    async def cut(self) -> None:
        """End it: its session has ended. Raises nothing, and does not wait long for its client."""


class Streams:
    """The open streams of one middleware."""

    def __init__(self, store: Store, *, interval: float = INTERVAL, max_events: int = MAX_EVENTS) -> None:
        self._store, self._interval, self._max_events = store, interval, max_events
        self._open: dict[str, list[Stream]] = {}
        self._origins: OrderedDict[tuple[str | None, str], Origin] = OrderedDict()
        self._watching = False
        self.is_blind = False
        """Whether the store did not answer when it was last asked how the sessions are."""

    def add(self, stream: Stream) -> None:
        """Register a stream that has opened."""
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
        """End the streams of a session that has ended, but for that of the request that ended it."""
        ending = [stream for stream in self._open.get(ref, ()) if not stream.survives_end]
        async with anyio.create_task_group() as group:  # side by side, or slow clients would add up
            for stream in ending:
                self.remove(stream)
                group.start_soon(stream.cut)

    async def lives(self, claims: Claims) -> bool:
        """Whether a session is still live, or raise `StoreUnavailable`."""
        return await base.status(self._store, claims) is Standing.LIVE

    async def _watch(self) -> None:
        try:
            while self._open:
                await anyio.sleep(self._interval)
                await self._look()
        finally:
            self._watching = False

    async def _look(self) -> None:
        claims = [of_session[0].claims for of_session in self._open.values()]
        for first in range(0, len(claims), BATCH):
            asked = claims[first : first + BATCH]
            try:
                statuses = await base.statuses(self._store, asked)
            except StoreUnavailable:  # what is no answer goes on until the store says otherwise
                self.is_blind = True
                continue
            self.is_blind = False
            for claim, status in zip(asked, statuses, strict=True):
                if status is not Standing.LIVE:
                    await self.end(claim.ref)

    def remember(self, transport: str | None, event_id: str, origin: Origin) -> None:
        """Remember which request an event answered; its id is unique within the wrapped server's transport session."""
        self._origins[transport, event_id] = origin
        if len(self._origins) > self._max_events:
            self._origins.popitem(last=False)

    def origin_of(self, transport: str | None, event_id: str | None) -> Origin | None:
        """Return the request that an event answered, or None where that is not known."""
        return None if event_id is None else self._origins.get((transport, event_id))

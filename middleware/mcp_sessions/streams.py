"""Event streams that are open in this process, and ending them when their session ends.

A session that was ended here takes its streams with it at once; one that was ended by another worker
is found by asking the store, twice a second and only while such streams are open. Which request an
event belonged to is remembered for a while, so that a client that resumes a stream (`Last-Event-ID`)
is not served the results of a session that has ended. Nothing here writes to a client.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

import anyio
import msgspec

from . import background
from .errors import StoreUnavailable
from .stores import lineages
from .stores.base import Standing, Store
from .tokens import Claims

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
    def is_spared(self) -> bool:
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
            background.start(self._watch)

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
        ending = [stream for stream in self._open.get(ref, ()) if not stream.is_spared]
        async with anyio.create_task_group() as group:  # side by side, or slow clients would add up
            for stream in ending:
                self.remove(stream)
                group.start_soon(stream.cut)

    async def has_ended(self, claims: Claims) -> bool:
        """Whether a session has ended for certain: where the store does not answer, its answers go on as streams do."""
        try:
            standing = await lineages.standing(self._store, claims)
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
            standings = await lineages.standings(self._store, claims)
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

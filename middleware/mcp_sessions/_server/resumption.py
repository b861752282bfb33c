"""Event streams that are open in this process, and how they end early and are resumed.

A session that was ended here takes its streams with it at once; one that another worker ended is found by asking the
store, twice a second and only while such streams are open. A server with an event store runs a call to its end without
its client. So the state of the call's session stays open until the answer passes here, at last in the resumed stream; a
client that never comes back loses the call's changes of the state, but not those of `session.data`.
Source: MCP 2025-11-25, Streamable HTTP, "Resumability and Redelivery".
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import anyio
import msgspec

from .._errors import StoreUnavailable
from .._protocol import rewrite
from .._session.claims import Claims, RedactedRepr
from ..stores._base import SessionStatus, Store
from .background import start

INTERVAL: Final = 0.5  # seconds between two questions to the store
BATCH: Final = 500  # sessions in one question, which has to be answered within `store_timeout`
MAX_EVENTS: Final = 100_000  # event ids that are remembered; an id takes about 400 bytes with its place
MAX_EVENT_BYTES: Final = 16 << 20  # of these ids, and of the ids of their requests
MAX_CALLS: Final = 10_000  # whose session is kept for a resumed stream; the oldest goes first


Terminate = Callable[[], Coroutine[Any, Any, None]]
"""Ends a stream whose session has ended. Raises nothing, and does not wait long for its client."""


class Streams:
    """The open streams of one middleware, by the `ref` of their sessions: what ends each, and what it answers."""

    def __init__(self, store: Store, *, interval: float = INTERVAL) -> None:
        self._store, self._interval = store, interval
        self._open: dict[str, dict[Terminate, StreamRequest]] = {}
        self._polling = False
        self.store_unavailable: bool = False
        """Whether the store did not answer when it was last asked how the sessions are."""

    def add(self, request: StreamRequest, terminate: Terminate) -> None:
        self._open.setdefault(request.claims.ref, {})[terminate] = request
        if not self._polling:
            self._polling = True
            start(self._poll)

    def remove(self, request: StreamRequest, terminate: Terminate) -> None:
        of_session = self._open.get(request.claims.ref, {})
        of_session.pop(terminate, None)
        if not of_session:
            self._open.pop(request.claims.ref, None)

    async def end(self, ref: str) -> None:
        """End the streams of a session that has ended, but for that of the request that ended it."""
        async with anyio.create_task_group() as group:  # side by side, or slow clients would add up
            for terminate, request in [*self._open.get(ref, {}).items()]:
                if not request.ended_its_session:
                    self.remove(request, terminate)
                    group.start_soon(terminate)

    def cancel(self, ref: str | None, server_id: str | None, request_id: bytes) -> None:
        """Settle a request that its client has cancelled, in a message that names this session or none."""
        # A client may use several sessions in one transport session; where neither is named, it could be any client's.
        refs = [ref or ""] if server_id is None else [*self._open]
        for request in (request for each in refs for request in self._open.get(each, {}).values()):
            if request.id and request.server_id == server_id and rewrite.same_id(request.id, request_id):
                request.answered = True

    def leave(self, ref: str) -> None:
        """Settle all requests of a session that its client ends as it leaves, often without cancelling them."""
        for request in self._open.get(ref, {}).values():
            request.answered = True

    async def _poll(self) -> None:
        try:
            while self._open:
                await anyio.sleep(self._interval)
                await self._check_once()
        finally:
            self._polling = False

    async def _check_once(self) -> None:
        claims = [next(iter(of_session.values())).claims for of_session in self._open.values()]
        for first in range(0, len(claims), BATCH):
            asked = claims[first : first + BATCH]
            try:
                statuses = await self._store.statuses(asked)
            except StoreUnavailable:  # without an answer the stream stays open
                self.store_unavailable = True
                continue
            self.store_unavailable = False
            for claim, status in zip(asked, statuses, strict=True):
                if status is not SessionStatus.LIVE:
                    await self.end(claim.ref)


# --- resumption ---


class ResumableSession(Protocol):
    """The session of a call, whose state stays open until the answer has left."""

    ended_by_own_request: bool
    answered: bool

    def close(self) -> None: ...


class StreamRequest(RedactedRepr, msgspec.Struct, eq=False):
    """The request that a stream answers. Kept long after it, so it holds no more than it must."""

    claims: Claims  # the session that it named
    id: bytes | None  # as JSON; None for a GET, which nothing answers
    label: str  # its method, as it may be logged
    server_id: str | None = None  # of the wrapped server's transport session that it came by
    answered: bool = False  # it was answered or cancelled: its client expects nothing more
    session: ResumableSession | None = None  # that it is in, while its answer may still come
    rewrites: tuple[Any, ...] = ()  # what the answer needs in a resumed stream, each a `Rewrite` of `response`

    @property
    def ended_its_session(self) -> bool:
        """Whether it has itself ended the session that it is in, and goes on all the same."""
        return self.session is not None and self.session.ended_by_own_request

    def mark_answered(self) -> None:
        """Note that the application has sent its last word: what begins from now on is no part of the request."""
        if self.session is not None:
            self.session.answered = True

    def is_answered_by(self, last: bytes) -> bool:
        """Whether its client expects nothing more, given the last message of a stream, which an answer is."""
        if not self.answered and self.id is not None:
            self.answered = rewrite.is_response(last, self.id)
        return self.answered


class Events:
    """The event ids that one middleware has seen, and the calls whose streams can be resumed."""

    def __init__(
        self, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_EVENT_BYTES, max_calls: int = MAX_CALLS
    ) -> None:
        self._max_events, self._max_bytes, self._max_calls = max_events, max_bytes, max_calls
        self._bytes = 0
        self._requests: OrderedDict[tuple[str | None, str], StreamRequest] = OrderedDict()
        self._places: Counter[str] = Counter()  # of each id: the transport sessions in which it was seen
        self._calls: OrderedDict[StreamRequest, ResumableSession] = OrderedDict()

    def remember(self, event_id: str, request: StreamRequest) -> None:
        """Remember which request an event answered; its id is unique within the wrapped server's transport session."""
        place = (request.server_id, event_id)
        known = self._requests.get(place)
        self._places[event_id] += known is None
        self._requests[place] = request
        self._bytes += _size(event_id, request) - (0 if known is None else _size(event_id, known))
        while len(self._requests) > self._max_events or self._bytes > self._max_bytes:
            (_, oldest), forgotten = self._requests.popitem(last=False)
            self._bytes -= _size(oldest, forgotten)
            self._places[oldest] -= 1
            if not self._places[oldest]:
                del self._places[oldest]

    def request_of(self, server_id: str | None, event_id: str | None) -> StreamRequest | None:
        """Return the request that an event answered, or None where that is not known."""
        return None if event_id is None else self._requests.get((server_id, event_id))

    def is_known(self, event_id: str | None) -> bool:
        """Whether an event was seen in any transport session. Servers find events by their id alone."""
        return event_id in self._places

    def keep(self, request: StreamRequest, session: ResumableSession, last: bytes) -> None:
        """Keep the session of a call for its resumed stream; it stays open unless the last message answered it."""
        self._calls[request] = session
        if request.is_answered_by(last):
            session.close()
        if len(self._calls) > self._max_calls:
            oldest, its_session = self._calls.popitem(last=False)
            its_session.close()
            oldest.session, oldest.rewrites = None, ()


def _size(event_id: str, request: StreamRequest) -> int:
    return len(event_id) + len(request.id or b"")

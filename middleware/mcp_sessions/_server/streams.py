"""Event streams that are open in this process, and how they end, are cut and are resumed.

A session that was ended here takes its streams with it at once; one that another worker ended is found by asking the
store, twice a second and only while such streams are open. A server with an event store runs a call to its end without
its client. So the state of the call's session stays open until the answer passes here, at last in the resumed stream.
Where that state is in the store, changes are saved twice a second, as the client may never come back.
Source: MCP 2025-11-25, Streamable HTTP, "Resumability and Redelivery".
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from .._errors import DataError, DataGone, Refusal, SessionEnded, StateError, StoreUnavailable
from .._protocol import rewrite
from .._session.claims import SESSION, Claims
from ..stores._base import Standing, Store
from .background import start

if TYPE_CHECKING:
    from .response import ResponseFilter, Rewrite
    from .sessions import ActiveSession

INTERVAL: Final = 0.5  # seconds between two questions to the store, and two looks at calls whose client has left
BATCH: Final = 500  # sessions in one question, which has to be answered within `store_timeout`
MAX_EVENTS: Final = 100_000  # event ids that are remembered; an id takes about 400 bytes with its place
MAX_CALLS: Final = 10_000  # whose session is kept for a resumed stream; the oldest goes first


class Stream(Protocol):
    """One open event stream of a session."""

    @property
    def claims(self) -> Claims:
        """The session that it belongs to."""

    @property
    def survives_end(self) -> bool:
        """Whether it goes on when its session ends: its own request ended it, and still gets its answer."""

    def cancel(self, transport: str | None, request_id: bytes | None) -> None:
        """Expect no answer any more if it answers this request of this transport session of the wrapped server.

        No id means any request.
        """

    async def cut(self) -> None:
        """End it: its session has ended. Raises nothing, and does not wait long for its client."""


class Streams:
    """The open streams of one middleware."""

    def __init__(self, store: Store, *, interval: float = INTERVAL) -> None:
        self._store, self._interval = store, interval
        self._open: dict[str, list[Stream]] = {}
        self._watching = False
        self.is_blind: bool = False
        """Whether the store did not answer when it was last asked how the sessions are."""

    def add(self, stream: Stream) -> None:
        self._open.setdefault(stream.claims.ref, []).append(stream)
        if not self._watching:
            self._watching = True
            start(self._watch)

    def remove(self, stream: Stream) -> None:
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

    def cancel(self, ref: str | None, transport: str | None, request_id: bytes) -> None:
        """Settle a request that its client has cancelled, in a message that names this session or none."""
        if transport is not None:  # in which a client may use several sessions
            named = [stream for streams in self._open.values() for stream in streams]
        else:  # where there is none either, it could be any client's
            named = self._open.get(ref or "", [])
        for stream in named:
            stream.cancel(transport, request_id)

    def leave(self, ref: str) -> None:
        """Settle all requests of a session that its client ends as it leaves, often without cancelling them."""
        for stream in self._open.get(ref, ()):
            stream.cancel(None, None)

    async def lives(self, claims: Claims) -> bool:
        """Whether a session is still live, or raise `StoreUnavailable`."""
        return await self._store.statuses([claims]) == [Standing.LIVE]

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
                statuses = await self._store.statuses(asked)
            except StoreUnavailable:  # what is no answer goes on until the store says otherwise
                self.is_blind = True
                continue
            self.is_blind = False
            for claim, status in zip(asked, statuses, strict=True):
                if status is not Standing.LIVE:
                    await self.end(claim.ref)


# --- resumption ---


class Resumable(msgspec.Struct, frozen=True):
    """What the answer of a call needs when it comes by a resumed stream."""

    session: ActiveSession
    echoed: ActiveSession | None
    rewrites: tuple[Rewrite, ...]  # but those that belong to one response


class Origin(msgspec.Struct, eq=False):
    """The request that a stream answers. Kept long after it, so it holds no more than it must."""

    claims: Claims  # the session that it named
    id: bytes | None  # as JSON; None for a GET, which nothing answers
    label: str  # its method, as it may be logged
    is_settled: bool = False  # it was answered or cancelled: its client expects nothing more
    resumable: Resumable | None = None  # while it is among the calls that are kept

    def is_settled_by(self, last: bytes) -> bool:
        """Whether its client expects nothing more, given the last message of a stream, which an answer is."""
        if not self.is_settled and self.id is not None:
            self.is_settled = rewrite.response_to(last, self.id) is not None
        return self.is_settled


class Events:
    """The event ids that one middleware has seen, and the calls whose streams can be resumed."""

    def __init__(self, *, interval: float = INTERVAL, max_events: int = MAX_EVENTS, max_calls: int = MAX_CALLS) -> None:
        self._interval, self._max_events, self._max_calls = interval, max_events, max_calls
        self._origins: OrderedDict[tuple[str | None, str], Origin] = OrderedDict()
        self._places: Counter[str] = Counter()  # of each id: the transport sessions in which it was seen
        self._calls: OrderedDict[Origin, None] = OrderedDict()
        self._saved: list[ActiveSession] = []  # those of these calls whose state is in the store and open
        self._saving = False

    def remember(self, transport: str | None, event_id: str, origin: Origin) -> None:
        """Remember which request an event answered; its id is unique within the wrapped server's transport session."""
        place = (transport, event_id)
        self._places[event_id] += place not in self._origins
        self._origins[place] = origin
        if len(self._origins) > self._max_events:
            (_, oldest), _ = self._origins.popitem(last=False)
            self._places[oldest] -= 1
            if not self._places[oldest]:
                del self._places[oldest]

    def origin_of(self, transport: str | None, event_id: str | None) -> Origin | None:
        """Return the request that an event answered, or None where that is not known."""
        return None if event_id is None else self._origins.get((transport, event_id))

    def is_known(self, event_id: str | None) -> bool:
        """Whether an event was seen in any transport session. Servers find events by their id alone."""
        return event_id in self._places

    def keep(self, origin: Origin, session: ActiveSession, response: ResponseFilter) -> None:
        """Keep the session of a call for its resumed stream; it stays open unless the call was answered."""
        rewrites = tuple([change for change in response.rewrites if change.is_repeatable])
        origin.resumable = Resumable(session, response.echoed, rewrites)
        self._calls[origin] = None
        if origin.is_settled_by(response.last_text):
            session.shut()
        elif session.claims.kind != SESSION:  # its client carries no state
            self._saved.append(session)
            if not self._saving:
                self._saving = True
                start(self._save)
        if len(self._calls) > self._max_calls:
            oldest, _ = self._calls.popitem(last=False)
            assert oldest.resumable is not None
            oldest.resumable.session.shut()
            oldest.resumable = None

    async def _save(self) -> None:
        try:
            while self._saved:
                await anyio.sleep(self._interval)
                for session in list(self._saved):
                    await checkpoint()
                    await self._save_one(session)
        finally:
            self._saving = False

    async def _save_one(self, session: ActiveSession) -> None:
        """Save what changed in a state; one that is shut was saved with its answer, or belongs to no call any more."""
        if session.is_shut or not session.runtime.clock() < session.ends_at:
            session.shut()
            self._saved.remove(session)
            return
        try:
            await session.save_changes()
        except DataGone:  # it has ended
            session.shut()
        except (StateError, DataError, StoreUnavailable):
            pass  # it is tried again, and the answer says so if it still fails


class StreamGuard(msgspec.Struct, frozen=True):
    """What ends a response before its time."""

    origin: Origin  # the request that is answered
    transport: str | None  # the wrapped server's transport session that it came by
    streams: Streams  # of this process, among which it is listed while it is open
    events: Events  # of this process, by which a client may resume it
    refused: Callable[[Refusal], bytes]  # gives the last message to a client whose response is cut, as JSON, or nothing
    survives_end: Callable[[], bool]  # whether the response goes on all the same
    fail_open: bool  # whether it goes on where the store does not say whether the session has ended

    def is_in_doubt(self, text: bytes) -> bool:
        """Whether a message is the answer, and comes while the store does not say how sessions are."""
        return self.streams.is_blind and self.origin.id is not None and rewrite.is_answer(text, self.origin.id)

    async def refusal(self) -> Refusal | None:
        """Return why an answer must not leave: its session has ended meanwhile, or may have."""
        if self.survives_end():
            return None
        claims = self.origin.claims
        try:
            return None if await self.streams.lives(claims) else SessionEnded(ref=claims.ref)
        except StoreUnavailable as refusal:
            return None if self.fail_open else refusal

    def cancel(self, transport: str | None, request_id: bytes | None) -> None:
        """Expect no answer any more if this is the request that its client has cancelled, or any (None)."""
        own = self.origin.id
        if request_id is None or (own and self.transport == transport and rewrite.same_id(own, request_id)):
            self.origin.is_settled = True

    def last_message(self, refusal: Refusal | None, last: bytes) -> bytes:
        """Return the last message of a stream that is cut, given the one before: none where its client expects none."""
        if self.origin.is_settled_by(last):
            return b""
        self.origin.is_settled = True
        return self.refused(refusal or SessionEnded(ref=self.origin.claims.ref))

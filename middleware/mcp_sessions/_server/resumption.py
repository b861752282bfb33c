"""Event streams that are open in this process, and how they end early and are resumed.

A session that was ended here takes its streams with it at once; one that another worker ended is found by asking the
store, twice a second and only while such streams are open. Event ids leave signed, so any worker knows whose they are.
A server with an event store runs a call to its end without its client. So the state of the call's session stays open
until the answer passes here, at last in the resumed stream; a client that never comes back, or resumes the stream on
another worker, loses the call's changes of the state, but not those of `session.data`.
Source: MCP 2025-11-25, Streamable HTTP, "Resumability and Redelivery".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine
from secrets import token_bytes
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import anyio
import msgspec

from .._errors import StoreUnavailable
from .._protocol import rewrite
from .._session.claims import Claims, RedactedRepr
from ..stores._base import SessionStatus, Store
from .background import start

INTERVAL: Final = 0.5  # seconds between two questions to the store
BATCH: Final = 500  # sessions in one question, which has to be answered within `store_timeout`
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


class StreamRequest(RedactedRepr, msgspec.Struct, eq=False, weakref=True):
    """The request that a stream answers. Kept long after it, so it holds no more than it must."""

    claims: Claims  # the session that it named
    id: bytes | None  # as JSON; None for a GET, which nothing answers
    label: str  # its method, as it may be logged
    server_id: str | None = None  # of the wrapped server's transport session that it came by
    answered: bool = False  # it was answered or cancelled: its client expects nothing more
    session: ResumableSession | None = None  # that it is in, while its answer may still come
    rewrites: tuple[Any, ...] = ()  # what the answer needs in a resumed stream, each a `Rewrite` of `response`
    call: bytes = b""  # by which its event ids name it, once one has left

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


class ResumableCalls:
    """The calls of this process whose streams can be resumed. Their state stays with the process that ran them."""

    def __init__(self, *, max_calls: int = MAX_CALLS) -> None:
        self._max_calls = max_calls
        self._by_name = WeakValueDictionary[bytes, StreamRequest]()
        self._calls: OrderedDict[StreamRequest, ResumableSession] = OrderedDict()

    def name(self, request: StreamRequest) -> bytes:
        """Return the name by which event ids lead to a request; any other process takes it for unknown."""
        if not request.call:
            request.call = token_bytes(9)
        self._by_name[request.call] = request
        return request.call

    def find(self, call: bytes) -> StreamRequest | None:
        return self._by_name.get(call)

    def keep(self, request: StreamRequest, session: ResumableSession, last: bytes) -> None:
        """Keep the session of a call for its resumed stream; it stays open unless the last message answered it."""
        self._calls[request] = session
        if request.is_answered_by(last):
            session.close()
        if len(self._calls) > self._max_calls:
            oldest, its_session = self._calls.popitem(last=False)
            its_session.close()
            oldest.session, oldest.rewrites = None, ()

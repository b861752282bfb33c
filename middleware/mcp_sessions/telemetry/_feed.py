"""`Feed`: what happens in one worker, for those who look at its inspector: sessions, running calls, the last events.

A reader is sent what is known, then what happens. One that falls behind is disconnected, so no request waits for it.
Of a client's words an event has the client's name, the method and the tool alone, as a span does.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from .._errors import Refusal
from .._protocol.jsonrpc import TARGETS, Message
from .._session.claims import Claims, looks_like_session_id
from .._session.events import RequestRefused, SessionCreated, SessionDeleted, SessionEvent
from ._core import MAX_NAME

if TYPE_CHECKING:
    from ._outcome import RequestTelemetry

_MAX_SESSIONS: Final = 1_000  # that a worker remembers, those used last
_MAX_HISTORY: Final = 200  # events
_MAX_BEHIND: Final = 5_000  # events that a reader may not have read yet


class _Event(msgspec.Struct, tag_field="event", tag=str.lower, kw_only=True, frozen=True):
    worker: str  # host and process


class LiveSession(_Event, tag="session", frozen=True):
    """A live session that the worker has seen."""

    ref: str
    at: float  # Unix seconds  # its last use
    created_at: float
    expires_at: float
    client: str | None = None
    error: str | None = None  # the last one


class Created(_Event, frozen=True):
    ref: str
    at: float  # Unix seconds
    expires_at: float


class Ended(_Event, frozen=True):
    ref: str
    at: float  # Unix seconds
    reason: str
    seconds: float


class Refused(_Event, frozen=True):
    """A request that was refused before it could be handled as a message."""

    ref: str | None
    at: float  # Unix seconds
    reason: str


class CallStarted(_Event, tag="started", frozen=True):
    """A call that runs."""

    call: str
    ref: str | None
    at: float  # Unix seconds
    name: str
    client: str | None = None


class CallFinished(CallStarted, tag="finished", kw_only=True, frozen=True):
    """A call that has been handled; `at` is when it began."""

    seconds: float
    error: str | None = None
    reason: str | None = None


Event = LiveSession | Created | Ended | Refused | CallStarted | CallFinished


class Feed:
    """What happens in this worker, and those who read it.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock: Final = clock
        self.sessions: Final[dict[str, LiveSession]] = {}  # those used last at the end
        self._running: Final[dict[RequestTelemetry, CallStarted]] = {}
        self._numbers: Final = count(1)
        self._history: Final[deque[Event]] = deque(maxlen=_MAX_HISTORY)
        self._ended: Final[dict[str, None]] = {}
        self._readers: Final[set[MemoryObjectSendStream[Event]]] = set()

    @property
    def worker(self) -> str:
        """Host and process: a server may fork its workers after it has made the application."""
        return f"{socket.gethostname()}:{os.getpid()}"

    def __call__(self, fact: SessionEvent) -> None:
        """Send one fact; a refusal of a message is sent with that message."""
        worker, at = self.worker, self._clock()
        if isinstance(fact, SessionCreated):
            ref, until = fact.ref, fact.expires_at
            self._put(LiveSession(worker=worker, ref=ref, at=at, created_at=at, expires_at=until))
            self._send(Created(worker=worker, ref=ref, at=at, expires_at=until))
        elif isinstance(fact, SessionDeleted):
            self.sessions.pop(fact.ref, None)
            self._ended[fact.ref] = None
            _trim(self._ended)
            self._send(Ended(worker=worker, ref=fact.ref, at=at, reason=fact.reason, seconds=fact.seconds))
        elif isinstance(fact, RequestRefused) and fact.method is None:
            self._use(fact.ref, error=fact.reason)
            self._send(Refused(worker=worker, ref=fact.ref, at=at, reason=fact.reason))

    def begin(self, request: RequestTelemetry, session: Claims | None, *, is_live: bool) -> None:
        """Send that a message is being handled, and its session if it lives and this worker has not seen it before."""
        known: dict[str, Any] = {"worker": self.worker, "at": self._clock(), "ref": None, "client": None}
        if session is not None:
            known |= {"ref": session.ref, "client": session.client}
            if is_live and session.ref not in self.sessions and session.ref not in self._ended:
                live = LiveSession(created_at=session.issued_at, expires_at=session.expires_at, **known)
                self._put(live)
                self._send(live)
        call, name = f"{self.worker}/{next(self._numbers)}", shown_name(request.message)
        started = CallStarted(call=call, name=name, **known)
        self._running[request] = started
        self._use(started.ref, at=started.at, client=started.client)
        self._send(started)

    def operation(self, request: RequestTelemetry) -> None:
        """Send one message that has been handled."""
        started, outcome = msgspec.structs.asdict(self._running.pop(request)), request.outcome
        error = outcome.error or outcome.code or (None if outcome.status is None else str(outcome.status))
        self._use(request.ref, at=self._clock(), client=started["client"], error=outcome.reason or error)
        ended = {"ref": request.ref, "seconds": request.seconds, "error": error, "reason": outcome.reason}
        self._send(CallFinished(**{**started, **ended}))

    def _send(self, event: Event) -> None:
        """Pass an event on to the readers, and to those that come later."""
        if isinstance(event, Created | Ended | Refused | CallFinished):
            self._history.append(event)
        for reader in [*self._readers]:
            try:
                reader.send_nowait(event)
            except (anyio.WouldBlock, anyio.BrokenResourceError):
                self._leave(reader)

    def _use(self, ref: str | None, **changes: Any) -> None:
        known = None if ref is None else self.sessions.get(ref)
        if known is not None:
            given = {name: value for name, value in changes.items() if value is not None}
            self._put(msgspec.structs.replace(known, **given))

    def _put(self, session: LiveSession) -> None:
        self.sessions.pop(session.ref, None)
        self.sessions[session.ref] = session
        _trim(self.sessions)

    @contextmanager
    def reading(self) -> Iterator[tuple[list[Event], MemoryObjectReceiveStream[Event]]]:
        """Return what is known, and what each event comes by within the block."""
        sent, received = anyio.create_memory_object_stream[Event](_MAX_BEHIND)
        self._readers.add(sent)
        live = [session for session in self.sessions.values() if self._clock() < session.expires_at]
        try:
            with received:
                yield [*live, *self._history, *[*self._running.values()][-_MAX_SESSIONS:]], received
        finally:
            self._leave(sent)

    def close(self) -> None:
        """Disconnect all readers."""
        for reader in [*self._readers]:
            self._leave(reader)

    def _leave(self, reader: MemoryObjectSendStream[Event]) -> None:
        self._readers.discard(reader)
        reader.close()


def _trim(known: dict[str, Any]) -> None:
    if len(known) > _MAX_SESSIONS:
        del known[next(iter(known))]


def shown_name(message: Message) -> str:
    """Return what a message calls, as the page shows it: whatever is unusual in it is escaped."""
    try:
        target = message.target() if TARGETS.get(message.method) == "name" else None
    except Refusal:  # a lone surrogate
        target = None
    if target is None or looks_like_session_id(target):
        return message.label
    cut = target[:MAX_NAME]
    return f"{message.label} {cut if cut.isprintable() else ascii(cut)[1:-1]}"

"""`Feed`: what one worker knows of its sessions, its running calls and its last events, for the inspector's page.

The page asks for a `Snapshot` again and again, of whichever worker answers, and puts those of all workers together.
Of a client's words it contains the client's name, the method and the tool alone, as a span does.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .._errors import Refusal
from .._protocol.jsonrpc import TARGETS, Message
from .._session.claims import Claims, looks_like_session_id
from .._session.events import RequestRefused, SessionCreated, SessionDeleted, SessionEvent
from ._attributes import USER
from ._core import MAX_NAME

if TYPE_CHECKING:
    from ._outcome import RequestTelemetry

MAX_SESSIONS: Final = 300  # that a worker remembers, those used last; the page shows as many
_MAX_RUNNING: Final = 300  # calls in a snapshot
_MAX_HISTORY: Final = 200  # events


class LiveSession(msgspec.Struct, kw_only=True, frozen=True):
    """A live session that the worker has seen, or that the store has recorded."""

    ref: str
    at: float  # of its last use, Unix seconds
    created_at: float  # Unix seconds
    expires_at: float  # Unix seconds
    client: str | None = None
    user: str | None = None  # as `Telemetry(user=...)` names it
    error: str | None = None  # the last one


class _Event(msgspec.Struct, tag_field="event", tag=str.lower, kw_only=True, frozen=True):
    id: str  # unique among all workers
    ref: str | None
    at: float  # Unix seconds


class Created(_Event, frozen=True):
    """A session was created."""


class Ended(_Event, frozen=True):
    """A session has ended."""

    reason: str
    seconds: float  # that it lasted


class Refused(_Event, frozen=True):
    """A request was refused before it could be handled as a message."""

    reason: str


class CallStarted(_Event, tag="started", frozen=True):
    """A call that runs."""

    name: str
    client: str | None = None


class CallFinished(CallStarted, tag="finished", kw_only=True, frozen=True):
    """A call that has been handled; `at` is when it began."""

    seconds: float
    error: str | None = None
    reason: str | None = None


Event = Created | Ended | Refused | CallFinished


class Snapshot(msgspec.Struct, kw_only=True, frozen=True):
    """What a worker knows at one moment."""

    worker: str  # host and process
    sessions: list[LiveSession]
    running: list[CallStarted]
    history: list[Event]  # the last ones, oldest first
    refused: int  # requests since the worker started


class Feed:
    """What happens in this worker.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock: Final = clock
        self._sessions: Final[dict[str, LiveSession]] = {}  # the session used last is at the end
        self._running: Final[dict[RequestTelemetry, CallStarted]] = {}
        self._numbers: Final = count(1)
        self._history: Final[deque[Event]] = deque(maxlen=_MAX_HISTORY)
        self._ended: Final[dict[str, None]] = {}
        self._refused = 0

    def snapshot(self) -> Snapshot:
        """Return what this worker knows now."""
        now = self._clock()
        return Snapshot(
            worker=_worker(),
            sessions=[session for session in self._sessions.values() if now < session.expires_at],
            running=list(islice(self._running.values(), _MAX_RUNNING)),
            history=list(self._history),
            refused=self._refused,
        )

    def __call__(self, fact: SessionEvent) -> None:
        """Note an event; the refusal of a message is noted with that message."""
        at = self._clock()
        if isinstance(fact, SessionCreated):
            self._put(LiveSession(ref=fact.ref, at=at, created_at=at, expires_at=fact.expires_at))
            self._history.append(Created(id=self._next_id(), ref=fact.ref, at=at))
        elif isinstance(fact, SessionDeleted):
            self._sessions.pop(fact.ref, None)
            self._ended[fact.ref] = None
            _trim(self._ended)
            ended = Ended(id=self._next_id(), ref=fact.ref, at=at, reason=fact.reason, seconds=fact.seconds)
            self._history.append(ended)
        elif isinstance(fact, RequestRefused):
            self._refused += 1
            if fact.method is None:
                self._use(fact.ref, error=fact.reason)
                self._history.append(Refused(id=self._next_id(), ref=fact.ref, at=at, reason=fact.reason))

    def begin(self, request: RequestTelemetry, session: Claims | None, *, is_live: bool) -> None:
        """Note that a message is being handled, and its session if it lives and this worker has not seen it before."""
        at, name = self._clock(), shown_name(request.message)
        ref, client = (None, None) if session is None else (session.ref, session.client)
        if session is not None and is_live and ref not in self._sessions and ref not in self._ended:
            created_at, expires_at = session.issued_at, session.expires_at
            self._put(LiveSession(ref=session.ref, at=at, created_at=created_at, expires_at=expires_at))
        self._running[request] = CallStarted(id=self._next_id(), ref=ref, at=at, name=name, client=client)
        self._use(ref, at=at, client=client, user=request.caller.get(USER))

    def operation(self, request: RequestTelemetry) -> None:
        """Note that a message has been handled."""
        started, outcome = self._running.pop(request), request.outcome
        error = outcome.error or outcome.code or (None if outcome.status is None else str(outcome.status))
        user = request.caller.get(USER)
        self._use(request.ref, at=self._clock(), client=started.client, user=user, error=outcome.reason or error)
        known = {**msgspec.structs.asdict(started), "ref": request.ref}
        finished = CallFinished(**known, seconds=request.seconds, error=error, reason=outcome.reason)
        self._history.append(finished)

    def _next_id(self) -> str:
        return f"{_worker()}/{next(self._numbers)}"

    def _use(self, ref: str | None, **changes: Any) -> None:
        known = None if ref is None else self._sessions.get(ref)
        if known is not None:
            given = {name: value for name, value in changes.items() if value is not None}
            self._put(msgspec.structs.replace(known, **given))

    def _put(self, session: LiveSession) -> None:
        self._sessions.pop(session.ref, None)
        self._sessions[session.ref] = session
        _trim(self._sessions)


def _worker() -> str:
    """Return host and process, which differ between workers that a server forks after it has made the application."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _trim(known: dict[str, Any]) -> None:
    if len(known) > MAX_SESSIONS:
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

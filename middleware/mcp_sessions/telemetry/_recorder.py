"""`Telemetry`: the one object of this package that the server calls, made once from a middleware's options.

`Watch` writes facts and messages to a worker's feed. Of a client's words an event has the client's name, the method
and the tool alone, as a span does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, Final

import msgspec
from starlette.types import Scope

from .._errors import Refusal
from .._protocol.headers import RequestHeaders
from .._protocol.jsonrpc import Message
from .._session.claims import Claims, looks_like_session_id
from .._session.events import RequestRefused, SessionCreated, SessionDeleted, SessionEvent
from . import _feed as events
from ._attributes import MAX_NAME, TARGET_ATTRIBUTES
from ._core import Redact, Spans, Trace
from ._feed import Feed
from ._frameworks import makes_server_spans, server_in, wrap_handlers
from ._metrics import SessionMetrics
from ._outcome import SUCCESS_WORD, RequestTelemetry
from ._spans import Start, Tracing


class Watch:
    """The listener that writes to a feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Final = feed
        self._numbers: Final = count(1)
        self._running: Final[dict[RequestTelemetry, events.CallStarted]] = {}

    def __call__(self, fact: SessionEvent) -> None:
        """Send one fact; a refusal of a message is sent with that message."""
        feed, at = self._feed, self._feed.clock()
        if isinstance(fact, SessionCreated):
            feed.send(events.Created(worker=feed.worker, ref=fact.ref, at=at, expires_at=fact.expires_at))
        elif isinstance(fact, SessionDeleted):
            ref, seconds = fact.ref, fact.seconds
            feed.send(events.Ended(worker=feed.worker, at=at, ref=ref, reason=fact.reason, seconds=seconds))
        elif isinstance(fact, RequestRefused) and fact.method is None:
            feed.send(events.Refused(worker=feed.worker, ref=fact.ref, at=at, reason=fact.reason))

    def begin(self, request: RequestTelemetry, session: Claims | None, *, is_live: bool) -> None:
        """Send that a message is being handled, and its session if it lives and this worker has not seen it before."""
        feed, (ref, client) = self._feed, (None, None) if session is None else (session.ref, session.client)
        known: dict[str, Any] = {"worker": feed.worker, "ref": ref, "at": feed.clock(), "client": client}
        if session is not None and is_live and session.ref not in feed.sessions:
            since, until = session.issued_at, session.expires_at
            feed.send(events.LiveSession(created_at=since, expires_at=until, **known))
        call, name = f"{feed.worker}/{next(self._numbers)}", shown_name(request.message)
        self._running[request] = events.CallStarted(call=call, name=name, **known)
        feed.send(self._running[request])

    def operation(self, request: RequestTelemetry) -> None:
        """Send one message that has been handled."""
        started, outcome = msgspec.structs.asdict(self._running.pop(request)), request.outcome
        error = None if outcome.word == SUCCESS_WORD else outcome.error or outcome.code or str(outcome.status)
        ended = {"ref": request.ref, "seconds": request.seconds, "error": error, "reason": outcome.reason}
        self._feed.send(events.CallFinished(**{**started, **ended}))


def shown_name(message: Message) -> str:
    """Return what a message calls, as the page shows it: whatever is unusual in it is escaped."""
    try:
        target = message.target() if message.method in TARGET_ATTRIBUTES else None
    except Refusal:  # a lone surrogate
        target = None
    if target is None or looks_like_session_id(target):
        return message.label
    cut = target[:MAX_NAME]
    return f"{message.label} {cut if cut.isprintable() else ascii(cut)[1:-1]}"


class Telemetry:
    """The telemetry of one middleware: its spans (see `Tracing`), metrics and feed.

    Args:
        parts: Finds what a request to the endpoint may reach, once the application has started.
        tracked: Whether every session's end is seen, so that those alive can be counted.
    """

    def __init__(
        self,
        parts: Callable[[], Iterable[object]],
        *,
        spans: Spans,
        trace: Trace,
        metrics: SessionMetrics | None,
        redact: Redact | None,
        feed: Feed | None,
        tracked: bool,
        caller: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None,
    ) -> None:
        self._metrics: Final = metrics
        if metrics is not None:
            metrics.begin()
            if tracked:
                metrics.follow()
        self._watch: Final = None if feed is None else Watch(feed)
        self._listeners: Final = [listener for listener in (metrics, self._watch) if listener is not None]
        self._tracing: Final = Tracing(
            spans,
            trace=trace,
            listeners=[listener.operation for listener in self._listeners],
            redact=redact,
            caller=caller,
            makes_server_spans=self._inspect_server,
        )
        self._parts: Final = parts

    def _inspect_server(self) -> bool:
        parts = list(self._parts())
        self._tracing.wraps_handlers = wrap_handlers(map(server_in, parts))
        return any(map(makes_server_spans, parts))

    def begin(
        self,
        message: Message,
        headers: RequestHeaders,
        scope: Scope,
        session: Claims | None,
        *,
        is_forwarded: bool = True,
        server_id: str | None = None,
    ) -> RequestTelemetry | None:
        """Begin a message; see `Tracing.begin`."""
        request = self._tracing.begin(message, headers, scope, session, is_forwarded=is_forwarded, server_id=server_id)
        if request is not None and self._watch is not None:
            self._watch.begin(request, session, is_live=is_forwarded)
        return request

    def start(self, claims: Claims) -> Start | None:
        """Begin a session's creation; None where this process does not trace."""
        return self._tracing.start_session(claims) if self._tracing.is_tracing else None

    def name_request(self, whose: Claims | str, scope: Scope) -> AbstractContextManager[None]:
        """Name the session of a request without a message on the span around it, and in the block on what is below."""
        return self._tracing.name_request(whose, scope) if self._tracing.is_tracing else nullcontext()

    def refuse_request(self, refusal: Refusal, code: int, claims: Claims | None, scope: Scope) -> None:
        """Record on the span around why a request without a message is refused."""
        if self._tracing.is_tracing:
            self._tracing.refuse_request(refusal, code, claims, scope)

    def alive(self, audience: str, number: int | None) -> None:
        """Report how many sessions of an audience live in the store; None where another worker does so."""
        if self._metrics is not None:  # pragma: no branch  # who counts has been asked for metrics
            self._metrics.alive(self, audience, number)

    def observe(self, fact: SessionEvent) -> None:
        """Record a fact."""
        for listener in self._listeners:
            listener(fact)
        if isinstance(fact, SessionDeleted) and self._tracing.is_tracing:
            self._tracing.end_session(fact.ref, start=fact.trace, reason=fact.reason, seconds=fact.seconds)

"""`Telemetry`: the one object of this package that the server calls, made once from a middleware's options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from starlette.types import Scope

from .._errors import Refusal
from .._protocol.draft import INITIALIZE
from .._protocol.jsonrpc import Message
from .._session.claims import Claims
from .._session.events import Fact, SessionDeleted
from ._attributes import Who, process_aliases
from ._context import hook_of
from ._detect import Redact, Spans, Trace, is_traced
from ._feed import Feed
from ._frameworks import makes_server_spans, servers, store_context, wrap_handlers
from ._metrics import SessionMetrics
from ._outcome import RedactedContents, RequestTelemetry
from ._spans import Start, Tracing
from ._watch import Watch


class Telemetry:
    """The telemetry of one middleware.

    Args:
        parts: Finds what a request to the endpoint may reach, once the application has started.
        spans: See `Tracing`.
        trace: See `Tracing`.
        metrics: Receives every fact and message, or None.
        redact: Returns what of a call's arguments and result is written on its span, or None for nothing.
        who: Returns who sends a request, or None where no span says so.
        feed: What readers on the same machine see, or None.
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
        who: Who | None = None,
    ) -> None:
        self._metrics: Final = metrics
        if metrics is not None:
            metrics.begin()
            if tracked:
                metrics.follow()
        watch = None if feed is None else Watch(feed)
        listeners = [listener for listener in (metrics, watch) if listener is not None]
        self._listeners: Final = listeners
        self._makes_spans: Final = spans != "off"
        self._tracing: Final = Tracing(
            spans,
            trace=trace,
            aliases=process_aliases,
            listeners=listeners,
            contents=None if redact is None else RedactedContents(redact),
            who=who,
            makes_server_spans=self._inspect_server,
        )
        self._parts: Final = parts
        self._wraps_handlers = False
        self._watch: Final = watch
        self.begin: Final = self._tracing.begin if watch is None else self._begin_watched

    @property
    def _is_tracing(self) -> bool:
        return self._makes_spans and is_traced()

    def _begin_watched(
        self, message: Message, *, session: Claims | None, is_forwarded: bool = True, **request: Any
    ) -> RequestTelemetry | None:
        begun = self._tracing.begin(message, session=session, is_forwarded=is_forwarded, **request)
        if begun is not None and self._watch is not None:
            self._watch.begin(message, session, is_live=is_forwarded)
        return begun

    def _inspect_server(self) -> bool:
        self._wraps_handlers = wrap_handlers(servers(self._parts()))
        return makes_server_spans(self._parts())

    def store_context(self, scope: Scope, message: Message) -> None:
        """Store the current context on a message's scope, where the server's handlers run elsewhere."""
        # The scope of an `initialize` may be kept for as long as its transport session lasts.
        if self._wraps_handlers and message.method != INITIALIZE:
            store_context(scope)

    def start(self, claims: Claims) -> Start | None:
        """Begin a session's creation, which `created` ends; None where this process does not trace."""
        return self._tracing.start_session(claims) if self._is_tracing else None

    def created(self, claims: Claims, start: Start) -> None:
        """End a session's creation, and name the session on the spans of its request."""
        start.end()
        self._tracing.name_session(claims)

    def hook(self, ref: str) -> AbstractContextManager[None]:
        """Return a block in which spans belong to a session whose hook runs."""
        return hook_of(ref) if self._is_tracing else nullcontext()

    def name_request(self, claims: Claims | None, server_id: str | None, scope: Scope) -> None:
        """Name the session of a request without a message on the span around it."""
        if self._is_tracing:
            self._tracing.name_request(claims, server_id, scope)

    def refuse_request(self, refusal: Refusal, code: int, claims: Claims | None, scope: Scope) -> None:
        """Record on the span around why a request without a message is refused."""
        if self._is_tracing:
            self._tracing.name_request(claims, None, scope)
            self._tracing.refuse_request(refusal, code)

    def alive(self, number: int | None) -> None:
        """Report how many sessions live in the store; None where another worker does so."""
        if self._metrics is not None:  # pragma: no branch  # who counts has been asked for metrics
            self._metrics.alive(self, number)

    def observe(self, fact: Fact) -> None:
        """Record a fact."""
        for listener in self._listeners:
            listener(fact)
        if isinstance(fact, SessionDeleted) and self._is_tracing:
            self._tracing.end_session(fact.ref, start=fact.trace, reason=fact.reason, seconds=fact.seconds)

"""`Telemetry`: the one object of this package that the server calls, made once from a middleware's options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from starlette.types import Scope

from .._protocol.draft import INITIALIZE
from .._protocol.jsonrpc import Message
from .._session.claims import Claims
from .._session.events import Fact, SessionDeleted
from .attributes import process_aliases
from .detect import Redact, Spans, Trace, is_traced
from .frameworks import makes_server_spans, servers, store_context, wrap_handlers
from .metrics import SessionMetrics
from .outcome import RedactedContents
from .spans import Start, Tracing
from .tail import Tail


class Telemetry:
    """The telemetry of one middleware.

    Args:
        parts: Finds what a request to the endpoint may reach, once the application has started.
        spans: See `Tracing`.
        trace: See `Tracing`.
        metrics: Receives every fact and message, or None.
        redact: Returns what of a call's arguments and result is written on its span, or None for nothing.
        tail: The socket of `mcp-sessions tail`, or None.
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
        tail: str | None,
        tracked: bool,
    ) -> None:
        self._metrics: Final = metrics
        if metrics is not None:
            metrics.begin()
            if tracked:
                metrics.follow()
        listeners = [listener for listener in (metrics, None if tail is None else Tail(tail)) if listener is not None]
        self._listeners: Final = listeners
        self._makes_spans: Final = spans != "off"
        self._tracing: Final = Tracing(
            spans,
            trace=trace,
            aliases=process_aliases,
            listeners=listeners,
            contents=None if redact is None else RedactedContents(redact),
            makes_server_spans=self._inspect_server,
        )
        self._parts: Final = parts
        self._wraps_handlers = False
        self.begin: Final = self._tracing.begin

    @property
    def _is_tracing(self) -> bool:
        return self._makes_spans and is_traced()

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
        """End a session's creation, and name the session on the span of its request."""
        start.end()
        self._tracing.name_session(claims)

    def alive(self, number: int | None) -> None:
        """Report how many sessions live in the store; None where another worker does so."""
        if self._metrics is not None:  # pragma: no branch  # who counts has been asked for metrics
            self._metrics.alive(self, number)

    def observe(self, fact: Fact) -> None:
        """Record a fact."""
        for listener in self._listeners:
            listener(fact)
        if isinstance(fact, SessionDeleted) and self._is_tracing:
            self._tracing.end_session(fact.ref, start=fact.trace, reason=fact.reason)

"""`Telemetry`: the one object of this package that the server calls, made once from a middleware's options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from starlette.types import Scope

from .._errors import Refusal
from .._protocol.headers import RequestHeaders
from .._protocol.jsonrpc import Message
from .._session.claims import Claims
from .._session.events import SessionDeleted, SessionEvent
from ._core import Redact, Spans, Trace
from ._feed import Feed
from ._frameworks import makes_server_spans, server_in, wrap_handlers
from ._metrics import SessionMetrics
from ._outcome import RequestTelemetry
from ._spans import Start, Tracing


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
        self._feed: Final = feed
        self._listeners: Final = [listener for listener in (metrics, feed) if listener is not None]
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
        if request is not None and self._feed is not None:
            self._feed.begin(request, session, is_live=is_forwarded)
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

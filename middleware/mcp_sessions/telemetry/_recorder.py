"""`Telemetry`: what the server calls, made once from a middleware's options: its spans, metrics and feed.

A message has one server span by OpenTelemetry's conventions: that of an HTTP instrumentation around the middleware, or
the wrapped server's own, or else one of the middleware. The latter is below its caller's span (`_meta.traceparent`,
SEP-414) or the current one, or, with `trace="session"`, below its session's start; the others are linked. A session has
two short spans, since one that stayed open for its whole life would be exported at its end, or never. The token carries
the context of the first (`Claims.trace`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter, time_ns
from typing import Any, Final

from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, get_current_span, get_tracer, set_span_in_context
from starlette.types import Scope

from .._protocol.headers import VERSION, RequestHeaders
from .._protocol.jsonrpc import RESPONSE, Message
from .._protocol.labels import client_of
from .._protocol.methods import INITIALIZE
from .._session.claims import REMEMBERED, Claims, RedactedRepr
from .._session.events import SessionDeleted, SessionEvent
from . import _attributes as names
from . import _context as contexts
from ._attributes import KnownNames
from ._context import RequestInfo, as_parent, attributes_on, links_to, request_info, session_names, start_of, within
from ._core import Redact, Spans, Trace, call_observer, harmless, is_traced
from ._feed import Feed
from ._frameworks import makes_server_spans
from ._metrics import SessionMetrics
from ._outcome import Outcome, RequestTelemetry, UnreadTelemetry, http_method_of, record

_CREATES: Final = frozenset({INITIALIZE, "server/discover", "session/create", "sessions/create"})


@dataclass(repr=False)
class Start(RedactedRepr):
    """A session that is being created, which its span names once it is complete."""

    span: Span
    named: Mapping[str, str]  # what names the session, which does not begin if it is refused
    current: ExitStack  # in which the span is the current one

    @property
    def trace(self) -> str | None:
        """The traceparent (W3C) for its token, or None without a span."""
        context = self.span.get_span_context()
        # Without an SDK a "new" span is the caller's, or none at all.
        return contexts.traceparent_of(context) if context.is_valid and not context.is_remote else None

    def end(self, error: BaseException | None) -> None:
        """End the creation, with an error if the session is refused: then no span names it."""
        with self.current:
            if error is None:
                self.span.set_attributes(self.named)
            else:
                record(self.span, Outcome(type(error).__qualname__))
        self.span.end()


class Telemetry:
    """The telemetry of one middleware."""

    def __init__(
        self,
        parts: Callable[[], Iterable[object]],  # finds what a request may reach, once the application has started
        *,
        spans: Spans = "auto",
        trace: Trace = "request",
        metrics: SessionMetrics | None = None,
        redact: Redact | None = None,
        openinference: bool = False,  # whether spans also have the attributes that Phoenix and MLflow show
        feed: Feed | None = None,
        caller: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None,  # who sends it, as attributes
    ) -> None:
        self._parts: Final = parts
        self._spans: Final = spans
        self._in_session: Final = trace == "session"
        self._redact: Final = redact
        self._openinference: Final = openinference
        self._feed: Final = feed
        self._caller: Final = caller or (lambda _: {})
        self._tracer: Final = get_tracer(names.SCOPE, names.package_version(), schema_url=names.SCHEMA_URL)
        self._known: Final = KnownNames()
        self._listeners: Final = [listener for listener in (metrics, feed) if listener is not None]
        self._handled: Final = [listener.operation for listener in self._listeners]
        if metrics is not None:
            metrics.begin()

    @property
    def _is_tracing(self) -> bool:
        return self._spans != "off" and is_traced()

    @cached_property
    def _server_makes_spans(self) -> bool:
        return any(map(makes_server_spans, self._parts()))

    # --- messages ------------------------------------------------------------------------------------

    def begin(
        self,
        message: Message,
        headers: RequestHeaders,
        scope: Scope,
        session: Claims | None,
        *,
        is_forwarded: bool = True,
        server_id: str | None = None,
        arrived_at: float | None = None,
    ) -> RequestTelemetry | None:
        """Begin a message, and make its span the current one, until what is returned is ended in the same task.

        An authentic session is named also if it is refused, or the wrapped server's own if that is known. `arrived_at`
        is when the request arrived, by `perf_counter`.
        """
        if message.kind is RESPONSE:
            return None
        request = RequestTelemetry(
            message=message,
            target=names.target_of(message),
            known=self._known,
            listeners=self._handled,
            ref=self._known.session(server_id) if session is None else session.ref,
            versions=names.versions_of(headers.first(VERSION), scope.get("http_version")),
            redact=self._redact if message.method == names.CALL else None,
            openinference=self._openinference,
            started_at=perf_counter() if arrived_at is None else arrived_at,
        )
        request.info_token = request_info.set(request)
        is_tracing = self._is_tracing
        if is_tracing or self._feed is not None:
            request.caller = call_observer("telemetry", self._caller, scope) or {}
        if is_tracing:
            self._begin_trace(request, session, headers, is_forwarded)
        if self._feed is not None:
            call_observer("telemetry", self._feed.begin, request, session, is_live=is_forwarded)
        return request

    @harmless
    def _begin_trace(
        self,
        request: RequestTelemetry,
        session: Claims | None,
        headers: RequestHeaders,
        is_forwarded: bool,
    ) -> None:
        request.is_native = is_forwarded and self._server_makes_spans
        request.context = self._trace(request, session, headers)
        # Servers with transport sessions start a task in `initialize` that serves the whole connection: it would
        # keep the context for every later request.
        if request.message.method != INITIALIZE:
            request.token = attach(request.context)

    def _trace(self, request: RequestTelemetry, session: Claims | None, headers: RequestHeaders) -> Context:
        """Enrich the span around a message or start one for it, and return the context below that."""
        message, around = request.message, get_current_span()
        origin, caller, transport = contexts.origin_of(message.params.meta, headers.by_name)
        start = None if session is None else start_of(session.trace)
        session_start = start if self._in_session else None
        below = origin
        if session_start is not None:
            below = as_parent(session_start, below)
        elif self._in_session and session is None and message.method in _CREATES and not request.is_native:
            request.begins_trace = True
            below = set_span_in_context(INVALID_SPAN, below)
        request.is_external = request.ref is None and contexts.has_external_session(None, below)
        client = client_of(message) if session is None or session.client is None else session.client
        known = names.message_attributes(message, request.target, client)
        request.attributes = {**known, **request.versions, **request.caller, **names.pseudonym_of(session)}
        request.links = links_to(caller=caller, transport=transport, start=start)
        is_server = getattr(around, "kind", None) is SpanKind.SERVER
        if around.is_recording() and (is_server or self._spans == "enrich"):
            request.http_span = around
        request.name = self._known.span_name(message.method, request.target)
        is_elsewhere = session_start is not None or request.begins_trace  # than the trace of the span around
        if self._makes_span(request, is_elsewhere=is_elsewhere):
            below = self._start_span(request, below)
        elif caller.is_valid and session_start is None:
            # The server reads `_meta` itself, and what else is around it is not below its caller's span.
            below = set_span_in_context(around, below)
        if request.http_span is not None:
            self._enrich_http_span(request, request.http_span, origin)
        if is_elsewhere or (request.is_native and request.span is not None):
            request.traceparent = contexts.traceparent_of(get_current_span(below).get_span_context())
        return below

    def _makes_span(self, request: RequestTelemetry, *, is_elsewhere: bool) -> bool:
        """Return True if a message gets a span of the middleware."""
        if self._spans == "enrich":
            return False
        if request.is_native:  # whose span ends before the result is known
            return request.http_span is None and request.reads_content
        return self._spans == "message" or request.http_span is None or is_elsewhere

    def _enrich_http_span(self, request: RequestTelemetry, span: Span, context: Context) -> None:
        """Write on the span of an HTTP request what it is, at once."""
        is_alone = request.span is None and not request.is_native
        attributes = names.without_transport(request.attributes) if is_alone else names.labels_in(request.attributes)
        named = session_names(request.ref, context, span)
        span.set_attributes({**attributes, **named, **request.caller, **request.arguments(span)})
        if is_alone:
            for link in contexts.without_parent(request.links, span.get_span_context()):
                span.add_link(link.context, link.attributes)
        request.http_method = http_method_of(span)
        if request.http_method is not None:
            span.update_name(f"{request.http_method} {request.name}")

    def _start_span(self, request: RequestTelemetry, context: Context) -> Context:
        """Start the span of a message, and return the context below it."""
        attributes = {**request.attributes, **session_names(request.ref, context)}
        links = contexts.without_parent(request.links, get_current_span(context).get_span_context())
        start = time_ns() - int((perf_counter() - request.started_at) * 1e9)
        kind = SpanKind.INTERNAL if request.is_native else SpanKind.SERVER
        request.span = self._tracer.start_span(request.name, context, kind, attributes, links, start)
        if request.reads_content:
            request.span.set_attributes(request.arguments(request.span))
        return set_span_in_context(request.span, context)

    # --- requests without a message ------------------------------------------------------------------

    def begin_unread(
        self, claims: Claims | None, server_id: str | None, scope: Scope, *, is_refused: bool
    ) -> UnreadTelemetry | None:
        """Begin a request without a message: the span around names its session, and who sends it."""
        if not self._is_tracing:
            return None
        ref = self._known.session(server_id) if claims is None else claims.ref
        client = {} if claims is None or claims.client is None else {names.CLIENT: claims.client}
        request = UnreadTelemetry(ref=ref, caller={**self._caller(scope), **client})
        if is_refused or claims is not None or server_id is not None:
            request.annotate()
        request.info_token = request_info.set(request)
        return request

    # --- sessions ------------------------------------------------------------------------------------

    def start(self, claims: Claims) -> Start | None:
        """Begin a session's creation, which ends when the session is complete, or refused; None without tracing."""
        if not self._is_tracing:
            return None
        info = request_info.get() or RequestInfo()
        is_root = self._in_session and not info.begins_trace
        around = info.span or info.server_span or get_current_span()  # the wrapped server's is not current here
        mine = RequestInfo(ref=claims.ref, is_external=info.is_external and not is_root, caller=info.caller)
        context = Context() if is_root else set_span_in_context(around)
        with ExitStack() as current:
            current.enter_context(within(mine))
            attributes = {**info.caller, **names.pseudonym_of(claims), names.EXPIRES_AT: claims.expires_at}
            if claims.client is not None:
                attributes[names.CLIENT] = claims.client
            if claims.kind in REMEMBERED:
                attributes[names.KIND] = claims.kind
            links = links_to(request=around.get_span_context() if is_root else None)
            span = self._tracer.start_span("session start", context, SpanKind.INTERNAL, attributes, links)
            current.enter_context(contexts.attached(set_span_in_context(span, context)))
            return Start(span, session_names(claims.ref, context), current.pop_all())

    def observe(self, fact: SessionEvent) -> None:
        """Record a fact."""
        for listener in self._listeners:
            call_observer("telemetry", listener, fact)
        if isinstance(fact, SessionDeleted) and self._is_tracing:
            self._mark_end(fact, request_info.get() or RequestInfo())

    @harmless
    def _mark_end(self, fact: SessionDeleted, info: RequestInfo) -> None:
        start, around = start_of(fact.trace), get_current_span()
        context, links = get_current(), links_to(start=start)
        if self._in_session and start is not None:
            context, links = as_parent(start, context), links_to(request=around.get_span_context())
        with within(RequestInfo(ref=fact.ref, caller=info.caller)):
            attributes = {**session_names(fact.ref, context), **info.caller}
            attributes |= {names.REASON: fact.reason, names.DURATION: fact.seconds, names.ENDED_BY: fact.by}
            if fact.name is not None:
                attributes[names.ENDED_BY_NAME] = fact.name
            client = attributes_on(around).get(names.CLIENT)
            if info.ref == fact.ref and client is not None:
                attributes.setdefault(names.CLIENT, client)
            self._tracer.start_span("session end", context, SpanKind.INTERNAL, attributes, links).end()

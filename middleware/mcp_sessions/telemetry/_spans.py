"""The spans of messages and of sessions, by OpenTelemetry's conventions.

A message has one server span: the wrapped server's where it makes one, else ours. It hangs below its caller's span
(`_meta.traceparent`, SEP-414) or the current one, or, with `trace="session"`, below its session's start; the others are
linked. A session has two short spans, since one that stayed open for its whole life would be exported at its end, or
never. The token carries the context of the first (`Claims.trace`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Token
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import (
    INVALID_SPAN,
    Span,
    SpanKind,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from .._errors import Refusal
from .._protocol.draft import INITIALIZE
from .._protocol.headers import VERSION, RequestHeaders
from .._protocol.jsonrpc import RESPONSE, Message
from .._protocol.labels import client_of
from .._session.claims import PRINCIPAL, Claims, RedactedRepr
from . import _attributes as names
from ._attributes import KnownNames, attributes_on, has_external_session
from ._context import (
    RequestInfo,
    TraceParents,
    as_parent,
    attached,
    current_info,
    links_to,
    name_session,
    request_info,
    session_names,
    start_of,
    trace_parents,
    traceparent_of,
    with_info,
    without_parent,
)
from ._core import Redact, Spans, Trace, is_traced, takes_spans
from ._frameworks import store_context
from ._outcome import Outcome, RequestTelemetry, name_http_span, record

_CREATES: Final = frozenset({INITIALIZE, "server/discover", "session/create", "sessions/create"})


@dataclass(repr=False)
class Start(RedactedRepr):
    """A session that is being created, which its span names once it is complete."""

    span: Span
    named: Mapping[str, str]  # what names the session, which does not begin if it is refused
    token: Token[Context]  # restores the context before: the span is the current one

    @property
    def trace(self) -> str | None:
        """The traceparent (W3C) for its token, or None without a span."""
        context = self.span.get_span_context()
        # Without an SDK a "new" span is the caller's, or none at all.
        return traceparent_of(context) if context.is_valid and not context.is_remote else None

    def end(self, error: BaseException | None = None) -> None:
        """End the creation, with an error where the session is refused: then no span names it."""
        if error is None:
            self.span.set_attributes(self.named)
        else:
            record(self.span, Outcome(type(error).__qualname__))
        detach(self.token)
        self.span.end()


class Tracing:
    """The spans of one middleware: one for each message, and two for each session.

    Args:
        spans: Which span a message gets; see `Spans`.
        trace: See `Trace`.
        listeners: Receive each message when it has been handled.
        redact: Returns what may be written of a call's arguments and result.
        caller: Returns who sends a request, or None where no span says so.
        makes_server_spans: Whether the wrapped server makes server spans itself; called once, when it gets a message.
        tracer_provider: Where spans go; None is the process's own.
    """

    def __init__(
        self,
        spans: Spans = "auto",
        *,
        trace: Trace = "request",
        listeners: Sequence[Callable[[RequestTelemetry], None]] = (),
        redact: Redact | None = None,
        caller: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None,
        makes_server_spans: Callable[[], bool] = lambda: False,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self._spans: Final = spans
        self._makes_server_spans: Final = cache(makes_server_spans)
        self._in_session: Final = trace == "session"
        self._listeners: Final = listeners
        self._redact: Final = redact
        self._caller: Final = caller
        self._provider: Final = tracer_provider
        self._tracer: Final = get_tracer(names.SCOPE, names.package_version(), tracer_provider, names.SCHEMA_URL)
        self._known: Final = KnownNames()
        self.wraps_handlers = False  # whether they run elsewhere, and find the context of their message on its scope

    @property
    def is_tracing(self) -> bool:
        """Whether spans go anywhere."""
        return self._spans != "off" and (is_traced() if self._provider is None else takes_spans(self._provider))

    def begin(
        self,
        message: Message,
        headers: RequestHeaders,
        scope: MutableMapping[str, Any],
        session: Claims | None,
        *,
        is_forwarded: bool = True,
        server_id: str | None = None,
    ) -> RequestTelemetry | None:
        """Begin a message, and make its span the current one.

        Args:
            message: The message; a posted response has no span.
            headers: Its HTTP headers.
            scope: The ASGI scope of its HTTP request.
            session: Its session; an authentic one also where it is refused.
            is_forwarded: Whether the wrapped server handles it, or we do.
            server_id: The transport session of the wrapped server that it names.

        Returns:
            What must be ended in the same task, or None where there is nothing to end.
        """
        if message.kind is RESPONSE:
            return None
        ref = None if session is None else session.ref
        if session is None and server_id is not None:
            ref = self._known.session(server_id)
        request = RequestTelemetry(
            message=message,
            target=names.target_of(message),
            known=self._known,
            listeners=self._listeners,
            ref=ref,
            versions=names.versions_of(headers.first(VERSION), scope.get("http_version")),
            redact=self._redact if message.method == names.CALL else None,
        )
        if message.method != INITIALIZE:
            request.info_token = request_info.set(request)
        if self.is_tracing:
            request.is_native = is_forwarded and self._makes_server_spans()
            request.has_span = request.is_native or self._spans == "auto"
            request.caller = self._caller_of(scope)
            self._trace(request, session, trace_parents(message.params.meta, headers.by_name, get_current()))
            self._attach(request, scope)
        return request

    def _trace(self, request: RequestTelemetry, session: Claims | None, parents: TraceParents) -> None:
        """Annotate the span around a message, start its own, and make the context for its handler."""
        message, start = request.message, None if session is None else start_of(session.trace)
        is_below_start = self._in_session and start is not None
        is_creation = self._in_session and session is None and message.method in _CREATES
        request.begins_trace = is_creation and not request.is_native
        below = with_info(request, parents.context)
        if is_below_start and start is not None:
            below = as_parent(start, below)
        elif request.begins_trace:
            below = set_span_in_context(INVALID_SPAN, below)
        request.is_external = request.ref is None and has_external_session({}, None, below)
        client = client_of(message) if session is None or session.client is None else session.client
        known = names.message_attributes(message, request.target, client)
        request.attributes = {**known, **request.versions, **request.caller}
        request.links = links_to(caller=parents.caller, transport=parents.transport, start=start)
        if parents.around is not None and (
            self._spans == "enrich" or getattr(parents.around, "kind", None) is SpanKind.SERVER
        ):
            self._annotate_http_span(request, parents.around, parents.context)
        if self._spans == "auto" and not request.is_native:
            request.span = self._tracer.start_span(
                self._known.span_name(message.method, request.target),
                below,
                SpanKind.SERVER,
                {**request.attributes, **session_names(request.ref, {}, below), **request.arguments()},
                without_parent(request.links, get_current_span(below).get_span_context()),
            )
            request.end_span = request.span.end
            below = set_span_in_context(request.span, below)
        elif parents.caller.is_valid and not is_below_start:
            # The server reads `_meta` itself, and what else is around it is not below its caller's span.
            below = set_span_in_context(get_current_span(), below)
        if is_below_start or request.begins_trace:
            request.traceparent = traceparent_of(get_current_span(below).get_span_context())
        request.context = below

    def _annotate_http_span(self, request: RequestTelemetry, span: Span, context: Context) -> None:
        """Write on the span of an HTTP request what it is: a span that may be of more than a message stays as it is."""
        request.http_span = span
        labels = {name: value for name, value in request.attributes.items() if name in names.LABELS}
        named = session_names(request.ref, attributes_on(span), context)
        span.set_attributes({**labels, **named, **request.caller, **request.arguments(span)})
        name_http_span(span, self._known.span_name(request.message.method, request.target))

    def _attach(self, request: RequestTelemetry, scope: MutableMapping[str, Any]) -> None:
        """Make the context of a message the current one, and that of handlers that run elsewhere.

        Servers with transport sessions start a task in `initialize` that serves the whole connection: it would keep
        the context for every later request, and may keep the scope.
        """
        assert request.context is not None
        if request.message.method == INITIALIZE:
            request.token = attach(with_info(request))
            return
        if self.wraps_handlers:
            store_context(scope, request.context)
        request.token = attach(request.context)

    def _caller_of(self, scope: Mapping[str, Any]) -> Mapping[str, str]:
        return {} if self._caller is None else self._caller(scope)

    # --- requests without a message ------------------------------------------------------------------

    def name_request(self, whose: Claims | str, scope: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Name the session of a request without a message, and who sends it: on the span around, and in the block."""
        ref, client = (self._known.session(whose), None) if isinstance(whose, str) else (whose.ref, whose.client)
        caller = {**self._caller_of(scope), **({} if client is None else {names.CLIENT: client})}
        name_session(get_current_span(), ref, caller)
        return attached(with_info(RequestInfo(ref=ref, caller=caller)))

    def refuse_request(self, refusal: Refusal, code: int, claims: Claims | None, scope: Mapping[str, Any]) -> None:
        """Record on the span around why a request without a message is refused, and who sent it."""
        span = get_current_span()
        if claims is not None:
            self.name_request(claims, scope)
        elif span.is_recording():
            span.set_attributes(self._caller_of(scope))
        record(span, Outcome.of_code(code, refusal.reason))

    # --- the spans of a session ----------------------------------------------------------------------

    def start_session(self, claims: Claims) -> Start:
        """Begin a session's creation, which ends when the session is complete, or refused."""
        info = current_info() or RequestInfo()
        is_root = self._in_session and not info.begins_trace
        around = info.span or get_current_span()  # the wrapped server's own has no context that is current here
        mine = RequestInfo(ref=claims.ref, is_external=info.is_external and not is_root, caller=info.caller)
        context = with_info(mine, Context() if is_root else set_span_in_context(around))
        attributes = {**info.caller, names.EXPIRES_AT: claims.expires_at}
        if claims.client is not None:
            attributes[names.CLIENT] = claims.client
        if claims.kind == PRINCIPAL:
            attributes[names.KIND] = claims.kind
        links = links_to(request=around.get_span_context() if is_root else None)
        span = self._tracer.start_span("session start", context, SpanKind.INTERNAL, attributes, links)
        return Start(span, session_names(claims.ref, {}, context), attach(set_span_in_context(span, context)))

    def end_session(self, ref: str, *, start: str | None, reason: str, seconds: float) -> None:
        """Mark a session's end, by the traceparent of its token and a fixed word as the reason."""
        info, begun, around = current_info() or RequestInfo(), start_of(start), get_current_span()
        context, links = with_info(RequestInfo(ref=ref, caller=info.caller)), links_to(start=begun)
        if self._in_session and begun is not None:
            context, links = as_parent(begun, context), links_to(request=around.get_span_context())
        attributes = {**session_names(ref, {}, context), **info.caller, names.REASON: reason, names.DURATION: seconds}
        client = attributes_on(around).get(names.CLIENT)
        if info.ref == ref and client is not None:
            attributes.setdefault(names.CLIENT, client)
        self._tracer.start_span("session end", context, SpanKind.INTERNAL, attributes, links).end()

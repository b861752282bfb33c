"""The spans of messages and of sessions, by OpenTelemetry's conventions.

A message has one span, below the caller's (`_meta.traceparent`, SEP-414) or the current one; other related ones are
linked. A session has two short spans, since one that stayed open for its whole life would be exported at its end, or
never. The token carries the context of the first (`Claims.trace`). The span around, of an HTTP instrumentation, says
what its request was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from time import perf_counter
from typing import Any, Final

import msgspec
from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from .._errors import Refusal
from .._protocol.draft import INITIALIZE
from .._protocol.jsonrpc import RESPONSE, Message
from .._session.claims import Claims, RedactedRepr
from ._attributes import (
    CALL,
    CLIENT,
    DURATION,
    EXPIRES_AT,
    MCP_SESSION_ID,
    PARENT,
    REASON,
    SCHEMA_URL,
    SCOPE,
    SESSION_ID,
    Who,
    attributes_on,
    has_foreign_session_id,
    message_attributes,
    package_version,
    server_ref,
    session_attributes,
    with_foreign_marker,
)
from ._calls import Call, Calls
from ._context import (
    SESSION_START,
    TRACEPARENT,
    TRANSPORT,
    Origin,
    ServerSpan,
    below,
    has_trace_context,
    in_session,
    links_to,
    origin_of,
    request_context,
    session_in,
    spans_of_request,
    start_of,
    traceparent_of,
    who_sent,
    with_request,
    with_server_span,
    with_session,
)
from ._detect import Spans, Trace, is_traced, takes_spans
from ._outcome import OperationListener, Outcome, RedactedContents, RequestTelemetry, content, fail

# By the option: the kind of span for what is forwarded to the wrapped server, and for what we answer ourselves.
_KINDS: Final[dict[Spans, tuple[SpanKind | None, SpanKind | None]]] = {
    "auto": (SpanKind.SERVER, SpanKind.SERVER),
    "enrich": (None, None),
    "server": (SpanKind.SERVER, SpanKind.SERVER),
    "internal": (SpanKind.INTERNAL, SpanKind.INTERNAL),
    "off": (None, None),
}
_SERVER_SESSIONS: Final = 10_000  # of the wrapped server's own that are known; those that were used longest ago go
_NOTHING: Final[Mapping[Any, Any]] = {}
_HTTP_METHODS: Final = ("http.request.method", "http.method")  # the present name, and the one before


def label(around: Span, name: str, attributes: dict[str, str], *, is_outer: bool) -> bool:
    """Say on the span around what its request is; return whether an HTTP instrumentation made it.

    Args:
        around: The span around.
        name: The name that a span of the message has.
        attributes: What is known of the request.
        is_outer: Whether a span below has what only the conventions for MCP ask for.
    """
    found = attributes_on(around)
    method = next((found[name] for name in _HTTP_METHODS if name in found), None)
    if method is not None and is_outer and SESSION_ID in attributes:
        del attributes[MCP_SESSION_ID]
    around.set_attributes(attributes)
    if method is not None and getattr(around, "kind", None) is SpanKind.SERVER:
        around.update_name(f"{method} {name}")
    return method is not None


class Start(RedactedRepr, msgspec.Struct):
    """A session that is being created, which its span names once it is complete.

    Args:
        span: Its span.
        named: What names the session, which does not begin if it is refused.
    """

    span: Span
    named: Mapping[str, str]

    @property
    def trace(self) -> str | None:
        """The traceparent (W3C) for its token, or None without a span."""
        context = self.span.get_span_context()
        # Without an SDK a "new" span is the caller's, from another process, or none at all.
        return traceparent_of(context) if context.is_valid and not context.is_remote else None

    def end(self, error: BaseException | None = None) -> None:
        """End the creation, with an error where the session is refused: then no span names it."""
        if error is None:
            self.span.set_attributes(self.named)
        else:
            fail(self.span, Outcome(type(error).__qualname__))
        self.span.end()


class Tracing:
    """The spans of one middleware: one for each message, and two for each session.

    Args:
        spans: Which span a message gets; see `detect.Spans`.
        trace: See `detect.Trace`.
        aliases: Further attributes that name a session.
        listeners: Receive each message when it has been handled.
        contents: Writes a call's arguments and result.
        who: Returns who sends a request, or None where no span says so.
        makes_server_spans: Whether the wrapped server makes server spans itself; called once, at the first message.
        tracer_provider: Where spans go; None is the process's own.
    """

    def __init__(
        self,
        spans: Spans = "auto",
        *,
        trace: Trace = "request",
        aliases: Collection[str] = (),
        listeners: Sequence[OperationListener] = (),
        contents: RedactedContents | None = None,
        who: Who | None = None,
        makes_server_spans: Callable[[], bool] = lambda: False,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self._spans: Final[Spans] = spans
        self._in_session: Final = trace == "session"
        self._aliases: Final = aliases
        self._listeners: Final = listeners
        self._contents: Final = contents
        self._who: Final = who
        self._makes_server_spans: Final = makes_server_spans
        self._provider: Final = tracer_provider
        self._tracer: Final = get_tracer(SCOPE, package_version(), tracer_provider, SCHEMA_URL)
        # Without listeners, no message comes here unless this process traces.
        self._checks_provider: Final = bool(listeners) or tracer_provider is not None
        self._calls: Final = Calls(aliases)
        self._server_sessions: Final[OrderedDict[str, None]] = OrderedDict()

    @cached_property
    def _is_native(self) -> bool:
        return self._makes_server_spans()

    @cached_property
    def _kinds(self) -> tuple[SpanKind | None, SpanKind | None]:
        forwarded, answered = _KINDS[self._spans]
        return (None if self._is_native and self._spans == "auto" else forwarded), answered

    def begin(
        self,
        message: Message,
        *,
        version: str | None,
        session: Claims | None,
        is_forwarded: bool = True,
        scope: Mapping[str, Any] = _NOTHING,
        headers: Mapping[bytes, bytes] = _NOTHING,
        server_id: str | None = None,
    ) -> RequestTelemetry | None:
        """Begin a message, and make its span the current one.

        Args:
            message: The message; a posted response has no span.
            version: The `MCP-Protocol-Version` header, or None.
            session: Its session, or None; an authentic one also where it is refused.
            is_forwarded: Whether the wrapped server handles it, or we do.
            scope: The ASGI scope of its HTTP request.
            headers: Its HTTP headers by name.
            server_id: The id of a transport session of the wrapped server that it comes by, or None.

        Returns:
            What must be ended in the same task, or None where there is nothing to end.
        """
        if message.kind is RESPONSE:
            return None
        ref, unproven = None if session is None else session.ref, None
        if session is None and server_id is not None:
            unproven = server_ref(server_id)
            if unproven in self._server_sessions:
                ref, unproven = unproven, None
        started_at = perf_counter() if self._listeners else 0.0
        request = RequestTelemetry(message, version, self._listeners, ref, unproven, self._prove, started_at)
        if self._spans == "off" or (
            self._checks_provider and not (is_traced() if self._provider is None else takes_spans(self._provider))
        ):
            return request if self._listeners else None
        call = self._calls.of(message, version, scope.get("http_version"), session, ref)
        self._trace(request, call, session, is_forwarded, scope, headers)
        if request.context is None:
            return request if self._listeners else None
        # Servers with transport sessions start a task in `initialize` that serves the whole connection, and that
        # would keep this context for every later request.
        if message.method != INITIALIZE:
            request.token = attach(request.context)
            if request.span is None:
                request.own_token = request_context.set(request.context)
        return request

    def _trace(  # noqa: PLR0917  # in their order, since names cost more at every request
        self,
        request: RequestTelemetry,
        call: Call,
        session: Claims | None,
        is_forwarded: bool,
        scope: Mapping[str, Any],
        headers: Mapping[bytes, bytes],
    ) -> None:
        """Start the span of a message, say on the one around it what it is, and make the context for its handler."""
        message, meta, context = request.message, request.message.params.meta, None
        kind, is_native = self._kinds[not is_forwarded], is_forwarded and self._is_native
        origin, around, text, is_http = None, None, None, False
        if get_current() or TRACEPARENT in headers or (meta is not None and has_trace_context(meta)):
            origin = origin_of(message, headers)
            # Beside a span of ours only that of the HTTP request is: another one may be of more than this message.
            if kind is None or getattr(origin.around, "kind", None) is SpanKind.SERVER:
                request.around = around = origin.around
        start = start_of(session.trace) if self._in_session and session is not None else None
        who = _NOTHING if self._who is None else self._who(scope)
        if self._contents is not None and message.method == CALL:
            request.contents, text = self._contents, self._contents.arguments(message)
        # The server's own span ends before its answer leaves, so what it returned is written on one around that.
        is_ours = kind is not None or (is_native and request.contents is not None and around is None)
        if origin is not None and around is not None:
            named = self._names(around, request.ref, origin.context)
            said = {**call.labels, **named, **who, **content("arguments", text, not is_ours, True)}
            is_http = label(around, call.name, said, is_outer=is_ours or is_native)
            request.is_recorded = True
        if is_ours:
            more = who if text is None else {**who, **content("arguments", text, True, around is None)}
            context = self._start(request, call, origin, start, kind, more)
        elif is_native or origin is not None or start is not None:
            context = call.parent if origin is None else in_session(request.ref, origin.server_context)
            context = context if start is None else below(start, context)
        if is_native and context is not None:
            known = {**message_attributes(call.beside_http if is_http else call.common, message), **who}
            links = call.links if origin is None else [*origin.links, *call.links]
            context = with_server_span(ServerSpan(message.label, known, links), context)
        if context is not None and (who or around is not None):
            context = with_request(who, around, context)
        request.context = context

    def _start(  # noqa: PLR0917  # as above
        self,
        request: RequestTelemetry,
        call: Call,
        origin: Origin | None,
        start: SpanContext | None,
        kind: SpanKind | None,
        more: Mapping[str, str],
    ) -> Context:
        """Start the span of a message, or without a kind one around the server's own, and return the context below."""
        if origin is not None:
            parent, links, is_foreign = self._related(call, origin, start, request.ref)
        elif start is not None:
            parent, links, is_foreign = below(start, call.parent), (), False
        else:
            parent, links, is_foreign = call.parent, call.links, False
        if kind is None:  # what the two have in common is on the server's
            attributes, links = {**call.labels, **self._named(request.ref, is_foreign)}, ()
        else:
            attributes = message_attributes(call.attributes[is_foreign], request.message)
        if more:
            attributes.update(more)
        span = self._tracer.start_span(call.name, parent, kind or SpanKind.INTERNAL, attributes, links)
        request.span = span
        request.is_recorded |= span.is_recording()
        return set_span_in_context(span, parent)

    @staticmethod
    def _related(
        call: Call, origin: Origin, start: SpanContext | None, ref: str | None
    ) -> tuple[Context, Sequence[Link], bool]:
        """Return the parent's context, the links, and whether `session.id` is foreign there."""
        if start is not None:
            parent, links = below(start, origin.context), origin.links
        else:
            parent = origin.context
            links = [*(links_to(origin.transport, TRANSPORT) if origin.caller.is_valid else ()), *call.links]
        if ref is None:
            return with_foreign_marker(parent), links, False
        parent = with_session(ref, parent)
        return parent, links, has_foreign_session_id(None, ref, parent)

    # --- naming a session --------------------------------------------------------------------------

    def _named(self, ref: str | None, is_foreign: bool) -> Mapping[str, str]:
        return _NOTHING if ref is None else session_attributes(ref, tuple(self._aliases), is_foreign)

    def _names(self, span: Span, ref: str | None, context: Context | None = None) -> Mapping[str, str]:
        return _NOTHING if ref is None else self._named(ref, has_foreign_session_id(span, ref, context))

    def _name(self, span: Span, ref: str, more: Mapping[str, Any] = _NOTHING) -> None:
        if span.is_recording():
            span.set_attributes({**self._names(span, ref), **more})

    def name_session(self, claims: Claims) -> None:
        """Name a session on the spans of the request that creates it."""
        for span in spans_of_request():
            self._name(span, claims.ref)

    def name_request(self, claims: Claims | None, server_id: str | None, scope: Mapping[str, Any]) -> None:
        """Name the session of a request without a message on the span around it, and the one who sends it."""
        ref = server_ref(server_id) if claims is None and server_id is not None else None
        if claims is not None or ref in self._server_sessions:
            client = {} if claims is None or claims.client is None else {CLIENT: claims.client}
            who = _NOTHING if self._who is None else self._who(scope)
            self._name(get_current_span(), str(ref if claims is None else claims.ref), {**client, **who})

    @staticmethod
    def refuse_request(refusal: Refusal, code: int) -> None:
        """Record on the span around why a request without a message is refused."""
        fail(get_current_span(), Outcome(str(code), str(code), refusal.reason))

    def _prove(self, request: RequestTelemetry, ref: str) -> None:
        """Take a session of the wrapped server for one: the server has named it, or served it."""
        self._server_sessions[ref] = None
        self._server_sessions.move_to_end(ref)
        if len(self._server_sessions) > _SERVER_SESSIONS:
            self._server_sessions.popitem(last=False)
        for span in filter(None, (request.around, request.span)):
            self._name(span, ref)

    # --- the spans of a session ----------------------------------------------------------------------

    def start_session(self, claims: Claims) -> Start:
        """Begin a session's creation, which ends when the session is complete, or refused."""
        parent, linked = (Context(), get_current_span().get_span_context()) if self._in_session else (None, None)
        given = {**who_sent(), EXPIRES_AT: claims.expires_at, CLIENT: claims.client, PARENT: claims.parent}
        known = {name: value for name, value in given.items() if value is not None}
        context, links = with_session(claims.ref, parent), links_to(linked, TRANSPORT)
        span = self._tracer.start_span("session start", context, SpanKind.INTERNAL, known, links)
        return Start(span, self._named(claims.ref, has_foreign_session_id(None, claims.ref, context)))

    def end_session(self, ref: str, *, start: str | None, reason: str, seconds: float) -> None:
        """Mark a session's end, by the traceparent of its token and a fixed word as the reason."""
        linked, role, context = start_of(start), SESSION_START, with_session(ref)
        around = get_current_span()
        own = attributes_on(around).get(CLIENT) if session_in(None) == ref else None
        if self._in_session and linked is not None:
            context, linked, role = below(linked, context), around.get_span_context(), TRANSPORT
        attributes = {
            **self._named(ref, has_foreign_session_id(None, ref, context)),
            **who_sent(),
            **({} if own is None else {CLIENT: own}),
            REASON: reason,
            DURATION: seconds,
        }
        links = links_to(linked, role)
        self._tracer.start_span("session end", context, SpanKind.INTERNAL, attributes, links).end()

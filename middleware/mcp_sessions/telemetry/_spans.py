"""The spans of messages and of sessions, by OpenTelemetry's conventions.

A message has one span, below the caller's (`_meta.traceparent`, SEP-414) or the current one; other related ones are
linked. A session has two short spans, since one that stayed open for its whole life would be exported at its end, or
never. The token carries the context of the first (`Claims.trace`). The span around, of an HTTP instrumentation, says
what its request was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache, partial
from time import perf_counter
from typing import Any, Final

import msgspec
from msgspec import UNSET
from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace import Span, SpanContext, SpanKind, TracerProvider, get_current_span, get_tracer

from .._errors import Refusal
from .._protocol.draft import INITIALIZE
from .._protocol.headers import VERSION, RequestHeaders
from .._protocol.jsonrpc import RESPONSE, Message
from .._protocol.labels import client_of
from .._protocol.members import Meta, Params
from .._protocol.strict_json import join
from .._session.claims import Claims, RedactedRepr
from . import Spans, Trace, is_traced, takes_spans
from . import _attributes as names
from . import _context as contexts
from ._attributes import Call, Who, attributes_on, has_foreign_session_id, message_attributes, session_attributes, write
from ._context import SPAN, Origin, ServerSpan, below, for_request, links_to, origin_of, start_of, with_session
from ._frameworks import store_context
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
_CALLS: Final = 2048  # that are remembered, of 1 to 2 KB each
_MAX_KEY: Final = 512  # of what a client wrote in one of them, together


class Start(RedactedRepr, msgspec.Struct):
    """A session that is being created, which its span names once it is complete."""

    span: Span
    named: Mapping[str, str]  # what names the session, which does not begin if it is refused

    @property
    def trace(self) -> str | None:
        """The traceparent (W3C) for its token, or None without a span."""
        context = self.span.get_span_context()
        if not context.is_valid or context.is_remote:  # without an SDK a "new" span is the caller's, or none at all
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

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
        makes_server_spans: Whether the wrapped server makes server spans itself; called once, when it gets a message.
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
        self._kind_of: Final = cache(partial(_kind_of, spans, makes_server_spans))
        self._in_session: Final = trace == "session"
        self._aliases: Final = aliases
        self._listeners: Final = listeners
        self._contents: Final = contents
        self._who: Final = who
        self._tracer: Final = get_tracer(names.SCOPE, names.package_version(), tracer_provider, names.SCHEMA_URL)
        self._call: Final = lru_cache(maxsize=_CALLS)(partial(names.make_call, aliases))
        self._server_sessions: Final[OrderedDict[str, str | None]] = OrderedDict()  # and their clients' names
        self._is_on: Final = spans != "off" and (tracer_provider is None or takes_spans(tracer_provider))
        # Without listeners, no message comes here unless this process traces.
        self._asks: Final = bool(listeners) and tracer_provider is None
        more = listeners or self._in_session or who is not None or contents is not None
        self._may_only_enrich: Final = self._is_on and spans == "enrich" and not more
        self._only_enriches = False  # whether it does, once it is known that the wrapped server makes no spans
        self.wraps_handlers = False  # whether they run elsewhere, and find the context of their message on its scope

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
            server_id: The transport session of the wrapped server that it comes by.

        Returns:
            What must be ended in the same task, or None where there is nothing to end.
        """
        if message.kind is RESPONSE:
            return None
        if session is None or not self._only_enriches:
            return self._begin(message, headers, scope, session, is_forwarded, server_id)
        name, current, ref = None, get_current(), session.ref
        around: Any = current.get(SPAN)  # a span, or None
        params, meta = message.params, message.params.meta
        if meta is None or (meta.traceparent is UNSET and meta.baggage is UNSET):
            name = b"" if params.name is UNSET else join(params.name)
        if name is None or around is None or not around.is_recording():
            return self._begin(message, headers, scope, session, is_forwarded, server_id)
        call_of = self._call if len(message.method) + len(name) <= _MAX_KEY else self._call.__wrapped__
        _describe(around, ref, call_of(message.method, name, ref), current)
        if self.wraps_handlers and message.method != INITIALIZE:
            store_context(scope)
        return RequestTelemetry(message, ref, around, True, False)

    def _begin(  # noqa: PLR0917  # in their order, since names cost more at every request
        self,
        message: Message,
        headers: RequestHeaders,
        scope: MutableMapping[str, Any],
        session: Claims | None,
        is_forwarded: bool,
        server_id: str | None,
    ) -> RequestTelemetry | None:
        ref, unproven = None if session is None else session.ref, None
        if session is None and server_id is not None:
            unproven = names.server_ref(server_id)
            if unproven in self._server_sessions:
                ref, unproven = unproven, None
        listeners, version = self._listeners, headers.first(VERSION)
        request = RequestTelemetry(message, ref, None, False, True, version, listeners, unproven, self._prove)
        request.started_at = perf_counter() if listeners else 0.0
        if self._is_on and not (self._asks and not is_traced()):
            self._trace(request, session, is_forwarded, scope, headers.by_name)
        # Servers with transport sessions start a task in `initialize` that serves the whole connection: it would keep
        # this context for every later request, and may keep the scope.
        context, is_lasting = request.context, message.method == INITIALIZE
        if self.wraps_handlers and not is_lasting:
            store_context(scope, context)
        if context is None:
            return request if listeners or request.is_recorded else None
        if not is_lasting:
            request.token = attach(context)
            if request.span is None:
                request.own_token = contexts.request_context.set(context)
        elif request.server_span is not None:
            request.token = attach(for_request(get_current(), None, None, known=request.server_span))
        return request

    def _call_of(
        self, request: RequestTelemetry, params: Params[Meta], session: Claims | None, http_version: str | None
    ) -> Call:
        """Return what a message has in common with others, by what was sent: what comes again is not even read."""
        message, version, trace = request.message, request.version, None
        client: str | bytes | None = None
        name = b"" if params.name is UNSET else join(params.name)
        if session is not None:
            client, trace = session.client, session.trace
        elif request.ref is not None:
            client = self._server_sessions[request.ref]
        if client is None:
            meta = params if message.method == INITIALIZE else params.meta
            client = None if meta is None or meta.client_info is UNSET else join(meta.client_info)
        written = len(message.method) + len(name) + len(version or "") + len(client or "")
        call_of = self._call if written <= _MAX_KEY else self._call.__wrapped__
        return call_of(message.method, name, request.ref, (version, http_version, client, trace))

    def _trace(  # in their order, since names cost more at every request
        self,
        request: RequestTelemetry,
        session: Claims | None,
        is_forwarded: bool,
        scope: Mapping[str, Any],
        headers: Mapping[bytes, bytes],
    ) -> None:
        """Start the span of a message, say on the one around it what it is, and make the context for its handler."""
        message, params = request.message, request.message.params
        call = self._call_of(request, params, session, scope.get("http_version"))
        meta, (kind, is_native) = params.meta, self._kind_of(is_forwarded)
        if is_forwarded:
            self._only_enriches = self._may_only_enrich and not is_native
        current, origin, around, text, is_http = get_current(), None, None, None, False
        if (
            current
            or contexts.TRACEPARENT in headers
            or (meta is not None and (meta.traceparent is not UNSET or meta.baggage is not UNSET))
        ):
            origin = origin_of(meta, headers, current)
            # Beside a span of ours only that of the HTTP request is: another one may be of more than this message.
            if kind is None or getattr(origin.around, "kind", None) is SpanKind.SERVER:
                request.around = around = origin.around
        is_servers = session is None and request.ref is not None
        start = start_of(session.trace) if self._in_session and session is not None else None
        who = _NOTHING if self._who is None else self._who(scope)
        if self._contents is not None and message.method == names.CALL:
            request.contents, text = self._contents, self._contents.arguments(message)
        # The server's own span ends before its answer leaves, so what it returned is written on one around that.
        is_ours = kind is not None or (is_native and request.contents is not None and around is None)
        if origin is not None and around is not None:
            more = who if text is None else {**who, **content("arguments", text, not is_ours, True)}
            is_http = _describe(around, request.ref, call, origin.context, more, is_ours or is_native)
            request.is_recorded = True
        if is_ours:
            more = who if text is None else {**who, **content("arguments", text, True, around is None)}
            context = self._start(request, call, origin, start, kind, more)
        elif not (is_native or start) and (origin is None or (origin.context is current and not (is_servers or who))):
            return  # nothing is below that does not find all of it without
        else:
            context = call.parent if origin is None else origin.for_server
            context = context if start is None else below(start, context)
        if is_native:
            attributes = {**message_attributes(call.beside_http if is_http else call.common, message), **who}
            links = [*([] if origin is None else origin.links), *links_to(call.start, contexts.SESSION_START)]
            request.server_span = ServerSpan(message.label, attributes, links)
        request.context = for_request(context, request.ref, request.span, around, who, request.server_span)

    def _start(  # noqa: PLR0917  # as above
        self,
        request: RequestTelemetry,
        call: Call,
        origin: Origin | None,
        start: SpanContext | None,
        kind: SpanKind | None,
        more: Mapping[str, Any],
    ) -> Context:
        """Start the span of a message, or without a kind one around the server's own, and return its parent's context.

        In the session's trace the others are linked, else the session's start; one around the server's links nothing.
        """
        parent, is_foreign, ref = call.parent, False, request.ref
        links = links_to(call.start, contexts.SESSION_START) if call.start is not None and start is None else []
        if origin is not None:
            parent = origin.context
            if start is not None:
                links = origin.links
            elif origin.caller.is_valid:
                links = [*links_to(origin.transport, contexts.TRANSPORT), *links]
        if start is not None:
            parent = below(start, parent)
        if origin is not None:
            parent = names.with_foreign_marker(parent) if ref is None else with_session(ref, parent)
            is_foreign = ref is not None and has_foreign_session_id(_NOTHING, ref, parent)
        # What samplers may choose by; one around the server's own has no more, since what both could say is on that.
        span = self._tracer.start_span(
            call.name, parent, kind or SpanKind.INTERNAL, call.named[is_foreign], () if kind is None else links
        )
        request.span = span
        if span.is_recording():
            request.is_recorded = True
            attributes = {} if kind is None else message_attributes(call.more, request.message)
            if more:
                attributes.update(more)
            write(span, attributes)
        return parent

    # --- naming a session --------------------------------------------------------------------------

    def _named(self, ref: str, span: Mapping[str, Any], context: Context | None = None) -> Mapping[str, str]:
        return session_attributes(
            ref, tuple(self._aliases), has_foreign_session_id(span, ref, get_current() if context is None else context)
        )

    def _name(self, span: Span, ref: str, more: Mapping[str, Any] = _NOTHING) -> None:
        if span.is_recording():
            span.set_attributes({**self._named(ref, attributes_on(span)), **more})

    def name_session(self, claims: Claims) -> None:
        """Name a session on the spans of the request that creates it."""
        for span in contexts.spans_of_request():
            self._name(span, claims.ref)

    def name_request(self, whose: Claims | str, scope: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Name the session of a request without a message, and who sends it: on the span around, and in the block."""
        ref = names.server_ref(whose) if isinstance(whose, str) else whose.ref
        if isinstance(whose, str) and ref not in self._server_sessions:
            return nullcontext()
        client = self._server_sessions[ref] if isinstance(whose, str) else whose.client
        who: Mapping[str, Any] = _NOTHING if self._who is None else self._who(scope)
        who = who if client is None else {**who, names.CLIENT: client}
        self._name(get_current_span(), ref, who)
        return contexts.attached(for_request(get_current(), ref, None, who=who))

    def refuse_request(self, refusal: Refusal, code: int, claims: Claims | None, scope: Mapping[str, Any]) -> None:
        """Record on the span around why a request without a message is refused, and who sent it."""
        span = get_current_span()
        if claims is not None:
            self.name_request(claims, scope)
        elif self._who is not None and span.is_recording():
            span.set_attributes(self._who(scope))
        fail(span, Outcome(str(code), str(code), refusal.reason))

    def _prove(self, request: RequestTelemetry, ref: str) -> None:
        """Take a session of the wrapped server for one: the server has named it, or served it."""
        self._server_sessions[ref] = client_of(request.message) or self._server_sessions.get(ref)
        self._server_sessions.move_to_end(ref)
        if len(self._server_sessions) > _SERVER_SESSIONS:
            self._server_sessions.popitem(last=False)
        for span in filter(None, (request.around, request.span)):
            self._name(span, ref)

    # --- the spans of a session ----------------------------------------------------------------------

    def start_session(self, claims: Claims) -> Start:
        """Begin a session's creation, which ends when the session is complete, or refused."""
        parent, linked = (Context(), get_current_span().get_span_context()) if self._in_session else (None, None)
        given = {names.EXPIRES_AT: claims.expires_at, names.CLIENT: claims.client}
        attributes = {**contexts.who_sent(), **{name: value for name, value in given.items() if value is not None}}
        context, links = with_session(claims.ref, parent), links_to(linked, contexts.TRANSPORT)
        span = self._tracer.start_span("session start", context, SpanKind.INTERNAL, attributes, links)
        return Start(span, self._named(claims.ref, _NOTHING, context))

    def end_session(self, ref: str, *, start: str | None, reason: str, seconds: float) -> None:
        """Mark a session's end, by the traceparent of its token and a fixed word as the reason."""
        linked, role, context = start_of(start), contexts.SESSION_START, with_session(ref)
        around, who = get_current_span(), contexts.who_sent()
        client = {**attributes_on(around), **who}.get(names.CLIENT) if contexts.session_in(None) == ref else None
        if self._in_session and linked is not None:
            context, linked, role = below(linked, context), around.get_span_context(), contexts.TRANSPORT
        known = {names.CLIENT: client, names.REASON: reason, names.DURATION: seconds}
        given = {**self._named(ref, _NOTHING, context), **who, **known}
        attributes = {name: value for name, value in given.items() if value is not None}
        self._tracer.start_span("session end", context, SpanKind.INTERNAL, attributes, links_to(linked, role)).end()


def _kind_of(spans: Spans, makes_server_spans: Callable[[], bool], is_forwarded: bool) -> tuple[SpanKind | None, bool]:
    """Return the kind of our span for a message, or None for no span, and whether the wrapped server makes its own."""
    forwarded, answered = _KINDS[spans]
    if not is_forwarded:
        return answered, False
    is_native = makes_server_spans()
    return (None if is_native and spans == "auto" else forwarded), is_native


def _describe(  # noqa: PLR0917  # in their order, since names cost more at every request
    span: Span, ref: str | None, call: Call, context: Context, more: Mapping[str, Any] = _NOTHING, is_top: bool = False
) -> bool:
    """Say on the span around what its request is; return whether an HTTP instrumentation made it.

    Where that did, and a span below says the rest (`is_top`), only the conventions' own name of the session is on it.
    """
    found = attributes_on(span)
    attributes = call.named[has_foreign_session_id(found, ref, context)]
    method = found.get("http.request.method") or found.get("http.method")  # the present name, and the one before
    if method is None:
        write(span, {**attributes, **more} if more else attributes)
        return False
    attributes = {**attributes, **more}
    if is_top and names.SESSION_ID in attributes:
        del attributes[names.MCP_SESSION_ID]
    write(span, attributes)
    if getattr(span, "kind", None) is SpanKind.SERVER:
        span.update_name(f"{method} {call.name}")
    return True

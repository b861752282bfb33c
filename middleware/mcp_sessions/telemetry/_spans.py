"""The spans of messages and of sessions, by OpenTelemetry's conventions.

A message has one server span: the wrapped server's where it makes one, else ours. It hangs below its caller's span
(`_meta.traceparent`, SEP-414) or the current one, or, with `trace="session"`, below its session's start; the others are
linked. A session has two short spans, since one that stayed open for its whole life would be exported at its end, or
never. The token carries the context of the first (`Claims.trace`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Token
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import (
    INVALID_SPAN,
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
from .._protocol.headers import VERSION, RequestHeaders
from .._protocol.jsonrpc import RESPONSE, Message
from .._protocol.labels import client_of
from .._session.claims import PRINCIPAL, Claims, RedactedRepr
from . import Spans, Trace, is_traced, takes_spans
from . import _attributes as names
from ._attributes import CallerAttributes, KnownNames, attributes_on, has_external_session, session_attributes
from ._context import (
    RequestInfo,
    ServerSpan,
    TraceParents,
    as_parent,
    attached,
    current_info,
    info_in,
    links_to,
    request_info,
    start_of,
    trace_parents,
    traceparent_of,
    with_info,
    without_parent,
)
from ._frameworks import store_context
from ._outcome import OperationListener, Outcome, RedactedContents, RequestTelemetry, content, http_name, record

_CREATES: Final = frozenset({INITIALIZE, "server/discover", "session/create", "sessions/create"})
_SERVER_SESSIONS: Final = 10_000  # of the wrapped server's own that are known; those that were used longest ago go


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
        aliases: Further attributes that name a session.
        listeners: Receive each message when it has been handled.
        contents: Writes a call's arguments and result.
        caller: Returns who sends a request, or None where no span says so.
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
        caller: CallerAttributes | None = None,
        makes_server_spans: Callable[[], bool] = lambda: False,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self._spans: Final = spans
        self._makes_server_spans: Final = cache(makes_server_spans)
        self._in_session: Final = trace == "session"
        self._aliases: Final = aliases
        self._listeners: Final = listeners
        self._contents: Final = contents
        self._caller: Final = caller
        self._provider: Final = tracer_provider
        self._tracer: Final = get_tracer(names.SCOPE, names.package_version(), tracer_provider, names.SCHEMA_URL)
        self._known: Final = KnownNames()
        self._server_sessions: Final[OrderedDict[str, str | None]] = OrderedDict()  # and their clients' names
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
            server_id: The transport session of the wrapped server that it comes by.

        Returns:
            What must be ended in the same task, or None where there is nothing to end.
        """
        if message.kind is RESPONSE:
            return None
        versions = names.versions_of(headers.first(VERSION), scope.get("http_version"))
        info, unconfirmed = RequestInfo(None if session is None else session.ref, versions=versions), None
        if session is None and server_id is not None:
            ref = names.server_ref(server_id)
            info.ref, unconfirmed = (ref, None) if ref in self._server_sessions else (None, ref)
        target = names.target_of(message)
        request = RequestTelemetry(message, target, info, self._known, self._listeners, unconfirmed, self._confirm)
        if message.method != INITIALIZE:
            request.info_token = request_info.set(info)
        if self.is_tracing:
            self._trace(request, session, is_forwarded, scope, headers.by_name)
        return request

    def _trace(
        self,
        request: RequestTelemetry,
        session: Claims | None,
        is_forwarded: bool,
        scope: MutableMapping[str, Any],
        headers: Mapping[bytes, bytes],
    ) -> None:
        """Annotate the span around a message, start its own, and make the context for its handler."""
        message, info = request.message, request.info
        parents = trace_parents(message.params.meta, headers, get_current())
        is_native = is_forwarded and self._makes_server_spans()
        start = None if session is None else start_of(session.trace)
        info.begins_trace = self._in_session and session is None and not is_native and message.method in _CREATES
        info.caller = {} if self._caller is None else self._caller(scope)
        info.http_span = self._http_span(parents.around)
        if message.method == names.CALL:
            request.contents = self._contents
        below = with_info(info, self._below(parents, start, info))
        info.is_external = info.ref is None and has_external_session({}, None, below)
        # The server's own span ends before its answer leaves, so what it returned is written on one around that.
        wraps = is_native and request.contents is not None and info.http_span is None
        makes_own = self._spans == "auto" and (wraps or not is_native)
        arguments = None if request.contents is None else request.contents.arguments(message)
        self._annotate(request, parents, content("arguments", arguments, is_ours=not makes_own, is_outermost=True))
        client = self._client(message, info, session)
        attributes = {**names.message_attributes(message, request.target, client), **info.versions, **info.caller}
        links = links_to(caller=parents.caller, transport=parents.transport, start=start)
        if makes_own:
            given = {} if wraps else attributes
            self._start(request, below, given, [] if wraps else links, arguments, is_inner=wraps)
        if is_native:
            is_outermost = info.http_span is None and not makes_own
            info.server_span = ServerSpan(message.method, request.target, attributes, links, self._known, is_outermost)
        handled = self._handled_in(request, parents, below, start)
        if is_forwarded and (wraps or info.begins_trace or (self._in_session and start is not None)):
            request.traceparent = traceparent_of(get_current_span(handled).get_span_context())
        self._attach(request, handled, scope)

    def _http_span(self, around: Span | None) -> Span | None:
        """Return the span around where it is the request's alone: another one may be of more than this message."""
        is_its_own = self._spans == "enrich" or getattr(around, "kind", None) is SpanKind.SERVER
        return around if is_its_own else None

    def _below(self, parents: TraceParents, start: SpanContext | None, info: RequestInfo) -> Context:
        """Return the context of a message's parent: the session's start, none, the caller's span or the current one."""
        if info.begins_trace:
            return set_span_in_context(INVALID_SPAN, parents.context)
        return as_parent(start, parents.context) if self._in_session and start is not None else parents.context

    def _annotate(self, request: RequestTelemetry, parents: TraceParents, more: Mapping[str, str]) -> None:
        """Write on the span of the HTTP request what it is."""
        span, info, message = request.info.http_span, request.info, request.message
        if span is None:
            return
        labels = names.labels_of(message, request.target)
        named = self._named(info.ref, attributes_on(span), parents.context)
        span.set_attributes({**labels, **named, **info.caller, names.INPUT: " ".join(labels.values()), **more})
        if (name := http_name(span, self._known.span_name(message.method, request.target))) is not None:
            span.update_name(name)

    def _start(
        self,
        request: RequestTelemetry,
        below: Context,
        attributes: Mapping[str, Any],
        links: list[Link],
        arguments: str | None,
        *,
        is_inner: bool,
    ) -> None:
        """Start our own span of a message."""
        message, info = request.message, request.info
        is_outermost = info.http_span is None
        shown = {names.INPUT: " ".join(names.labels_of(message, request.target).values())} if is_outermost else {}
        shown.update(content("arguments", arguments, is_ours=True, is_outermost=is_outermost))
        request.span = self._tracer.start_span(
            self._known.span_name(message.method, request.target),
            below,
            SpanKind.INTERNAL if is_inner else SpanKind.SERVER,
            {**attributes, **self._named(info.ref, {}, below), **shown},
            without_parent(links, get_current_span(below).get_span_context()),
        )

    def _handled_in(
        self, request: RequestTelemetry, parents: TraceParents, below: Context, start: SpanContext | None
    ) -> Context:
        """Return the context in which a message is handled."""
        if request.span is not None:
            return set_span_in_context(request.span, below)
        if parents.caller.is_valid and not (self._in_session and start is not None):
            # The server reads `_meta` itself, and what else is around it is not below its caller's span.
            return set_span_in_context(get_current_span(), below)
        return below

    def _attach(self, request: RequestTelemetry, handled: Context, scope: MutableMapping[str, Any]) -> None:
        """Make a context the current one, and that of handlers that run elsewhere.

        Servers with transport sessions start a task in `initialize` that serves the whole connection: it would keep
        the context for every later request, and may keep the scope.
        """
        request.context = handled
        if request.message.method == INITIALIZE:
            request.token = attach(with_info(request.info))
            return
        if self.wraps_handlers:
            store_context(scope, handled)
        request.token = attach(handled)

    def _client(self, message: Message, info: RequestInfo, session: Claims | None) -> str | None:
        known = session.client if session is not None else self._server_sessions.get(info.ref or "")
        return known or client_of(message)

    # --- naming a session --------------------------------------------------------------------------

    def _named(self, ref: str | None, span: Mapping[str, Any], context: Context) -> Mapping[str, str]:
        """Return what names a session on a span with these attributes so far, in a context."""
        if ref is None:
            return {}
        info = info_in(context)
        is_external = (info is not None and info.is_external) or has_external_session(span, ref, context)
        return session_attributes(ref, self._aliases, is_external)

    def _name(self, span: Span, ref: str, more: Mapping[str, Any] | None = None) -> None:
        if span.is_recording():
            span.set_attributes({**self._named(ref, attributes_on(span), get_current()), **(more or {})})

    def name_session(self, claims: Claims) -> None:
        """Name a session on the spans of the request that creates it."""
        info = current_info()
        for span in [get_current_span()] if info is None else info.spans:
            self._name(span, claims.ref)

    def name_request(self, whose: Claims | str, scope: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Name the session of a request without a message, and who sends it: on the span around, and in the block."""
        ref = names.server_ref(whose) if isinstance(whose, str) else whose.ref
        if isinstance(whose, str) and ref not in self._server_sessions:
            return nullcontext()
        client = self._server_sessions[ref] if isinstance(whose, str) else whose.client
        caller = {} if self._caller is None else self._caller(scope)
        if client is not None:
            caller[names.CLIENT] = client
        self._name(get_current_span(), ref, caller)
        return attached(with_info(RequestInfo(ref, caller=caller)))

    def refuse_request(self, refusal: Refusal, code: int, claims: Claims | None, scope: Mapping[str, Any]) -> None:
        """Record on the span around why a request without a message is refused, and who sent it."""
        span = get_current_span()
        if claims is not None:
            self.name_request(claims, scope)
        elif self._caller is not None and span.is_recording():
            span.set_attributes(self._caller(scope))
        record(span, Outcome.of_code(code, refusal.reason))

    def _confirm(self, request: RequestTelemetry, ref: str) -> None:
        """Take a session of the wrapped server for one: the server has named it, or served it."""
        request.info.ref = ref
        self._server_sessions[ref] = client_of(request.message) or self._server_sessions.get(ref)
        self._server_sessions.move_to_end(ref)
        if len(self._server_sessions) > _SERVER_SESSIONS:
            self._server_sessions.popitem(last=False)
        for span in filter(None, (request.info.http_span, request.span)):
            self._name(span, ref)

    # --- the spans of a session ----------------------------------------------------------------------

    def start_session(self, claims: Claims) -> Start:
        """Begin a session's creation, which ends when the session is complete, or refused."""
        info = current_info() or RequestInfo()
        is_root = self._in_session and not info.begins_trace
        # The wrapped server's own span has ended by now, and nothing hangs below a span that has.
        ended = None if info.server_span is None else info.server_span.claimed_by
        linked = ended or (get_current_span().get_span_context() if is_root else None)
        mine = RequestInfo(claims.ref, is_external=info.is_external and not is_root, caller=info.caller)
        context = with_info(mine, Context() if is_root else None)
        kind = claims.kind if claims.kind == PRINCIPAL else None
        known = {names.EXPIRES_AT: claims.expires_at, names.CLIENT: claims.client, names.KIND: kind}
        attributes = {**info.caller, **{name: value for name, value in known.items() if value is not None}}
        span = self._tracer.start_span(
            "session start", context, SpanKind.INTERNAL, attributes, links_to(request=linked)
        )
        return Start(span, self._named(claims.ref, {}, context), attach(set_span_in_context(span, context)))

    def end_session(self, ref: str, *, start: str | None, reason: str, seconds: float) -> None:
        """Mark a session's end, by the traceparent of its token and a fixed word as the reason."""
        info, begun, around = current_info() or RequestInfo(), start_of(start), get_current_span()
        client = {**attributes_on(around), **info.caller}.get(names.CLIENT) if info.ref == ref else None
        context = with_info(RequestInfo(ref, caller=info.caller))
        links = links_to(start=begun)
        if self._in_session and begun is not None:
            context, links = as_parent(begun, context), links_to(request=around.get_span_context())
        known = {names.CLIENT: client, names.REASON: reason, names.DURATION: seconds}
        given = {**self._named(ref, {}, context), **info.caller, **known}
        attributes = {name: value for name, value in given.items() if value is not None}
        self._tracer.start_span("session end", context, SpanKind.INTERNAL, attributes, links).end()

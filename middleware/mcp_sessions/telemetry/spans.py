"""The spans of messages and of sessions, by OpenTelemetry's conventions.

A message has one span, below the caller's (`_meta.traceparent`, SEP-414) or the current one; other related ones are
linked. A session has two short spans, since one that stayed open for its whole life would be exported at its end, or
never. The token carries the context of the first (`Claims.trace`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from time import perf_counter
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw
from opentelemetry import propagate
from opentelemetry.context import Context, attach, create_key, get_current, get_value, set_value
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from .._protocol.draft import INITIALIZE
from .._protocol.jsonrpc import REQUEST, RESPONSE, Message, Params
from .._protocol.strict_json import string
from .._session.claims import Claims
from ..errors import Refusal
from .attributes import (
    CALL,
    CLIENT,
    ERROR_TYPE,
    EXPIRES_AT,
    PARENT,
    REASON,
    SCOPE,
    common_attributes,
    has_foreign_session_id,
    message_attributes,
    session_attributes,
    target_of,
    with_foreign_marker,
)
from .detect import Spans, Trace, is_traced, takes_spans
from .outcome import OperationListener, RedactedContents, RequestTelemetry

# By the option: the kind of span for what is forwarded to the wrapped server, and for what we answer ourselves.
_KINDS: Final[dict[Spans, tuple[SpanKind | None, SpanKind | None]]] = {
    "auto": (SpanKind.SERVER, SpanKind.SERVER),
    "enrich": (None, None),
    "server": (SpanKind.SERVER, SpanKind.SERVER),
    "internal": (SpanKind.INTERNAL, SpanKind.INTERNAL),
    "off": (None, None),
}
_TRACE_CONTEXT: Final = ("traceparent", "tracestate", "baggage")  # SEP-414 keeps these three without a prefix
_CALLS: Final = 2048  # of 1 to 2 KB each
_MAX_KEY: Final = 512  # of what a client wrote, together
_REF: Final = create_key("mcp_sessions.ref")
_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class Call(msgspec.Struct, frozen=True):
    """What the spans of all messages have in common that call the same in one session."""

    name: str
    attributes: tuple[dict[str, str], dict[str, str]]  # the second where `session.id` is foreign
    parent: Context  # where the message brings no trace context and there is no current span
    links: Sequence[Link]  # in that case


def _make_call(  # noqa: PLR0917  # all of it is the key of a cache
    aliases: Collection[str],
    method: str,
    name: bytes,
    version: str | None,
    ref: str | None = None,
    trace: str | None = None,
    client: str | None = None,
) -> Call:
    message = Message(b"", REQUEST, method, read_params=Params(name=Raw(name) if name else UNSET))
    label, target = message.label, target_of(message)
    span = label if target is None else f"{label} {target}"
    common = common_attributes(label, target, version)
    if ref is None:
        return Call(span, (common, common), Context(), ())
    if client is not None:
        common[CLIENT] = client
    ours, foreign = (session_attributes(ref, tuple(aliases), is_foreign) for is_foreign in (False, True))
    attributes = {**common, **ours}, {**common, **foreign}
    return Call(span, attributes, with_session(ref, Context()), _links(start_of(trace)))


class Start:
    """A session that is being created, and the traceparent (W3C) for its token, or None without a span."""

    __slots__ = ("_span", "trace")

    def __init__(self, span: Span) -> None:
        self._span = span
        context = span.get_span_context()
        text = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        # Without an SDK a "new" span is the caller's, from another process, or none at all.
        self.trace: str | None = text if context.is_valid and not context.is_remote else None

    def end(self, error: BaseException | None = None) -> None:
        """End the creation, with an error where the session is refused."""
        if error is not None:
            self._span.set_attribute(ERROR_TYPE, type(error).__qualname__)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class Tracing:
    """The spans of one middleware: one for each message, and two for each session.

    Args:
        spans: Which span a message gets; see `detect.Spans`.
        trace: See `detect.Trace`.
        aliases: Further attributes that name a session.
        listeners: Receive each message when it has been handled.
        contents: Writes a call's arguments and result.
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
        makes_server_spans: Callable[[], bool] = lambda: False,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self._spans: Final[Spans] = spans
        self._in_session: Final = trace == "session"
        self._aliases: Final = aliases
        self._listeners: Final = listeners
        self._contents: Final = contents
        self._makes_server_spans: Final = makes_server_spans
        self._provider: Final = tracer_provider
        self._tracer: Final = get_tracer(SCOPE, tracer_provider=tracer_provider)
        # Without listeners, no message comes here unless this process traces.
        self._checks_provider: Final = bool(listeners) or tracer_provider is not None
        self._cached_call: Final = lru_cache(maxsize=_CALLS)(partial(_make_call, aliases))

    @cached_property
    def _kinds(self) -> tuple[SpanKind | None, SpanKind | None]:
        forwarded, answered = _KINDS[self._spans]
        return (None if self._makes_server_spans() and self._spans == "auto" else forwarded), answered

    def begin(
        self, message: Message, *, version: str | None, session: Claims | None, is_forwarded: bool = True
    ) -> RequestTelemetry | None:
        """Begin a message, and make its span the current one.

        Args:
            message: The message; a posted response has no span.
            version: The `MCP-Protocol-Version` header, or None.
            session: Its session, or None.
            is_forwarded: Whether the wrapped server handles it, or we do.

        Returns:
            What must be ended in the same task, or None where there is nothing to end.
        """
        if message.kind is RESPONSE:
            return None
        kind = self._kinds[not is_forwarded]
        if kind is None:
            begin = self._without_span if self._spans == "off" else self._enrich
            return begin(message, version, session)
        if self._checks_provider and not (is_traced() if self._provider is None else takes_spans(self._provider)):
            return self._without_span(message, version, session)
        return self._with_span(message, version, session, kind)

    def _with_span(
        self, message: Message, version: str | None, session: Claims | None, kind: SpanKind
    ) -> RequestTelemetry:
        call, meta = self._call(message, version, session), message.params.meta
        if self._in_session or (meta is not None and has_trace_context(meta)) or get_current():
            parent, links, is_foreign = self._related(message, session, call)
        else:
            parent, links, is_foreign = call.parent, call.links, False
        span = self._tracer.start_span(call.name, parent, kind, links=links)
        is_recorded, contents = span.is_recording(), None
        if is_recorded:
            attributes = message_attributes(call.attributes[is_foreign], message)
            if self._contents is not None and message.method == CALL:
                contents = self._contents
                attributes.update(contents.arguments(message))
            span.set_attributes(attributes)
        return self._begun(message, version, session, set_span_in_context(span, parent), span, contents, is_recorded)

    def _without_span(self, message: Message, version: str | None, session: Claims | None) -> RequestTelemetry | None:
        return self._begun(message, version, session) if self._listeners else None

    def _enrich(self, message: Message, version: str | None, session: Claims | None) -> RequestTelemetry | None:
        """Name the session on the current span, and return the context in which the server starts its own."""
        if session is None:
            return self._without_span(message, version, session)
        around, context = get_current_span(), trace_context(message)
        if context is not None:  # its baggage, that is: the server takes the span from the message itself
            context = set_span_in_context(around, context)
        self._name_session(around, session.ref, context)
        start = start_of(session.trace) if self._in_session else None
        if start is not None:
            context = below(start, context)
        if context is None:
            return self._without_span(message, version, session)
        return self._begun(message, version, session, context)

    def _begun(  # noqa: PLR0917  # in their order, since names cost more at every request
        self,
        message: Message,
        version: str | None,
        session: Claims | None,
        context: Context | None = None,
        span: Span | None = None,
        contents: RedactedContents | None = None,
        is_recorded: bool = False,
    ) -> RequestTelemetry:
        listeners = self._listeners
        # Servers with transport sessions start a task in `initialize` that serves the whole connection, and that
        # would keep this context for every later request.
        token = None if context is None or message.method == INITIALIZE else attach(context)
        return RequestTelemetry(
            message,
            version,
            listeners,
            None if session is None else session.ref,
            span,
            context,
            token,
            contents,
            is_recorded or bool(listeners),
            perf_counter() if listeners else 0.0,
        )

    def _call(self, message: Message, version: str | None, session: Claims | None) -> Call:
        # By what was sent, so that what comes again is not even read; unusually long texts are not cached.
        sent = message.params.name
        name = b"" if sent is UNSET else bytes(sent)
        is_short = len(message.method) + len(name) + (0 if version is None else len(version)) <= _MAX_KEY
        call_of = self._cached_call if is_short else self._cached_call.__wrapped__
        if session is None:
            return call_of(message.method, name, version)
        return call_of(message.method, name, version, session.ref, session.trace, session.client)

    def _related(
        self, message: Message, session: Claims | None, call: Call
    ) -> tuple[Context | None, Sequence[Link], bool]:
        """Return the parent's context, the links, and whether `session.id` is foreign there."""
        sent, links = trace_context(message), call.links
        parent = sent
        if sent is None and not self._in_session:  # the span around is the parent
            parent = get_current()
        else:
            ambient = get_current_span().get_span_context()
            caller = ambient if sent is None else get_current_span(sent).get_span_context()
            around = [] if caller == ambient else _links(ambient)
            start = start_of(session.trace) if self._in_session and session is not None else None
            links = [*around, *links]
            if start is not None:
                parent, links = below(start, sent), [*_links(caller), *around]
        if session is None:
            return with_foreign_marker(parent), links, False
        parent = with_session(session.ref, parent)
        return parent, links, has_foreign_session_id(None, session.ref, parent)

    def start_session(self, claims: Claims) -> Start:
        """Begin a session's creation, which ends when the session is complete, or refused."""
        more = {EXPIRES_AT: claims.expires_at, CLIENT: claims.client, PARENT: claims.parent}
        parent, linked = (Context(), get_current_span().get_span_context()) if self._in_session else (None, None)
        return Start(self._session_span("session start", claims.ref, parent, linked, more))

    def name_session(self, claims: Claims) -> None:
        """Name a session on the current span: that of the request that creates it."""
        self._name_session(get_current_span(), claims.ref, None)

    def _name_session(self, span: Span, ref: str, context: Context | None) -> None:
        if span.is_recording():
            is_foreign = has_foreign_session_id(span, ref, context)
            span.set_attributes(session_attributes(ref, tuple(self._aliases), is_foreign))

    def end_session(self, ref: str, *, start: str | None, reason: str) -> None:
        """Mark a session's end, by the traceparent of its token and a fixed word as the reason."""
        parent, linked = None, start_of(start)
        if self._in_session and linked is not None:
            parent, linked = below(linked), get_current_span().get_span_context()
        self._session_span("session end", ref, parent, linked, {REASON: reason}).end()

    def _session_span(
        self, name: str, ref: str, parent: Context | None, linked: SpanContext | None, more: Mapping[str, Any]
    ) -> Span:
        context = with_session(ref, parent)
        span = self._tracer.start_span(name, context, SpanKind.INTERNAL, links=_links(linked))
        if span.is_recording():
            is_foreign = has_foreign_session_id(None, ref, context)
            known = {name: value for name, value in more.items() if value is not None}
            span.set_attributes({**session_attributes(ref, tuple(self._aliases), is_foreign), **known})
        return span


def _links(context: SpanContext | None) -> list[Link]:
    return [] if context is None or not context.is_valid else [Link(context)]


def has_trace_context(meta: Mapping[str, Any]) -> bool:
    """Whether a message's `_meta` brings a span or baggage."""
    return "traceparent" in meta or "baggage" in meta


def trace_context(message: Message) -> Context | None:
    """Return the current context with a message's span and baggage, or None where it has neither."""
    meta = message.meta
    if meta is None or not has_trace_context(meta):
        return None
    try:
        carrier = {name: string(meta[name]) or "" for name in _TRACE_CONTEXT if name in meta}
    except Refusal:  # a lone surrogate
        return None
    return propagate.extract(carrier, get_current())


@lru_cache(maxsize=4096)
def start_of(text: str | None) -> SpanContext | None:
    """Return the context of a session's start from its token's traceparent, or None without a usable one."""
    found = None if text is None else _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    flags = TraceFlags(int(found[3], 16))
    context = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
    return context if context.is_valid else None


def below(start: SpanContext, context: Context | None = None) -> Context:
    """Return a context, or the current one, with a session's start as its span."""
    return set_span_in_context(NonRecordingSpan(start), context)


def with_session(ref: str, context: Context | None = None) -> Context:
    """Return a context, or the current one, with a session for samplers, which are asked before spans begin."""
    return set_value(_REF, ref, context)


def session_in(context: Context | None) -> str | None:
    """Return the session that a context, or the current one, belongs to, or None."""
    found = get_value(_REF, context)
    return found if isinstance(found, str) else None

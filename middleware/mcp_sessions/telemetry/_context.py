"""Trace contexts: what a message and its HTTP request bring along, and what the spans of a request find in theirs.

A message may bring a context in `_meta` (SEP-414), its HTTP request another one. One is the parent, the others are
linked, and each link says what it leads to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import UNSET
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import INVALID_SPAN_CONTEXT, Link, Span, SpanContext, get_current_span, set_span_in_context

from .._errors import Refusal
from .._protocol.jsonrpc import Meta
from .._protocol.strict_json import string
from .._session.claims import RedactedRepr
from .._session.session import session_in_use
from ._attributes import MCP_SESSION_ID, SERVERS, SESSION_ID, SOURCE
from ._core import Hook, running_hook

LINK: Final = "mcp_sessions.link"  # on each link: what it leads to

_REF: Final = re.compile(r"(ses|srv)_[a-z2-7]{24}")
_TRACE_CONTEXT: Final = ("traceparent", "tracestate", "baggage")  # SEP-414 keeps these three without a prefix
_SHAPE: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

process_aliases: Final[dict[str, None]] = {}
"""The aliases of all span processors of this process, which the middleware's own spans carry as well."""


request_info: Final[ContextVar[RequestInfo | None]] = ContextVar("mcp_request_info", default=None)
"""What is known of the request, beside its trace context: an HTTP instrumentation below us may start an empty one."""


@dataclass(eq=False, repr=False, kw_only=True)
class RequestInfo(RedactedRepr):
    """What the spans and facts of a request find in their context."""

    ref: str | None = None  # its session
    is_external: bool = False  # whether `session.id` belongs to the client's own session
    caller: Mapping[str, Any] = field(default_factory=dict)  # who sends it, as attributes
    versions: Mapping[str, str] = field(default_factory=dict)  # of MCP and HTTP, as attributes
    http_span: Span | None = None  # of an HTTP instrumentation around the middleware, if it is recorded
    span: Span | None = None  # the middleware's own span of its message
    server_span: Span | None = None  # the wrapped server's own span of its message, once that has started
    begins_trace: bool = False  # whether its span is the root of the trace of the session that it creates
    serves_connection: bool = False  # whether it is an `initialize` that was answered, in whose task others are handled

    @property
    def spans(self) -> list[Span]:
        """The spans of the message that are still recorded, the outermost first."""
        found = (self.http_span, self.span, self.server_span)
        return [span for span in found if span is not None and span.is_recording()]


@contextmanager
def within(info: RequestInfo) -> Iterator[None]:
    """Let the spans within the block find what is known of a request."""
    token = request_info.set(info)
    try:
        yield
    finally:
        request_info.reset(token)


def attributes_on(span: object) -> Mapping[str, Any]:
    """Return the attributes of a span of this process so far; nothing for one of another process."""
    return getattr(span, "attributes", None) or {}


def session_in(context: Context) -> str | None:
    """Return the session that a new span belongs to, or None; a thread may have nothing but the span above."""
    known: Hook | RequestInfo | None = running_hook.get() or request_info.get()
    if isinstance(known, RequestInfo) and known.serves_connection:
        session = session_in_use()  # of the request that the connection's task handles now
        return known.ref if session is None else session.ref
    if known is not None and known.ref is not None:
        return known.ref
    ref = attributes_on(get_current_span(context)).get(MCP_SESSION_ID)
    if isinstance(ref, str) and _REF.fullmatch(ref):
        return ref
    session = session_in_use()
    return None if session is None else session.ref


def has_external_session(ref: str | None, context: Context, span: object = None) -> bool:
    """Whether `session.id` is a client's own, by a span so far, baggage or the span of a context.

    Tools give a trace to the first session in it, so ours must not stand beside it.
    """
    claimed = attributes_on(span).get(SESSION_ID) or baggage.get_baggage(SESSION_ID, context)
    if claimed:
        return claimed != ref
    parent = attributes_on(get_current_span(context))
    if SESSION_ID in parent:
        claimed = str(parent[SESSION_ID])  # FastMCP writes another id over `mcp.session.id`
        return claimed not in {ref, parent.get(MCP_SESSION_ID)} and _REF.fullmatch(claimed) is None
    return ref is not None and parent.get(MCP_SESSION_ID) == ref


def session_names(ref: str | None, context: Context, span: object = None) -> dict[str, str]:
    """Return what names a session on a span, maybe one that has started; `session.id` may belong to a client."""
    if ref is None:
        return {}
    info = request_info.get()
    is_external = (info is not None and info.is_external) or has_external_session(ref, context, span)
    named = dict.fromkeys((MCP_SESSION_ID,) if is_external else (SESSION_ID, MCP_SESSION_ID, *process_aliases), ref)
    return {**named, SOURCE: "server"} if ref.startswith(SERVERS) else named


def name_session(span: Span, ref: str | None) -> None:
    """Name a session on a span that has started."""
    if span.is_recording():
        span.set_attributes(session_names(ref, get_current(), span))


@contextmanager
def attached(context: Context) -> Iterator[None]:
    """Make a context the current one within the block."""
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


# --- where a message comes from ----------------------------------------------------------------------


def origin_of(meta: Meta | None, headers: Mapping[bytes, bytes]) -> tuple[Context, SpanContext, SpanContext]:
    """Return where a message comes from, by its `_meta`, its HTTP headers and the current context.

    This is a context with the message's baggage and its caller's span; that span, not valid where none is named but
    the next one; and the span around, or that of the HTTP headers where none is around.
    """
    context, transport = get_current(), get_current_span().get_span_context()
    if not transport.is_valid and b"traceparent" in headers:
        sent = {name: headers.get(name.encode(), b"").decode("latin-1") for name in _TRACE_CONTEXT}
        context = propagate.extract(sent, context)
        transport = get_current_span(context).get_span_context()
    if meta is None or (meta.traceparent is UNSET and meta.baggage is UNSET):
        return context, INVALID_SPAN_CONTEXT, transport
    context = propagate.extract(_carrier(meta), context)
    caller = get_current_span(context).get_span_context()
    is_same = (caller.trace_id, caller.span_id) == (transport.trace_id, transport.span_id)
    return context, INVALID_SPAN_CONTEXT if is_same else caller, transport


def _carrier(meta: Meta) -> dict[str, str]:
    try:
        sent = {name: getattr(meta, name) for name in _TRACE_CONTEXT}
        return {name: string(value) or "" for name, value in sent.items() if value is not UNSET}
    except Refusal:  # a lone surrogate
        return {}


def links_to(**roles: SpanContext | None) -> list[Link]:
    """Return a link to each span of those that there are, by the role of each."""
    return [Link(span, {LINK: role}) for role, span in roles.items() if span is not None and span.is_valid]


def without_parent(links: list[Link], parent: SpanContext | None) -> list[Link]:
    """Return the links that do not lead to a span's own parent."""
    return [link for link in links if parent is None or link.context.span_id != parent.span_id]


def start_of(text: str | None) -> SpanContext | None:
    """Return the context of a session's start from its token's traceparent, or None without a usable one."""
    found = None if text is None else _SHAPE.fullmatch(text)
    if found is None:
        return None
    flags = trace.TraceFlags(int(found[3], 16))
    context = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
    return context if context.is_valid else None


def traceparent_of(context: SpanContext) -> str:
    """Return a span's context as W3C writes it."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def as_parent(span: SpanContext, context: Context | None = None) -> Context:
    """Return a context, or the current one, with a span of elsewhere as its span."""
    return set_span_in_context(trace.NonRecordingSpan(span), context)

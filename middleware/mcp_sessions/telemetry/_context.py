"""Trace contexts: what a message and its HTTP request bring along, and what the spans of a request are to find there.

A message may bring a context in `_meta` (SEP-414), its HTTP request another one. One is the parent, the others are
linked, and each link says what it leads to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Final, cast

import msgspec
from msgspec import UNSET
from opentelemetry import propagate
from opentelemetry.context import Context, attach, create_key, detach, get_current, get_value, set_value
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from .._errors import Refusal
from .._protocol.jsonrpc import Message
from .._protocol.members import Meta
from .._protocol.strict_json import string
from .._session.claims import RedactedRepr

LINK: Final = "mcp_sessions.link"  # on each link: what it leads to
SESSION_START: Final = "start"  # of the session
CALLER: Final = "caller"  # the client's span, by `_meta`
TRANSPORT: Final = "transport"  # the span around, or the client's by the HTTP headers where none is around

TRACEPARENT: Final = b"traceparent"
_TRACE_CONTEXT: Final = ("traceparent", "tracestate", "baggage")  # SEP-414 keeps these three without a prefix
_SHAPE: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_REF: Final = create_key("mcp_sessions.ref")
_HOOK: Final = create_key("mcp_sessions.hook")
_REQUEST: Final = create_key("mcp_sessions.request")
_WHO: Final = create_key("mcp_sessions.who")
_AROUND: Final = create_key("mcp_sessions.around")
_NOBODY: Final[Mapping[str, str]] = {}

request_context: Final[ContextVar[Context | None]] = ContextVar("mcp_sessions_context", default=None)
"""The context of a message without a span of ours: an instrumentation below may start from an empty one."""


class Origin(RedactedRepr, msgspec.Struct, frozen=True):
    """Where a message comes from.

    Args:
        context: The current context with the message's baggage, and with the caller's span where it names one.
        caller: That span, by `_meta`; invalid where it names none, or the one of the transport.
        transport: The span around, or that of the HTTP headers where none is around; it may be invalid.
        around: The span around, where it is recorded.
    """

    context: Context
    caller: SpanContext
    transport: SpanContext
    around: Span | None

    @property
    def links(self) -> list[Link]:
        """What is to be linked where neither is the parent."""
        return [*links_to(self.caller, CALLER), *links_to(self.transport, TRANSPORT)]

    @property
    def server_context(self) -> Context:
        """The context for a server that makes its own spans: it reads `_meta` itself, and never below another span."""
        return set_span_in_context(get_current_span(), self.context) if self.caller.is_valid else self.context


class ServerSpan(RedactedRepr, msgspec.Struct):
    """What we know of the message of a span that the wrapped server makes.

    Args:
        label: The message's method, with which the span's name begins.
        attributes: Those that our own span would have.
        links: What may be linked.
        is_taken: Whether the span has begun; further ones below it are of something else.
    """

    label: str
    attributes: Mapping[str, str]
    links: Sequence[Link]
    is_taken: bool = False


def origin_of(message: Message, headers: Mapping[bytes, bytes]) -> Origin:
    """Return where a message comes from, by its `_meta`, its HTTP headers and the span around."""
    current, span = get_current(), get_current_span()
    transport = span.get_span_context()
    if not transport.is_valid and TRACEPARENT in headers:
        named = {name: headers.get(name.encode(), b"").decode("latin-1") for name in _TRACE_CONTEXT}
        current = propagate.extract(named, current)
        transport = get_current_span(current).get_span_context()
    sent = _carrier(message.params.meta)
    context = propagate.extract(sent, current) if sent else current
    caller = get_current_span(context).get_span_context()
    if _place(caller) == _place(transport):
        caller = INVALID_SPAN_CONTEXT
    return Origin(context, caller, transport, span if span.is_recording() else None)


def has_trace_context(meta: Meta) -> bool:
    """Whether a message's `_meta` brings a span or baggage."""
    return meta.traceparent is not UNSET or meta.baggage is not UNSET


def _carrier(meta: Meta | None) -> dict[str, str]:
    if meta is None or not has_trace_context(meta):
        return {}
    try:
        sent = {name: getattr(meta, name) for name in _TRACE_CONTEXT}
        return {name: string(value) or "" for name, value in sent.items() if value is not UNSET}
    except Refusal:  # a lone surrogate
        return {}


def _place(context: SpanContext) -> tuple[int, int]:
    return context.trace_id, context.span_id


@lru_cache(maxsize=4096)
def start_of(text: str | None) -> SpanContext | None:
    """Return the context of a session's start from its token's traceparent, or None without a usable one."""
    found = None if text is None else _SHAPE.fullmatch(text)
    if found is None:
        return None
    flags = TraceFlags(int(found[3], 16))
    context = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
    return context if context.is_valid else None


def traceparent_of(context: SpanContext) -> str:
    """Return a span's context as a traceparent (W3C)."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def links_to(context: SpanContext | None, role: str) -> list[Link]:
    """Return the link to a span, or nothing where there is none."""
    return [] if context is None or not context.is_valid else [Link(context, {LINK: role})]


def below(start: SpanContext, context: Context | None = None) -> Context:
    """Return a context, or the current one, with a session's start as its span."""
    return set_span_in_context(NonRecordingSpan(start), context)


# --- what spans find in their context --------------------------------------------------------------


def with_session(ref: str, context: Context | None = None) -> Context:
    """Return a context, or the current one, with a session for samplers, which are asked before spans begin."""
    return set_value(_REF, ref, context)


def in_session(ref: str | None, context: Context) -> Context:
    """Return a context with a session, or as it is where there is none."""
    return context if ref is None else set_value(_REF, ref, context)


def session_in(context: Context | None) -> str | None:
    """Return the session that a context, or the current one, belongs to, or None."""
    found = get_value(_REF, context)
    return found if isinstance(found, str) else None


def current_ref() -> str | None:
    """Return the session that the current context belongs to, or the message that is handled, or None."""
    return session_in(None) or session_in(request_context.get() or Context())


@contextmanager
def hook_of(ref: str) -> Iterator[None]:
    """Let what is started within the block belong to a session whose hook runs, whatever request is handled."""
    token = attach(set_value(_HOOK, ref))
    try:
        yield
    finally:
        detach(token)


def hook_in(context: Context) -> str | None:
    """Return the session whose hook runs, or None."""
    return cast("str | None", context.get(_HOOK))


def with_server_span(known: ServerSpan, context: Context) -> Context:
    """Return a context in which the span of the wrapped server finds what it lacks."""
    return set_value(_REQUEST, known, context)


def server_span_in(context: Context, name: str) -> ServerSpan | None:
    """Return what the span of the wrapped server lacks, for the first one with the message's name."""
    last = request_context.get()
    known = cast("ServerSpan | None", context.get(_REQUEST) or (None if last is None else last.get(_REQUEST)))
    # FastMCP 3 asks for the list of tools below the first call.
    if known is None or known.is_taken or name.partition(" ")[0] != known.label:
        return None
    known.is_taken = True
    return known


def with_request(who: Mapping[str, str], around: Span | None, context: Context) -> Context:
    """Return a context in which the spans of sessions find who sends the request, and the span around it."""
    if who:
        context = set_value(_WHO, who, context)
    return context if around is None else set_value(_AROUND, around, context)


def who_sent() -> Mapping[str, str]:
    """Return who sends the request that is handled, as attributes."""
    return cast("Mapping[str, str] | None", get_value(_WHO)) or _NOBODY


def spans_of_request() -> list[Span]:
    """Return the current span, and the one around the request that it belongs to."""
    around = cast("Span | None", get_value(_AROUND))
    current = get_current_span()
    return [current] if around is None or around is current else [current, around]

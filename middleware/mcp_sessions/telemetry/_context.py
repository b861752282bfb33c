"""Trace contexts: what a message and its HTTP request bring along, and what the spans of a request are to find there.

A message may bring a context in `_meta` (SEP-414), its HTTP request another one. One is the parent, the others are
linked, and each link says what it leads to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET
from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, create_key, detach, get_value, set_value
from opentelemetry.trace import INVALID_SPAN_CONTEXT, Link, Span, SpanContext, get_current_span, set_span_in_context

from .._errors import Refusal
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
SPAN: Final = next(iter(set_span_in_context(trace.INVALID_SPAN, Context())))  # the API's own key
_NOBODY: Final[Mapping[str, Any]] = {}

request_context: Final[ContextVar[Context | None]] = ContextVar("mcp_sessions_context", default=None)
"""The context of a message without a span of ours: an instrumentation below may start from an empty one."""


class Origin(RedactedRepr, msgspec.Struct, frozen=True):
    """Where a message comes from."""

    context: Context  # the current one with the message's baggage, and with the caller's span where it names one
    caller: SpanContext  # that span, by `_meta`; invalid where it names none, or the one of the transport
    transport: SpanContext  # the span around, or that of the HTTP headers where none is around; it may be invalid
    around: Span | None  # the span around, where it is recorded

    @property
    def links(self) -> list[Link]:
        """What is to be linked where neither is the parent."""
        return [*links_to(self.caller, CALLER), *links_to(self.transport, TRANSPORT)]

    @property
    def for_server(self) -> Context:
        """The context for a server that makes its own spans: it reads `_meta` itself, and never below another span."""
        return set_span_in_context(get_current_span(), self.context) if self.caller.is_valid else self.context


class ServerSpan(RedactedRepr, msgspec.Struct):
    """What we know of the message of a span that the wrapped server makes."""

    label: str  # the message's method, with which the span's name begins
    attributes: Mapping[str, str]  # those that our own span would have
    links: Sequence[Link]  # what may be linked
    taken: SpanContext | None = None  # the span, once it has begun; further ones below it are of something else


def origin_of(meta: Meta | None, headers: Mapping[bytes, bytes], current: Context) -> Origin:
    """Return where a message comes from, by its `_meta`, its HTTP headers and the current context."""
    span = cast("Span", current.get(SPAN, trace.INVALID_SPAN))
    transport, around = span.get_span_context(), span if span.is_recording() else None
    if not transport.is_valid and TRACEPARENT in headers:
        named = {name: headers.get(name.encode(), b"").decode("latin-1") for name in _TRACE_CONTEXT}
        current = propagate.extract(named, current)
        transport = get_current_span(current).get_span_context()
    if meta is None or (meta.traceparent is UNSET and meta.baggage is UNSET):
        return Origin(current, INVALID_SPAN_CONTEXT, transport, around)
    context = propagate.extract(_carrier(meta), current)
    caller = get_current_span(context).get_span_context()
    if (caller.trace_id, caller.span_id) == (transport.trace_id, transport.span_id):
        caller = INVALID_SPAN_CONTEXT
    return Origin(context, caller, transport, around)


def _carrier(meta: Meta) -> dict[str, str]:
    try:
        sent = {name: getattr(meta, name) for name in _TRACE_CONTEXT}
        return {name: string(value) or "" for name, value in sent.items() if value is not UNSET}
    except Refusal:  # a lone surrogate
        return {}


@lru_cache(maxsize=4096)
def start_of(text: str | None) -> SpanContext | None:
    """Return the context of a session's start from its token's traceparent, or None without a usable one."""
    found = None if text is None else _SHAPE.fullmatch(text)
    if found is None:
        return None
    flags = trace.TraceFlags(int(found[3], 16))
    context = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
    return context if context.is_valid else None


def links_to(context: SpanContext | None, role: str) -> list[Link]:
    """Return the link to a span, or nothing where there is none.

    It is made for one span: the SDK changes it, and takes twice as long for one that it has changed.
    """
    return [] if context is None or not context.is_valid else [Link(context, {LINK: role})]


def below(start: SpanContext, context: Context | None = None) -> Context:
    """Return a context, or the current one, with a session's start as its span."""
    return set_span_in_context(trace.NonRecordingSpan(start), context)


# --- what spans find in their context --------------------------------------------------------------


def with_session(ref: str, context: Context | None = None) -> Context:
    """Return a context, or the current one, with a session for samplers, which are asked before spans begin."""
    return set_value(_REF, ref, context)


def session_in(context: Context | None) -> str | None:
    """Return the session that a context, or the current one, belongs to, or None."""
    found = get_value(_REF, context)
    return found if isinstance(found, str) else None


def current_ref() -> str | None:
    """Return the session that the current context belongs to, or the message that is handled, or None."""
    return session_in(None) or session_in(request_context.get() or Context())


@contextmanager
def attached(context: Context) -> Iterator[None]:
    """Make a context the current one within the block."""
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


def hook_of(ref: str) -> AbstractContextManager[None]:
    """Let what is started within the block belong to a session whose hook runs, whatever request is handled."""
    return attached(set_value(_HOOK, ref))


def hook_in(context: Context) -> str | None:
    """Return the session whose hook runs, or None."""
    return cast("str | None", context.get(_HOOK))


def for_request(  # noqa: PLR0917  # names cost more at every request
    context: Context,
    ref: str | None,
    span: Span | None,
    around: Span | None = None,
    who: Mapping[str, Any] = _NOBODY,
    known: ServerSpan | None = None,
) -> Context:
    """Return a context for what handles a message, from the one so far.

    The span is the message's, or None for that of the context; `known` is what the span of the wrapped server lacks.
    """
    found: dict[str, object] = {} if span is None else {SPAN: span}
    if ref is not None:
        found[_REF] = ref
    if around is not None or who or known is not None:
        found.update({_AROUND: around, _WHO: who, _REQUEST: known})
    made = Context(context)  # changed while nobody else has it, since each of the API's functions makes a copy
    dict.update(made, found)
    return made


def server_span_in(context: Context, name: str, span: SpanContext) -> ServerSpan | None:
    """Return what a span of the wrapped server lacks, for the first one with the message's name."""
    last = request_context.get()
    known = cast("ServerSpan | None", context.get(_REQUEST) or (None if last is None else last.get(_REQUEST)))
    # FastMCP 3 asks for the list of tools below the first call.
    if known is None or known.taken is not None or name.partition(" ")[0] != known.label:
        return None
    known.taken = span
    return known


def who_sent() -> Mapping[str, Any]:
    """Return who sends the request that is handled, as attributes."""
    return cast("Mapping[str, Any] | None", get_value(_WHO)) or _NOBODY


def spans_of_request() -> list[Span]:
    """Return the current span, and the one around the request that it belongs to."""
    around, current = cast("Span | None", get_value(_AROUND)), get_current_span()
    return [current] if around is None or around is current else [current, around]

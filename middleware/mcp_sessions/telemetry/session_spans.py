"""A session's own spans: a short `session start` when it is created, a short `session end` when it is over.

A span that stays open for a session's life would be exported at its end, by one process, or never. So
there are two that end at once. The context of the first travels in the token (`Claims.trace`), and every
request on every worker links to it or, with `trace="session"`, hangs below it. Written as W3C Trace
Context, whatever the process propagates otherwise, since our own tokens alone carry it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from opentelemetry.context import Context, create_key, get_value, set_value
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from ..tracing import Trace
from .attributes import CLIENT, ERROR_TYPE, EXPIRES_AT, PARENT, REASON, Stamps
from .claimed import is_claimed

SCOPE: Final = "mcp_sessions"
_REF: Final = create_key("mcp_sessions.ref")
_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def traceparent(context: SpanContext) -> str:
    """A span's context as the text that travels in a token."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@lru_cache(maxsize=4096)
def start_of(text: str | None) -> SpanContext | None:
    """The context of a session's start, from what its token says; None where it says nothing usable."""
    found = None if text is None else _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    flags = TraceFlags(int(found[3], 16))
    context = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
    return context if context.is_valid else None


@lru_cache(maxsize=4096)
def link_to(text: str | None) -> Link | None:
    """A link to a session's start, from what its token says; None where it says nothing usable."""
    start = start_of(text)
    return None if start is None else Link(start)


def below(start: SpanContext, context: Context | None = None) -> Context:
    """A context, or else the current one, with a session's start as its span: what starts in it hangs below that."""
    return set_span_in_context(NonRecordingSpan(start), context)


def of_session(ref: str, context: Context | None = None) -> Context:
    """A context, or else the current one, in which a session is known before a span could be asked for it.

    Samplers are asked first, and giving the span its attributes that early costs a third of it.
    """
    return set_value(_REF, ref, context)


def session_of(context: Context | None) -> str | None:
    """The session that a context, or else the current one, belongs to, or None."""
    found = get_value(_REF, context)
    return found if isinstance(found, str) else None


class Start:
    """A session that is being created.

    Attributes:
        trace: The traceparent for the session's token, or None where nobody traces.
    """

    __slots__ = ("_span", "trace")

    def __init__(self, span: Span) -> None:
        self._span = span
        context = span.get_span_context()
        # Without an SDK a "new" span is the caller's, from another process, or none at all.
        self.trace = traceparent(context) if context.is_valid and not context.is_remote else None

    def end(self, error: BaseException | None = None) -> None:
        """The session is complete.

        Args:
            error: Why there is none after all, or None.
        """
        if error is not None:
            self._span.set_attribute(ERROR_TYPE, type(error).__qualname__)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class SessionSpans:
    """Makes the spans of the two ends of sessions.

    Args:
        trace: `"request"`: both belong to the trace of the request that they happen in. `"session"`:
            the start is the root of a trace of its own, and the end stands in it.
        stamps: What names a session on a span.
        tracer_provider: Where spans go; None is the process's own.
    """

    def __init__(
        self,
        *,
        trace: Trace = "request",
        stamps: Stamps | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self._is_root: Final = trace == "session"
        self._stamps: Final = stamps or Stamps()
        self._tracer: Final[Tracer] = get_tracer(SCOPE, tracer_provider=tracer_provider)

    def start(self, ref: str, *, expires_at: int, client: str | None = None, parent: str | None = None) -> Start:
        """Begin a session's creation.

        Args:
            ref: The session.
            expires_at: When it ends at the latest, Unix seconds.
            client: What its client calls itself, or None.
            parent: The session that it was forked from, or None.

        Returns:
            What ends when the session is complete, or was refused after all.
        """
        ambient = get_current_span().get_span_context()
        within = of_session(ref, Context() if self._is_root else None)
        span = self._tracer.start_span(
            "session start",
            within,
            SpanKind.INTERNAL,
            links=[Link(ambient)] if self._is_root and ambient.is_valid else None,
        )
        if span.is_recording():
            claimed = is_claimed(None, ref, within)
            span.set_attributes({**self._stamps.of(ref, claimed=claimed), EXPIRES_AT: expires_at})
            more = {CLIENT: client, PARENT: parent}
            span.set_attributes({name: value for name, value in more.items() if value is not None})
        return Start(span)

    def end(self, ref: str, *, start: str | None, reason: str) -> None:
        """Mark a session's end.

        Args:
            ref: The session.
            start: What its token says of its start.
            reason: Why it ended; a fixed word.
        """
        context, ambient = start_of(start), get_current_span().get_span_context()
        is_below = self._is_root and context is not None
        linked = ambient if is_below else context
        within = of_session(ref, below(context) if is_below and context is not None else None)
        span = self._tracer.start_span(
            "session end",
            within,
            SpanKind.INTERNAL,
            links=[Link(linked)] if linked is not None and linked.is_valid else None,
        )
        if span.is_recording():
            claimed = is_claimed(None, ref, within)
            span.set_attributes({**self._stamps.of(ref, claimed=claimed), REASON: reason})
        span.end()

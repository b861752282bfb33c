"""`RequestSpans`: one span per MCP message that the wrapped server makes none for, by OpenTelemetry's conventions.

The shell calls `begin` once a message and its session are known, runs the application, and calls `end`.
The parent is the caller's own span where the message brings one along (`_meta.traceparent`, SEP-414), and
else what is current; what is then not the parent is linked, and so is the session's start. The path is
lean, since it is every request's: one `start_span`, and one `set_attributes` if anybody records it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Final, Literal

from opentelemetry import context as contexts
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
    get_tracer_provider,
    set_span_in_context,
)

from ..errors import Refusal
from ..jsonrpc import Kind, Message
from ..members import string
from .attributes import CLIENT, ERROR_TYPE, REASON, STATUS_CODE, Stamps
from .naming import describe, target_of
from .outcome import SUCCESS, Outcome, answered, responded
from .processor import is_claimed
from .session_spans import SCOPE, Trace, below, of_session, start_of

if TYPE_CHECKING:
    from .metrics import SessionMetrics

Spans = Literal["auto", "enrich", "server", "internal", "off"]

# By the option, and whether the wrapped server makes a server span itself: a span for what is forwarded to
# it, and one for what we answer ourselves, which the server never sees.
_KINDS: Final[dict[tuple[Spans, bool], tuple[SpanKind | None, SpanKind | None]]] = {
    ("auto", False): (SpanKind.SERVER, SpanKind.SERVER),
    ("auto", True): (None, SpanKind.SERVER),
    ("enrich", False): (None, None),
    ("enrich", True): (None, None),
    ("server", False): (SpanKind.SERVER, SpanKind.SERVER),
    ("server", True): (SpanKind.SERVER, SpanKind.SERVER),
    ("internal", False): (SpanKind.INTERNAL, SpanKind.INTERNAL),
    ("internal", True): (SpanKind.INTERNAL, SpanKind.INTERNAL),
    ("off", False): (None, None),
    ("off", True): (None, None),
}
_NOBODY: Final = (ProxyTracerProvider, NoOpTracerProvider)
_CARRIED: Final = ("traceparent", "tracestate", "baggage")


@dataclass(frozen=True, slots=True)
class About:
    """The session that a request belongs to, as telemetry needs it.

    Args:
        ref: The session's public name.
        start: The traceparent of its start, from its token, or None.
        client: What its client calls itself, from its token, or None.
    """

    ref: str
    start: str | None = None
    client: str | None = None


class Handling:
    """One message while it is handled.

    Attributes:
        outcome: How it ended, as far as is known.
    """

    __slots__ = ("_began", "_message", "_metrics", "_span", "_token", "_version", "outcome")

    def __init__(
        self,
        message: Message,
        version: str | None,
        metrics: SessionMetrics | None,
        *,
        span: Span | None = None,
        within: Context | None = None,
    ) -> None:
        self._message = message
        self._version = version
        self._span = span
        self._token = None if within is None else contexts.attach(within)
        self._metrics = metrics
        self._began = 0.0 if metrics is None else perf_counter()
        self.outcome = SUCCESS

    def see(self, status: int) -> None:
        """The response begins: an HTTP status tells the outcome as long as no answer does."""
        self.outcome = responded(status)

    def hear(self, text: bytes) -> None:
        """One JSON-RPC message of the response, as the server wrote it."""
        self.outcome = answered(text) or self.outcome

    def end(self, outcome: Outcome | None = None) -> None:
        """The answer has left.

        Args:
            outcome: How it ended; None is what was seen and heard of the response.
        """
        outcome = outcome or self.outcome
        if self._span is not None:
            if outcome.error is not None and self._span.is_recording():
                self._span.set_attributes(errors(outcome))
                self._span.set_status(StatusCode.ERROR, outcome.message)
            self._span.end()
        if self._token is not None:
            contexts.detach(self._token)
        if self._metrics is not None:
            seconds = perf_counter() - self._began
            self._metrics.operation(self._message, self._version, outcome, seconds=seconds)


class RequestSpans:
    """Begins what telemetry tells of each message.

    Args:
        spans: `"auto"`: a server span, unless the wrapped server makes its own; `"enrich"`: none, only
            the current span is stamped; `"server"` and `"internal"`: always one, of that kind; `"off"`.
        trace: `"request"`: requests belong to their callers' traces and link to the session's start;
            `"session"`: they belong to the session's trace, and link to their callers.
        stamps: What names a session on a span.
        metrics: Told of every message, or None.
        tracer_provider: Where spans go; None is the process's own.

    Attributes:
        is_native: Whether the wrapped server makes server spans itself (see `instrumented`). To be set
            when the application has started.
    """

    def __init__(
        self,
        spans: Spans = "auto",
        *,
        trace: Trace = "request",
        stamps: Stamps | None = None,
        metrics: SessionMetrics | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self.is_native = False
        self._spans: Final[Spans] = spans
        self._in_session: Final = trace == "session"
        self._stamps: Final = stamps or Stamps()
        self._metrics: Final = metrics
        self._provider: Final = tracer_provider
        self._tracer: Final[Tracer] = get_tracer(SCOPE, tracer_provider=tracer_provider)

    def begin(
        self, message: Message, *, version: str | None, about: About | None, is_forwarded: bool = True
    ) -> Handling | None:
        """Begin a message, and make its span the current one.

        Args:
            message: The request or notification; a posted response has no span.
            version: The `MCP-Protocol-Version` header, or None.
            about: Its session, or None.
            is_forwarded: Whether the wrapped server handles it; otherwise we answer it ourselves.

        Returns:
            What must be ended in the same task, or None where there is nothing to end.
        """
        if self._spans == "off" or message.kind is Kind.RESPONSE:
            return self._without(message, version)
        kind = _KINDS[self._spans, self.is_native][0 if is_forwarded else 1]
        if kind is None:
            return self._enriched(message, version, about)
        if not self._is_traced():
            return self._without(message, version)
        target, came = target_of(message), carried(message)
        parent, links = self._related(came, None if about is None else about.start)
        if about is not None:
            parent = of_session(about.ref, parent)
        name = message.label if target is None else f"{message.label} {target}"
        span = self._tracer.start_span(name, parent, kind, links=links)
        if span.is_recording():
            span.set_attributes(self._attributes(describe(message, target, version), about, parent))
        return Handling(message, version, self._metrics, span=span, within=set_span_in_context(span, parent))

    def _is_traced(self) -> bool:
        """Whether there is anybody to trace for: without an SDK the rest would cost as much as the whole core."""
        return type(self._provider or get_tracer_provider()) not in _NOBODY

    def _attributes(self, found: dict[str, str], about: About | None, parent: Context | None) -> dict[str, str]:
        if about is not None:
            found.update(self._stamps.of(about.ref, claimed=is_claimed(None, about.ref, parent)))
            if about.client is not None:
                found[CLIENT] = about.client
        return found

    def _without(self, message: Message, version: str | None) -> Handling | None:
        if self._metrics is None or message.kind is Kind.RESPONSE:
            return None
        return Handling(message, version, self._metrics)

    def _enriched(self, message: Message, version: str | None, about: About | None) -> Handling | None:
        """No span of ours: the one around us is stamped, and what the server makes finds what belongs above it."""
        if about is None:
            return self._without(message, version)
        around, within = get_current_span(), carried(message)
        if within is not None:  # its baggage, that is: its span is for the server to take
            within = set_span_in_context(around, within)
        if around.is_recording():
            around.set_attributes(self._stamps.of(about.ref, claimed=is_claimed(around, about.ref, within)))
        start = start_of(about.start) if self._in_session else None
        if start is not None:
            within = below(start, within)
        return (
            self._without(message, version)
            if within is None
            else Handling(message, version, self._metrics, within=within)
        )

    def _related(self, came: Context | None, started: str | None) -> tuple[Context | None, Sequence[Link]]:
        """The context that holds the parent, and links to what is related and is not the parent."""
        ambient, start = get_current_span().get_span_context(), start_of(started)
        caller = ambient if came is None else get_current_span(came).get_span_context()
        around = [] if caller == ambient else _links(ambient)
        if self._in_session and start is not None:
            return below(start, came), [*_links(caller), *around]
        return came, around if started is None or start is None else [*around, _link_to(started)]


def carried(message: Message) -> Context | None:
    """The current context with the span and the baggage that a message brings along, or None where it brings neither.

    The keys have no prefix: SEP-414 keeps these three for what W3C Trace Context and Baggage call by the same names.
    """
    meta = message.meta
    if meta is None or not ("traceparent" in meta or "baggage" in meta):
        return None
    try:
        carrier = {name: string(meta[name]) or "" for name in _CARRIED if name in meta}
    except Refusal:  # a lone surrogate
        return None
    return propagate.extract(carrier, contexts.get_current())


def errors(outcome: Outcome) -> dict[str, str]:
    """What a span says of an error."""
    said = {ERROR_TYPE: outcome.error, STATUS_CODE: outcome.code, REASON: outcome.reason}
    return {name: value for name, value in said.items() if value is not None}


def _links(context: SpanContext) -> list[Link]:
    return [Link(context)] if context.is_valid else []


@lru_cache(maxsize=4096)
def _link_to(started: str) -> Link:
    start = start_of(started)
    assert start is not None
    return Link(start)

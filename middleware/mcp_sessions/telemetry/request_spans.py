"""`RequestSpans`: one span per MCP message that the wrapped server makes none for, by OpenTelemetry's conventions.

The shell calls `begin` once a message and its session are known, runs the application, and calls `end`.
The parent is the caller's own span where the message brings one along (`_meta.traceparent`, SEP-414), and
else what is current; what is then not the parent is linked, and so is the session's start. The path is
lean, since it is every request's: one `start_span`, and one `set_attributes` if anybody records it; what all calls
of a tool in a session have in common is put together once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from time import perf_counter
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from ..dialects.transport import INITIALIZE
from ..errors import Refusal
from ..jsonrpc import RESPONSE, Message
from ..listeners import is_traced, takes_spans
from ..members import string
from ..tracing import Spans, Trace
from .attributes import Stamps
from .calls import About, Call, Calls
from .claimed import is_claimed, noting
from .contents import CALL, Contents
from .handling import Handling, Operations
from .naming import described
from .session_spans import SCOPE, below, of_session, start_of

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
_CARRIED: Final = ("traceparent", "tracestate", "baggage")


class RequestSpans:
    """Begins what telemetry tells of each message.

    Args:
        spans: Which span a message gets.
        trace: What is one trace.
        stamps: What names a session on a span.
        listeners: Told of every message when it has been handled.
        contents: What is written of a call's arguments and result, or None for nothing.
        looks_native: Tells whether the wrapped server makes server spans itself (see `instrumented`). It
            is asked once, at the first message, since some servers make their endpoint as they start.
        tracer_provider: Where spans go; None is the process's own.
    """

    def __init__(
        self,
        spans: Spans = "auto",
        *,
        trace: Trace = "request",
        stamps: Stamps | None = None,
        listeners: Sequence[Operations] = (),
        contents: Contents | None = None,
        looks_native: Callable[[], bool] = lambda: False,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self._looks_native: Final = looks_native
        self._contents: Final = contents
        self._spans: Final[Spans] = spans
        self._asks: Final = bool(listeners) or tracer_provider is not None
        self._in_session: Final = trace == "session"
        self._stamps: Final = stamps or Stamps()
        self._listeners: Final = listeners
        self._provider: Final = tracer_provider
        self._tracer: Final[Tracer] = get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._calls: Final = Calls(self._stamps)

    @cached_property
    def is_native(self) -> bool:
        """Whether the wrapped server makes server spans itself."""
        return self._looks_native()

    @cached_property
    def _kinds(self) -> tuple[SpanKind | None, SpanKind | None]:
        return _KINDS[self._spans, self.is_native]

    def name(self, about: About) -> None:
        """Name a session on the span around us: that of the request that creates it."""
        around = get_current_span()
        if around.is_recording():
            around.set_attributes(self._stamps.of(about.ref, claimed=is_claimed(around, about.ref, None)))

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
        if message.kind is RESPONSE:
            return None
        kind = self._kinds[not is_forwarded]
        if kind is None:
            refrain = self._without if self._spans == "off" else self._enriched
            return refrain(message, version, about)
        # Where nobody else is told of messages, none comes here unless somebody traces.
        if self._asks and not (is_traced() if self._provider is None else takes_spans(self._provider)):
            return self._without(message, version, about)
        return self._spanned(message, version, about, kind)

    def _spanned(self, message: Message, version: str | None, about: About | None, kind: SpanKind) -> Handling:
        """A span of ours."""
        call, meta = self._calls.of(message, version, about), message.params.meta
        if self._in_session or (meta is not None and brings_context(meta)) or contexts.get_current():
            parent, links, claimed = self._placed(message, about, call)
        else:
            parent, links, claimed = call.parent, call.links, False
        span = self._tracer.start_span(call.name, parent, kind, links=links)
        is_recorded, contents = span.is_recording(), None
        if is_recorded:
            said = described(call.attributes[claimed], message)
            if self._contents is not None and message.method == CALL:
                contents = self._contents
                said.update(contents.arguments(message))
            span.set_attributes(said)
        within = set_span_in_context(span, parent)
        return self._handling(message, version, about, within, span, contents, is_recorded)

    def _handling(  # noqa: PLR0917  # in their order, since names cost more at every request
        self,
        message: Message,
        version: str | None,
        about: About | None,
        within: Context | None = None,
        span: Span | None = None,
        contents: Contents | None = None,
        is_recorded: bool = False,
    ) -> Handling:
        listeners = self._listeners
        # Servers with transport sessions start a task in `initialize` that serves the whole connection, and that
        # would keep this context for every later request.
        token = None if within is None or message.method == INITIALIZE else contexts.attach(within)
        return Handling(
            message,
            version,
            listeners,
            None if about is None else about.ref,
            span,
            within,
            token,
            contents,
            is_recorded or bool(listeners),
            perf_counter() if listeners else 0.0,
        )

    def _placed(self, message: Message, about: About | None, call: Call) -> tuple[Context | None, Sequence[Link], bool]:
        """The context that holds the parent, what is linked, and whether `session.id` is somebody else's there."""
        parent, links = self._related(carried(message), None if about is None else about.trace, call.links)
        if about is None:
            return noting(parent), links, False
        parent = of_session(about.ref, parent)
        return parent, links, is_claimed(None, about.ref, parent)

    def _without(self, message: Message, version: str | None, about: About | None) -> Handling | None:
        return self._handling(message, version, about) if self._listeners else None

    def _enriched(self, message: Message, version: str | None, about: About | None) -> Handling | None:
        """No span of ours: the one around us is stamped, and what the server makes finds what belongs above it."""
        if about is None:
            return self._without(message, version, about)
        around, within = get_current_span(), carried(message)
        if within is not None:  # its baggage, that is: its span is for the server to take
            within = set_span_in_context(around, within)
        if around.is_recording():
            around.set_attributes(self._stamps.of(about.ref, claimed=is_claimed(around, about.ref, within)))
        start = start_of(about.trace) if self._in_session else None
        if start is not None:
            within = below(start, within)
        if within is None:
            return self._without(message, version, about)
        return self._handling(message, version, about, within)

    def _related(
        self, came: Context | None, started: str | None, links: Sequence[Link]
    ) -> tuple[Context | None, Sequence[Link]]:
        """The context that holds the parent, and links to what is related and is not the parent."""
        if came is None and not self._in_session:  # what is around is the parent
            return contexts.get_current(), links
        ambient, start = get_current_span().get_span_context(), start_of(started) if self._in_session else None
        caller = ambient if came is None else get_current_span(came).get_span_context()
        around = [] if caller == ambient else _links(ambient)
        if start is not None:
            return below(start, came), [*_links(caller), *around]
        return came, [*around, *links]


def brings_context(meta: Mapping[str, Any]) -> bool:
    """Whether a message's `_meta` brings a span or baggage along."""
    return "traceparent" in meta or "baggage" in meta


def carried(message: Message) -> Context | None:
    """The current context with the span and the baggage that a message brings along, or None where it brings neither.

    The keys have no prefix: SEP-414 keeps these three for what W3C Trace Context and Baggage call by the same names.
    """
    meta = message.meta
    if meta is None or not brings_context(meta):
        return None
    try:
        carrier = {name: string(meta[name]) or "" for name in _CARRIED if name in meta}
    except Refusal:  # a lone surrogate
        return None
    return propagate.extract(carrier, contexts.get_current())


def _links(context: SpanContext) -> list[Link]:
    return [Link(context)] if context.is_valid else []

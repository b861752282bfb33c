"""`RequestSpans`: one span per MCP message that the wrapped server makes none for, by OpenTelemetry's conventions.

The shell calls `begin` once a message and its session are known, runs the application, and calls `end`.
The parent is the caller's own span where the message brings one along (`_meta.traceparent`, SEP-414), and
else what is current; what is then not the parent is linked, and so is the session's start. The path is
lean, since it is every request's: one `start_span`, and one `set_attributes` if anybody records it; what all calls
of a tool in a session have in common is put together once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Final, Protocol

from opentelemetry import context as contexts
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from ..errors import Refusal
from ..jsonrpc import Kind, Message
from ..listeners import is_traced, takes_spans
from ..members import string
from ..tracing import Spans, Trace
from .attributes import CLIENT, Stamps
from .claimed import is_claimed, noting
from .contents import Contents
from .handling import Handling, Operations
from .naming import alike, own, target_of, version_of
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
_REMEMBERED: Final = 2048  # sessions, and calls of them
_ALONE: Final[tuple[Context, Sequence[Link], bool]] = Context(), (), False


class About(Protocol):
    """The session that a request belongs to, as telemetry needs it: what its token says."""

    @property
    def ref(self) -> str:
        """Its public name."""
        ...

    @property
    def trace(self) -> str | None:
        """The traceparent of its start, or None."""
        ...

    @property
    def client(self) -> str | None:
        """What its client calls itself, or None."""
        ...


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
        self._in_session: Final = trace == "session"
        self._stamps: Final = stamps or Stamps()
        self._listeners: Final = listeners
        self._provider: Final = tracer_provider
        self._tracer: Final[Tracer] = get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._said: Final = lru_cache(maxsize=_REMEMBERED)(self._describe)
        self._alone: Final = lru_cache(maxsize=_REMEMBERED)(_alone)

    @cached_property
    def is_native(self) -> bool:
        """Whether the wrapped server makes server spans itself."""
        return self._looks_native()

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
        if self._spans == "off" or message.kind is Kind.RESPONSE:
            return self._without(message, version, about)
        kind = _KINDS[self._spans, self.is_native][0 if is_forwarded else 1]
        if kind is None:
            return self._enriched(message, version, about)
        if not (is_traced() if self._provider is None else takes_spans(self._provider)):
            return self._without(message, version, about)
        parent, links, claimed = self._placed(message, about)
        target, ref, client = target_of(message), None, None
        if about is not None:
            ref, client = about.ref, about.client
        name, alike = self._said(message.label, target, version_of(version), ref, client, claimed)
        span = self._tracer.start_span(name, parent, kind, links=links)
        if span.is_recording():
            span.set_attributes({**alike, **own(message)})
        within = set_span_in_context(span, parent)
        return Handling(message, version, self._listeners, ref=ref, span=span, within=within, contents=self._contents)

    def _describe(  # noqa: PLR0917  # what the cache before it takes
        self, label: str, target: str | None, version: str | None, ref: str | None, client: str | None, claimed: bool
    ) -> tuple[str, dict[str, str]]:
        """The name of a span, and the attributes of all that have it in a session."""
        found = alike(label, target, version)
        if ref is not None:
            found.update(self._stamps.of(ref, claimed=claimed))
        if client is not None:
            found[CLIENT] = client
        return label if target is None else f"{label} {target}", found

    def _placed(self, message: Message, about: About | None) -> tuple[Context | None, Sequence[Link], bool]:
        """The context that holds the parent, what is linked, and whether `session.id` is somebody else's there."""
        came = carried(message)
        if came is None and not self._in_session and not contexts.get_current():
            return _ALONE if about is None else self._alone(about.ref, about.trace)
        parent, links = self._related(came, None if about is None else about.trace)
        if about is None:
            return noting(parent), links, False
        parent = of_session(about.ref, parent)
        return parent, links, is_claimed(None, about.ref, parent)

    def _without(self, message: Message, version: str | None, about: About | None) -> Handling | None:
        if not self._listeners or message.kind is Kind.RESPONSE:
            return None
        return Handling(message, version, self._listeners, ref=_ref(about))

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
        return (
            self._without(message, version, about)
            if within is None
            else Handling(message, version, self._listeners, ref=_ref(about), within=within)
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


def _ref(about: About | None) -> str | None:
    return None if about is None else about.ref


def _links(context: SpanContext) -> list[Link]:
    return [Link(context)] if context.is_valid else []


def _alone(ref: str, started: str | None) -> tuple[Context, Sequence[Link], bool]:
    """Where a message of a session stands that no trace context came with, and that nothing is around."""
    links = [] if started is None or start_of(started) is None else [_link_to(started)]
    return of_session(ref, Context()), links, False


@lru_cache(maxsize=4096)
def _link_to(started: str) -> Link:
    start = start_of(started)
    assert start is not None
    return Link(start)

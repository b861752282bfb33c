"""`RequestSpans`: one span per MCP message that the wrapped server makes none for, by OpenTelemetry's conventions.

The shell calls `begin` once a message and its session are known, runs the application, and calls `end`.
The parent is the caller's own span where the message brings one along (`_meta.traceparent`, SEP-414), and
else what is current; what is then not the parent is linked, and so is the session's start. The path is
lean, since it is every request's: one `start_span`, and one `set_attributes` if anybody records it; what all calls
of a tool in a session have in common is put together once.

`Calls`: what all messages say on their spans that call the same in one session, put together once.

Known by the texts that a client sent, so that one that comes again is not even read; what is written is made of what
`naming` lets through, at the first. How much is remembered is bounded, and texts of unusual length are not. Nothing
here starts a span.

Whether `session.id` is somebody else's on a span, such as a chat application's, so that ours must not stand there.

Tools give a trace to the first session that they see in it. Nothing here writes on a span.

A session's own spans: a short `session start` when it is created, a short `session end` when it is over.

A span that stays open for a session's life would be exported at its end, by one process, or never. So
there are two that end at once. The context of the first travels in the token (`Claims.trace`), and every
request on every worker links to it or, with `trace="session"`, hangs below it. Written as W3C Trace
Context, whatever the process propagates otherwise, since our own tokens alone carry it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from time import perf_counter
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET
from opentelemetry import baggage, propagate
from opentelemetry import context as contexts
from opentelemetry.context import Context, create_key, get_current, get_value, set_value
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

from .._protocol.draft import INITIALIZE
from .._protocol.jsonrpc import RESPONSE, Message
from .._protocol.strict_json import string
from ..errors import Refusal
from .attributes import (
    CLIENT,
    ERROR_TYPE,
    EXPIRES_AT,
    MCP_SESSION_ID,
    PARENT,
    REASON,
    SESSION_ID,
    Stamps,
    alike,
    described,
    target_of,
    version_of,
)
from .detect import Spans, Trace, is_traced, takes_spans
from .outcome import CALL, Contents, Operations, RequestTelemetry

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
    ) -> RequestTelemetry | None:
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

    def _spanned(self, message: Message, version: str | None, about: About | None, kind: SpanKind) -> RequestTelemetry:
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
    ) -> RequestTelemetry:
        listeners = self._listeners
        # Servers with transport sessions start a task in `initialize` that serves the whole connection, and that
        # would keep this context for every later request.
        token = None if within is None or message.method == INITIALIZE else contexts.attach(within)
        return RequestTelemetry(
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

    def _without(self, message: Message, version: str | None, about: About | None) -> RequestTelemetry | None:
        return self._handling(message, version, about) if self._listeners else None

    def _enriched(self, message: Message, version: str | None, about: About | None) -> RequestTelemetry | None:
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


_REMEMBERED: Final = 2048  # calls, of 1 to 2 KB each
_LONGEST: Final = 512  # of what a client wrote, together


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


class Call(msgspec.Struct, frozen=True):
    """What the spans of such messages have in common.

    Args:
        name: The name of a span.
        attributes: Its attributes; the second where `session.id` is somebody else's.
        parent: The context that it starts in where the message came with no trace context, and nothing is around.
        links: What it then links to.
    """

    name: str
    attributes: tuple[dict[str, str], dict[str, str]]
    parent: Context
    links: Sequence[Link]


class Calls:
    """The calls that came lately.

    Args:
        stamps: What names a session on a span.
    """

    __slots__ = ("_old", "_stamps", "_young")

    def __init__(self, stamps: Stamps) -> None:
        self._stamps: Final = stamps
        # Two generations: see `tokens.Tokens`, which remembers tokens in the same way and says why.
        self._young: dict[tuple[object, ...], Call] = {}
        self._old: dict[tuple[object, ...], Call] = {}

    def of(self, message: Message, version: str | None, about: About | None) -> Call:
        """What the span of one message says that those of others do, too.

        Args:
            message: The request or notification.
            version: The `MCP-Protocol-Version` header, or None.
            about: Its session, or None.
        """
        name = message.params.name
        said = None if name is UNSET else bytes(name)
        key: tuple[object, ...]
        if about is None:
            key = (message.method, said, version)
        else:
            key = (message.method, said, version, about.ref, about.trace, about.client)
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key) or self._made(message, version, about)
            if len(message.method) + len(said or b"") + len(version or "") <= _LONGEST:
                self._keep(key, found)
        return found

    def _keep(self, key: tuple[object, ...], call: Call) -> None:
        if len(self._young) >= _REMEMBERED // 2:
            self._old, self._young = self._young, {}
        self._young[key] = call

    def _made(self, message: Message, version: str | None, about: About | None) -> Call:
        label, target = message.label, target_of(message)
        name, said = label if target is None else f"{label} {target}", alike(label, target, version_of(version))
        if about is None:
            return Call(name, (said, said), Context(), ())
        if about.client is not None:
            said[CLIENT] = about.client
        stamps = [self._stamps.of(about.ref, claimed=claimed) for claimed in (False, True)]
        link = link_to(about.trace)
        return Call(
            name,
            ({**said, **stamps[0]}, {**said, **stamps[1]}),
            of_session(about.ref, Context()),
            () if link is None else (link,),
        )


_CLAIMED: Final = create_key("mcp_sessions.claimed")


def noting(context: Context | None) -> Context | None:
    """A context that says so where it is, for what starts in it: a session that is created there is known later on."""
    return set_value(_CLAIMED, True, context) if is_claimed(None, "", context) else context


def is_claimed(span: Any, ref: str, context: Context | None) -> bool:
    """Whether `session.id` on this span is not ours to set.

    Args:
        span: A span that has just started.
        ref: Our session.
        context: The context that its parent came from; None is the current one.
    """
    within = get_current() if context is None else context
    named = None if span is None else _attributes(span).get(SESSION_ID)
    if not within:  # so neither baggage nor a parent
        return bool(named and named != ref)
    if within.get(_CLAIMED):
        return True
    named = named or baggage.get_baggage(SESSION_ID, within)
    if named:
        return bool(named != ref)
    parent = _attributes(get_current_span(within))
    above, ours_above = parent.get(SESSION_ID), parent.get(MCP_SESSION_ID)
    if above is None:  # a parent that was left without it: the baggage that said so may have ended there
        return bool(ours_above == ref)
    return bool(above not in (ref, ours_above))


def _attributes(span: Any) -> Mapping[str, Any]:
    """What a span says, where it can be read: those of other processes and those not recorded say nothing."""
    said: Mapping[str, Any] = getattr(span, "attributes", None) or {}
    try:
        return said.copy()  # type: ignore[attr-defined,no-any-return]  # to find one of the SDK's takes as long
    except AttributeError:
        return said


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

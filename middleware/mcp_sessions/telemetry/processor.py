"""`SessionSpanProcessor`: the session on every span that starts while one of its requests is handled.

The application adds it to its own `TracerProvider`. It finds the session as `current_session()` does and
not through baggage, which misses the spans whose parent comes out of a message, and in the stateful mode
of older frameworks names the session of another request. The OpenTelemetry SDK is never imported: it
calls any object that has these methods. Nothing here starts or ends a span.

`SessionSampler`: all of a session's requests are recorded, or none of them, on every worker.

Whether a session is kept hangs on its `ref` alone, so that workers need not agree on anything. This is
the one room that needs the OpenTelemetry SDK, and it imports it only when a sampler is made.

`SessionLogFilter`: the session on every log record that is made while one of its requests is handled.

A filter for a handler of the standard `logging` package, which lets every record pass. It names the
session by its `ref`, the same that spans carry, so that a line of the log and its trace find each other.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from .._session.current import current_both, current_session
from .._session.session import Session
from .attributes import CLIENT, MCP_SESSION_ID, Stamps
from .detect import attributes_of
from .spans import SCOPE, is_claimed, session_of, start_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
else:
    SpanProcessor = object  # what the SDK asks for is the methods

_FASTMCP: Final = "fastmcp"  # its instrumentation scope
_log: Final = logging.getLogger("mcp_sessions")


class SessionSpanProcessor(SpanProcessor):
    """Stamps `session.id` and `mcp.session.id`, both the session's `ref`, on spans as they start.

        provider = TracerProvider()
        provider.add_span_processor(SessionSpanProcessor())

    A `session.id` that is somebody else's is kept: one that the span was given, that its parent has, or
    that came as baggage from a chat application. Ours is then in `mcp.session.id` alone, since tools
    give a trace to the first session that they see.

    Args:
        aliases: Further attributes that are given the same value, such as `gen_ai.conversation.id`
            or `langsmith.metadata.session_id`.
    """

    def __init__(self, *, aliases: Iterable[str] = ()) -> None:
        given = tuple(aliases)
        Stamps.everywhere.update(dict.fromkeys(given))
        self._stamps = Stamps(given)

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        """Stamp a span; it stays as it is where no session's request is being handled."""
        try:
            scope = _scope(span)
            if scope == SCOPE or not span.is_recording():  # ours name their session themselves
                return
            session, correlation = current_both()
            if correlation is not None:
                span.set_attributes(attributes_of(correlation))
            if session is not None:
                ref = session.ref
                stamp = self._stamps.of(ref, claimed=is_claimed(span, ref, parent_context))
                for name, value in stamp.items():  # the few that they are, this is quicker than all at once
                    span.set_attribute(name, value)
                if scope == _FASTMCP:
                    _keep(span)
                if span.kind is SpanKind.SERVER:
                    _describe(span, session)
        except Exception as error:  # noqa: BLE001  # whatever goes wrong here, the application's code goes on
            _log.warning("a span was left without its session: %s", type(error).__name__)

    def _on_ending(self, span: Any) -> None:
        """Nothing; some versions of the SDK call it."""

    def on_end(self, span: Any) -> None:
        """Nothing."""

    def shutdown(self) -> None:
        """Nothing is held."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  # the SDK's signature
        """Nothing is held back."""
        return True


def _keep(span: Any) -> None:
    """Keep the stamp on FastMCP's spans: after their start it writes an id of its own over `mcp.session.id`.

    Where it has no transport session, that id is a random one per span.
    """
    span.__class__ = _stamped(span.__class__)


def _scope(span: Any) -> str | None:
    """Who makes a span, by its instrumentation scope."""
    scope = getattr(span, "instrumentation_scope", None)
    name: str | None = None if scope is None else scope.name
    return name


def _describe(span: Any, session: Session) -> None:
    """Say on a server's own span of a request who calls, and link it to the session's start; ours do so themselves."""
    if session.client is not None:
        span.set_attribute(CLIENT, session.client)
    start = start_of(session.traceparent)
    if start is not None:
        span.add_link(start)


@functools.cache
def _stamped(base: type) -> type:
    def set_attributes(self: Any, attributes: Mapping[str, Any]) -> None:
        base.set_attributes(  # type: ignore[attr-defined]  # a span class of the SDK
            self, {name: value for name, value in attributes.items() if name != MCP_SESSION_ID}
        )

    return type(base.__name__, (base,), {"set_attributes": set_attributes})


if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult
else:
    Sampler = object  # what the SDK asks for is the methods


def share(ref: str) -> float:
    """Where a session stands between 0 and 1, evenly spread: the same on every worker, for ever."""
    return int.from_bytes(hashlib.sha256(ref.encode()).digest()[:7], "big") / (1 << 56)


class SessionSampler(Sampler):
    """Records a share of the sessions, each of them whole.

        provider = TracerProvider(sampler=SessionSampler(0.1))

    Args:
        ratio: The share of sessions that is recorded, from 0 to 1.
        otherwise: Decides on spans that belong to no session, or start before it is known, as the span
            of the HTTP request does. None decides as their parents do, and records what has none.

    Raises:
        ImportError: The OpenTelemetry SDK is not installed.
        ValueError: The ratio is not from 0 to 1.
    """

    def __init__(self, ratio: float, *, otherwise: Sampler | None = None) -> None:
        from opentelemetry.sdk.trace import sampling

        if not 0 <= ratio <= 1:
            raise ValueError(f"ratio={ratio!r} must be from 0 to 1")
        self._ratio: Final = ratio
        self._otherwise: Final[Any] = otherwise or sampling.DEFAULT_ON
        self._result: Final = sampling.SamplingResult
        self._decisions: Final = (sampling.Decision.DROP, sampling.Decision.RECORD_AND_SAMPLE)

    def should_sample(  # noqa: PLR0917  # the SDK's signature
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Decide on one span, by its session where it has one."""
        ref = session_of(parent_context) or _session(attributes)
        if ref is None:
            decided: SamplingResult = self._otherwise.should_sample(
                parent_context, trace_id, name, kind, attributes, links, trace_state
            )
            return decided
        above = get_current_span(parent_context).get_span_context().trace_state
        return self._result(self._decisions[share(ref) < self._ratio], attributes, above)

    def get_description(self) -> str:
        """What it does, as the SDK shows it."""
        return f"SessionSampler{{{self._ratio},{self._otherwise.get_description()}}}"


def _session(attributes: Attributes) -> str | None:
    named = (attributes or {}).get(MCP_SESSION_ID)
    if isinstance(named, str) and named.startswith("ses_"):
        return named
    session = current_session()
    return None if session is None else session.ref


class SessionLogFilter(logging.Filter):
    """Gives each record `session`: the ref of the session whose request is handled, or `"-"`.

    Put it on a *handler*, so that it sees the records of every logger; a formatter can then write
    `%(session)s`. A record that has a `session` already keeps it, so that `extra={"session": ref}` names
    one outside of a request.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Name the session on the record, and let it pass."""
        if not hasattr(record, "session"):
            session = current_session()
            record.session = "-" if session is None else session.ref
        return True

"""The session in what an application sets up itself: a span processor, a sampler and a log filter.

Each finds the session as `current_session()` does, and not through baggage, which misses spans whose parent comes out
of a message, and in the stateful mode of older frameworks names another request's session.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context, get_current
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from .._session.session import current_correlation, session_in_use
from . import _attributes as names
from ._context import attributes_on, process_aliases, request_info, session_in, session_names
from ._core import START_TRACE, Hook, attributes_of, running_hook
from ._frameworks import SERVERS, enrich_server_span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult
else:  # the SDK calls any object with these methods, and is imported only where a sampler is made
    SpanProcessor = Sampler = object

_log: Final = logging.getLogger("mcp_sessions")


class SessionSpanProcessor(SpanProcessor):
    """Sets `session.id` and `mcp.session.id`, both the session's `ref`, on spans as they start.

        provider = TracerProvider()
        provider.add_span_processor(SessionSpanProcessor())

    A `session.id` that the span, its parent or baggage already has, as from a chat application, is not replaced: tools
    assign a trace to the first session in it. The `ref` is then in `mcp.session.id` only.

    Args:
        aliases: Further attributes to set to the same value, such as `gen_ai.conversation.id`.
    """

    def __init__(self, *, aliases: Iterable[str] = ()) -> None:
        self._aliases: Final = dict.fromkeys(aliases)

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        """Name the session on a span; outside of a session's request the span stays as it is."""
        try:
            scope = getattr(getattr(span, "instrumentation_scope", None), "name", None)
            process_aliases.update(self._aliases)
            if not span.is_recording():
                return
            if scope == names.SCOPE:  # the middleware itself names the session on these
                if self._aliases and (ref := attributes_on(span).get(names.SESSION_ID)) is not None:
                    span.set_attributes(dict.fromkeys(self._aliases, ref))
                return
            context = get_current() if parent_context is None else parent_context
            correlation = current_correlation()
            attributes: dict[str, Any] = {} if correlation is None else attributes_of(correlation)
            attributes.update(session_names(session_in(context), context, span))
            if attributes:
                span.set_attributes(attributes)
            if span.kind is SpanKind.SERVER and scope in SERVERS:
                enrich_server_span(span, request_info.get())
        except Exception as error:  # noqa: BLE001  # whatever goes wrong here, the application's code goes on
            _log.warning("cannot add the session to a span: %s", type(error).__name__)

    def on_end(self, span: Any) -> None:
        """Do nothing."""

    _on_ending = on_end  # some versions of the SDK call it

    def shutdown(self) -> None:
        """Do nothing."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  # the SDK's signature
        return True


def sampling_ratio_of(ref: str) -> float:
    """Return a session's place between 0 and 1, evenly spread and the same on every worker."""
    return int.from_bytes(hashlib.sha256(ref.encode()).digest()[:7], "big") / (1 << 56)


class SessionSampler(Sampler):
    """Samples whole sessions: records all spans of a share of them.

        provider = TracerProvider(sampler=SessionSampler(0.1))

    Args:
        ratio: The share of sessions to record, from 0 to 1.
        fallback: The sampler for spans without a session, or that start before it is known. By default, such a span
            follows its parent, and is recorded if it has none.

    Raises:
        ImportError: The OpenTelemetry SDK is not installed.
        ValueError: The ratio is not from 0 to 1.
    """

    def __init__(self, ratio: float, *, fallback: Sampler | None = None) -> None:
        from opentelemetry.sdk.trace import sampling

        if not 0 <= ratio <= 1:
            raise ValueError(f"ratio={ratio!r} must be from 0 to 1")
        self._ratio: Final = ratio
        self._fallback: Final[Any] = fallback or sampling.DEFAULT_ON
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
        ref = (attributes or {}).get(names.MCP_SESSION_ID)
        if not (isinstance(ref, str) and ref.startswith("ses_")):
            ref = session_in(get_current() if parent_context is None else parent_context)
        if ref is None:
            decided: SamplingResult = self._fallback.should_sample(
                parent_context, trace_id, name, kind, attributes, links, trace_state
            )
            return decided
        above = get_current_span(parent_context).get_span_context().trace_state
        return self._result(self._decisions[sampling_ratio_of(ref) < self._ratio], attributes, above)

    def get_description(self) -> str:
        return f"SessionSampler{{{self._ratio},{self._fallback.get_description()}}}"


class SessionLogFilter(logging.Filter):
    """Sets `session`, `trace_id` and `span_id` on each log record, `"-"` if it is unknown.

    Add it to a *handler*, so that it sees the records of all loggers; formatters can then use `%(session)s` and so on.
    A record that already has one of them keeps it, so `extra={"session": ref}` names one outside of a request.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Name the session and the span on the record, and let it pass."""
        of, span = running_hook.get() or session_in_use(), get_current_span().get_span_context()
        start = getattr(record, START_TRACE, None) or (of.trace if isinstance(of, Hook) else None)
        found = {
            "session": getattr(record, names.SESSION_ID, None if of is None else of.ref),
            "trace_id": f"{span.trace_id:032x}" if span.is_valid else None if start is None else start[3:35],
            "span_id": f"{span.span_id:016x}" if span.is_valid else None,
        }
        for name, value in found.items():
            if not hasattr(record, name):
                setattr(record, name, value or "-")
        return True

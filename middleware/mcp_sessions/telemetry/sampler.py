"""`SessionSampler`: all of a session's requests are recorded, or none of them, on every worker.

Whether a session is kept hangs on its `ref` alone, so that workers need not agree on anything. This is
the one room that needs the OpenTelemetry SDK, and it imports it only when a sampler is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from ..current import current_session
from .attributes import MCP_SESSION_ID
from .session_spans import session_of

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

"""`SessionSpanProcessor`: the session on every span that starts while one of its requests is handled.

The application adds it to its own `TracerProvider`. It finds the session as `current_session()` does and
not through baggage, which misses the spans whose parent comes out of a message, and in the stateful mode
of older frameworks names the session of another request. The OpenTelemetry SDK is never imported: it
calls any object that has these methods. Nothing here starts or ends a span.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import baggage
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, get_current_span

from ..current import current_correlation, current_session
from ..session import Session
from ..tracing import attributes_of
from .attributes import MCP_SESSION_ID, SESSION_ID, Stamps
from .session_spans import SCOPE, session_of, start_of

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
            if not span.is_recording():
                return
            correlation = current_correlation()
            if correlation is not None:
                span.set_attributes(attributes_of(correlation))
            session = current_session()
            ref = _ref_of_ours(span, parent_context) if session is None else session.ref
            if ref is not None:
                span.set_attributes(self._stamps.of(ref, claimed=is_claimed(span, ref, parent_context)))
                _keep(span)
                _link(span, session)
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


def is_claimed(span: Any, ref: str, context: Context | None) -> bool:
    """Whether `session.id` on this span is not ours to set.

    Args:
        span: A span that has just started.
        ref: Our session.
        context: The context that its parent came from; None is the current one.
    """
    named = _attributes(span).get(SESSION_ID) or baggage.get_baggage(SESSION_ID, context)
    if named:
        return bool(named != ref)
    parent = _attributes(get_current_span(context))
    above, ours_above = parent.get(SESSION_ID), parent.get(MCP_SESSION_ID)
    if above is None:  # a parent that was left without it: the baggage that said so may have ended there
        return bool(ours_above == ref)
    return bool(above not in (ref, ours_above))


def _attributes(span: Any) -> Mapping[str, Any]:
    """What a span says, where it can be read: those of other processes and those not recorded say nothing."""
    return getattr(span, "attributes", None) or {}


def _keep(span: Any) -> None:
    """Keep the stamp on FastMCP's spans: after their start it writes an id of its own over `mcp.session.id`.

    Where it has no transport session, that id is a random one per span.
    """
    if _scope(span) == _FASTMCP:
        span.__class__ = _stamped(span.__class__)


def _ref_of_ours(span: Any, context: Context | None) -> str | None:
    """The session of a span that the middleware makes itself, before or after the session's request is handled."""
    return session_of(context) if _scope(span) == SCOPE else None


def _scope(span: Any) -> str | None:
    """Who makes a span, by its instrumentation scope."""
    name: str | None = getattr(getattr(span, "instrumentation_scope", None), "name", None)
    return name


def _link(span: Any, session: Session | None) -> None:
    """Link a server's own span of a request to the session's start, wherever that was; ours link themselves."""
    start = None if session is None else start_of(session.traceparent)
    if start is not None and span.kind is SpanKind.SERVER:
        span.add_link(start)


@functools.cache
def _stamped(base: type) -> type:
    def set_attributes(self: Any, attributes: Mapping[str, Any]) -> None:
        base.set_attributes(  # type: ignore[attr-defined]  # a span class of the SDK
            self, {name: value for name, value in attributes.items() if name != MCP_SESSION_ID}
        )

    return type(base.__name__, (base,), {"set_attributes": set_attributes})

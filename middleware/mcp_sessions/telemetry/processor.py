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

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from ..current import current_both
from ..session import Session
from ..tracing import attributes_of
from .attributes import CLIENT, MCP_SESSION_ID, Stamps
from .claimed import is_claimed
from .session_spans import SCOPE, start_of

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

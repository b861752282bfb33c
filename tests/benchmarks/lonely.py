"""A span and nothing else: what OpenTelemetry's SDK takes for a span that says what ours says of a call in a session.

It has the same name, kind and attributes, put together beforehand, and is never the current one. What it takes is
therefore what no arrangement of our own code could save.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Tracer, get_tracer
from starlette.types import ASGIApp, Receive, Scope, Send

from .traffic import MODERN

ALONE: Final = "a span alone"
_REF: Final = "ses_abcdefghijklmnopqrstuvwx"
_SAID: Final = {
    "mcp.method.name": "tools/call",
    "network.transport": "tcp",
    "network.protocol.name": "http",
    "mcp.protocol.version": MODERN,
    "gen_ai.tool.name": "echo",
    "gen_ai.operation.name": "execute_tool",
    "session.id": _REF,
    "mcp.session.id": _REF,
    "jsonrpc.request.id": "7",
}


class SpanAlone:
    """A middleware that makes one span for each request, and does nothing else.

    Args:
        app: The wrapped application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app: Final = app

    @cached_property
    def _tracer(self) -> Tracer:
        return get_tracer("mcp_sessions")  # the session processor leaves it alone, as it does ours

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        span = self._tracer.start_span("tools/call echo", Context(), SpanKind.SERVER)
        span.set_attributes(_SAID)
        await self._app(scope, receive, send)
        span.end()

"""The session in the baggage of the services that a tool calls, by a middleware of one's own.

It stands inside the sessions' middleware, where the session is on the scope. OpenTelemetry's propagators write the
baggage into the headers of outgoing requests, as the instrumentation of httpx does, for example.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples baggage:app
"""

from __future__ import annotations

from mcp.server import MCPServer
from opentelemetry import baggage, context
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_sessions import MCPSessionMiddleware

mcp = MCPServer("shop")


@mcp.tool()
def carried() -> str:
    """Return what the headers of an outgoing request would say of the session."""
    return str(baggage.get_baggage("session.id"))


class SessionBaggage:
    """Names the session in the baggage of everything that a request causes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = scope.get("mcp_session")
        if session is None:
            await self.app(scope, receive, send)
            return
        token = context.attach(baggage.set_baggage("session.id", session.ref))
        try:
            await self.app(scope, receive, send)
        finally:
            context.detach(token)


app = MCPSessionMiddleware(SessionBaggage(mcp.streamable_http_app(stateless_http=True)), keys="env:MCP_SESSIONS_KEYS")

"""A Starlette application with a mounted MCP server, whose access log names the session.

`add_middleware` puts sessions in front of everything that comes after it, so middleware of your own finds the session
on `request.state`, as it finds the user. Here it goes into a header of the response, where a proxy in front can log
it: `ref` is the session's public name and opens nothing.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples starlette_app:app
"""

from __future__ import annotations

from mcp.server import MCPServer
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_sessions import MCPSessionMiddleware, require_session
from mcp_sessions.integrations import lifespan_of

mcp = MCPServer("greeter")


@mcp.tool()
async def greet(name: str) -> str:
    """Greet a person, and recognize them later in the same session."""
    session = require_session()
    known = session.state.get("known", [])
    if name in known:
        return f"Hello again, {name}."
    session.state["known"] = [*known, name]
    return f"Hello, {name}."


class SessionInHeader:
    """Names the session of a request in the response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = scope.get("state", {}).get("mcp_session")  # request.state.mcp_session

        async def say(message: Message) -> None:
            if message["type"] == "http.response.start" and session is not None:
                MutableHeaders(scope=message)["x-session-ref"] = session.ref
            await send(message)

        await self.app(scope, receive, say)


async def health(_request: Request) -> PlainTextResponse:
    """An endpoint next to the MCP server."""
    return PlainTextResponse("well")


mcp_app = mcp.streamable_http_app(stateless_http=True)
app = Starlette(
    routes=[Route("/health", health), Mount("/tools", mcp_app)],  # the MCP endpoint is /tools/mcp
    lifespan=lifespan_of(mcp_app),
)
app.add_middleware(SessionInHeader)  # added last, so it is outermost
app.add_middleware(MCPSessionMiddleware, path="/tools/mcp", keys="env:MCP_SESSIONS_KEYS")

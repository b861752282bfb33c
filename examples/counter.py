"""A server whose `count` tool counts the calls of each session.

The number is in `session.state`. A client that speaks the draft (`mcp_sessions.client`) carries it, sealed, so any
worker with the same keys can answer, also after a restart. For all other clients it is in the store, here `memory:`:
in this process, and lost with it. State is last-write-wins: of two calls at the same moment, one is not counted. A
count that must not miss a call belongs into `session.data`.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples counter:app
"""

from __future__ import annotations

from mcp.server import MCPServer

from mcp_sessions import MCPSessionMiddleware, require_session

mcp = MCPServer("counter")


@mcp.tool()
async def count() -> int:
    """Count the calls in this session."""
    session = require_session()
    number: int = session.state.get("count", 0) + 1
    session.state["count"] = number
    return number


app = MCPSessionMiddleware(mcp.streamable_http_app(stateless_http=True), keys="env:MCP_SESSIONS_KEYS")

"""A server whose `count` tool counts the calls of each session.

The number travels with the client, sealed in the session's state: nothing is stored here, so any worker with the same
keys can answer the next call, also after a restart. Such a state is last-write-wins: two calls of one session at the
same moment carry the same state, and both answer with the same number. A count that must not miss a call belongs on
the server. Source: the example of issue 984, Clarifications on the intent/use-case for sessions.

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

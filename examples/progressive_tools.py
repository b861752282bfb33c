"""A tool that a session must unlock first.

In the modern era, a list of tools is the same for all clients, so that it can be cached, and the call decides: an early
one fails with a message that says what to call first. Clients of the legacy era expect lists to change, so theirs is
filtered by their session. Either way the call is the guard, never the list.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples progressive_tools:app
"""

from __future__ import annotations

from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import Tool

from mcp_sessions import MCPSessionMiddleware, Session, current_session, require_session

CurrentSession = Annotated[Session, Resolve(require_session)]
LOCKED = {"restart"}
WORD = "please"


class ProgressiveServer(MCPServer):
    """Lists the tools that the session may call, or all tools without a session."""

    async def list_tools(self) -> list[Tool]:
        tools = await super().list_tools()
        session = current_session()  # None in the modern era, where lists do not vary (`Wire(lists="stable")`)
        if session is None or session.state.get("unlocked"):
            return tools
        return [tool for tool in tools if tool.name not in LOCKED]


mcp = ProgressiveServer("machine")


@mcp.tool()
async def unlock(word: str, session: CurrentSession, context: Context) -> str:
    """Unlock `restart` for this session, with the magic word."""
    if word != WORD:
        raise ToolError("that is not the word")
    session.state["unlocked"] = True
    await context.session.send_tool_list_changed()
    return "restart is unlocked"


@mcp.tool()
async def restart(session: CurrentSession) -> str:
    """Restart the machine. Call `unlock` first."""
    if not session.state.get("unlocked"):
        raise ToolError("restart is locked in this session; call unlock first")
    return "restarted"


app = MCPSessionMiddleware(
    mcp.streamable_http_app(stateless_http=True),
    keys="env:MCP_SESSIONS_KEYS",
    require={"tools/call": ["unlock", "restart"]},
)

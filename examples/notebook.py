"""A server that keeps one notebook per session.

The notes travel with the client, sealed: it holds them and can neither read nor change them. That suits a handful of
short notes; a note for which there is no more room is refused, with the limit in the message. Both tools need a
session, so a call without one is refused before it gets here. Which sessions were deleted is known to this process
alone (the store `memory:`): when it is restarted, a deleted session could be used again until it expires.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples notebook:app
"""

from __future__ import annotations

from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Resolve
from mcp.server.mcpserver.exceptions import ToolError

from mcp_sessions import MCPSessionMiddleware, Session, require_session
from mcp_sessions.errors import StateTooLarge

CurrentSession = Annotated[Session, Resolve(require_session)]
mcp = MCPServer("notebook")


@mcp.tool()
async def append(note: str, session: CurrentSession) -> list[str]:
    """Add a note, and return all notes."""
    try:
        session.state["notes"] = [*session.state.get("notes", []), note]
    except StateTooLarge as error:
        raise ToolError(f"the notebook is full: {error}") from error
    return await read(session)


@mcp.tool()
async def read(session: CurrentSession) -> list[str]:
    """Return the notes of this session, oldest first."""
    notes: list[str] = session.state.get("notes", [])
    return notes


app = MCPSessionMiddleware(
    mcp.streamable_http_app(stateless_http=True),
    keys="env:MCP_SESSIONS_KEYS",
    require={"tools/call": ["append", "read"]},
)

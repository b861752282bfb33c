"""An agent's context id, passed through a tool to the next agent and linked to the session of this server.

A host that serves an A2A context sends its id with each tool call, and `Telemetry(correlate=...)` finds it. It is a
label that
anybody may send, so it goes into messages and traces, and no access and no data hang on it: the data is in the session.
Here the messages are returned instead of sent, so that the file needs no second agent.
Source: A2A, `Message.contextId`.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples a2a_context:app
"""

from __future__ import annotations

from typing import Annotated, Any
from uuid import uuid4

from mcp.server import MCPServer
from mcp.server.mcpserver import Resolve

from mcp_sessions import MCPSessionMiddleware, Session, Telemetry, require_session

CurrentSession = Annotated[Session, Resolve(require_session)]
mcp = MCPServer("delegate")


@mcp.tool()
async def delegate(task: str, session: CurrentSession) -> dict[str, Any]:
    """Pass a task to the next agent, and return the message that it gets."""
    number = await session.data.increment("delegated")
    foreign = session.correlation
    message: dict[str, Any] = {
        "kind": "message",
        "role": "user",
        "messageId": str(uuid4()),
        "parts": [{"kind": "text", "text": task}],
        "metadata": {"session": session.ref, "number": number},
    }
    return message if foreign is None else {**message, "contextId": foreign.id}


app = MCPSessionMiddleware(
    mcp.streamable_http_app(stateless_http=True),
    keys="env:MCP_SESSIONS_KEYS",
    require={"tools/call": ["delegate"]},
    telemetry=Telemetry(correlate=["meta:a2a/contextId", "header:x-a2a-context-id"]),
)

"""A server for production: options from the environment, liveness and readiness endpoints.

export MCP_SESSIONS_KEYS=file:keys MCP_SESSIONS_STORE=sqlite:sessions.db
uvicorn --app-dir examples/deployment server:app --workers 4
"""

from __future__ import annotations

import os
from typing import Final

from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from mcp_sessions import MCPSessionsError, Sessions, add_sessions, from_env, require_session

HOST: Final = os.environ.get("MCP_SERVER_HOST", "mcp.example.com")  # the public name, which clients send as `Host`

mcp = MCPServer("notes")
sessions = Sessions(store=os.environ["MCP_SESSIONS_STORE"], timeout=1)


@mcp.tool()
async def note(text: str) -> list[str]:
    """Keep a note, and return all notes of the conversation."""
    state = require_session().state
    state["notes"] = [*state.get("notes", []), text]
    notes: list[str] = state["notes"]
    return notes


async def health(_request: Request) -> PlainTextResponse:
    """Liveness: this process answers. If not, restart it."""
    return PlainTextResponse("ok")


async def ready(_request: Request) -> PlainTextResponse:
    """Readiness: the store answers. If not, requests in sessions are refused; a restart would not help."""
    try:
        await sessions.check()
    except MCPSessionsError as error:
        return PlainTextResponse(str(error), status_code=503)
    return PlainTextResponse("ok")


app = mcp.streamable_http_app(
    stateless_http=True,
    json_response=True,  # a restart cuts streams of events, and waits for answers in JSON
    transport_security=TransportSecuritySettings(
        allowed_hosts=[HOST, f"{HOST}:*"], allowed_origins=[f"https://{HOST}"]
    ),
)
app.add_route("/health", health)
app.add_route("/ready", ready)
add_sessions(app, **from_env())

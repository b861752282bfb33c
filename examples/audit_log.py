"""An audit log: one line of JSON per call, per start and end of a session, and per refusal.

`who` is what authentication found, never what a client says of itself. `session` is its public name, which groups the
lines of one conversation and opens nothing, so the log may be kept where the server's secrets may not. Arguments
are not written down: they hold what people say. Tokens stand in the file only because this is an example.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples --no-access-log audit_log:app
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import AnyHttpUrl

from mcp_sessions import Session, Telemetry, add_sessions, require_session
from mcp_sessions.events import RequestRefused, SessionDeleted, SessionEvent

USERS = {"token-of-ann": "ann", "token-of-bob": "bob"}


def write(what: str, *, session: str | None, who: str | None = None, **more: str) -> None:
    """Write one line of the log."""
    line = {"time": datetime.now(timezone.utc).isoformat(), "who": who, "session": session, "what": what, **more}
    print(json.dumps(line), flush=True)


def write_of(session: Session, what: str, **more: str) -> None:
    """Log an action of a session's user."""
    write(what, session=session.ref, who=getattr(session.principal, "subject", None), **more)


class Tokens:
    """Users by access token."""

    async def verify_token(self, token: str) -> AccessToken | None:
        user = USERS.get(token)
        return None if user is None else AccessToken(token=token, client_id="desk", subject=user, scopes=[])


class AuditedServer(MCPServer):
    """Logs each tool call, whether it succeeds or fails."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        session, outcome = require_session(), "failed"
        try:
            result = await super().call_tool(name, arguments, context)
            outcome = "done"
            return result
        finally:
            write_of(session, "call", tool=name, outcome=outcome)


auth = AuthSettings(issuer_url=AnyHttpUrl("https://auth.example"), resource_server_url=None)
mcp = AuditedServer("bank", auth=auth, token_verifier=Tokens())


@mcp.tool()
async def pay(amount: int) -> str:
    """Pay an amount."""
    if amount > 100:
        raise ToolError("that is more than 100")
    return f"paid {amount}"


def begun(session: Session, _params: dict[str, Any], _scope: Any) -> None:
    """Log the start of a session."""
    write_of(session, "begin")


def heard(fact: SessionEvent) -> None:
    """Log what no tool sees: ends of sessions, and refused requests."""
    if isinstance(fact, SessionDeleted):
        write("end", session=fact.ref, reason=fact.reason)
    elif isinstance(fact, RequestRefused):
        write("refuse", session=fact.ref, reason=fact.reason)


app = add_sessions(
    mcp.streamable_http_app(stateless_http=True),
    keys="env:MCP_SESSIONS_KEYS",
    require={"tools/call": ["pay"]},
    on_create=begun,
    telemetry=Telemetry(listen=heard),
)

"""Five searches per minute and user, across all sessions of the user.

A budget that hung on the session would be a fresh one with each `sessions/create`. So it hangs on `session.principal`,
who the request is authenticated as: sessions are never authentication. `create_limit` bounds how many sessions a
user makes. The budgets are this process's own; with more workers, keep them where all of them count together. Tokens
stand in the file only because this is an example.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples rate_limit:app
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Resolve
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import AnyHttpUrl

from mcp_sessions import Limits, Principal, Session, add_sessions, require_session

CurrentSession = Annotated[Session, Resolve(require_session)]
USERS = {"token-of-ann": "ann", "token-of-bob": "bob"}
CALLS, SECONDS = 5, 60
clock = time.monotonic
spent: dict[Principal | None, deque[float]] = {}


class Tokens:
    """Users by access token."""

    async def verify_token(self, token: str) -> AccessToken | None:
        user = USERS.get(token)
        return None if user is None else AccessToken(token=token, client_id="desk", subject=user, scopes=[])


def spend(principal: Principal | None) -> int:
    """Take one call from a user's budget, and return how many are left.

    Raises:
        ToolError: There is none left; it says when there will be.
    """
    now, calls = clock(), spent.setdefault(principal, deque())
    while calls and calls[0] <= now - SECONDS:
        calls.popleft()
    if len(calls) == CALLS:
        wait = math.ceil(calls[0] + SECONDS - now)
        raise ToolError(f"{CALLS} searches a minute are all used; wait {wait} s. A new session brings no new ones")
    calls.append(now)
    return CALLS - len(calls)


auth = AuthSettings(issuer_url=AnyHttpUrl("https://auth.example"), resource_server_url=None)
mcp = MCPServer("search", auth=auth, token_verifier=Tokens())


@mcp.tool()
async def search(words: str, session: CurrentSession) -> str:
    """Search for something."""
    left = spend(session.principal)
    done = session.state["searches"] = session.state.get("searches", 0) + 1
    return f"search {done} of this session for {words}; {left} more this minute"


app = add_sessions(
    mcp.streamable_http_app(stateless_http=True), keys="env:MCP_SESSIONS_KEYS", limits=Limits(creates_per_minute=10)
)

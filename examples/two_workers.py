"""A poll on one machine with several worker processes, any of which may get a call.

No request has to come back to the worker that had the one before: keys are shared through the environment, and what a
session holds is in a file that all of them open. Each vote is counted in one step, so votes at the same moment on
different workers are all counted, and a session that one worker ended is refused by the others at once.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples --workers 2 two_workers:app
"""

from __future__ import annotations

import os
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Resolve

from mcp_sessions import MCPSessionMiddleware, Session, require_session

CurrentSession = Annotated[Session, Resolve(require_session)]
mcp = MCPServer("poll")


@mcp.tool()
async def vote(option: str, session: CurrentSession) -> int:
    """Vote for an option, and return its votes in this session."""
    await session.data.update("options", lambda options: sorted({*options, option}), default=[])
    return await session.data.increment(f"votes for {option}")


@mcp.tool()
async def result(session: CurrentSession) -> dict[str, int]:
    """Return the votes of this session."""
    options: list[str] = await session.data.get("options", [])
    return {option: await session.data.get(f"votes for {option}", 0) for option in options}


app = MCPSessionMiddleware(
    mcp.streamable_http_app(stateless_http=True),
    keys="env:MCP_SESSIONS_KEYS",
    store=f"sqlite:{os.environ.get('POLL_DB', 'poll.db')}",
    require={"tools/call": ["vote", "result"]},
)

"""A server whose `count` is exact on any number of workers and machines.

The number is kept in the store that all workers share, under the session, and changed there in one step: calls of one
session at the same moment answer with different numbers, whichever workers they reach. `workers` tells which processes
served the session so far: a value that is no number, changed by a function of it, and just as safe.

    export MCP_SESSIONS_STORE=redis://localhost MCP_SESSIONS_KEYS=...
    uvicorn --app-dir examples --workers 4 cluster_counter:app
"""

from __future__ import annotations

import os
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Resolve

from mcp_sessions import Limits, MCPSessionMiddleware, Session, require_session

CurrentSession = Annotated[Session, Resolve(require_session)]
mcp = MCPServer("counter of a cluster", log_level="WARNING")


@mcp.tool()
async def count(session: CurrentSession) -> int:
    """Count the calls in this session."""
    await session.data.update("workers", lambda pids: sorted({*pids, os.getpid()}), default=[])
    return await session.data.increment("count")


@mcp.tool()
async def workers(session: CurrentSession) -> list[int]:
    """List the processes that counted in this session."""
    pids: list[int] = await session.data.get("workers", [])
    return pids


app = MCPSessionMiddleware(
    mcp.streamable_http_app(stateless_http=True),
    keys=os.environ["MCP_SESSIONS_KEYS"],
    store=os.environ["MCP_SESSIONS_STORE"],
    limits=Limits(store_timeout=5),  # seconds; generous, since the whole cluster may share two cores
    require={"tools/call": ["count", "workers"]},
)

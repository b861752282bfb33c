"""A transaction over several calls: begin, write, read, commit.

What is written waits in the session's data, and `commit` puts it into the database in one transaction. So no connection
is held open between calls and any worker can take the next one; and where the session ends, or expires, before the
commit, its data is gone and nothing was changed: that is the rollback, and nobody has to remember it.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples transaction:app
"""

from __future__ import annotations

import os
import sqlite3
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Resolve
from mcp.server.mcpserver.exceptions import ToolError

from mcp_sessions import MCPSessionMiddleware, Session, require_session

CurrentSession = Annotated[Session, Resolve(require_session)]
Writes = dict[str, str]
DONE = "committed"  # in place of the writes if no transaction is open
NO_TRANSACTION = "no transaction is open; call begin first"
mcp = MCPServer("settings")
database = sqlite3.connect(os.environ.get("SETTINGS_DB", ":memory:"), isolation_level=None)
database.execute("CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)")


@mcp.tool()
async def begin(session: CurrentSession) -> str:
    """Open a transaction, and drop uncommitted writes."""
    await session.data.set("writes", {})
    return "open"


@mcp.tool()
async def write(name: str, value: str, session: CurrentSession) -> Writes:
    """Prepare a change, and list all prepared changes."""

    def add(writes: Writes | str) -> Writes | str:
        return writes if isinstance(writes, str) else {**writes, name: value}

    writes: Writes | str = await session.data.update("writes", add, default=DONE)
    if isinstance(writes, str):
        raise ToolError(NO_TRANSACTION)
    return writes


@mcp.tool()
async def read(name: str, session: CurrentSession) -> str | None:
    """Read a setting as this session sees it."""
    writes: Writes | str = await session.data.get("writes", DONE)
    rows: list[tuple[str]] = database.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchall()
    stored = rows[0][0] if rows else None
    return stored if isinstance(writes, str) else writes.get(name, stored)


@mcp.tool()
async def commit(session: CurrentSession) -> int:
    """Make all prepared changes, or none, and return their number."""
    taken: list[Any] = []

    def take(writes: Writes | str) -> str:
        taken[:] = [writes]  # `update` may repeat this: of two commits, one gets the writes
        return DONE

    await session.data.update("writes", take, default=DONE)
    if taken == [DONE]:
        raise ToolError(NO_TRANSACTION)
    with database:
        database.execute("BEGIN")
        database.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", taken[0].items())
    return len(taken[0])


app = MCPSessionMiddleware(
    mcp.streamable_http_app(stateless_http=True),
    keys="env:MCP_SESSIONS_KEYS",
    require={"tools/call": ["begin", "write", "read", "commit"]},
)

"""A folder for each session, created on first use and deleted when the session ends.

It stands for whatever costs something while nobody uses it: a browser, a container, a database connection. `on_end`
frees it when the client deletes the session and, since sessions are tracked, also when one expires or nobody has used
it for an hour: a client that goes away leaves nothing behind. The folder is called by the session's `ref`, which is no
secret. Workers on one machine share the folders; let them share a store, too: `store="sqlite:sessions.db"`.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples sandbox:app
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Resolve
from mcp.server.mcpserver.exceptions import ToolError

from mcp_sessions import MCPSessionMiddleware, Session, require_session
from mcp_sessions.events import EndedSession

CurrentSession = Annotated[Session, Resolve(require_session)]
SANDBOXES = Path(os.environ.get("SANDBOXES", "sandboxes"))
mcp = MCPServer("sandbox")


def place(session: Session, name: str) -> Path:
    """Return the path of a file; only plain names are allowed."""
    if re.fullmatch(r"\w[\w.-]{0,99}", name, re.ASCII) is None:
        raise ToolError(f"{name!r} is not a plain file name")
    return SANDBOXES / session.ref / name


@mcp.tool()
def write(name: str, text: str, session: CurrentSession) -> list[str]:
    """Write a file, and list all files."""
    file = place(session, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    return sorted(each.name for each in file.parent.iterdir())


@mcp.tool()
def read(name: str, session: CurrentSession) -> str:
    """Read a file of this session."""
    file = place(session, name)
    if not file.exists():
        raise ToolError(f"there is no {name} in this session")
    return file.read_text("utf-8")


def remove(session: EndedSession, _reason: str) -> None:
    """Delete the session's folder, if it has one."""
    shutil.rmtree(SANDBOXES / session.ref, ignore_errors=True)


app = MCPSessionMiddleware(
    mcp.streamable_http_app(stateless_http=True),
    keys="env:MCP_SESSIONS_KEYS",
    require={"tools/call": ["write", "read"]},
    tracked=True,
    idle_timeout=3600,  # seconds
    on_end=remove,
)

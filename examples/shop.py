"""A shop with a cart and a browser per session; it needs no code for forks.

Both are data that the server keeps for a session (`session.data`), so helpers whose sessions share it fill one cart at
the same time and lose nothing. Whether a session has a cart of its own or somebody else's is the client's choice, made
when it forks. The data lies in this process (the store `memory:`) and is gone with it.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples shop:app
"""

from __future__ import annotations

from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Resolve

from mcp_sessions import MCPSessionMiddleware, Session, require_session

CurrentSession = Annotated[Session, Resolve(require_session)]
mcp = MCPServer("shop")


@mcp.tool()
async def put(item: str, session: CurrentSession) -> list[str]:
    """Add an item to the cart, and return the cart."""
    cart: list[str] = await session.data.update("cart", lambda cart: sorted([*cart, item]), default=[])
    return cart


@mcp.tool()
async def visit(page: str, session: CurrentSession) -> list[str]:
    """Open a page in the browser, and return its history."""
    been: list[str] = await session.data.update("browser", lambda been: [*been, page], default=[])
    return been


app = MCPSessionMiddleware(
    mcp.streamable_http_app(stateless_http=True),
    keys="env:MCP_SESSIONS_KEYS",
    require={"tools/call": ["put", "visit"]},
)

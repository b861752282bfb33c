"""A FastAPI application with an MCP server: people read the catalogue, models fill one basket per session.

The application keeps its own lifespan, routes and OpenAPI document. The MCP server is mounted in it and lives with it,
and the session comes with the request, so that no tool asks a model for a basket's number. The basket is kept on the
server and changed there in one step: of calls at the same moment none is lost.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples fastapi_app:app
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Request
from mcp.server import MCPServer
from mcp.server.mcpserver import Resolve
from mcp.server.mcpserver.exceptions import ToolError

from mcp_sessions import Session, add_sessions, require_session
from mcp_sessions.integrations import lifespan_of

CurrentSession = Annotated[Session, Resolve(require_session)]
PRICES = {"pen": 3, "book": 12}
mcp = MCPServer("baskets")


@mcp.tool()
async def add(item: str, session: CurrentSession) -> list[str]:
    """Add an item to the basket, and return the basket."""
    if item not in PRICES:
        raise ToolError(f"there is no {item}; there are: {', '.join(PRICES)}")
    items: list[str] = await session.data.update("items", lambda items: [*items, item], default=[])
    return items


@mcp.tool()
async def total(session: CurrentSession) -> int:
    """Return the price of the basket."""
    return sum(PRICES[item] for item in await session.data.get("items", []))


@asynccontextmanager
async def catalogue(_app: FastAPI) -> AsyncIterator[dict[str, dict[str, int]]]:
    """Open the application's own resources, such as a database."""
    yield {"prices": PRICES}


mcp_app = mcp.streamable_http_app(stateless_http=True)
app = FastAPI(lifespan=lifespan_of(catalogue, mcp_app))


@app.get("/catalogue")
async def read_catalogue(request: Request) -> dict[str, int]:
    """Return all items with their prices."""
    prices: dict[str, int] = request.state.prices
    return prices


app.mount("/api", mcp_app)  # the MCP endpoint is /api/mcp
add_sessions(app, keys="env:MCP_SESSIONS_KEYS")

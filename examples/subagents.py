"""An orchestrator and its sub-agents: they share a cart and have a browser each.

One session for the whole conversation cannot serve sub-agents that work side by side: they would share everything. So
a sub-agent uses two sessions, its orchestrator's for the cart and a new one for the browser, and the tool decides which
one a call is made in. To try something out, it gets a fork: a session that begins with a copy.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples --factory subagents:server     # in another terminal
    python examples/subagents.py
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

import anyio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer

from mcp_sessions import MCPSessionMiddleware, require_session
from mcp_sessions.client import ClientSession, ClientSessions, with_sessions

mcp = MCPServer("shop")


@mcp.tool()
async def put(item: str) -> list[str]:
    """Add an item to the cart of this session, and return the cart."""
    data = require_session().data  # parallel calls lose nothing
    cart: list[str] = await data.update("cart", lambda cart: sorted([*cart, item]), default=[])
    return cart


@mcp.tool()
async def visit(page: str) -> list[str]:
    """Open a page in the browser of this session, and return its history."""
    pages: list[str] = await require_session().data.update("browser", lambda pages: [*pages, page], default=[])
    return pages


def server() -> MCPSessionMiddleware:
    """Return the application of a server that knows nothing of agents."""
    return MCPSessionMiddleware(
        mcp.streamable_http_app(stateless_http=True),
        keys="env:MCP_SESSIONS_KEYS",
        require={"tools/call": ["put", "visit"]},
    )


@dataclass(frozen=True)
class Agent:
    """An agent that buys: the session of its cart, and that of its browser."""

    name: str
    client: Client
    sessions: ClientSessions
    cart: ClientSession
    browser: ClientSession

    async def buy(self, item: str) -> None:
        """Look an item up, and put it into the cart."""
        for session, tool, arguments in (
            (self.browser, "visit", {"page": f"/{item}"}),
            (self.cart, "put", {"item": item}),
        ):
            with self.sessions.use(session):
                result = await self.client.call_tool(tool, arguments)
            print(f"{self.name}: {tool} -> {(result.structured_content or {})['result']}")


async def main(url: str = "http://127.0.0.1:8000/mcp") -> None:
    """Run the orchestrator."""
    sessions = with_sessions(streamable_http_client(url))
    async with Client(sessions) as client:
        own = sessions.new()
        orchestrator = Agent("orchestrator", client, sessions, cart=own, browser=own)
        await orchestrator.buy("bread")
        async with anyio.create_task_group() as tasks:
            for item in ("milk", "tea"):
                helper = Agent(f"{item} agent", client, sessions, cart=own, browser=sessions.new())
                tasks.start_soon(helper.buy, item)
        copy = await sessions.fork(own)
        await Agent("trial", client, sessions, cart=copy, browser=copy).buy("caviar")
        await orchestrator.buy("salt")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

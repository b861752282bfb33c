"""Two conversations over one connection, at the same time, each in its own session.

A host with many conversations needs one connection to a server, not one for each. `use` selects the session of every
call in its block and in the tasks that the block starts: the code that calls the tools knows nothing of sessions.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples notebook:app     # in another terminal
    python examples/client_two_conversations.py
"""

from __future__ import annotations

import asyncio
import sys

import anyio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from mcp_sessions.client import with_sessions


async def write_down(client: Client, name: str, notes: tuple[str, ...]) -> None:
    """Run an agent that writes notes."""
    for note in notes:
        result = await client.call_tool("append", {"note": note})
        print(f"{name}: {(result.structured_content or {})['result']}")


async def main(url: str = "http://127.0.0.1:8000/mcp") -> None:
    """Run both conversations, and continue one of them by its name."""
    sessions = with_sessions(streamable_http_client(url))
    async with Client(sessions) as client:
        async with anyio.create_task_group() as tasks:
            for name, notes in (("shopping", ("milk", "eggs")), ("packing", ("socks", "a hat"))):
                with sessions.use(sessions.open(name)):
                    tasks.start_soon(write_down, client, name, notes)
        with sessions.use(sessions.open("shopping")):
            await write_down(client, "shopping", ("butter",))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""Two conversations over one connection, at the same time, each in its own session, as a timeline.

A host that runs many conversations needs one connection to a server, not one for each. `use` chooses the session for
every call that is made within its block, and in the tasks that the block starts: the code that calls the tools does not
have to know. The server is the example `notebook`, in a process of its own.

    python examples/client_two_conversations.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from mcp_sessions.client import ClientSessions, with_sessions
from server_process import serving
from timeline import Timeline

HERE = Path(__file__).resolve().parent
SHOPPING = ("milk", "eggs", "bread")
PACKING = ("socks", "a hat", "the tickets")


async def write_down(client: Client, letter: str, notes: tuple[str, ...], timeline: Timeline) -> None:
    """Run an agent's conversation; the agent knows nothing about sessions."""
    for note in notes:
        result = await client.call_tool("append", {"note": note})
        came_back = json.dumps((result.structured_content or {})["result"])
        timeline.exchange("notebook", letter, f"append({json.dumps(note)})", came_back)


async def converse(
    client: Client, sessions: ClientSessions, letter: str, notes: tuple[str, ...], timeline: Timeline
) -> None:
    """Run one conversation."""
    with sessions.use(sessions.open(f"conversation {letter}")):
        await write_down(client, letter, notes, timeline)


async def tell(timeline: Timeline) -> None:
    """Run the whole timeline."""
    async with serving("notebook", HERE) as server:
        await server.ready()
        sessions = with_sessions(streamable_http_client(server.url))
        async with Client(sessions) as client:
            timeline.title("One connection, two conversations at the same time")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(converse, client, sessions, "A", SHOPPING, timeline)
                tasks.start_soon(converse, client, sessions, "B", PACKING, timeline)
            timeline.title("And later, in the conversation that is named")
            await converse(client, sessions, "A", ("butter",), timeline)
            timeline.event(
                "program", f"holds {', '.join(sessions.names)}; no storage keeps them, so leaving deletes them"
            )


if __name__ == "__main__":
    anyio.run(tell, Timeline(sys.stdout))

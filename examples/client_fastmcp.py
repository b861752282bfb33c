"""FastMCP's client with a session that the server loses, as a timeline.

The server is the example `notebook`, in a process of its own. Another program that uses the same storage deletes the
session. With `on_not_found="raise"` the next call fails, and the one after it creates a new session; with
`on_not_found="recreate"` the call itself goes into a new session, and the notes of the old one are gone without an
error. Which of the two is right depends on what the server holds.

    python examples/client_fastmcp.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import anyio
from fastmcp import Client
from mcp import MCPError

from mcp_sessions.client import ClientSessions, MemoryStorage, fastmcp_transport, with_sessions
from server_process import serving
from timeline import Timeline

HERE = Path(__file__).resolve().parent


async def append(client: Client[Any], note: str, timeline: Timeline) -> None:
    """Write a note, and print the result."""
    try:
        result = await client.call_tool("append", {"note": note})
        came_back = json.dumps((result.structured_content or {})["result"])
    except MCPError as refusal:
        came_back = f"refused: {refusal.code} {refusal.message}"
    timeline.exchange("notebook", "A", f"append({json.dumps(note)})", came_back)


async def delete_elsewhere(sessions: ClientSessions, timeline: Timeline) -> None:
    """End the session in the storage, as another program would."""
    async with Client(fastmcp_transport(sessions)):
        await sessions.delete(sessions.open(""))
    timeline.event("another", "program deletes the session")


async def lose(url: str, on_not_found: Literal["raise", "recreate"], timeline: Timeline) -> None:
    """Write notes in a session that another program deletes."""
    storage = MemoryStorage()
    sessions = with_sessions(url, storage, on_not_found=on_not_found)
    async with Client(fastmcp_transport(sessions)) as client:
        await append(client, "milk", timeline)
        await append(client, "eggs", timeline)
        await delete_elsewhere(with_sessions(url, storage), timeline)
        await append(client, "bread", timeline)
        await append(client, "butter", timeline)


async def tell(timeline: Timeline) -> None:
    """Run the whole timeline."""
    async with serving("notebook", HERE) as server:
        await server.ready()
        timeline.title('on_not_found="raise": the program learns that the notes are gone')
        await lose(server.url, "raise", timeline)
        timeline.title('on_not_found="recreate": the call goes into a new session')
        await lose(server.url, "recreate", timeline)


if __name__ == "__main__":
    anyio.run(tell, Timeline(sys.stdout))

"""The official SDK's client with a session that outlives the program, as a timeline.

The server is the example `counter`, in a process of its own. The client says nothing of sessions but `with_sessions`:
the first call creates one, its state goes from call to call, and a file keeps it. Another start of the program, after
another start of the server, goes on where the first one stopped. With SDK 1.x it is
`async with sessions as (read, write, _), ClientSession(read, write) as session`; the rest is the same.

    python examples/client_sdk.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from mcp import Client

from mcp_sessions.client import FileStorage, with_sessions
from server_process import ServerProcess, serving
from timeline import Timeline

HERE = Path(__file__).resolve().parent


async def run_program(url: str, file: Path, calls: int, timeline: Timeline) -> None:
    """Run one program from start to exit."""
    sessions = with_sessions(url, FileStorage(file))
    async with Client(sessions) as client:
        resumed = sessions.open("").created
        timeline.event("program", "starts: its file holds a session" if resumed else "starts: its file is empty")
        for _ in range(calls):
            result = await client.call_tool("count")
            timeline.exchange("counter", "A", "count()", str((result.structured_content or {})["result"]))
    timeline.event("program", "ends: the file keeps the session")


async def delete_session(url: str, file: Path, timeline: Timeline) -> None:
    """End the session for good."""
    sessions = with_sessions(url, FileStorage(file))
    async with Client(sessions):
        await sessions.delete(sessions.open(""))
        timeline.exchange("counter", "A", "sessions/delete", "deleted")


async def restart(server: ServerProcess, timeline: Timeline) -> None:
    """Replace the server's process, with the same keys."""
    await server.end()
    await server.launch()
    await server.ready()
    timeline.event("counter", "restarted")


async def tell(timeline: Timeline, file: Path) -> None:
    """Run the whole timeline."""
    async with serving("counter", HERE) as server:
        await server.ready()
        timeline.title("The first start: a session begins with the first call")
        await run_program(server.url, file, 3, timeline)
        timeline.title("The next start, of the server and of the program: the session goes on")
        await restart(server, timeline)
        await run_program(server.url, file, 2, timeline)
        timeline.title("Deleted: the next start begins anew")
        await delete_session(server.url, file, timeline)
        await run_program(server.url, file, 1, timeline)


def main() -> None:
    """Run it with a temporary file."""
    with TemporaryDirectory() as folder:
        anyio.run(tell, Timeline(sys.stdout), Path(folder) / "sessions.db")


if __name__ == "__main__":
    main()

"""The official SDK's client with a session that outlives the program.

The first call creates the session, and a file keeps it: each start of the program continues the count. Delete the file,
or end the session with `await sessions.delete(sessions.open(""))`, and the next start begins anew.

    MCP_SESSIONS_KEYS=... uvicorn --app-dir examples counter:app     # in another terminal
    python examples/client_sdk.py /tmp/sessions.db
"""

from __future__ import annotations

import asyncio
import sys

from mcp import Client

from mcp_sessions.client import FileStorage, with_sessions


async def main(file: str, url: str = "http://127.0.0.1:8000/mcp") -> None:
    """Count three times in the session of a file."""
    sessions = with_sessions(url, FileStorage(file))
    async with Client(sessions) as client:
        print("continues a session" if sessions.open("").created else "begins a session")
        for _ in range(3):
            result = await client.call_tool("count")
            print("count() ->", (result.structured_content or {})["result"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""`make demo`: a server on two workers, and a client that holds two conversations with it.

Each answer names the process that gave it. The server is restarted in between: other processes continue the sessions,
since they have the same keys and the same store. The program ends with an error if a cart is not as it should be.

    python examples/demo.py
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer

from mcp_sessions import MCPSessionMiddleware, require_session
from mcp_sessions.client import ClientSessions, with_sessions

mcp = MCPServer("shop", log_level="WARNING")


@mcp.tool()
def add(item: str) -> dict[str, Any]:
    """Add an item to this session's cart; return the cart, and the process that answers."""
    state = require_session().state
    state["cart"] = [*state.get("cart", []), item]
    return {"cart": state["cart"], "process": os.getpid()}


def server() -> MCPSessionMiddleware:
    """Return the application, with its keys and its store from the environment."""
    return MCPSessionMiddleware.from_env(mcp.streamable_http_app(stateless_http=True))


def start(port: int, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the server with two workers, and wait until its port is open."""
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(Path(__file__).parent), "--factory", "demo:server"]
    command += ["--workers", "2", "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            break
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server, which finishes what it is doing first."""
    process.terminate()
    process.wait()


class Conversations:
    """Two carts in two sessions over one connection."""

    def __init__(self, client: Client, sessions: ClientSessions) -> None:
        self._client = client
        self._sessions = sessions
        self._carts: dict[str, list[str]] = {"A": [], "B": []}
        self.is_right = True

    async def add(self, name: str, item: str) -> None:
        """Add an item in a conversation, print the answer, and compare it with what was added there."""
        with self._sessions.use(self._sessions.open(name)):
            result = await self._client.call_tool("add", {"item": item})
        answer = result.structured_content or {}
        self._carts[name].append(item)
        print(f'  {name}  add("{item}") -> {answer["cart"]}, process {answer["process"]}')
        if answer["cart"] != self._carts[name]:
            print(f"     expected {self._carts[name]}")
            self.is_right = False

    async def delete(self, name: str) -> None:
        """End a session; the next call of its conversation begins another one."""
        await self._sessions.delete(self._sessions.open(name))
        self._carts[name].clear()


async def play(port: int, settings: Mapping[str, str]) -> bool:
    """Run the whole demo, and return whether each cart was right."""
    process = start(port, settings)
    try:
        sessions = with_sessions(streamable_http_client(f"http://127.0.0.1:{port}/mcp"))
        async with Client(sessions) as client:
            conversations = Conversations(client, sessions)
            print("Two conversations, each with its own cart")
            for name, item in (("A", "milk"), ("B", "socks"), ("A", "eggs"), ("B", "a hat")):
                await conversations.add(name, item)
            print("The server is restarted: other processes, the same sessions")
            stop(process)
            process = start(port, settings)
            await conversations.add("A", "bread")
            await conversations.add("B", "tickets")
            print("One session is deleted with its cart, and the other one lives")
            await conversations.delete("A")
            await conversations.add("A", "tea")
            await conversations.add("B", "a map")
        return conversations.is_right
    finally:
        stop(process)


def main() -> None:
    """Run the demo with new keys, a free port and a temporary store."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with TemporaryDirectory() as folder:
        settings = {
            "MCP_SESSIONS_KEYS": secrets.token_urlsafe(32),
            "MCP_SESSIONS_STORE": f"sqlite:{folder}/sessions.db",
        }
        is_right = anyio.run(play, port, settings)
    sys.exit(None if is_right else "a cart was not as it should be")


if __name__ == "__main__":
    main()

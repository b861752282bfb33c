"""An orchestrator and its helpers share a cart and have a browser each, as a timeline.

A session that is the whole conversation's cannot serve helpers that work side by side: either they share everything, or
they share nothing. So the orchestrator forks its session, once for each thing that a helper has: a fork that shares for
the cart, a fresh one for the browser. Which of a helper's sessions a call goes in is decided by the tool. The server is
the example `shop`, in a process of its own; nothing of this is known to it.

    python examples/subagents.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from mcp_sessions.client import ClientSession, ClientSessions, SessionNotFound, with_sessions
from server_process import serving
from timeline import Timeline

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Agent:
    """An agent that calls tools.

    Args:
        letter: What the timeline calls it.
        client: The connection, which all agents share.
        sessions: What chooses the session of a call.
        tools: The session that each tool is called in.
        timeline: Where its calls are told.
    """

    letter: str
    client: Client
    sessions: ClientSessions
    tools: Mapping[str, ClientSession]
    timeline: Timeline

    async def call(self, tool: str, argument: str) -> None:
        """Call a tool with its argument, and print the result."""
        name = {"put": "item", "visit": "page"}[tool]
        came_back = await _outcome(self._call(tool, {name: argument}))
        self.timeline.exchange("shop", self.letter, f"{tool}({json.dumps(argument)})", came_back)

    async def _call(self, tool: str, arguments: dict[str, str]) -> str:
        with self.sessions.use(self.tools[tool]):
            result = await self.client.call_tool(tool, arguments)
        return json.dumps((result.structured_content or {})["result"])

    def helper(self, letter: str) -> Agent:
        """Return a helper with this agent's cart and its own browser."""
        tools = {"put": self.tools["put"], "visit": self.sessions.new()}
        return Agent(letter, self.client, self.sessions, tools, self.timeline)

    async def trial(self, letter: str) -> Agent:
        """Return a helper with a copy of all that this agent has."""
        copy = await self.sessions.fork(self.tools["put"])
        return Agent(letter, self.client, self.sessions, {"put": copy, "visit": copy}, self.timeline)


async def _outcome(call: Any) -> str:
    try:
        return str(await call)
    except SessionNotFound as error:
        return f"refused: {error}"


async def fetch(helper: Agent, item: str) -> None:
    """Run a helper: browse, and buy."""
    await helper.call("visit", "/search")
    await helper.call("visit", f"/{item}")
    await helper.call("put", item)


async def plan(client: Client, sessions: ClientSessions, timeline: Timeline) -> None:
    """Run the orchestrator."""
    root = sessions.new()
    orchestrator = Agent("O", client, sessions, {"put": root, "visit": root}, timeline)
    timeline.title("The orchestrator begins")
    await orchestrator.call("visit", "/basket")
    await orchestrator.call("put", "bread")

    timeline.title("Two helpers at the same time: one cart, two browsers")
    first, second = orchestrator.helper("A"), orchestrator.helper("B")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fetch, first, "milk")
        tasks.start_soon(fetch, second, "tea")

    timeline.title("A third tries something out, on a copy")
    await (await orchestrator.trial("C")).call("put", "caviar")
    await orchestrator.call("put", "salt")
    await orchestrator.call("visit", "/checkout")

    timeline.title("The orchestrator is done, and so are its helpers")
    await sessions.delete(root)
    timeline.event("program", "deletes the shared session")
    await first.call("put", "wine")


async def tell(timeline: Timeline) -> None:
    """Run the whole timeline."""
    async with serving("shop", HERE) as server:
        await server.ready()
        sessions = with_sessions(streamable_http_client(server.url))
        async with Client(sessions) as client:
            await plan(client, sessions, timeline)


if __name__ == "__main__":
    anyio.run(tell, Timeline(sys.stdout))

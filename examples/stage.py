"""Where the demo plays: a server with its client and its sessions, each exchange shown and compared.

Sessions go by the letters that the story gives them. Every outcome, refusals among them, becomes a short text, so that
what is shown and what is compared are the same. An error's data is left out: it repeats the session id.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from typing import Any

import anyio
from mcp import Client, MCPError

from session_client import HeldSession, ToolFailed, answer
from timeline import Timeline

CREATED, DELETED, NOBODY = "a new session", "deleted", "-"


class Differs(Exception):
    """An answer is not what the story says."""


class Server:
    """A server with the client that talks to it and the sessions that it gave out."""

    def __init__(self, name: str, client: Client, timeline: Timeline) -> None:
        self._name = name
        self._client = client
        self._timeline = timeline
        self._sessions: dict[str, HeldSession] = {}

    @property
    def advertised(self) -> Any:
        """What the server says of sessions before anybody asks for one."""
        return (self._client.server_capabilities.experimental or {}).get("sessions")

    def check(self, session: str, sent: str, came_back: str, expected: str) -> None:
        """Tell of an exchange, and stop where it is not as expected."""
        self._timeline.exchange(self._name, session, sent, came_back)
        if came_back != expected:
            raise Differs(f"{self._name}, session {session}, {sent}: expected {expected}, and got {came_back}")

    async def create(self, session: str) -> None:
        """Create a session, under a name that only this demo knows."""
        self.check(session, "sessions/create", await outcome(self._create(session)), CREATED)

    async def _create(self, session: str) -> str:
        self._sessions[session] = await HeldSession.create(self._client)
        return CREATED

    async def delete(self, session: str) -> None:
        """Delete a session."""
        self.check(session, "sessions/delete", await outcome(self._delete(session)), DELETED)

    async def _delete(self, session: str) -> str:
        await self._sessions[session].delete()
        return DELETED

    async def call(self, session: str, tool: str, *, expected: str, **arguments: str) -> None:
        """Call a tool in a session."""
        came_back = await outcome(self._sessions[session].call(tool, **arguments))
        self.check(session, shown(tool, arguments), came_back, expected)

    async def call_without(self, tool: str, *, expected: str) -> None:
        """Call a tool in no session."""
        self.check(NOBODY, shown(tool, {}), await outcome(self._call_without(tool)), expected)

    async def _call_without(self, tool: str) -> Any:
        return answer(await self._client.call_tool(tool))

    async def repeat(self, session: str, tool: str, times: int) -> list[Any]:
        """Call a tool several times in one session, each call after the one before."""
        return [await self._sessions[session].call(tool) for _ in range(times)]


def shown(tool: str, arguments: dict[str, str]) -> str:
    """A call, as the timeline shows it."""
    return f"{tool}({', '.join(map(json.dumps, arguments.values()))})"


async def outcome(action: Awaitable[Any]) -> str:
    """What an action came to, as text that can be shown and compared."""
    try:
        result = await action
    except MCPError as refusal:
        return f"refused: {refusal.code} {refusal.message}"
    except ToolFailed as failure:
        return f"failed: {failure}"
    return result if isinstance(result, str) else json.dumps(result)


async def together(actions: Sequence[Awaitable[Any]]) -> list[str]:
    """What several actions came to that ran at the same time."""
    outcomes = [""] * len(actions)

    async def run(place: int) -> None:
        outcomes[place] = await outcome(actions[place])

    async with anyio.create_task_group() as group:
        for place in range(len(actions)):
            group.start_soon(run, place)
    return outcomes

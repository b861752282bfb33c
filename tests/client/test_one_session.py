"""With the frameworks' own clients and servers: one session is created, and `on_create` runs once, whatever fails."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from environments import needs
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from integration.servers import CELLS, Cell, wrapped
from mcp_sessions.client import NoAnswer, Refused

from .peers import Served, peer, served

LEGACY = [cell for cell in CELLS if not cell.modern and not cell.stateful and not cell.json]
MODERN = [cell for cell in CELLS if cell.modern and not cell.stateful and not cell.json]
every_era = pytest.mark.parametrize("cell", LEGACY + MODERN, ids=str)


@dataclass
class Faults:
    """What stands in front of the middleware and fails the first requests of a method.

    Args:
        failing: How many requests of each method fail yet.
        hang_up: Whether the connection is closed in the middle of the answer, instead of answered with an error.
    """

    failing: dict[str, int] = field(default_factory=dict)
    hang_up: bool = False
    created: int = 0

    def make(self, cell: Cell, **options: Any) -> ASGIApp:
        """The small server behind it, which counts what it creates and is open to transport sessions."""
        app = wrapped(cell, on_create=self._created, transport="auto", **options)

        async def front(scope: Scope, receive: Receive, send: Send) -> None:
            first = await receive()
            message = json.loads(first.get("body") or b"{}")
            if self.failing.get(message.get("method"), 0) > 0:
                self.failing[message["method"]] -= 1
                await self._fail(send, message["id"])
                return
            waiting = [first]

            async def again() -> Message:
                return waiting.pop() if waiting else await receive()

            await app(scope, again, send)

        return front

    async def _created(self, *_: Any) -> None:
        self.created += 1

    async def _fail(self, send: Send, id: object) -> None:
        kind = b"text/event-stream" if self.hang_up else b"application/json"
        error = {"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": "not now"}}
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        body = b": \n\n" if self.hang_up else json.dumps(error).encode()
        await send({"type": "http.response.body", "body": body, "more_body": self.hang_up})


async def count_twice(server: Served) -> list[str]:
    async with peer(server.cell, server.sessions()) as client:
        return [await client.tool("count") for _ in range(2)]


@needs("mcp>=2")
@pytest.mark.parametrize("status", [404, 500])
@pytest.mark.parametrize("cell", MODERN, ids=str)
async def test_a_refused_discovery(cell: Cell, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client falls back to the handshake, which declares sessions: no transport session is made beside ours."""
    faults = Faults({"server/discover": 1})

    async def refuse(send: Send, id: object) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body"})

    monkeypatch.setattr(faults, "_fail", refuse)
    async with served(cell, faults.make) as server:
        assert await count_twice(server) == ["1", "2"]
    assert faults.created == 1


@pytest.mark.parametrize("hang_up", [False, True], ids=["error", "lost"])
@every_era
async def test_a_connection_that_is_lost_in_the_first_creation(cell: Cell, hang_up: bool) -> None:
    """The call fails that needed it, nothing is sent again by itself, and the next call begins the session."""
    faults = Faults({"sessions/create": 1}, hang_up=hang_up)
    async with served(cell, faults.make) as server, peer(cell, server.sessions(timeout=2)) as client:
        # SDK 1.x says nothing of a connection that is lost.
        with pytest.raises((Refused, NoAnswer), match=r"sessions/create was (refused|not answered)"):
            await client.tool("count")
        assert faults.created == 0
        assert [await client.tool("count") for _ in range(2)] == ["1", "2"]
    assert faults.created == 1

"""With the frameworks' own clients and servers: one session is created, and `on_create` runs once, whatever fails."""

from __future__ import annotations

import json
from typing import Any

import pytest
from environments import needs
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from integration.servers import CELLS, Cell, wrapped
from mcp_sessions.client import NoAnswer, Refused

from .peers import peer, served

CELLS_OF_ERAS = [cell for cell in CELLS if not cell.stateful and not cell.json]
FAILURES: dict[str, tuple[int, bytes, bytes]] = {
    "error": (200, b"application/json", b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32603,"message":"not now"}}'),
    "lost": (200, b"text/event-stream", b": \n\n"),  # the connection is closed in the middle of the answer
    "404": (404, b"text/plain", b""),
    "500": (500, b"text/plain", b""),
}


class Failing:
    """Stands in front of the small server, fails the first request of a method, and counts the sessions created."""

    def __init__(self, method: str, how: str) -> None:
        self.method = method
        self.status, self.kind, self.body = FAILURES[how]
        self.created = 0

    def make(self, cell: Cell) -> ASGIApp:
        app = wrapped(cell, on_create=self._created, transport="auto")

        async def front(scope: Scope, receive: Receive, send: Send) -> None:
            waiting = [await receive()]
            message = json.loads(waiting[0].get("body") or b"{}")

            async def again() -> Message:
                return waiting.pop() if waiting else await receive()

            if message.get("method") != self.method:
                await app(scope, again, send)
                return
            self.method = ""
            headers = [(b"content-type", self.kind)]
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            body = self.body.replace(b"%b", json.dumps(message["id"]).encode())
            await send({"type": "http.response.body", "body": body, "more_body": body.startswith(b":")})

        return front

    async def _created(self, *_: Any) -> None:
        self.created += 1


@needs("mcp>=2")
@pytest.mark.parametrize("how", ["404", "500"])
@pytest.mark.parametrize("cell", [cell for cell in CELLS_OF_ERAS if cell.modern], ids=str)
async def test_a_refused_discovery(cell: Cell, how: str) -> None:
    """The client falls back to the handshake, which declares sessions: no transport session is made beside ours."""
    failing = Failing("server/discover", how)
    async with served(cell, failing.make) as server, peer(cell, server.sessions()) as client:
        assert [await client.tool("count") for _ in range(2)] == ["1", "2"]
    assert failing.created == 1


@pytest.mark.parametrize("how", ["error", "lost"])
@pytest.mark.parametrize("cell", CELLS_OF_ERAS, ids=str)
async def test_a_connection_that_is_lost_in_the_first_creation(cell: Cell, how: str) -> None:
    """The call fails that needed it, nothing is sent again by itself, and the next call begins the session."""
    failing = Failing("sessions/create", how)
    async with served(cell, failing.make) as server, peer(cell, server.sessions(timeout=2)) as client:
        # SDK 1.x says nothing of a connection that is lost.
        with pytest.raises((Refused, NoAnswer), match=r"sessions/create was (refused|not answered)"):
            await client.tool("count")
        assert failing.created == 0
        assert [await client.tool("count") for _ in range(2)] == ["1", "2"]
    assert failing.created == 1

"""The two sequence diagrams of SEP-1364, message by message, with a raw client of the frameworks' servers."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from mcp_sessions import SEP1364Create, SEP1364Initialize

from .servers import COVERING, Cell, running
from .wire import INITIALIZE, Client, Reply

LEGACY: Final = [cell for cell in COVERING if not cell.modern]
WHOAMI: Final = {"name": "whoami", "arguments": {}}
COUNT: Final = {"name": "count", "arguments": {}}


@dataclass
class Raw:
    """A client that writes every member of a message itself, and mirrors `sessionId` in the header as the SEP asks."""

    wire: Client
    transport: str | None = None  # the server's own transport session, which goes into the header instead
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    async def ask(self, method: str, params: dict[str, Any] | None = None, **fields: Any) -> Reply:
        return await self._post({"id": next(self._ids), "method": method, "params": params or {}, **fields})

    async def tell(self, method: str, **fields: Any) -> Reply:
        return await self._post({"method": method, **fields})

    async def initialize(self, **fields: Any) -> Reply:
        """Complete the handshake and keep the server's own transport session."""
        reply = await self.ask("initialize", INITIALIZE, **fields)
        named = reply.headers.get("mcp-session-id")
        if named is not None and "." not in named:
            self.transport = named
        return reply

    async def _post(self, message: dict[str, Any]) -> Reply:
        header = self.transport or message.get("sessionId")
        headers = {} if header is None else {"mcp-session-id": header}
        return await self.wire.send("POST", json.dumps({"jsonrpc": "2.0", **message}).encode(), headers)


@asynccontextmanager
async def raw(cell: Cell, *dialects: Any, **options: Any) -> AsyncIterator[Raw]:
    async with running(cell, dialects=dialects, transport="auto", **options) as server:
        yield Raw(server.client())


@pytest.mark.parametrize("cell", LEGACY, ids=str)
async def test_the_diagram_of_alternative_1(cell: Cell) -> None:
    async with raw(cell, SEP1364Create(required=True)) as client:
        opened = (await client.initialize()).result
        assert opened["capabilities"]["sessions"] == {"required": True}
        assert (await client.tell("notifications/initialized")).status == 202
        refs = set()
        for spelling in ("sessions", "session"):
            created = await client.ask(f"{spelling}/create", {"capabilities": {"roots": {}}}, sessionId=None)
            session = created.result["sessionId"]
            listed = await client.ask("tools/list", sessionId=session)
            assert listed.answer["sessionId"] == session
            assert "whoami" in {tool["name"] for tool in listed.result["tools"]}
            assert [(await client.ask("tools/call", COUNT, sessionId=session)).text for _ in range(2)] == ["1", "2"]
            refs.add((await client.ask("tools/call", WHOAMI, sessionId=session)).text)
            deleted = await client.ask(f"{spelling}/delete", {"sessionId": session}, sessionId=session)
            assert deleted.result == {}
            gone = await client.ask("tools/call", WHOAMI, sessionId=session)
            assert gone.error["code"] == -32043
        assert len(refs) == 2


@pytest.mark.parametrize("cell", LEGACY, ids=str)
async def test_the_diagram_of_alternative_2(cell: Cell) -> None:
    async with raw(cell, SEP1364Initialize()) as client:
        refs = set()
        for _ in range(2):
            client.transport = None
            opened = await client.initialize(sessionId=None)
            session = opened.answer["sessionId"]
            assert opened.result["protocolVersion"] == INITIALIZE["protocolVersion"]
            listed = await client.ask("tools/list", sessionId=session)  # with no notifications/initialized before it
            assert listed.answer["sessionId"] == session
            assert [(await client.ask("tools/call", COUNT, sessionId=session)).text for _ in range(2)] == ["1", "2"]
            refs.add((await client.ask("tools/call", WHOAMI, sessionId=session)).text)
            assert (await client.ask("terminate", {"sessionId": session}, sessionId=session)).result == {}
            gone = await client.ask("tools/call", WHOAMI, sessionId=session)
            # A stateful server has ended its own session too, and answers by itself.
            assert (gone.status, gone.error["code"]) == ((404, -32600) if cell.stateful else (200, -32043))
        assert len(refs) == 2

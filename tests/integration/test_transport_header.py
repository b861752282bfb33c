"""Unchanged clients get a session by the transport header, or the bridge; else stateful servers keep their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import anyio
import pytest

from mcp_sessions import SessionCreated, SessionDeleted, SessionEvent

from .servers import CELLS, COVERING, DEADLINE, STATEFUL, Cell, Hall, running, wrapped
from .serving import peer, serving

MODERN_STATELESS = [cell for cell in CELLS if not cell.stateful and cell.modern]

stateful = pytest.mark.parametrize("cell", STATEFUL, ids=str)


@pytest.mark.parametrize("cell", [cell for cell in COVERING if not cell.modern], ids=str)
async def test_two_unchanged_clients_have_two_sessions(cell: Cell) -> None:
    """Over real HTTP, with the bridge where the server is stateful; a client that leaves ends its session."""
    facts: list[SessionEvent] = []
    options: dict[str, Any] = {"bridge": True} if cell.stateful else {"transport": "auto"}
    with anyio.fail_after(DEADLINE):
        async with (
            serving(wrapped(cell, Hall(), listen=facts.append, **options)) as url,
            peer(cell, url) as one,
            peer(cell, url) as two,
        ):
            mine, yours = await one.tool("whoami"), await two.tool("whoami")
            assert [await client.tool("count") for client in (one, two, one)] == ["1", "1", "2"]
            held = await one.create()
            assert [await one.tool("count", held), await one.tool("count")] == ["1", "3"]
            await one.delete(held)
    created = {fact.ref for fact in facts if isinstance(fact, SessionCreated)}
    assert len(created) == 3
    assert {mine, yours} < created
    assert {(fact.ref, fact.reason) for fact in facts if isinstance(fact, SessionDeleted)} == {
        (ref, "deleted") for ref in created
    }


@pytest.mark.parametrize("cell", MODERN_STATELESS, ids=str)
async def test_a_client_that_prefers_the_modern_era_falls_back(cell: Cell) -> None:
    """With `era="legacy"` a client that prefers the modern era gets a transport session."""
    legacy = Cell(cell.framework, modern=False, stateful=False, json=cell.json)
    with anyio.fail_after(DEADLINE):
        app = wrapped(legacy, Hall(), transport="auto", era="legacy")
        async with serving(app) as url, _auto(cell, url) as call:
            first = (await call("whoami", {})).content[0].text
            assert first.startswith("ses_")
            assert (await call("whoami", {})).content[0].text == first


@asynccontextmanager
async def _auto(cell: Cell, url: str) -> AsyncIterator[Any]:
    package = "mcp" if cell.framework == "sdk2" else "fastmcp"
    async with import_module(package).Client(url) as client:
        yield client.call_tool


@stateful
async def test_the_servers_transport_session_is_untouched(cell: Cell) -> None:
    async with running(cell) as server:
        client = server.client()
        transport_id = (await client.connect()).headers[b"mcp-session-id"]
        assert b"." not in transport_id
        held = await client.create()
        whoami = {"name": "whoami", "arguments": {}}
        for session in (held, None):
            reply = await client.send("tools/call", whoami, session=session)
            assert reply.headers.get(b"mcp-session-id", transport_id) == transport_id
        assert (await client.http("DELETE")).status == 200
        assert (await client.send("tools/call", whoami)).status == 404


@stateful
async def test_a_logical_session_outlives_the_transport_session(cell: Cell) -> None:
    async with running(cell) as server:
        client = await server.connected()
        held = await client.create()
        await client.call("count", held)
        await client.http("DELETE")
        assert await (await server.connected()).call("count", held) == "2"

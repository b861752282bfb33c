"""The transport header: unchanged clients of stateless servers get a session; stateful servers keep their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import anyio
import pytest

from mcp_sessions._session.events import SessionCreated, SessionDeleted, SessionEvent

from .servers import CELLS, DEADLINE, STATEFUL, Cell, Hall, running, wrapped
from .serving import Peer, peer, serving

STATELESS = [cell for cell in CELLS if not cell.stateful and not cell.modern]
MODERN_STATELESS = [cell for cell in CELLS if not cell.stateful and cell.modern]

stateless = pytest.mark.parametrize("cell", STATELESS, ids=str)
stateful = pytest.mark.parametrize("cell", STATEFUL, ids=str)


@asynccontextmanager
async def connected(cell: Cell, **options: Any) -> AsyncIterator[Peer]:
    """Connect the cell's own client to the small server, over real HTTP."""
    with anyio.fail_after(DEADLINE):
        async with serving(wrapped(cell, Hall(), transport="auto", **options)) as url, peer(cell, url) as client:
            yield client


@stateless
async def test_two_unchanged_clients_have_two_sessions(cell: Cell) -> None:
    with anyio.fail_after(DEADLINE):
        async with (
            serving(wrapped(cell, Hall(), transport="auto")) as url,
            peer(cell, url) as one,
            peer(cell, url) as two,
        ):
            mine = await one.tool("whoami")
            assert mine.startswith("ses_")
            assert mine != await two.tool("whoami")
            assert [await client.tool("count") for client in (one, two, one)] == ["1", "1", "2"]
            assert await one.tool("whoami") == mine


@stateless
async def test_a_client_that_leaves_ends_its_session(cell: Cell) -> None:
    facts: list[SessionEvent] = []
    async with connected(cell, listen=facts.append) as client:
        mine = await client.tool("whoami")
    assert [fact.ref for fact in facts if isinstance(fact, SessionCreated)] == [mine]
    assert [(fact.ref, fact.reason) for fact in facts if isinstance(fact, SessionDeleted)] == [(mine, "deleted")]


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
        transport_id = (await client.connect()).headers["mcp-session-id"]
        assert "." not in transport_id
        held = await client.create()
        whoami = {"name": "whoami", "arguments": {}}
        for session in (held, None):
            reply = await client.request("tools/call", whoami, session)
            assert reply.headers.get("mcp-session-id", transport_id) == transport_id
        assert (await client.send("DELETE")).status == 200
        assert (await client.request("tools/call", whoami)).status == 404


@stateful
async def test_a_logical_session_outlives_the_transport_session(cell: Cell) -> None:
    async with running(cell) as server:
        client = await server.connected()
        held = await client.create()
        await client.call("count", held)
        await client.send("DELETE")
        assert await (await server.connected()).call("count", held) == "2"

"""The transport header: clients that know nothing of sessions get one, in front of servers that keep none."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import anyio
import pytest

from mcp_sessions import Session
from mcp_sessions._session.events import Fact, SessionCreated, SessionDeleted
from mcp_sessions.errors import CreateRefused

from .servers import CELLS, DEADLINE, STATEFUL, Cell, Hall, running, wrapped
from .serving import Peer, peer, serving
from .wire import SESSION_KEY, Client

STATELESS = [cell for cell in CELLS if not cell.stateful and not cell.modern]
MODERN_STATELESS = [cell for cell in CELLS if not cell.stateful and cell.modern]
EXPERIMENTAL: dict[str, Any] = {"capabilities": {"experimental": {"sessions": {}}}}

stateless = pytest.mark.parametrize("cell", STATELESS, ids=str)


@pytest.fixture
def anyio_backend() -> str:
    """Uvicorn runs on asyncio alone."""
    return "asyncio"


@asynccontextmanager
async def connected(cell: Cell, **options: Any) -> AsyncIterator[Peer]:
    """The cell's own client of the small server, over real HTTP."""
    with anyio.fail_after(DEADLINE):
        async with (
            serving(wrapped(cell, Hall(), transport="auto", **options)) as url,
            peer(cell, url) as client,
        ):
            yield client


@asynccontextmanager
async def raw(cell: Cell, **options: Any) -> AsyncIterator[Client]:
    """A client that shows what is on the wire, before its handshake."""
    async with running(cell, transport="auto", **options) as server:
        yield server.client()


# --- unchanged clients ---------------------------------------------------------------------------


@stateless
async def test_an_unchanged_client_gets_a_session(cell: Cell) -> None:
    """All its calls are of one session, whose state is kept for it."""
    async with connected(cell) as client:
        mine = await client.tool("whoami")
        assert mine.startswith("ses_")
        assert [await client.tool("count") for _ in range(3)] == ["1", "2", "3"]
        assert await client.tool("whoami") == mine


@stateless
async def test_two_unchanged_clients_have_two_sessions(cell: Cell) -> None:
    """They never meet, though their requests have the same ids."""
    with anyio.fail_after(DEADLINE):
        async with (
            serving(wrapped(cell, Hall(), transport="auto")) as url,
            peer(cell, url) as one,
            peer(cell, url) as two,
        ):
            assert await one.tool("whoami") != await two.tool("whoami")
            assert [await client.tool("count") for client in (one, two, one)] == ["1", "1", "2"]


@stateless
async def test_a_client_that_leaves_ends_its_session(cell: Cell) -> None:
    """Clients send DELETE when they close."""
    facts: list[Fact] = []
    async with connected(cell, listen=facts.append) as client:
        mine = await client.tool("whoami")
    assert [fact.ref for fact in facts if isinstance(fact, SessionCreated)] == [mine]
    assert [(fact.ref, fact.reason) for fact in facts if isinstance(fact, SessionDeleted)] == [(mine, "deleted")]


@stateless
async def test_logical_sessions_ride_beside_the_transport_session(cell: Cell) -> None:
    """`_meta` names the session; without it, the connection's own is back."""
    async with connected(cell) as client:
        mine, held = await client.tool("whoami"), await client.create()
        assert await client.tool("whoami", held) != mine
        assert [await client.tool("count", held), await client.tool("count")] == ["1", "1"]
        await client.delete(held)
        assert await client.tool("whoami") == mine


@pytest.mark.parametrize("cell", MODERN_STATELESS, ids=str)
async def test_a_client_that_prefers_the_modern_era_falls_back_where_it_must(cell: Cell) -> None:
    """`era="legacy"` gives it a transport session, too."""
    legacy = Cell(cell.framework, modern=False, stateful=False, json=cell.json)
    with anyio.fail_after(DEADLINE):
        app = wrapped(legacy, Hall(), transport="auto", era="legacy")
        async with serving(app) as url, _auto(cell, url) as call:
            first = (await call("whoami", {})).content[0].text
            assert first.startswith("ses_")
            assert (await call("whoami", {})).content[0].text == first


@asynccontextmanager
async def _auto(cell: Cell, url: str) -> AsyncIterator[Any]:
    """A client that chooses its era by itself, as it does unless told."""
    package = "mcp" if cell.framework == "sdk2" else "fastmcp"
    async with import_module(package).Client(url) as client:
        yield client.call_tool


# --- on the wire ---------------------------------------------------------------------------------


@stateless
async def test_the_session_is_named_in_the_head_of_initialize_alone(cell: Cell) -> None:
    """And never in the body of an answer, since the client named none in `_meta`."""
    async with raw(cell) as client:
        named = (await client.connect()).headers["mcp-session-id"]
        assert named.count(".") == 2
        reply = await client.request("tools/call", {"name": "whoami", "arguments": {}})
        assert "mcp-session-id" not in reply.headers
        assert SESSION_KEY not in str(reply.result)


@stateless
async def test_a_session_that_has_ended_is_told_by_404(cell: Cell) -> None:
    """DELETE ends it on every worker; a second one finds nothing."""
    async with raw(cell) as client:
        await client.connect()
        assert (await client.send("DELETE")).status == 200
        gone = await client.request("tools/call", {"name": "whoami", "arguments": {}})
        assert (gone.status, gone.error["code"]) == (404, -32043)
        assert (await client.send("DELETE")).status == 404


@stateless
async def test_no_stream_is_opened_for_listening(cell: Cell) -> None:
    """A stateless server would keep it for as long as the client lives, and never write to it."""
    async with raw(cell) as client:
        await client.connect()
        assert (await client.send("GET")).status == 405


@stateless
async def test_initialize_begins_anew_whatever_it_carries(cell: Cell) -> None:
    """A dead id, a live one, a forged one: none is looked at."""
    async with raw(cell) as client:
        first = (await client.connect()).headers["mcp-session-id"]
        await client.send("DELETE")
        second = (await client.connect()).headers["mcp-session-id"]
        third = (await client.connect()).headers["mcp-session-id"]
        assert len({first, second, third}) == 3
        assert (await client.call("whoami")).startswith("ses_")


@stateless
async def test_a_failed_initialize_names_none(cell: Cell) -> None:
    """Though it is an HTTP 200 when it comes as an event stream."""
    async with raw(cell) as client:
        reply = await client.request("initialize", {"protocolVersion": 7})
        assert "mcp-session-id" not in reply.headers
        assert reply.error["code"] == -32602


@stateless
async def test_a_client_that_speaks_the_draft_gets_no_second_session(cell: Cell) -> None:
    """It says so when it shakes hands, and creates what it needs."""
    async with raw(cell) as client:
        handshake = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "x", "version": "1"}, **EXPERIMENTAL}
        assert "mcp-session-id" not in (await client.request("initialize", handshake)).headers


@stateless
async def test_an_application_that_refuses_a_session_leaves_the_client_without(
    cell: Cell, caplog: pytest.LogCaptureFixture
) -> None:
    """The client works on, as it did before there were sessions."""

    def refuse(_session: Session, _params: dict[str, Any], _scope: Any) -> None:
        raise CreateRefused("not today")

    with caplog.at_level(logging.INFO, "mcp_sessions"):
        async with connected(cell, on_create=refuse) as client:
            assert await client.tool("whoami") == "nobody"
    assert "create_refused" in caplog.text


@pytest.mark.parametrize("cell", STATEFUL, ids=str)
async def test_a_server_that_names_its_own_keeps_it(cell: Cell) -> None:
    """The header is left alone, and no session of ours is made."""
    facts: list[Fact] = []
    async with raw(cell, listen=facts.append) as client:
        assert "." not in (await client.connect()).headers["mcp-session-id"]
        assert await client.call("whoami") == "nobody"
    assert facts == []


@stateless
@pytest.mark.parametrize("options", [{"transport": "off"}, {"keys": None}], ids=["off", "keys that die"])
async def test_none_is_named_where_it_could_not_last(cell: Cell, options: dict[str, Any]) -> None:
    """No client begins anew after a 404, so a session must not die where a stateless server would have lived."""
    async with running(cell, **{"transport": "auto", **options}) as server:
        assert "mcp-session-id" not in (await server.client().connect()).headers

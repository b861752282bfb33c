"""The bridge in front of real servers that keep transport sessions, with their own unchanged clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import pytest

from mcp_sessions._session.events import SessionCreated, SessionDeleted, SessionEvent

from .event_store import KEPT, with_events
from .servers import DEADLINE, STATEFUL, Cell, Hall, running, wrapped
from .serving import Peer, peer, serving

stateful = pytest.mark.parametrize("cell", STATEFUL, ids=str)
WHOAMI: Final = {"name": "whoami", "arguments": {}}


@asynccontextmanager
async def connected(cell: Cell, **options: Any) -> AsyncIterator[list[Peer]]:
    """Connect two of the cell's own clients to one small server behind the bridge, over real HTTP."""
    with anyio.fail_after(DEADLINE):
        async with (
            serving(wrapped(cell, Hall(), bridge=True, **options)) as url,
            peer(cell, url) as first,
            peer(cell, url) as second,
        ):
            yield [first, second]


@stateful
async def test_unchanged_clients_of_a_stateful_server_have_sessions(cell: Cell) -> None:
    facts: list[SessionEvent] = []
    async with connected(cell, listen=facts.append) as [one, two]:
        mine, yours = await one.tool("whoami"), await two.tool("whoami")
        assert mine.startswith("ses_")
        assert mine != yours
        assert [await client.tool("count") for client in (one, two, one)] == ["1", "1", "2"]
        held = await one.create()
        assert [await one.tool("count", held), await one.tool("count")] == ["1", "3"]
        await one.delete(held)
    created = {fact.ref for fact in facts if isinstance(fact, SessionCreated)}
    assert {mine, yours} < created
    assert {fact.ref for fact in facts if isinstance(fact, SessionDeleted)} == created


@stateful
async def test_every_response_names_our_id_and_never_the_servers(cell: Cell) -> None:
    async with running(cell, bridge=True) as server:
        client = server.client()
        opened = await client.connect()
        ours = opened.headers["mcp-session-id"]
        assert ours.count(".") == 2
        replies = [
            opened,
            await client.notify("notifications/initialized"),
            await client.request("tools/call", WHOAMI),
            await client.request("no/such/method"),
        ]
        assert [reply.status for reply in replies][:3] == [200, 202, 200]
        assert {reply.headers.get("mcp-session-id", ours) for reply in replies} == {ours}
        assert (await client.send("DELETE")).status == 200
        for reply in (await client.request("tools/call", WHOAMI), await client.send("DELETE")):
            assert reply.status == 404
            assert "mcp-session-id" not in reply.headers


@stateful
async def test_a_transport_session_of_another_worker_is_answered_404(cell: Cell) -> None:
    """The id verifies on every worker, but the sealed transport session is the other's: routing must be sticky."""
    async with running(cell, bridge=True) as one, running(cell, bridge=True) as other:
        astray = await one.connected()
        astray.app = other.app
        reply = await astray.request("tools/call", WHOAMI)
        assert reply.status == 404
        astray.app = one.app
        assert (await astray.call("whoami")).startswith("ses_")


@pytest.mark.parametrize("cell", [cell for cell in STATEFUL if not cell.json], ids=str)
async def test_a_broken_stream_is_resumed_by_its_owner(cell: Cell) -> None:
    async with running(cell, make=with_events, bridge=True) as server:
        client = await server.connected()
        async with client.under_way("tools/call", {"name": "hold", "arguments": {}}) as exchange:
            first = await exchange.next_event("id:")
            await server.hall.filled(1)
        server.hall.open()
        await server.hall.emptied()
        last = next(line[3:].strip() for line in first.splitlines() if line.startswith("id:"))
        async with client.resuming(last) as resumed:
            assert KEPT in await resumed.next_event()
        await client.send("DELETE")
        async with client.resuming(last) as resumed:
            assert (await resumed.reply()).status == 404

"""The bridge in front of real servers that keep transport sessions, with their own clients, unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import pytest

from mcp_sessions._session.events import Fact, SessionCreated, SessionDeleted

from .event_store import KEPT, with_events
from .servers import DEADLINE, STATEFUL, Cell, Guard, Hall, added, running, wrapped
from .serving import Peer, peer, serving
from .wire import Client

stateful = pytest.mark.parametrize("cell", STATEFUL, ids=str)
WHOAMI: Final = {"name": "whoami", "arguments": {}}


@asynccontextmanager
async def connected(cell: Cell, **options: Any) -> AsyncIterator[list[Peer]]:
    """Two of the cell's own clients of one small server behind the bridge, over real HTTP."""
    with anyio.fail_after(DEADLINE):
        async with (
            serving(wrapped(cell, Hall(), bridge=True, **options)) as url,
            peer(cell, url) as first,
            peer(cell, url) as second,
        ):
            yield [first, second]


# --- unchanged clients ---------------------------------------------------------------------------


@stateful
async def test_unchanged_clients_of_a_stateful_server_have_sessions(cell: Cell) -> None:
    """Each its own, from `initialize` to the DELETE that clients send when they close; `_meta` rides over it."""
    facts: list[Fact] = []
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


# --- on the wire ---------------------------------------------------------------------------------


@stateful
async def test_two_clients_never_get_each_others_answers(cell: Cell) -> None:
    """Both are inside the server at once, with the same tool and the same request id, and go on in either order."""
    async with running(cell, bridge=True) as server:
        clients = [await server.connected() for _ in range(2)]
        own = [await client.call("whoami") for client in clients]
        said: dict[str, str] = {}

        async def hold(whose: str, client: Client) -> None:
            said[whose] = await client.call("hold", name=whose)

        async with anyio.create_task_group() as tasks:
            for whose, client in zip(own, clients, strict=True):
                tasks.start_soon(hold, whose, client)
            await server.hall.filled(2)
            server.hall.open()
    assert said == {whose: f"{whose} {whose}" for whose in own}


@stateful
async def test_every_response_has_our_id_and_none_the_servers(cell: Cell) -> None:
    """JSON, event streams, 202 and errors; after the DELETE there is nothing on either side."""
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
async def test_what_another_worker_has_begun_is_a_404_here(cell: Cell) -> None:
    """The id verifies, as on every worker; the transport session is the other's, so sticky routing is still needed."""
    async with running(cell, bridge=True) as one, running(cell, bridge=True) as other:
        astray = await one.connected()
        astray.app = other.app
        reply = await astray.request("tools/call", WHOAMI)
        assert reply.status == 404
        astray.app = one.app
        assert (await astray.call("whoami")).startswith("ses_")


@pytest.mark.parametrize("cell", [cell for cell in STATEFUL if cell.json], ids=str)
async def test_an_id_is_its_owners_alone(cell: Cell) -> None:
    """Bob, who has found Ann's, is told what a stranger is told; without a token he is told nothing."""
    guard = Guard({"token-of-ann": "ann", "token-of-bob": "bob"})
    async with running(cell, guard, added, bridge=True) as server:
        ann = await server.connected(authorization="Bearer token-of-ann")
        assert (await ann.call("whoami")).startswith("ses_")
        ours = ann.headers["mcp-session-id"]
        for token, status in (("Bearer token-of-bob", 404), ("Bearer nobodys", 401)):
            thief = server.client(authorization=token, **{"mcp-session-id": ours})
            assert (await thief.request("tools/call", WHOAMI)).status == status


@pytest.mark.parametrize("cell", [cell for cell in STATEFUL if not cell.json], ids=str)
async def test_a_broken_stream_is_taken_up_by_its_owner(cell: Cell) -> None:
    """The server's events come again over a new GET, with our id in its head."""
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

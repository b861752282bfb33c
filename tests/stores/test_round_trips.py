"""How often each request in a session asks PostgreSQL: on a network, users wait for nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import postgres_servers
import pytest
from apps import Server, sessions
from clients import Client
from round_trips import HOST, proxied

from mcp_sessions import Limits, Session
from mcp_sessions.stores._postgres import PostgresStore

Arguments = dict[str, Any]
WARM_UP = 20  # after which the driver has prepared its statements on each connection


async def get(session: Session | None, arguments: Arguments) -> Any:
    assert session is not None
    return await session.data.get("n")


async def increment(session: Session | None, arguments: Arguments) -> Any:
    assert session is not None
    return await session.data.increment("n")


async def update(session: Session | None, arguments: Arguments) -> Any:
    assert session is not None
    return await session.data.update("m", lambda number: number + 1, default=0)


class Calls:
    """What a client does, each time the same."""

    def __init__(self, client: Client, held: dict[str, str]) -> None:
        self.client = client
        self.held = held

    async def tool(self, name: str) -> None:
        assert (await self.client.tool(name, session=self.held)).session is not None

    async def request(self) -> None:
        await self.tool("whoami")

    async def with_get(self) -> None:
        await self.tool("get")

    async def with_increment(self) -> None:
        await self.tool("increment")

    async def with_update(self) -> None:
        await self.tool("update")

    async def create(self) -> None:
        self.created = await self.client.create()

    async def delete(self) -> None:
        assert "error" not in (await self.client.delete(self.created)).json


BUDGET: dict[Callable[[Calls], Awaitable[None]], tuple[int, int]] = {
    Calls.request: (1, 1),
    Calls.with_get: (2, 2),
    Calls.with_increment: (2, 2),
    Calls.with_update: (3, 3),
    Calls.create: (1, 2),
    Calls.delete: (2, 3),
}
"""The most round trips, untracked and tracked."""


@pytest.mark.parametrize("freshness", [0, 5])
@pytest.mark.parametrize("options", [{}, {"tracked": True}, {"tracked": True, "idle_timeout": 3600}], ids=str)
async def test_a_request_takes_few_round_trips(options: dict[str, Any], freshness: int) -> None:
    """One to look at the session, none where its status is recent, and one or two more for its data."""
    socket = postgres_servers.shared().folder / ".s.PGSQL.5432"
    with proxied(socket) as proxy:
        url = f"postgresql://postgres@{HOST}:{proxy.port}/postgres?sslmode=disable&gssencmode=disable"
        store = PostgresStore(url, schema=f"s{uuid4().hex}", durability="ignore", timeout=20, freshness=freshness)
        server = Server(get=get, increment=increment, update=update)
        client = Client(sessions(server, store=store, limits=Limits(store_timeout=20), **options))
        calls, taken = Calls(client, await client.create()), {}
        for _ in range(WARM_UP):
            for call in BUDGET:
                await call(calls)
        for call in BUDGET:
            proxy.taken()
            await call(calls)
            taken[call] = proxy.taken()
        await store.close()
    most = {call: budget[bool(options)] for call, budget in BUDGET.items()}
    assert {call.__name__: number for call, number in taken.items() if number > most[call]} == {}
    assert taken[Calls.request] == (0 if freshness else 1)

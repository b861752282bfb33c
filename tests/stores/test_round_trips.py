"""How often each request in a session waits for its store: on a network, users notice nothing else of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import postgres_servers
import pytest
import redis_servers
from apps import Server, sessions
from clients import Client, Clock
from round_trips import HOST, Proxy, proxied

from mcp_sessions import Limits, Session
from mcp_sessions.stores._base import Store
from mcp_sessions.stores._postgres import PostgresStore
from mcp_sessions.stores._redis import RedisStore

ROUNDS = {
    "redis": 4,
    "postgresql": 24,
}  # before the last, scripts are known, and statements prepared on each connection
TRIPS = {"create": 1, "request": 0, "get": 1, "increment": 1, "update": 2, "delete": 1}
"""The round trips of each step besides the one for the status, tracked or not."""


@pytest.fixture
def anyio_backend() -> str:
    """Redis' driver knows asyncio alone."""
    return "asyncio"


async def use(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Change or read the session's data."""
    assert session is not None
    how = arguments["how"]
    if how == "update":
        return await session.data.update("m", lambda n: n + 1, default=0)
    return await getattr(session.data, how)("n")


@asynccontextmanager
async def counted(kind: str, clock: Clock, **options: Any) -> AsyncIterator[tuple[Store, Proxy]]:
    """A store of a kind, all of whose round trips are counted."""
    is_redis = kind == "redis"
    postgres = None if is_redis else postgres_servers.shared().folder / ".s.PGSQL.5432"
    with proxied(postgres or (HOST, redis_servers.shared().port)) as proxy:
        store: Store
        if is_redis:
            store = RedisStore(
                f"redis://{HOST}:{proxy.port}",
                prefix=uuid4().hex,
                clock=clock,
                timeout=20,
                durability="ignore",
                **options,
            )
        else:
            url = f"postgresql://postgres@{HOST}:{proxy.port}/postgres?sslmode=disable&gssencmode=disable"
            name = f"s{uuid4().hex}"
            store = PostgresStore(url, schema=name, durability="ignore", timeout=20, clock=clock, **options)
        await store.open()
        yield store, proxy
        await store.close()


@pytest.mark.parametrize("kind", ROUNDS)
@pytest.mark.parametrize(
    ("options", "later", "freshness"),
    [({}, 0, 0), ({"tracked": True}, 60, 5), ({"tracked": True, "idle_timeout": 3600}, 0, 0), ({}, 60, 5)],
    ids=["untracked, at the store's epoch", "tracked, fresh", "tracked with idle timeout", "untracked, fresh"],
)
async def test_a_request_takes_few_round_trips(
    kind: str, options: dict[str, Any], later: float, freshness: float
) -> None:
    """One to look at the session, none where its status is recent, and one or two more for its data."""
    clock = Clock()
    async with counted(kind, clock, freshness=freshness) as (store, proxy):
        limits = Limits(store_timeout=20)
        client = Client(sessions(Server(use=use), store=store, clock=clock, limits=limits, **options))
        clock.now += later
        found = dict.fromkeys(TRIPS, 99)

        def note(step: str) -> None:
            found[step] = min(found[step], proxy.taken())  # background work may ask meanwhile

        for _ in range(ROUNDS[kind]):
            proxy.taken()
            session = await client.create()
            note("create")
            await client.tool(session=session)
            proxy.taken()
            for how in ("request", "get", "increment", "update"):
                answer = await client.tool("whoami" if how == "request" else "use", session=session, how=how)
                assert answer.session is not None
                note(how)
            assert "error" not in (await client.delete(session)).json
            note("delete")
    looks = not freshness
    assert found == {step: trips + (looks and step != "create") for step, trips in TRIPS.items()}

"""How often a request waits for Redis: on a network that is all that a user notices of a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
import redis_servers
from apps import Server, sessions
from clients import Client, Clock
from redis_servers import HOST
from round_trips import Proxy, proxied

from mcp_sessions import Session
from mcp_sessions.stores._redis import RedisStore


@pytest.fixture
def anyio_backend() -> str:
    """The driver knows asyncio alone."""
    return "asyncio"


async def use(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Change or read the session's data."""
    assert session is not None
    how = arguments["how"]
    if how == "update":
        return await session.data.update("n", lambda n: n + 1, default=0)
    return await getattr(session.data, how)("n")


@asynccontextmanager
async def counted(later: float, **options: Any) -> AsyncIterator[tuple[Client, Proxy]]:
    """A client of a server on Redis, whose store is open and knows its scripts."""
    clock = Clock()
    with proxied((HOST, redis_servers.shared().port)) as proxy:
        store = RedisStore(f"redis://{HOST}:{proxy.port}", prefix=uuid4().hex, clock=clock, timeout=10)
        client = Client(sessions(Server(use=use), store=store, clock=clock, store_timeout=10, **options))
        await store.open()
        clock.now += later
        for how in ("get", "increment", "update"):
            session = await client.create()
            await client.tool("use", session=session, how=how)
            await client.delete(session)
        proxy.taken()
        yield client, proxy
        await store.close()


@pytest.mark.parametrize("later", [0, 60])
@pytest.mark.parametrize(
    "options", [{}, {"idle_timeout": 600}, {"tracked": True}, {"tracked": True, "idle_timeout": 600}]
)
async def test_a_request_waits_once_and_once_more_for_each_step_of_its_data(
    options: dict[str, Any], later: float
) -> None:
    """Of the whole middleware; tracked or not, and also for a session that began in the moment of the store's epoch."""
    async with counted(later, **options) as (client, proxy):
        found = {}
        session = await client.create()
        found["create"] = proxy.taken()
        await client.tool(session=session)
        found["request"] = proxy.taken()
        for how in ("get", "increment", "update"):
            await client.tool("use", session=session, how=how)
            found[how] = proxy.taken()
        await client.delete(session)
        found["delete"] = proxy.taken()
        assert found == {"create": 1, "request": 1, "get": 2, "increment": 2, "update": 3, "delete": 2}

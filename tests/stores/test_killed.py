"""A worker or a server that is killed right after a delete: whoever starts in the same second refuses the session."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from pathlib import Path

import postgres_servers
import pytest

from mcp_sessions._session.claims import Claims
from mcp_sessions.stores._base import SessionStatus, Store
from mcp_sessions.stores._postgres import PostgresStore
from mcp_sessions.stores._sqlite import SQLiteStore
from mcp_sessions.testing._contract import at_once, revoke

NOW = int(time.time())
MANY = [
    Claims(
        kind="session",
        issuer="mcp-sessions",
        audience="mcp-sessions",
        jti=f"{n:022}",
        issued_at=NOW,
        expires_at=NOW + 3600,
    )
    for n in range(100)
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def at(second: float = NOW) -> float:
    """One second lasts for the whole test."""
    return second


def delete_and_die(path: Path) -> None:  # pragma: no cover  # in a process that ends at once
    async def delete() -> None:
        store = SQLiteStore(path, clock=at, busy_timeout=60)
        for one in MANY:
            await revoke(store, one)
        os._exit(9)

    asyncio.run(delete())


async def refused(store: Store) -> int:
    """Return how many of the deleted sessions are refused."""
    found = await store.statuses(MANY)
    await store.close()
    return found.count(SessionStatus.ENDED)


async def test_a_worker_of_sqlite(tmp_path: Path) -> None:
    """A hundred of a hundred are refused."""
    worker = multiprocessing.get_context("spawn").Process(target=delete_and_die, args=(tmp_path / "sessions.db",))
    worker.start()
    await asyncio.to_thread(worker.join)
    assert worker.exitcode == 9
    assert await refused(SQLiteStore(tmp_path / "sessions.db", clock=at, busy_timeout=60)) == len(MANY)


async def test_a_server_of_postgresql() -> None:
    """As above; it keeps its defaults, which are durable."""
    with postgres_servers.serving() as server:
        store = PostgresStore(server.url, clock=at, durability="refuse", timeout=60)
        assert all(await at_once([lambda one=one: revoke(store, one) for one in MANY]))  # type: ignore[misc]
        await asyncio.to_thread(server.kill9)
        await asyncio.to_thread(server.start)
        assert await refused(PostgresStore(server.url, clock=at, timeout=60)) == len(MANY)
        await store.close()

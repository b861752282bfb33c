"""The stores that keep the contract: a new store is one line in `STORES`.

`test_contract.py` runs every test on each of them, on every event loop that it knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import postgres_servers
import redis_servers
from clients import Clock
from key_value.aio.stores.memory import MemoryStore as Entries

from mcp_sessions._session.claims import Claims
from mcp_sessions.stores.base import Store
from mcp_sessions.stores.key_value import KeyValueStore
from mcp_sessions.stores.memory import MemoryStore
from mcp_sessions.stores.postgres import PostgresStore
from mcp_sessions.stores.redis import RedisStore
from mcp_sessions.stores.sqlite import SQLiteStore


@dataclass(frozen=True)
class Place:
    """Where the stores of one test lie: two that are made at one place share what they hold, if they can.

    Args:
        folder: An empty folder, for stores that keep files.
        clock: What tells them the time.
        name: What no other place is called, for stores that keep names apart.
    """

    folder: Path
    clock: Clock = field(default_factory=Clock)
    name: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True)
class Kind:
    """A store, and what may be asked of it.

    Args:
        make: Makes a store at a place; whoever asks for it closes it.
        shared: Whether a second one at the same place holds the same, also after the first was closed.
        backends: The event loops that it runs on.
    """

    make: Callable[[Place], Awaitable[Store]]
    shared: bool = True
    backends: tuple[str, ...] = ("asyncio", "trio")


async def memory(place: Place) -> Store:
    """A store in this process."""
    return MemoryStore(clock=place.clock)


async def sqlite(place: Place) -> Store:
    """A store in a file."""
    return SQLiteStore(place.folder / "sessions.db", clock=place.clock)


async def redis(place: Place) -> Store:
    """A store on a real server, whose driver knows asyncio alone."""
    return RedisStore(redis_servers.shared().url, prefix=f"{place.name}:", clock=place.clock, timeout=10)


async def redis_cluster(place: Place) -> Store:
    """A store on a real cluster, which refuses every command that crosses slots."""
    url = redis_servers.shared_cluster().cluster_url
    return RedisStore(url, prefix=f"{place.name}:", clock=place.clock, timeout=10)


async def postgres(place: Place) -> Store:
    """A store in a schema of its own on a real server, whose durability is no part of the contract."""
    url = postgres_servers.shared().url
    return PostgresStore(url, schema=f"s{place.name}", clock=place.clock, durability="ignore", timeout=10)


async def key_value(place: Place) -> Store:
    """Data in a key-value store, which loses nothing within one process; the library knows asyncio alone."""
    return KeyValueStore(Entries(), beside=MemoryStore(clock=place.clock), clock=place.clock)


STORES: dict[str, Kind] = {
    "memory": Kind(memory, shared=False),
    "key_value": Kind(key_value, shared=False, backends=("asyncio",)),
    "sqlite": Kind(sqlite),
    "postgres": Kind(postgres),
    "redis": Kind(redis, backends=("asyncio",)),
    "redis_cluster": Kind(redis_cluster, backends=("asyncio",)),
}


async def revoke(store: Store, claims: Claims, reason: str = "deleted", *, lease: float = 30) -> bool:
    """End a session."""
    return await store.revoke(
        claims.ref, audience=claims.audience, expires_at=claims.expires_at, reason=reason, lease=lease
    )

"""What each store takes: recorded sessions per second from one worker, and the bytes of one session.

Twenty callers create sessions at the same time, each with a value of 100 bytes in its data. Bytes are those of the
store's own count before and after: its file, its memory or its database.
"""

from __future__ import annotations

import sqlite3
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import anyio
from clients import lifespan

from . import apps, ours
from .stores import STORES
from .timing import Report, Size
from .traffic import Visits, message

CALLERS: Final = 20


def capacity(size: Size) -> Report:
    """Measure every store."""
    rows: list[tuple[str, ...]] = []
    for name, place in STORES.items():
        with place() as url:
            rate, taken = anyio.run(_measured, name, url, size.store_requests)
        rows.append((name, f"{rate:,.0f}", f"{taken:,.0f}"))
    return Report("Recorded sessions, from one worker", ("", "creations per second", "bytes each"), rows)


async def _measured(name: str, url: str, sessions: int) -> tuple[float, float]:
    async def on_create(session: Any, *_: object) -> None:
        await session.data.set("note", "x" * 98)

    app = ours.wrap(apps.alive, store=url, tracked=True, on_create=on_create)
    async with lifespan(app):
        create = Visits.of(app, message("sessions/create", {}), method="sessions/create").answer
        await create()
        start = perf_counter()
        await _all(create, sessions)
        rate = sessions / (perf_counter() - start)
        tracemalloc.start()  # which takes time, so these are others
        before = await _size(name, url)
        await _all(create, sessions)
        taken = (await _size(name, url) - before) / sessions
        tracemalloc.stop()
        return rate, taken


async def _all(create: Callable[[], Awaitable[Any]], sessions: int) -> None:
    async with anyio.create_task_group() as callers:
        for _ in range(CALLERS):
            callers.start_soon(_repeat, create, sessions // CALLERS)


async def _repeat(create: Callable[[], Awaitable[Any]], times: int) -> None:
    for _ in range(times):
        await create()


async def _size(name: str, url: str) -> int:
    """Return the bytes that a store holds."""
    if name == "sqlite:":
        return _file_size(url.removeprefix("sqlite:"))
    if name == "redis://":
        from redis.asyncio import Redis

        async with Redis.from_url(url) as redis:
            return int((await redis.info("memory"))["used_memory"])
    if name == "postgresql://":
        from psycopg import AsyncConnection

        async with await AsyncConnection.connect(url) as connection:
            found = await (await connection.execute("SELECT pg_database_size(current_database())")).fetchone()
        return int((found or (0,))[0])
    return tracemalloc.get_traced_memory()[0]


def _file_size(path: str) -> int:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Path(path).stat().st_size

"""The middleware around the trivial application with each store: what a request takes, and what the store does.

Times are wall time, since a store on a network is waited for; SQLite is a file on this machine's disk, Redis and
PostgreSQL are servers of their own on it.
"""

import sqlite3
import tempfile
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from statistics import quantiles
from time import perf_counter
from typing import Any, Final

import anyio
import postgres_servers
import redis_servers
from clients import Answer, lifespan

from . import apps, ours
from .timing import CREATED, ECHOED, MICROSECONDS, Report, Size, prove
from .traffic import Visits, message

CALLERS: Final = 20  # that create sessions at the same time
COLUMNS: Final = ("", "request p50", "p99", "tracked p50", "p99", "create p50", "p99", "delete p50", "p99")


@contextmanager
def _sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:{folder}/sessions.db"


@contextmanager
def _url(server: AbstractContextManager[Any]) -> Iterator[str]:
    with server as started:
        yield started.url


STORES: Final[dict[str, Callable[[], AbstractContextManager[str]]]] = {
    "memory:": lambda: nullcontext("memory:"),
    "sqlite:": _sqlite,
    "redis://": lambda: _url(redis_servers.serving(appendonly="yes")),
    "postgresql://": lambda: _url(postgres_servers.serving()),
}
FRESH: Final = {"redis://": "?freshness=5", "postgresql://": "&freshness=5"}
"""What is also measured with a status that may be so old, in seconds."""


async def stores(size: Size) -> Report:
    """Measure every store."""
    rows: list[tuple[str, ...]] = []
    for name, place in STORES.items():
        with place() as url:
            rows.append(await _row(name, url, size))
            if name in FRESH:
                rows.append(await _row(f"{name}...?freshness=5", url + FRESH[name], size))
    return Report("A request in a session with each store, µs of wall time", COLUMNS, rows)


async def _row(name: str, url: str, size: Size) -> tuple[str, ...]:
    times = await _measured(url, size.store_requests)
    return (name, *(f"{value:,.0f}" for pair in times.values() for value in pair))


async def _measured(url: str, requests: int) -> dict[str, tuple[float, float]]:
    """Return the median and the 99th percentile of each kind of request, in microseconds."""
    found = {}
    for kind in ("request", "tracked"):
        app = ours.wrap(apps.alive, store=url, tracked=kind == "tracked")
        async with lifespan(app):
            visits = Visits.of(app, message(session=await ours.created(app)))
            found[kind] = await _times(requests, visits.answer, ECHOED)
            if kind == "request":
                create = Visits.of(app, message("sessions/create", {}), method="sessions/create")
                found["create"] = await _times(requests, create.answer, CREATED)
                found["delete"] = await _times(requests, await _deleting(app, requests), b'"result"')
    return {kind: found[kind] for kind in ("request", "tracked", "create", "delete")}


async def _deleting(app: Any, requests: int) -> Callable[[], Awaitable[Answer]]:
    """Return what deletes another session each time."""
    bodies = iter([message("sessions/delete", {}, session=await ours.created(app)) for _ in range(requests + 1)])
    visits = Visits.of(app, message("sessions/delete", {}, session=await ours.created(app)), method="sessions/delete")
    visits.bodies = bodies
    return visits.answer


async def _times(requests: int, serve: Callable[[], Awaitable[Answer]], proof: bytes) -> tuple[float, float]:
    prove("the store's row", (await serve()).body, proof)
    times = []
    for _ in range(requests):
        start = perf_counter()
        await serve()
        times.append((perf_counter() - start) * MICROSECONDS)
    hundredths = quantiles(times, n=100, method="inclusive")
    return hundredths[49], hundredths[98]


async def capacity(size: Size) -> Report:
    """Count the sessions with 100 bytes of data that each store records per second, and the bytes that one takes."""
    rows: list[tuple[str, ...]] = []
    for name, place in STORES.items():
        with place() as url:
            rate, taken = await _filled(name, url, size.store_requests)
        rows.append((name, f"{rate:,.0f}", f"{taken:,.0f}"))
    return Report("Recorded sessions, from one worker", ("", "creations per second", "bytes each"), rows)


async def _filled(name: str, url: str, sessions: int) -> tuple[float, float]:
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
    async def some() -> None:
        for _ in range(sessions // CALLERS):
            await create()

    async with anyio.create_task_group() as callers:
        for _ in range(CALLERS):
            callers.start_soon(some)


async def _size(name: str, url: str) -> int:
    """Return the bytes that a store holds, by its own count: its file, its memory or its database."""
    if name == "sqlite:":
        path = url.removeprefix("sqlite:")
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return (await anyio.Path(path).stat()).st_size
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

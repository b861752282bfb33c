"""Requests in a session with each store, and the middleware around the trivial application.

Each row is wall time, since a store on a network is waited for; SQLite is a file on this machine's disk, Redis and
PostgreSQL are servers of their own on it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import quantiles
from time import perf_counter
from typing import Any, Final

import anyio
import postgres_servers
import redis_servers
from clients import lifespan

from . import apps, ours
from .timing import CREATED, ECHOED, MICROSECONDS, Report, Size, prove
from .traffic import Answer, Visits, message

COLUMNS: Final = ("", "request p50", "p99", "tracked p50", "p99", "create p50", "p99", "delete p50", "p99")


@contextmanager
def _memory() -> Iterator[str]:
    yield "memory:"


@contextmanager
def _sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:{folder}/sessions.db"


@contextmanager
def _redis() -> Iterator[str]:
    with redis_servers.serving(appendonly="yes") as server:
        yield server.url


@contextmanager
def _postgres() -> Iterator[str]:
    with postgres_servers.serving() as server:
        yield server.url


STORES: Final[dict[str, Callable[[], AbstractContextManager[str]]]] = {
    "memory:": _memory,
    "sqlite:": _sqlite,
    "redis://": _redis,
    "postgresql://": _postgres,
}
FRESH: Final = {"redis://": "?freshness=5", "postgresql://": "&freshness=5"}
"""What is also measured with a status that may be so old, in seconds."""


def stores(size: Size) -> Report:
    """Measure every store."""
    rows: list[tuple[str, ...]] = []
    for name, place in STORES.items():
        with place() as url:
            rows.append(_row(name, url, size))
            if name in FRESH:
                rows.append(_row(f"{name}...?freshness=5", url + FRESH[name], size))
    return Report("A request in a session with each store, µs of wall time", COLUMNS, rows)


def _row(name: str, url: str, size: Size) -> tuple[str, ...]:
    times = anyio.run(_measured, url, size.store_requests)
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

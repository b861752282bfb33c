"""What one tenant with very many sessions costs itself and the others, through the middleware, on every store.

    python -m tests.tools.benchmarks.tenants --sessions 100000 --store memory: redis://

First it asks for so many sessions with the limit of one principal, straight at the store, and another tenant for one.
Then, without the limit, it has so many, lists them in pages and ends them all, while another tenant calls a tool.

Wanted: a page in 50 ms, `end_all` in 100 ms, a pause of 20 ms of the processor, others' 99th percentile at most twice
the usual one, 10 MB. "CPU" is time of the event loop's thread, which other programs do not make longer: of a call, what
the loop did from its beginning to its answer. One process a store, without the garbage of what it has imported.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp
from typing_extensions import Self

from mcp_sessions._errors import TooManySessions
from mcp_sessions.stores._memory import MemoryStore

from . import apps, ours
from .ours import Record, Store
from .stores import STORES
from .traffic import Visits, message

WHO: Final[ContextVar[str]] = ContextVar("who")
AT_ONCE: Final = 250
PAGES: Final = 30
MOST: Final = 10_000  # sessions of one principal, the default of `Limits`
COLUMNS: Final = (
    "store",
    "creates refused",
    "a second",
    "another's create ms",
    "list ms",
    "slowest page ms",
    "end-all ms",
    "longest pause CPU ms",
    "others' p99 ms",
    "meanwhile",
    "others' p99 CPU ms",
    "meanwhile",
    "memory MB",
)
Took = tuple[float, float]  # seconds, and those of the processor


class Watch:
    """Looks at the event loop and at this process's memory, about every millisecond."""

    def __init__(self) -> None:
        self.pause = 0.0  # seconds of the processor that the loop was away at the most
        self.first = self.most = resident()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _look(self) -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.001)
            self.pause = max(self.pause, time.thread_time() - began)
            self.most = max(self.most, resident())


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def flood(store: Store, creates: int, most: int) -> list[str]:
    """Ask for many sessions; return how many were refused, how many a second, and how long another waits."""
    now, refused = int(time.time()), 0

    async def register(name: str, subject: str) -> None:
        record = Record(f"ses_{name}", subject, now, now + ours.WEEK, now, audience="flood")
        await store.register(record, max_sessions=most)

    async def create(number: int) -> None:
        nonlocal refused
        try:
            await register(f"f{number}", "mallory")
        except TooManySessions:
            refused += 1

    began, waited = time.perf_counter(), []
    for start in range(0, creates, AT_ONCE):
        batch = asyncio.gather(*map(create, range(start, min(start + AT_ONCE, creates))))
        if start % (20 * AT_ONCE) == 0:
            asked = time.perf_counter()
            await register(f"b{start}", "bob")
            waited.append(time.perf_counter() - asked)
        await batch
    took = time.perf_counter() - began
    return [f"{refused:,}", f"{creates / took:,.0f}", f"{1000 * max(waited):,.0f}"]


async def fill(store: Store, subject: str, many: int) -> None:
    """Record sessions of one principal."""
    now = int(time.time())
    for start in range(0, many, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, many))
        records = [Record(f"ses_{n:09}", subject, now, now + ours.WEEK, now) for n in numbers]
        await asyncio.gather(*map(store.register, records))


async def ask(app: ASGIApp, method: str, params: Any = None) -> Any:
    """Return the result of a method about sessions, and how long it took, in seconds."""
    visits, began = Visits.of(app, message(method, params or {}), method=method), time.perf_counter()
    answer = await visits.answer()
    return json.loads(answer.body)["result"], time.perf_counter() - began


async def others(app: ASGIApp, seconds: float) -> list[Took]:
    """Call a tool in another tenant's session for a while; return how long each call took."""
    WHO.set("bob")
    session = await ours.created(app)
    visits, end, took = Visits.of(app, message(session=session)), time.monotonic() + seconds, list[Took]()
    while time.monotonic() < end:
        began, worked = time.perf_counter(), time.thread_time()
        await visits.answer()
        took.append((time.perf_counter() - began, time.thread_time() - worked))
        await asyncio.sleep(0.001)
    return took


async def crowd(app: ASGIApp, store: Store, many: int, seconds: float) -> list[str]:
    """List and end very many sessions; return what that took, here and of others."""
    pages = list[float]()
    WHO.set("alice")
    await ours.created(app)
    (mine,) = await store.list_sessions(audience=ours.AUDIENCE, limit=1)
    assert mine.subject is not None
    await fill(store, mine.subject, many)
    usual = await asyncio.create_task(others(app, seconds))
    async with Watch() as watch:
        busy = asyncio.create_task(others(app, 2 * seconds))
        cursor: dict[str, str] = {}
        for _ in range(PAGES):
            page, took = await ask(app, "sessions/list", cursor)
            pages.append(took)
            cursor = {"cursor": page["nextCursor"]} if "nextCursor" in page else {}
            await asyncio.sleep(0.005)
        began = time.perf_counter()
        until = int(time.time()) + ours.WEEK
        await store.revoke_before(time.time(), audience=ours.AUDIENCE, subject=mine.subject, expires_at=until)
        ended = time.perf_counter() - began
        meanwhile = await busy
    p99 = [
        1000 * sorted(took[kind] for took in found)[len(found) * 99 // 100]
        for kind in (0, 1)
        for found in (usual, meanwhile)
    ]
    return [
        *(f"{1000 * found:,.1f}" for found in (statistics.median(pages), max(pages), ended, watch.pause)),
        *(f"{found:,.2f}" for found in p99),
        f"{(watch.most - watch.first) / 1e6:+,.1f}",
    ]


async def measured(url: str, many: int, seconds: float) -> list[str]:
    """Return a row of the table."""
    most = 2 * many + MOST
    store = MemoryStore(max_sessions=most, max_entries=most) if url == "memory:" else ours.store(url)
    await store.open()
    await asyncio.sleep(1.1)  # a store that is new vouches for nothing that began in its first second
    flooded = await flood(store, many, min(MOST, many // 2))
    app = ours.wrap(apps.trivial, "tracked", store=store, principal=lambda _: WHO.get())
    crowded = await crowd(app, store, many, seconds)
    await store.close()
    return [*flooded, *crowded]


def run(url: str, many: int, seconds: float) -> list[str]:
    """Measure in this process."""
    gc.collect()
    gc.freeze()
    return asyncio.run(measured(url, many, seconds))


def rows(names: Sequence[str], many: int, seconds: float) -> list[list[str]]:
    """Measure stores, each in a process of its own."""
    found = []
    for name in names:
        with STORES[name]() as (url, _), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            found.append([f"`{name}`", *pool.submit(partial(run, url, many, seconds)).result()])
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure stores, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.benchmarks.tenants", description=__doc__)
    parser.add_argument("--store", choices=STORES, nargs="+", default=list(STORES), help="all")
    parser.add_argument("--sessions", type=int, default=100_000, help="of one tenant (100000)")
    parser.add_argument("--seconds", type=float, default=5, help="of others' calls (5)")
    options = parser.parse_args(arguments)
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for name in options.store:
        for row in rows([name], options.sessions, options.seconds):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":  # pragma: no cover  # as its parts run in this process
    main()

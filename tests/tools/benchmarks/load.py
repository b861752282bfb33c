"""What a store takes under load: parallel updates of one value, and many sessions that end in the same second.

    python -m tests.tools.benchmarks.load --store redis:// --workers 1 4

Each worker is a process. The table is what the documentation shows.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final, TypeVar

from mcp_sessions._server.lifecycle import Sweeper, Terminator
from mcp_sessions._server.resumption import Streams
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.data import Data, Namespace
from mcp_sessions.stores import make
from mcp_sessions.stores._base import Record, Store
from mcp_sessions.stores._turns import Turns

from .stores import STORES

T = TypeVar("T")
AT_ONCE: Final = 64  # updates of one session's value that are under way together, in all workers
COLUMNS: Final = (
    "store",
    "workers",
    "updates a second",
    "p99 ms",
    "failed",
    "sessions swept",
    "in s",
    "s of processor",
)


def data(store: Store, owner: str, until: int, turns: Turns | None = None) -> Data:
    """Return a session's data."""
    return Data(store, Namespace(owner, until, 1 << 16), clock=time.time, max_value_bytes=1 << 10, turns=turns)


async def update(url: str, tasks: int, seconds: float) -> tuple[list[float], int]:
    """Update one value in so many tasks; return how long each update took, and how many failed."""
    store = make(url, clock=time.time, timeout=0.25)
    await store.open()
    kept, times, failed = data(store, "ses_hot", int(time.time()) + 3600, Turns()), list[float](), 0
    ends = time.monotonic() + seconds

    async def work() -> None:
        nonlocal failed
        while (began := time.monotonic()) < ends:
            try:
                await kept.update("n", lambda number: number + 1, default=0)
                times.append(time.monotonic() - began)
            except Exception:  # noqa: BLE001  # counted  # pragma: no cover  # none should
                failed += 1

    await asyncio.gather(*(work() for _ in range(tasks)))
    await store.close()
    return times, failed


async def end_together(url: str, number: int) -> None:
    """Record sessions that end in this second."""
    store = make(url, clock=time.time, timeout=5)
    await store.open()
    now = int(time.time())
    for start in range(0, number, 250):
        records = (Record(f"ses_{n}", None, now - 60, now, now - 60) for n in range(start, min(start + 250, number)))
        await asyncio.gather(*map(store.register, records))
    await store.close()


async def sweep(url: str, number: int) -> tuple[list[float], float]:
    """Sweep until nothing more ends here; return when each session's `on_end` ran, and the seconds of processor."""
    store, ran, began = make(url, clock=time.time, timeout=0.25), list[float](), time.process_time()
    await store.open()
    terminator = Terminator(
        store,
        Streams(store),
        on_end=lambda session, reason: ran.append(time.time()),
        emit=lambda fact: None,
        data=lambda owner, until: data(store, owner, until),
        clock=time.time,
    )
    sweeper = Sweeper(store, terminator, audience=AUDIENCE, idle_timeout=None, interval=0.5)
    sweeper.start()
    quiet_since, seen = time.monotonic(), -1
    while len(ran) < number and time.monotonic() < quiet_since + 3:
        if len(ran) != seen:
            quiet_since, seen = time.monotonic(), len(ran)
        await asyncio.sleep(0.02)
    await sweeper.stop()
    took = time.process_time() - began
    await store.close()
    return ran, took


def run(work: Callable[..., Coroutine[Any, Any, T]], *arguments: object) -> T:
    """Do it in this process."""
    return asyncio.run(work(*arguments))


def measured(url: str, workers: int, seconds: float, number: int) -> list[str]:
    """Return one row."""
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = [pool.submit(run, update, url, AT_ONCE // workers, seconds) for _ in range(workers)]
        found = [part.result() for part in parts]
        times = sorted(each for of_worker, _ in found for each in of_worker)
        asyncio.run(end_together(url, number))
        began = time.time()
        ran = [part.result() for part in [pool.submit(run, sweep, url, number) for _ in range(workers)]]
    moments = [moment for of_worker, _ in ran for moment in of_worker]
    return [
        f"{len(times) / seconds:,.0f}",
        f"{times[len(times) * 99 // 100] * 1e3:,.0f}",
        f"{sum(failed for _, failed in found):,}",
        f"{len(moments):,}",
        f"{max(moments) - began:,.1f}",
        f"{sum(took for _, took in ran):,.1f}",
    ]


def main(arguments: list[str] | None = None) -> None:
    """Measure stores, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.benchmarks.load", description=__doc__)
    parser.add_argument(
        "--store", choices=STORES, nargs="+", default=["sqlite:PATH", "redis://", "postgresql://"], help="all"
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4], help="processes (1 and 4)")
    parser.add_argument("--seconds", type=float, default=5, help="of updates (5)")
    parser.add_argument("--sessions", type=int, default=10_000, help="that end together (10000)")
    options = parser.parse_args(arguments)
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for name in options.store:
        for workers in options.workers:
            with STORES[name]() as (url, _):
                row = measured(url, workers, options.seconds, options.sessions)
            print(f"| `{name}` | {workers} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":  # pragma: no cover  # as its parts run in this process
    main()

"""What a store takes from many workers at once: bursts of writes, a steady stream of them, and long lists.

    python -m tests.tools.benchmarks.burst --writes 160 800

The workers are processes, each with its own store and the middleware's own time limit. All writes of a burst begin in
the same moment; one that is not acknowledged in time has failed. Afterwards everything that was acknowledged must be
there, once.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

from . import ours
from .ours import Record, Store, claims

TIMEOUT: Final = 0.25  # seconds, the middleware's own
START: Final = 1.0  # seconds until all workers are ready
STREAMS: Final = 8  # tasks in each worker that write without a pause
LISTED: Final = 100  # sessions in a page
AT_ONCE: Final = 100
ASKED: Final = 1_000


@dataclass(frozen=True)
class Sent:
    """What one worker wrote."""

    took: list[float]  # seconds for each write that was acknowledged
    failed: int  # those that were not
    ended: list[int]  # the numbers of the sessions whose end was acknowledged


def data(worker: int) -> ours.Namespace:
    return ours.Namespace(f"ses_{worker}", int(time.time()) + ours.WEEK, 1 << 16)


class Writer:
    """Every other write ends a session; the rest add one to a number."""

    def __init__(self, store: Store, worker: int) -> None:
        self._store = store
        self._worker = worker
        self._data = data(worker)
        self.sent = Sent([], 0, [])

    async def write(self, number: int) -> None:
        start, session = time.perf_counter(), self._worker * 1_000_000 + number
        try:
            if number % 2:
                await ours.revoke(self._store, claims(session))
                self.sent.ended.append(session)
            else:
                await self._store.add(self._data, "n", 1)
        except ours.StoreUnavailable:
            self.sent = Sent(self.sent.took, self.sent.failed + 1, self.sent.ended)
        else:
            self.sent.took.append(time.perf_counter() - start)


async def burst(store: Store, worker: int, writes: int) -> Sent:
    """Write so often at once."""
    writer = Writer(store, worker)
    await asyncio.gather(*map(writer.write, range(writes)))
    return writer.sent


async def stream(store: Store, worker: int, seconds: int) -> Sent:
    """Write without a pause."""
    writer, end = Writer(store, worker), time.monotonic() + seconds

    async def go(first: int) -> None:
        for number in count(first, STREAMS):
            await writer.write(number)
            if time.monotonic() >= end:
                break

    await asyncio.gather(*map(go, range(STREAMS)))
    return writer.sent


def send(url: str, start: float, how: Callable[[Store, int, int], Awaitable[Sent]], much: int, worker: int) -> Sent:
    """Do it in this process, from a moment on."""

    async def work() -> Sent:
        store = ours.store(url, timeout=TIMEOUT)
        await store.open()
        await store.read(data(worker), "n")
        await asyncio.sleep(start - time.time())
        try:
            return await how(store, worker, much)
        finally:
            await store.close()

    return asyncio.run(work())


async def check(url: str, sent: Sequence[Sent]) -> str:
    """Return what is not there, or there too often, of what was acknowledged."""
    store = ours.store(url)
    lost = doubled = 0
    for worker, each in enumerate(sent):
        standings = await store.statuses([claims(number) for number in each.ended])
        lost += sum(standing is ours.LIVE for standing in standings)
        added, acknowledged = int(await store.read(data(worker), "n") or 0), len(each.took) - len(each.ended)
        lost, doubled = lost + max(0, acknowledged - added), doubled + max(0, added - acknowledged - each.failed)
    await store.close()
    return f"{lost} lost, {doubled} doubled"


def at_once(how: Callable[[Store, int, int], Awaitable[Sent]], workers: int, much: int) -> list[str]:
    """Have all workers write; return the cells of a row."""
    with tempfile.TemporaryDirectory() as folder:
        url, begun = f"sqlite:{folder}/sessions.db", time.time()
        asyncio.run(opened(url))
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            sent = list(pool.map(partial(send, url, begun + START, how, much), range(workers)))
        kept = asyncio.run(check(url, sent))
    took = sorted(seconds for each in sent for seconds in each.took)
    share = len(took) / (len(took) + sum(each.failed for each in sent))
    times = [f"{1000 * found:,.0f} ms" for found in (statistics.median(took), took[-1])]
    return [f"{share:.1%}", *times, kept, f"{len(took):,}"]


async def opened(url: str) -> None:
    """Make the store, which vouches for nothing older."""
    store = ours.store(url)
    await store.open()
    await store.close()


async def lists(url: str, many: int) -> list[tuple[str, str]]:
    """Fill a store with sessions of one principal, list a page, end all, and sweep what ended."""
    store = ours.store(url)
    await store.open()
    now = int(time.time())
    for first in range(0, many, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, many))
        records = [Record(f"ses_{n:09}", "alice", now - 9 - n // 50, now + ours.WEEK, now) for n in numbers]
        await asyncio.gather(*map(store.register, records))
    asked = partial(store.list_sessions, subject="alice", audience=ours.AUDIENCE, limit=LISTED)
    rows = [(f"a page of {LISTED} of {many:,} sessions", await timed(asked))]
    after = (now - 9 - many // 100, "")
    rows.append(("a page from the middle", await timed(partial(asked, after=after))))
    cut_off = partial(store.revoke_before, now, audience=ours.AUDIENCE, subject="alice", expires_at=now + ours.WEEK)
    rows.append(("end all of them", await timed(cut_off)))
    rows.append(("a page of what was cut off", await timed(partial(asked, with_cut_off=True))))
    await store.close()
    return rows


async def timed(call: Callable[[], Awaitable[object]]) -> str:
    """Return the middle time of a call and the longest that the event loop stood still meanwhile."""
    took, pauses, is_over = [], [0.0], asyncio.Event()

    async def watch() -> None:
        while not is_over.is_set():
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            pauses.append(time.perf_counter() - start - 0.001)

    watching = asyncio.create_task(watch())
    for _ in range(9):
        start = time.perf_counter()
        await call()
        took.append(time.perf_counter() - start)
        await asyncio.sleep(0.002)
    is_over.set()
    await watching
    return f"{1000 * statistics.median(took):,.1f} ms, the loop stands still for {1000 * max(pauses):,.1f} ms at most"


async def question(url: str, *, tracked: bool) -> float:
    """Return the middle time of a session's status, in microseconds."""
    store = ours.store(url)
    await store.open()
    await asyncio.sleep(1.1)  # a store that is new vouches for nothing that began in its first second
    session = claims(1)
    await store.register(Record.of(session))

    async def ask() -> None:
        await (store.touch(session, idle_timeout=None) if tracked else store.status(session))

    times = []
    for _ in range(31):
        start = time.perf_counter()
        for _ in range(ASKED):
            await ask()
        times.append((time.perf_counter() - start) / ASKED * 1e6)
    await store.close()
    return statistics.median(times)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.benchmarks.burst", description=__doc__)
    parser.add_argument("--workers", type=int, default=8, help="processes (8)")
    parser.add_argument("--writes", type=int, nargs="*", default=[160, 800], help="at once (160 800)")
    parser.add_argument("--seconds", type=int, default=5, help="of the stream of writes (5)")
    parser.add_argument("--sessions", type=int, default=100_000, help="of one principal (100000)")
    options = parser.parse_args(arguments)
    print("| writes | acknowledged in time | middle | slowest | of these | number |\n|---|---|---|---|---|---|")
    for writes in options.writes:
        cells = at_once(burst, options.workers, writes // options.workers)
        print(f"| {writes} at once | {' | '.join(cells)} |", flush=True)
    *cells, number = at_once(stream, options.workers, options.seconds)
    a_second = int(number.replace(",", "")) / options.seconds
    print(f"| a stream | {' | '.join(cells)} | {a_second:,.0f} a second |\n", flush=True)
    for kind in ("memory:", "sqlite:"):
        with tempfile.TemporaryDirectory() as folder:
            at = [f"{kind}{folder}/{name}" if kind == "sqlite:" else kind for name in ("a", "b")]
            for row, took in asyncio.run(lists(at[0], options.sessions)):
                print(f"| `{kind}` | {row} | {took} |")
            for tracked in (False, True):
                took = f"{asyncio.run(question(at[1], tracked=tracked)):.2f} us"
                print(f"| `{kind}` | a session's status{', tracked' if tracked else ''} | {took} |", flush=True)


if __name__ == "__main__":
    main()

"""What each store takes: bytes for a revocation and a recorded session, and the time of a question and a change.

    python -m tests.tools.benchmarks.stores --entries 1 10000 1000000

Every store is filled with so many ended and as many recorded sessions, many at once, and then asked about recorded
ones that live, one after the other, as requests ask. Redis is a real server of its own. The table is what the
documentation shows.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

from . import ours
from .ours import Claims, Record, Store, claims, revoke

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
import postgres_servers  # the tests' own, which stand beside their other modules
import redis_servers

ASKED: Final = 500  # questions whose middle time is shown
AT_ONCE: Final = 250  # changes that are under way together while a store is filled
MANY: Final = 1_000  # entries; among fewer, what is there once outweighs what each takes
COLUMNS: Final = (
    "store",
    "of each",
    "bytes a revocation",
    "a record",
    "us a question",
    "us, tracked",
    "us a durable change",
)
Place = tuple[str, Callable[[], int]]
"""The URL of a store, and how many bytes it takes now."""


def record(store: Store, session: Claims) -> Awaitable[None]:
    """Record a session as one of a few thousand users'."""
    subject = f"{int(session.jti) % 5_000:043d}"
    return store.register(Record(session.ref, subject, session.issued_at, session.expires_at, session.issued_at))


@contextmanager
def memory() -> Iterator[Place]:
    """The store in this process."""
    tracemalloc.start()
    try:
        yield "memory:", lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@contextmanager
def sqlite() -> Iterator[Place]:
    """A file on the disk of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sessions.db"
        yield f"sqlite:{path}", lambda: path.stat().st_size


@contextmanager
def redis() -> Iterator[Place]:
    """A server of its own, with the append-only file."""
    with redis_servers.serving(appendonly="yes") as server:
        yield server.url, lambda: int(server.command("INFO", "memory").split(b"used_memory:")[1].split()[0])


@contextmanager
def postgres() -> Iterator[Place]:
    """A server of its own, as it is set up by default."""
    with postgres_servers.serving() as server:
        size = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class WHERE relkind = 'r'"
        yield server.url, lambda: int(server.execute(size)[0][0])


STORES: Final = {"memory:": memory, "sqlite:PATH": sqlite, "redis://": redis, "postgresql://": postgres}


async def measured(place: Place, entries: int) -> list[str]:
    """Return one row: bytes per revocation and per record, microseconds per question, tracked question and change."""
    url, weigh = place
    store = ours.store(url)
    await store.open()
    await asyncio.gather(*(store.status(claims(0)) for _ in range(AT_ONCE)))  # opens connections, which weigh, too
    weights = [weigh()]
    for fill, first in ((revoke, 0), (record, entries)):
        for start in range(first, first + entries, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, first + entries))
            await asyncio.gather(*(fill(store, claims(number)) for number in numbers))
        weights.append(weigh())
    tracemalloc.stop()  # it slows down what is timed
    alive = [claims(entries + number % entries) for number in range(ASKED)]
    for one in alive:  # the first use in a minute is written down, which is a change and not a question
        await store.touch(one, idle_timeout=None)
    times = [
        await _middle(alive, store.status),
        await _middle(alive, lambda one: store.touch(one, idle_timeout=None)),
        await _middle([claims(2 * entries + number) for number in range(ASKED)], lambda one: revoke(store, one)),
    ]
    await store.close()
    sizes = [f"{(after - before) / entries:,.0f}" for before, after in pairwise(weights)]
    return [*(sizes if entries >= MANY else "--"), *(f"{each * 1e6:,.1f}" for each in times)]


async def _middle(sessions: list[Claims], call: Callable[[Claims], Awaitable[object]]) -> float:
    times = []
    for session in sessions:
        start = time.perf_counter()
        await call(session)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main(arguments: list[str] | None = None) -> None:
    """Measure every store, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.benchmarks.stores", description=__doc__)
    parser.add_argument("--entries", type=int, nargs="+", default=[10_000], help="sessions of each kind (10000)")
    parser.add_argument("--store", choices=STORES, nargs="+", default=list(STORES), help="all")
    options = parser.parse_args(arguments)
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for name in options.store:
        for entries in options.entries:
            with STORES[name]() as place:
                row = asyncio.run(measured(place, entries))
            print(f"| `{name}` | {entries:,} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()

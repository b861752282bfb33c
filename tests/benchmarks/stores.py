"""What each store takes: bytes for a revocation and a recorded session, and the time of a question and a change.

    python -m tests.benchmarks.stores --entries 10000

Every store is filled with so many ended and as many recorded sessions, and asked in between. Redis is a
real server of its own. The table is what the documentation shows.
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
from pathlib import Path
from typing import Final

from mcp_sessions.stores.base import Record, Store
from mcp_sessions.stores.memory import MemoryStore
from mcp_sessions.stores.redis import RedisStore
from mcp_sessions.stores.sqlite import SQLiteStore
from mcp_sessions.tokens import SESSION, Claims

sys.path.insert(0, str(Path(__file__).parent.parent))
import redis_servers  # the tests' own, which stands beside their other modules

ASKED: Final = 500  # questions whose middle time is told
Bytes = Callable[[], int]


def claims(number: int) -> Claims:
    """A session of an hour; the number is its name."""
    now = int(time.time())
    return Claims(kind=SESSION, kid="bench", jti=f"{number:022d}", issued_at=now, expires_at=now + 3600)


@contextmanager
def memory() -> Iterator[tuple[Store, Bytes]]:
    """The store in this process, and how to weigh it."""
    tracemalloc.start()
    try:
        yield MemoryStore(), lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@contextmanager
def sqlite() -> Iterator[tuple[Store, Bytes]]:
    """A file on the disk of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sessions.db"
        yield SQLiteStore(path), lambda: sum(file.stat().st_size for file in Path(folder).iterdir() if file == path)


@contextmanager
def redis() -> Iterator[tuple[Store, Bytes]]:
    """A server of its own, with the append-only file."""
    with redis_servers.serving(appendonly="yes") as server:
        yield (
            RedisStore(server.url, timeout=5),
            lambda: int(server.command("INFO", "memory").partition(b"used_memory:")[2].split()[0]),
        )


STORES: Final = {"memory:": memory, "sqlite:PATH": sqlite, "redis://": redis}


async def measured(store: Store, weigh: Bytes, entries: int) -> list[str]:
    """One row: bytes per revocation and per record, microseconds per question and per change, by the middle."""
    await store.open()
    empty = weigh()
    for one in map(claims, range(entries)):  # each forgotten at once, so that what is weighed is the store's alone
        await _revoke(store, one)
    revoked = weigh()
    for one in map(claims, range(entries, 2 * entries)):
        await store.record(Record(one.ref, "subject", one.issued_at, one.expires_at, one.issued_at))
    sizes = [(revoked - empty) / entries, (weigh() - revoked) / entries]
    tracemalloc.stop()  # it slows down what is timed
    asked, changed = map(claims, range(ASKED)), map(claims, range(-ASKED, 0))
    asks = [await _timed(store.standing(one)) for one in asked]
    changes = [await _timed(_revoke(store, one)) for one in changed]
    await store.close()
    return [
        *(f"{size:,.0f}" for size in sizes),
        *(f"{statistics.median(times) * 1e6:,.1f}" for times in (asks, changes)),
    ]


async def _revoke(store: Store, session: Claims) -> None:
    await store.revoke(session.ref, expires_at=session.expires_at, reason="deleted", lease=60)


async def _timed(call: Awaitable[object]) -> float:
    started = time.perf_counter()
    await call
    return time.perf_counter() - started


def main(arguments: list[str] | None = None) -> None:
    """Measure every store and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.stores", description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000, help="sessions of each kind (%(default)s)")
    entries = parser.parse_args(arguments).entries
    print(f"| store, {entries:,} of each | bytes a revocation | bytes a record | us a question | us a durable change |")
    print("|---|---|---|---|---|")
    for name, place in STORES.items():
        with place() as (store, weigh):
            print(f"| `{name}` | {' | '.join(asyncio.run(measured(store, weigh, entries)))} |", flush=True)


if __name__ == "__main__":
    main()

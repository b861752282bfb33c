"""What each store takes: bytes for a revocation and a recorded session, and the time of a question and a change.

    python -m tests.benchmarks.stores --entries 1 10000 1000000

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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from mcp_sessions._session.claims import SESSION, Claims
from mcp_sessions.stores.base import Record, Store
from mcp_sessions.stores.memory import MemoryStore
from mcp_sessions.stores.redis import RedisStore
from mcp_sessions.stores.redis_connection import RedisConnection
from mcp_sessions.stores.redis_scripts import Command
from mcp_sessions.stores.sqlite import SQLiteStore
from mcp_sessions.stores.sqlite_tables import Transaction

TESTS: Final = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "support")]
import redis_servers  # the tests' own, which stands beside their other modules

ASKED: Final = 500  # questions whose middle time is told
AT_ONCE: Final = 250  # changes in one go, while a store is filled
MANY: Final = 1_000  # entries; among fewer, what is there once outweighs what each takes
LEASE: Final = 60.0
Bytes = Callable[[], int]
Fill = Callable[[Sequence[Claims]], Awaitable[object]]


def claims(number: int) -> Claims:
    """A session of ten hours; the number is its name."""
    now = int(time.time())
    return Claims(kind=SESSION, kid="bench", jti=f"{number:022d}", issued_at=now, expires_at=now + 36_000)


def record(session: Claims) -> Record:
    """The record of a session, as one of a few thousand people's."""
    subject = f"{int(session.jti) % 5_000:043d}"
    return Record(session.ref, subject, session.issued_at, session.expires_at, session.issued_at)


@dataclass(frozen=True)
class Place:
    """A store to be measured.

    Args:
        store: The store.
        weigh: Bytes that it takes now.
        revoke: Ends many sessions.
        record: Records many sessions.
    """

    store: Store
    weigh: Bytes
    revoke: Fill
    record: Fill


def revoke_one(store: Store, session: Claims) -> Awaitable[object]:
    """End a session, as `sessions/delete` does."""
    return store.revoke(
        session.ref, audience=session.audience, expires_at=session.expires_at, reason="deleted", lease=LEASE
    )


def one_by_one(store: Store, weigh: Bytes) -> Place:
    """A store that is filled by the calls that requests make, side by side."""
    return Place(
        store,
        weigh,
        lambda sessions: asyncio.gather(*(revoke_one(store, each) for each in sessions)),
        lambda sessions: asyncio.gather(*(store.register(record(each)) for each in sessions)),
    )


@contextmanager
def memory() -> Iterator[Place]:
    """The store in this process, with room for all."""
    tracemalloc.start()
    try:
        store = MemoryStore(max_entries=1 << 30, max_sessions=1 << 30)
        yield one_by_one(store, lambda: tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


@contextmanager
def sqlite() -> Iterator[Place]:
    """A file on the disk of this machine, filled in a few large transactions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sessions.db"
        store = SQLiteStore(path)
        yield Place(
            store,
            lambda: path.stat().st_size,
            lambda sessions: store._change(_revoke_all, sessions),
            lambda sessions: store._change(_record_all, sessions),
        )


def _revoke_all(transaction: Transaction, sessions: Sequence[Claims]) -> None:
    for each in sessions:
        transaction.revoke(each.ref, expires_at=each.expires_at, reason="", lease=0)


def _record_all(transaction: Transaction, sessions: Sequence[Claims]) -> None:
    for each in sessions:
        transaction.register(record(each))


class Together:
    """Stands in for a store's connection while the store is filled: the commands of many calls go in one round trip."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._waiting: list[tuple[tuple[Command, ...], asyncio.Future[list[Any]]]] = []

    async def run(self, *commands: Command, idempotent: bool) -> list[Any]:
        """Return what commands return, once all other calls have added theirs."""
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((commands, answer))
        if len(self._waiting) == 1:
            await asyncio.sleep(0)
            await self._send()
        return await answer

    async def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        every = (command for commands, _ in waiting for command in commands)
        results = iter(await self._connection.run(*every, idempotent=True))
        for commands, answer in waiting:
            answer.set_result([next(results) for _ in commands])


@contextmanager
def redis() -> Iterator[Place]:
    """A server of its own, with the append-only file."""
    with redis_servers.serving(appendonly="yes") as server:
        store, filled = (RedisStore(server.url, timeout=60) for _ in range(2))
        filled._connection = Together(store._connection)  # type: ignore[assignment]  # the part of it that is used
        filled._opened = True
        place = one_by_one(filled, lambda: int(server.command("INFO", "memory").split(b"used_memory:")[1].split()[0]))
        yield Place(store, place.weigh, place.revoke, place.record)


STORES: Final = {"memory:": memory, "sqlite:PATH": sqlite, "redis://": redis}


async def measured(place: Place, entries: int) -> list[str]:
    """One row: bytes per revocation and per record, microseconds per question, tracked question and change."""
    store = place.store
    await store.open()
    weights = [place.weigh()]
    for fill, first in ((place.revoke, 0), (place.record, entries)):
        for start in range(first, first + entries, AT_ONCE):  # each forgotten at once: what is weighed is the store's
            await fill([claims(number) for number in range(start, min(start + AT_ONCE, first + entries))])
        weights.append(place.weigh())
    tracemalloc.stop()  # it slows down what is timed
    alive = [claims(entries + number % entries) for number in range(ASKED)]
    for one in alive:  # the first use in a minute is written down, which is a change and no question
        await store.touch(one, idle_timeout=None)
    times = [
        await _middle(alive, store.status),
        await _middle(alive, lambda one: store.touch(one, idle_timeout=None)),
        await _middle([claims(2 * entries + number) for number in range(ASKED)], lambda one: revoke_one(store, one)),
    ]
    await store.close()
    sizes = [f"{(after - before) / entries:,.0f}" for before, after in pairwise(weights)]
    return [*(sizes if entries >= MANY else "--"), *(f"{each * 1e6:,.1f}" for each in times)]


async def _middle(sessions: list[Claims], call: Callable[[Claims], Awaitable[object]]) -> float:
    return statistics.median([await _timed(call(one)) for one in sessions])


async def _timed(call: Awaitable[object]) -> float:
    started = time.perf_counter()
    await call
    return time.perf_counter() - started


def main(arguments: list[str] | None = None) -> None:
    """Measure every store and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.stores", description=__doc__)
    parser.add_argument("--entries", type=int, nargs="+", default=[10_000], help="sessions of each kind (10000)")
    parser.add_argument("--store", choices=STORES, nargs="+", default=list(STORES), help="all")
    options = parser.parse_args(arguments)
    print(
        "| store | of each | bytes a revocation | bytes a record | us a question | us, tracked | us a durable change |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in options.store:
        for entries in options.entries:
            with STORES[name]() as place:
                row = asyncio.run(measured(place, entries))
            print(f"| `{name}` | {entries:,} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()

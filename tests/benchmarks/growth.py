"""What the calls of a store take while it holds more and more recorded sessions: each should cost the same.

The sessions begin within a day and were used within the last half hour, twenty of each principal. Times are wall time.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import count, cycle
from statistics import median
from time import perf_counter
from typing import Any, Final

import anyio
import msgspec

from mcp_sessions._session.claims import AUDIENCE, SESSION, Claims
from mcp_sessions.stores import MemoryStore, Store, make
from mcp_sessions.stores._base import Record
from mcp_sessions.stores._sql import SQLStore, registering

from .stores import STORES
from .timing import MICROSECONDS, Report, Size

DAY: Final = 86_400  # seconds
IDLE_TIMEOUT: Final = 3600  # seconds
ENDED: Final = 50  # sessions that one sweep ends
CALLERS: Final = 8
TOGETHER: Final = 200  # sessions that are recorded in one transaction, if a store has transactions
REPEATED: Final = 40  # calls of each kind
Call = Callable[[], Awaitable[Any]]


async def growth(size: Size) -> Report:
    """Measure every store at every number of sessions."""
    rows: list[tuple[str, ...]] = []
    columns: list[str] = []
    for name, place in STORES.items():
        with place() as url:
            store = MemoryStore(max_sessions=10**7) if name == "memory:" else make(url, clock=time.time, timeout=30)
            await store.open()
            filled = 0
            for sessions in size.grown:
                await _fill(store, filled, sessions)
                filled = sessions
                times = await _measured(store, sessions)
                columns = [*times]
                rows.append((f"{name} {sessions:,}", *(f"{value:,.0f}" for value in times.values())))
            await store.close()
    return Report(
        "A call of each store by the number of recorded sessions, median µs of wall time", ["", *columns], rows
    )


def _claims(number: int, sessions: int) -> Claims:
    """Return one of so many sessions."""
    now, jti = time.time(), f"s{number}".ljust(22, "A")
    issued_at = round(now + DAY * number / sessions, 3)  # not before the store, which began a moment ago
    ours: dict[str, Any] = {"kind": SESSION, "issuer": AUDIENCE, "audience": AUDIENCE}
    subject = f"p{number // 20}".ljust(22, "A")
    return Claims(jti=jti, issued_at=issued_at, expires_at=int(issued_at) + 7 * DAY, subject=subject, **ours)


async def _fill(store: Store, first: int, sessions: int) -> None:
    numbers = iter(range(first, sessions, TOGETHER))
    inner = getattr(store, "_store", store)

    async def some() -> None:
        for number in numbers:
            records = [_used(each, sessions) for each in range(number, min(number + TOGETHER, sessions))]
            if isinstance(inner, SQLStore):  # otherwise a million takes an hour
                statements = [statement for record in records for statement in registering(record, None)[:2]]
                await inner._change(*statements, repeatable=False)
            else:
                for record in records:
                    await store.register(record)

    async with anyio.create_task_group() as callers:
        for _ in range(1 if isinstance(inner, SQLStore) else CALLERS):  # large transactions lock each other
            callers.start_soon(some)


def _used(number: int, sessions: int) -> Record:
    record = Record.of(_claims(number, sessions))
    return replace(record, seen_at=time.time() - 1800 * (number % 1000) / 1000)


async def _measured(store: Store, sessions: int) -> dict[str, float]:
    """Return what each kind of call takes, and what the slowest of all took."""
    new = (
        msgspec.structs.replace(_claims(0, sessions), jti=f"n{sessions}-{number}".ljust(22, "A")) for number in count()
    )
    some = [_claims(number, sessions) for number in range(0, sessions, max(1, sessions // REPEATED))]
    visited, began = cycle(some), [next(new) for _ in range(REPEATED)]
    claim = partial(store.claim_ended, audience=AUDIENCE, idle_timeout=IDLE_TIMEOUT, lease=60, limit=ENDED)
    page = partial(store.list_sessions, audience=AUDIENCE, limit=100)
    calls: dict[str, Call] = {
        "look up": lambda: store.look_up(next(visited), touch=True, idle_timeout=IDLE_TIMEOUT),
        "register": lambda: store.register(Record.of(began.pop()), max_sessions=1000),
        "page": lambda: page(after=Record.of(next(visited)).position),
        "count": partial(store.count, audience=AUDIENCE),
        "sweep": claim,
    }
    await claim()
    times = {name: [await _time(call) for _ in range(REPEATED)] for name, call in calls.items()}
    for _ in range(5):
        over = [replace(Record.of(next(new)), expires_at=int(time.time()) - 1) for _ in range(ENDED)]
        for record in over:
            await store.register(record)
        times.setdefault(f"sweep of {ENDED}", []).append(await _time(claim))
        times.setdefault("purge", []).append(await _time(partial(store.purge, *(record.ref for record in over))))
    slowest = max(max(taken) for taken in times.values())
    return {name: median(taken) for name, taken in times.items()} | {"slowest": slowest}


async def _time(call: Call) -> float:
    start = perf_counter()
    await call()
    return (perf_counter() - start) * MICROSECONDS

"""Many sessions and many revocations: what a request costs then, and what a worker holds."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from . import apps, ours
from .apps import PassThrough
from .report import Report, Table
from .size import Size
from .timing import ECHOED, PASS, Row, run
from .traffic import Visits


async def sessions(size: Size) -> Report:
    """Spread requests evenly over ever more live sessions."""
    ids = await ours.ids(size.sessions[-1])
    rows = [Row(PASS, Visits.in_sessions(PassThrough(apps.trivial), ids[:1]))]
    for number in size.sessions:
        cached, uncached = ours.wrap(apps.trivial), ours.caching(apps.trivial, 0)
        rows.append(Row(f"{number:,} sessions, no token cache", Visits.in_sessions(uncached, ids[:number]), ECHOED))
        rows.append(Row(f"{number:,} sessions", Visits.in_sessions(cached, ids[:number]), ECHOED))
    title = "Live sessions, each named as often as the others"
    report = await run(title, "sessions", rows, rounds=size.rounds, requests=size.requests)
    return _with_flatness(report, "sessions", [f"{number:,} sessions, no token cache" for number in size.sessions])


async def revocations(size: Size) -> Report:
    """Ask for one live session beside ever more ended ones, in the memory store."""
    ids = await ours.ids(1)
    rows = [Row(PASS, Visits.in_sessions(PassThrough(apps.trivial), ids))]
    for number in size.revocations:
        app = ours.wrap(apps.trivial, store=await _store_of(number))
        rows.append(Row(f"{number:,} revocations", Visits.in_sessions(app, ids), ECHOED))
    title = "Revocations in the memory store"
    report = await run(title, "revocations", rows, rounds=size.rounds, requests=size.requests)
    return _with_flatness(report, "revocations", [f"{number:,} revocations" for number in size.revocations])


def _with_flatness(report: Report, prefix: str, names: list[str]) -> Report:
    first, *_, last = (report.figures[f"{prefix}/{name}/us"] for name in names)
    report.figures[f"{prefix}/flatness"] = last / first
    return report


async def _store_of(number: int) -> ours.Store:
    store, lifetimes = ours.store("memory:"), random.Random(number)
    for place in range(number):
        await ours.revoke(store, ours.claims(place, lifetimes.randrange(1, ours.WEEK)))
    return store


async def memory(size: Size) -> Report:
    """Weigh what a worker holds. Tokens come in two floods: what is bounded is full after the first."""
    ids, half, entries = await ours.ids(size.tokens), size.tokens // 2, size.tokens // 4
    forged = list(map(ours.forged, ids))
    cached, uncached = ours.caching(apps.trivial, entries), ours.caching(apps.trivial, 0)
    live = await _held_after(uncached, ids[:half], ids[half:])
    false = await _held_after(cached, forged[:half], forged[half:])
    kept = await _held_after(cached, ids[:half], ids[half:])
    with weighed() as revoked:
        _store = await _store_of(size.revocations[-1])
        revoked.weigh()
    found = {
        "a live session, token cache off": (live[1] - live[0]) / half,
        "a forged token": (false[1] - false[0]) / half,
        "a token in the cache": kept[0] / entries,
        "the cache after a second flood, in times of what it was after the first": kept[1] / kept[0],
        "a revocation in the memory store": revoked.levels[0] / size.revocations[-1],
    }
    rows = [(name, f"{value:,.1f}") for name, value in found.items()]
    figures = dict(zip(("live session", "forged", "cached", "cache growth", "revocation"), found.values(), strict=True))
    return Report(
        [Table("Memory of a worker", ("", "bytes"), rows)], {f"memory/{key}": figures[key] for key in figures}
    )


async def _held_after(app: ASGIApp, *floods: list[str]) -> list[int]:
    """Return how many bytes are held after each flood."""
    with weighed() as scales:
        for ids in floods:
            await Visits.in_sessions(app, ids).serve(len(ids))
            scales.weigh()
    return scales.levels


class Scales:
    """How much more Python's allocator holds than at the beginning, in bytes."""

    def __init__(self) -> None:
        self.levels: list[int] = []
        self.peak = 0
        gc.collect()
        self._before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()

    def weigh(self) -> None:
        """Note the highest level since the beginning, and the level of now, without garbage."""
        self.peak = tracemalloc.get_traced_memory()[1] - self._before
        gc.collect()
        self.levels.append(tracemalloc.get_traced_memory()[0] - self._before)


@contextmanager
def weighed() -> Iterator[Scales]:
    """Count what is allocated while the block lasts."""
    tracemalloc.start()
    try:
        yield Scales()
    finally:
        tracemalloc.stop()

"""Processor time per request of several contestants, in one interleaved run.

A machine drifts, so nothing is compared across runs: in each round every contestant serves the same number of requests,
in another order each time, and what one adds to another is taken inside the round before the median of all rounds.
pyperf is not used here, because it runs its benchmarks one after the other, in processes of their own.
"""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median, quantiles
from time import process_time
from typing import Final

from clients import SESSION_KEY

from .apps import TEXT
from .traffic import Visits

MICROSECONDS: Final = 1e6
NONE: Final = "none"
PASS: Final = "pass-through"
PLAIN: Final = "pass-through, no session"
SERVED: Final = TEXT.encode()
ECHOED: Final = SESSION_KEY.encode()
CREATED: Final = b'"expiresAt"'
REFUSED: Final = b"-32043"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured; the defaults are what the documentation shows."""

    rounds: int = 201  # turns of each contestant in a race
    requests: int = 30  # to the trivial application in one turn
    sdk_requests: int = 5  # to the official SDK's server in one turn
    store_requests: int = 2_000  # to each store
    at_once: int = 2_000  # requests of a burst
    counted: int = 200  # requests whose instructions are counted
    grown: tuple[int, ...] = (1_000, 100_000, 1_000_000)  # recorded sessions of a store


@dataclass(frozen=True)
class Report:
    """A table, whose first column names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Return the table as a terminal shows it."""
        lines = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))) for row in lines]
        return "\n".join((self.title, *(f"  {line.rstrip()}" for line in shown)))


@dataclass(frozen=True)
class Row:
    """One contestant."""

    name: str
    visits: Visits
    proof: bytes = SERVED  # what each of its answers holds, and no other: an error is fast and proves nothing
    base: str = PASS  # the row that it is compared to


async def run(title: str, rows: Sequence[Row], *, rounds: int, requests: int) -> Report:
    """Prove that each row does what it is measured for, race them, and report."""
    for row in rows:
        prove(row.name, (await row.visits.answer()).body, row.proof)
    times = await race({row.name: row.visits for row in rows}, rounds=rounds, requests=requests)
    table: list[Sequence[str]] = []
    for row in rows:
        own, middle = times[row.name], median(times[row.name])
        lower, _, upper = quantiles(own * 2, n=4, method="inclusive")
        pairs = list(zip(own, times[row.base], strict=True))
        more, throughput = median(mine - other for mine, other in pairs), median(other / mine for mine, other in pairs)
        spread = (f"{min(own):.1f}", f"{(upper - lower) / middle:.0%}")  # of the middle half of the rounds
        table.append((row.name, f"{middle:.1f}", *spread, f"{more:+.1f}", f"{throughput:.2f}"))
    return Report(title, ("", "µs", "least", "spread", "adds", "throughput"), table)


def prove(name: str, answer: bytes, proof: bytes) -> None:
    """Raise `AssertionError` where an answer is not what it is measured for."""
    assert proof in answer, f"{name} does not do what it is measured for: {answer!r}"


async def race(contestants: Mapping[str, Visits], *, rounds: int, requests: int) -> dict[str, list[float]]:
    """Return the processor time per request of each contestant in each round, in microseconds."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        await contestant.serve(1 + requests // 4)
    gc.collect()
    gc.freeze()  # what lives now is out of every garbage collection, as in a server that runs
    for turn in range(rounds):
        gc.collect()
        for name in Random(turn).sample(list(contestants), len(contestants)):
            contestant = contestants[name]
            await contestant.serve(1 + requests // 10)  # fills the processor's caches again
            before = process_time()
            await contestant.serve(requests)
            taken[name].append((process_time() - before) / requests * MICROSECONDS)
    gc.unfreeze()
    return taken

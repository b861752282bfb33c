"""Processor time per request, of several contestants in one interleaved run.

A machine drifts, so nothing here is compared across runs: in each round every contestant serves the same number of
requests, in another order in each round (the same in each run). Whatever is derived, such as what one adds to another,
is derived inside each round first and then summed up by its median. What lives when a run begins is frozen, as in a
server that runs, and the garbage collector has nothing to do when a round begins. Turns are short, a few milliseconds,
so that all of one round fall into the same mood of the machine.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from statistics import median, quantiles
from time import process_time
from typing import Final, Protocol

MICROSECONDS: Final = 1e6


class Contestant(Protocol):
    """Something that can be done so many times."""

    async def serve(self, requests: int) -> None:
        """Do it."""


@dataclass(frozen=True, slots=True)
class Times:
    """Processor time per request in each round, in microseconds."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle round."""
        return median(self.rounds)

    @property
    def least(self) -> float:
        """The best round."""
        return min(self.rounds)

    @property
    def spread(self) -> float:
        """How far the middle half of the rounds lie apart, as a part of the median."""
        if len(self.rounds) < 2:
            return 0.0
        lower, _, upper = quantiles(self.rounds, n=4, method="inclusive")
        return (upper - lower) / self.median

    def over(self, base: Times) -> float:
        """What this takes more than `base`, in microseconds."""
        return median(own - others for own, others in zip(self.rounds, base.rounds, strict=True))

    def throughput(self, base: Times) -> float:
        """This one's throughput as a part of `base`'s."""
        return median(others / own for own, others in zip(self.rounds, base.rounds, strict=True))


async def race(contestants: Mapping[str, Contestant], *, rounds: int, requests: int) -> dict[str, Times]:
    """Let all contestants serve in turns.

    Args:
        contestants: Whom, by name.
        rounds: How many times each has its turn.
        requests: How many requests each serves in a turn.
    """
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        await contestant.serve(1 + requests // 4)
    with still_collector():
        for turn in range(rounds):
            gc.collect()
            for name in Random(turn).sample(list(contestants), len(contestants)):
                taken[name].append(await _time(contestants[name], requests))
    return {name: Times(tuple(times)) for name, times in taken.items()}


async def _time(contestant: Contestant, requests: int) -> float:
    await contestant.serve(1 + requests // 10)  # what ran before has left the caches full of its own
    before = process_time()
    await contestant.serve(requests)
    return (process_time() - before) / requests * MICROSECONDS


@contextmanager
def still_collector() -> Iterator[None]:
    """What lives now is left out of every collection until the block ends."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass(frozen=True, slots=True)
class Repeated:
    """A contestant that calls a function and serves nobody."""

    function: Callable[[], object]

    async def serve(self, requests: int) -> None:
        """Call it so many times."""
        for _ in range(requests):
            self.function()

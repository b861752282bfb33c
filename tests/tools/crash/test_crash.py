"""Two kills of a worker, and proof that a loss is detected."""

from __future__ import annotations

import redis_servers

from crash import trials
from crash.trials import Place, Run

CYCLES = 2
SEED = 23  # with which both hooks come


def test_nothing_that_was_acknowledged_is_lost() -> None:
    """The worker is killed; `make nightly` kills those of the other stores, and their servers, 200 times."""
    found = trials.trial("sqlite", CYCLES, SEED)
    assert found.problems == []
    told = {what: int(number.replace(",", "")) for number, what in (line.split(maxsplit=1) for line in found.lines)}
    assert sum(number for what, number in told.items() if what.startswith("kills")) == CYCLES
    assert told["deletes acknowledged"] > CYCLES
    assert told["changes under way at a kill: kept, between commit and reply"] > 0


def test_a_loss_is_seen() -> None:
    """A server that keeps nothing on disk: whatever was counted is gone, and nobody is let in as if it were not."""
    with redis_servers.serving() as server:
        found = trials.go(Run(Place(server.url, server), SEED), 1)
    assert any(problem.startswith("an acknowledged update is missing") for problem in found.problems)

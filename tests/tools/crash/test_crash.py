"""Two kills for each store, one of each fault, and proof that a loss is detected."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest
import redis_servers

from crash import faults, trials
from crash.trials import Place, Run

ROOT = Path(__file__).resolve().parents[3]
CYCLES = 2  # of the server, where there is one, and of the worker
SEED = 23  # with which both hooks come


@pytest.mark.parametrize(
    "store", ["sqlite", *(pytest.param(name, marks=pytest.mark.nightly) for name in trials.PLACES if name != "sqlite")]
)
def test_nothing_that_was_acknowledged_is_lost(store: str) -> None:
    """The worker is killed, and the server where there is one."""
    found = trials.trial(store, CYCLES, SEED)
    assert found.problems == []
    told = {what: int(number.replace(",", "")) for number, what in (line.split(maxsplit=1) for line in found.lines)}
    assert sum(number for what, number in told.items() if what.startswith("kills")) == CYCLES
    assert told["deletes acknowledged"] > CYCLES
    assert told["changes under way at a kill: kept, between commit and reply"] > 0


NEEDS_A_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="a slow disk is a library that cc makes")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "of",
    [*faults.FAULTS, *(pytest.param(of, marks=NEEDS_A_COMPILER) for of in faults.SLOW)],
    ids=", ".join,
)
def test_a_fault_takes_nothing_that_the_documentation_promises(of: faults.Of) -> None:
    """No live session ends either. WAITAOF, which not every Redis knows, is left to the command."""
    found = anyio.run({**faults.FAULTS, **faults.SLOW}[of])
    assert faults.losses(of, found) == {}, found
    assert found.get("deleted", 1) > 0


def test_a_loss_is_seen() -> None:
    """A server that keeps nothing on disk: whatever was counted is gone, and nobody is let in as if it were not."""
    with redis_servers.serving() as server:
        found = trials.go(Run(Place(server.url, server), SEED), 1)
    assert any(problem.startswith("an acknowledged update is missing") for problem in found.problems)

"""The trials themselves: two kills for each store, one of each fault, and proof that a loss is seen."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest
import redis_servers

from crash import faults, trials
from crash.trials import Place, Run
from crash.worker import CHANGES, TASKS, Hook, Plan, work

ROOT = Path(__file__).resolve().parents[3]
CYCLES = 2  # of the server, where there is one, and of the worker
SEED = 23  # with which both hooks come


@pytest.mark.parametrize("store", trials.PLACES)
def test_nothing_that_was_acknowledged_is_lost(store: str) -> None:
    """The worker is killed, and the server where there is one."""
    found = trials.trial(store, CYCLES, SEED)
    assert found.problems == []
    told = {what: int(number.replace(",", "")) for number, what in (line.split(maxsplit=1) for line in found.lines)}
    assert sum(number for what, number in told.items() if what.startswith("kills")) == CYCLES
    assert told["deletes acknowledged"] > CYCLES
    assert told["changes under way at a kill: kept, between commit and reply"] > 0


NEEDS_A_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="a slow disk is a library that cc makes")


@pytest.mark.parametrize(
    "of",
    [*faults.FAULTS, *(pytest.param(of, marks=NEEDS_A_COMPILER) for of in faults.SLOW)],
    ids=", ".join,
)
def test_a_fault_takes_nothing_that_the_documentation_promises(of: faults.Of) -> None:
    """No live session ends either. WAITAOF, which not every Redis knows, is left to `make crash-trials`."""
    found = anyio.run({**faults.FAULTS, **faults.SLOW}[of])
    assert faults.losses(of, found) == {}, found
    assert found.get("deleted", 1) > 0


def test_a_loss_is_seen() -> None:
    """A server that keeps nothing on disk: whatever was counted is gone, and nobody is let in as if it were not."""
    with redis_servers.serving() as server:
        found = trials.go(Run(Place(server.url, server), SEED), 1)
    assert any(problem.startswith("an acknowledged update is missing") for problem in found.problems)


def test_a_session_whose_end_nobody_heard_of_is_seen() -> None:
    """It ended, and nobody ran its `on_end`."""
    run = Run(Place("memory:"), SEED)
    run.due.add("ses_a")
    assert trials.report(run).problems == ["on_end was never run: ses_a"]


def test_the_command_line_prints_a_table() -> None:
    """And its exit status is 0 where nothing was lost."""
    command = [sys.executable, "-m", "tests.tools.crash", "--store", "sqlite", "--cycles", "1", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("sqlite: 1 cycles in ")
    assert "      0  deletes lost\n" in done.stdout


def test_the_command_line_prints_the_faults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the documentation shows them; its exit status is 1 where something was lost that it promises."""
    assert faults.FAULTS.keys() < faults.known().keys()

    async def fault() -> dict[str, int]:
        return {"deleted": 1000, "deletes lost": 1}

    for of, status in ((("a cluster", "a fault"), 1), (("Sentinel", "fail-over to a replica that lags"), 0)):
        monkeypatch.setattr("crash.faults.known", lambda of=of: {of: fault})
        assert trials.main(["--faults"]) == status
        shown = capsys.readouterr().out
        assert shown.splitlines()[2] == f"| {of[0]} | {of[1]} | 1,000 deleted, 1 deletes lost |"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that may be killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


@pytest.mark.parametrize("hook", get_args(Hook))
def test_a_worker_says_what_it_does(sleeper: subprocess.Popen[bytes], tmp_path: Path, hook: Hook) -> None:
    """A line before each change and one after; what it left is done by the next. It kills whom it is told to."""
    said: list[dict[str, Any]] = []
    url = f"sqlite:{tmp_path}/sessions.db"
    for name in ("one", "two"):
        anyio.run(work, Plan(url, name, int(time.time()) + 60, sleeper.pid, at=5, hook=hook), said.append)
    assert sleeper.wait() == -9
    changes, answers = ([line for line in said if key in line] for key in ("change", "answer"))
    assert len(changes) == len(answers) >= CHANGES
    assert {line["change"] for line in changes} == {"delete", "increment", "update"}
    expired = {line["recorded"] for line in said if "recorded" in line and line["ends"] is None}
    assert len(expired) == 2 * TASKS
    assert len(expired & {line["on_end"] for line in said if "on_end" in line}) == TASKS

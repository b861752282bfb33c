"""What is told of the runs: a table of what ran where, every skip, and where the time went."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from matrix.environments import Environment
from matrix.records import Run, run_nowhere
from matrix.steps import Step, now

SHOWN = ("mcp", "fastmcp", "starlette", "fastapi", "pydantic")
HEADINGS = ("environment", "python", *SHOWN, "passed", "failed", "skipped")
TIMES = ("step", "from", "to", "took", "processor")


def say(line: str) -> None:
    print(line, flush=True)


def versions(environment: Environment) -> dict[str, str]:
    """The installed versions that the table shows."""
    program = (
        "import importlib.metadata as m, json, sys\n"
        "there = {d.name.lower(): d.version for d in m.distributions()}\n"
        "print(json.dumps({n: there.get(n, '-') for n in sys.argv[1:]}))"
    )
    done = subprocess.run([str(environment.python), "-c", program, *SHOWN], capture_output=True, text=True, check=True)
    shown: dict[str, str] = json.loads(done.stdout)
    return shown


def row(run: Run) -> list[str]:
    counts = (str(len(what)) for what in outcomes(run))
    return [run.step.name, run.environment.version, *versions(run.environment).values(), *counts]


def outcomes(run: Run) -> tuple[Collection[str], ...]:
    """The tests that passed, those that failed, and those that were skipped."""
    return run.passed, run.failed, run.skipped


def show_table(rows: Iterable[Sequence[str]]) -> None:
    """Print rows in columns."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    say("")
    for line in lines:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def show_times(steps: list[Step]) -> None:
    """Where the time went: each step in the order in which they began, and all of them together."""
    whole = replace(steps[0], name="all", began=0, ended=now(), processor=sum(step.processor for step in steps))
    show_table([TIMES, *map(times, (*sorted(steps, key=attrgetter("began")), whole))])


def times(step: Step) -> list[str]:
    return [step.name, *map(minutes, (step.began, step.ended, step.ended - step.began, step.processor))]


def minutes(seconds: float) -> str:
    """As clocks show it: 75.2 is 1:15."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02}"


def show_skips(runs: list[Run]) -> None:
    """Every skip, by environment and reason: none is hidden."""
    for run in runs:
        reasons: dict[str, list[str]] = defaultdict(list)
        for name, reason in run.skipped.items():
            reasons[reason].append(name)
        for reason, names in sorted(reasons.items()):
            say(f"skipped in {run.step.name}, {reason}:")
            say("\n".join(f"    {name}" for name in sorted(names)))


def conclude(runs: list[Run], *, complete: bool) -> int:
    """Print what happened; 0 only if every run passed and no test was skipped everywhere."""
    show_table([HEADINGS, *map(row, runs)])
    passed, failed, skipped = (sum(map(len, what)) for what in zip(*map(outcomes, runs), strict=True))
    say(f"\ntests: {passed} passed, {failed} failed, {skipped} skipped\n")
    show_skips(runs)
    bad = [run.step.name for run in runs if run.step.code != 0]
    nowhere = run_nowhere(runs) if complete else []
    if bad:
        say(f"\nFAILED in: {', '.join(bad)}")
    if nowhere:
        say("\nFAILED: skipped in every environment:\n" + "\n".join(f"    {name}" for name in nowhere))
    return 1 if bad or nowhere else 0

"""The gate, `make check`: every check that a change has to pass, in one command, and a table of where the time went.

First what takes seconds, one after the other, since who has forgotten to format wants to hear of it at once. Then the
tests, and beside them what keeps one core busy; all of it runs to its end, so that one run tells of everything.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from matrix.environments import EVERYDAY, ROOT, own_environment
from matrix.running import Wanted, combine_coverage, run_everywhere
from matrix.steps import Step, take
from matrix.telling import conclude, say, show_times

QUICK = ("format-check", "lint", "architecture")
BESIDE = ("types", "docs", "bench-check")


def check(args: list[str]) -> int:
    """Check everything; 0 only if nothing failed."""
    environments = [own_environment(spec) for spec in EVERYDAY]
    steps = quick_steps()
    if steps[-1].code != 0:
        return tell(steps)
    with ThreadPoolExecutor(max_workers=1) as pool:
        beside = pool.map(make, BESIDE)
        runs = run_everywhere(environments, Wanted(args, coverage=True))
        steps += [*(run.step for run in runs), *beside]
    failed = conclude(runs, complete=not args)
    steps += [] if failed else combine_coverage(environments[0])
    return tell(steps) or failed


def quick_steps() -> list[Step]:
    """The set-up and what takes seconds, as far as the first that fails."""
    steps = [set_up()]
    for target in QUICK:
        if steps[-1].code == 0:
            steps.append(make(target))
    return steps


def set_up() -> Step:
    """Make the environments, as a program of its own, so that its processor time is known."""
    say("setting up the virtual environments")
    return show(take("set-up", (sys.executable, ROOT / "tests" / "matrix", "--setup-only")))


def make(target: str) -> Step:
    """Run one target of the Makefile, and show what it printed when it is done."""
    return show(take(f"make {target}", (os.environ.get("MAKE", "make"), "--no-print-directory", target)))


def show(step: Step) -> Step:
    say(f"\n=== {step.name} ===\n{step.output}")
    return step


def tell(steps: list[Step]) -> int:
    """Show the times, and say whether all steps passed."""
    show_times(steps)
    failed = [step.name for step in steps if step.code != 0]
    say(f"\ncheck: FAILED in {', '.join(failed)}" if failed else "\ncheck: all passed")
    return 1 if failed else 0

"""Runs the tests: in every environment, in every lane, some of them side by side.

What each run prints is shown when it is done, so that no two mix. Coverage is measured by each alone and combined when
all are done.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from matrix.environments import ROOT, Environment
from matrix.lanes import lanes_of
from matrix.records import Run, read_record
from matrix.steps import Step, take
from matrix.telling import say

RECORDS = ROOT / ".matrix"
NOTHING_CHOSEN = 5  # pytest's exit code where ARGS choose none of a lane's tests
SIDE_BY_SIDE = 2 * min(2, os.cpu_count() or 1)


@dataclass(frozen=True)
class Wanted:
    """Which tests are wanted, and whether with coverage."""

    args: list[str]
    coverage: bool = False
    everything: bool = False
    brief: bool = False


@dataclass(frozen=True)
class Lane:
    """One run of pytest: the environment, and what pytest is told."""

    environment: Environment
    name: str
    paths: list[str]


def run_everywhere(environments: list[Environment], wanted: Wanted) -> list[Run]:
    """Run pytest in every lane of every environment."""
    shutil.rmtree(RECORDS, ignore_errors=True)
    (RECORDS / "coverage").mkdir(parents=True)
    say(f"testing in {', '.join(e.name for e in environments)}; what each prints is shown when it is done")
    lanes = [
        Lane(environment, lane, paths)
        for environment in environments
        for lane, paths in lanes_of(environment, everything=wanted.everything, brief=wanted.brief).items()
    ]
    with ThreadPoolExecutor(max_workers=SIDE_BY_SIDE) as pool:
        return list(pool.map(lambda lane: run_lane(lane, wanted), lanes))


def run_lane(lane: Lane, wanted: Wanted) -> Run:
    """Run one lane of the tests in one environment, and show what pytest printed when it is done."""
    environment, name = lane.environment, f"{lane.environment.name} {lane.name}"
    record = RECORDS / f"{environment.name}-{lane.name}.xml"
    measured = ["coverage", "run", "-m"] if wanted.coverage else []
    # At their lower bounds dependencies warn of what has changed since; elsewhere a warning is an error.
    lenient = ["-W", "ignore"] if environment.spec == "lowest" else []
    pytest = ["pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={record}", *lenient, *lane.paths, *wanted.args]
    variables = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}
    variables["COVERAGE_FILE"] = str(RECORDS / "coverage" / f".coverage.{environment.name}-{lane.name}")
    step = take(name, [environment.python, "-m", *measured, *pytest], variables)
    say(f"\n=== {name}: Python {environment.version} ===\n{step.output}")
    return read_record(environment, forgive(step, wanted), record)


def forgive(step: Step, wanted: Wanted) -> Step:
    """A lane in which the arguments choose no test has not failed."""
    return replace(step, code=0) if wanted.args and step.code == NOTHING_CHOSEN else step


def combine_coverage(environment: Environment) -> list[Step]:
    """Combine what every environment measured, report it, and hold it against `fail_under`."""
    coverage = (environment.python, "-m", "coverage")
    variables = {**os.environ, "COVERAGE_FILE": str(ROOT / ".coverage")}
    steps = [
        take("coverage combine", (*coverage, "combine", "--quiet", RECORDS / "coverage"), variables),
        take("coverage report", (*coverage, "report"), variables),
    ]
    say("\n=== branch coverage over all environments ===")
    say("\n".join(step.output for step in steps))
    return steps

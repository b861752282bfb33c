"""The comparison: every column's outcomes side by side, and where they differ."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio

from integration.serving import serving

from . import suite
from .columns import COLUMNS, ECHOED, Column
from .suite import Outcome

Results = Mapping[str, Mapping[str, Mapping[str, Outcome]]]
"""Outcomes by requirement set, column and scenario."""


TRIES: Final = 3
"""The number of tries of a set: the suite has timeouts of half a second."""

BY_DESIGN: Final[Mapping[tuple[str, str], str]] = {
    ("ping", ECHOED): "ping FAILURE",
    ("logging-set-level", ECHOED): "logging-set-level FAILURE",
}
"""The suite wants these two results to be empty objects; the draft wants the session in every result."""


async def compare(sets: Sequence[str], columns: Mapping[str, Column]) -> Results:
    """Run the suite against every column in turn, since it has timeouts and all share a processor."""
    found: dict[str, dict[str, Mapping[str, Outcome]]] = {requirements: {} for requirements in sets}
    for name, column in columns.items():
        async with serving(await column()) as url:
            for requirements in sets:
                of_set = found[requirements]

                def is_expected(outcomes: Mapping[str, Outcome], of_set: Any = of_set, name: str = name) -> bool:
                    return not differences({"": {**of_set, name: outcomes}})

                of_set[name] = await steadily(url, requirements, is_expected)
    return found


async def steadily(
    url: str, requirements: str, is_expected: Callable[[Mapping[str, Outcome]], bool]
) -> Mapping[str, Outcome]:
    """Run a set until it comes out as expected, at most `TRIES` times, and return the last outcomes."""
    outcomes = await suite.run(url, requirements)
    for _ in range(TRIES - 1):
        if is_expected(outcomes):
            break
        outcomes = await suite.run(url, requirements)
    return outcomes


def differences(results: Results) -> list[str]:
    """Describe every scenario that differs from the first column, except those that do so by design."""
    return [
        f"{requirements} {scenario}: {name}: {changed}"
        for requirements, columns in results.items()
        for first in [next(iter(columns.values()))]
        for name, outcomes in columns.items()
        for scenario in {**first, **outcomes}
        for changed in [_changed(first.get(scenario), outcomes.get(scenario))]
        if changed and changed != BY_DESIGN.get((scenario, name))
    ]


def _changed(expected: Outcome | None, found: Outcome | None) -> str:
    """Describe the checks that differ."""
    if expected == found:
        return ""
    before, after = (set() if outcome is None else set(outcome.checks) for outcome in (expected, found))
    return ", ".join(f"{check} {status}" for check, status in sorted(after - before)) or "checks are missing"


# --- shown ---------------------------------------------------------------------------------------


def rows(columns: Mapping[str, Mapping[str, Outcome]]) -> list[tuple[str, ...]]:
    """Return a line for each scenario, and the sums."""
    first = next(iter(columns.values()))
    lines = [(scenario, *(str(outcomes.get(scenario)) for outcomes in columns.values())) for scenario in first]
    sums = (
        f"{sum(one.passed for one in outcomes.values())} of {sum(one.passed + one.failed for one in outcomes.values())}"
        for outcomes in columns.values()
    )
    return [*lines, ("checks passed", *sums)]


def show(results: Results) -> str:
    """Return the columns side by side, for a terminal."""
    shown = []
    for requirements, columns in results.items():
        lines = [(requirements, *columns), *rows(columns)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        shown += ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(line.rstrip() for line in shown)


# --- the command line ----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; return 1 where a column differs from the bare server."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.conformance", description=__doc__)
    parser.add_argument("--set", action="append", choices=suite.SETS, help="only this one (may be given twice)")
    options = parser.parse_args(arguments)
    results = anyio.run(partial(compare, options.set or suite.SETS, COLUMNS))
    found = differences(results)
    print(show(results))
    print("\n".join(found) or "no column is worse than the first")
    return 1 if found else 0

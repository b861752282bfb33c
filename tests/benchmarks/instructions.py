"""Instructions per request, counted by valgrind: they tell two variants apart where times are too noisy.

A count hardly differs between two runs, so the gate checks it: one that exceeds its budget by more than 2 % fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .timing import Report, Size

BUDGETS: Final = {
    "ours, no session": 79_000,
    "ours, session": 231_000,
    "ours, session, state changed": 333_000,
    "ours, forged session refused": 331_000,
    "ours, session, traced": 620_000,
}
"""Instructions per request beyond a pass-through that serves the same body, in pure Python."""
ROOT: Final = Path(__file__).parents[2]
NOISE: Final = 0.02  # by which the counts of two runs differ at most
MISSING: Final = "instructions: not counted, since valgrind is not installed (apt-get install valgrind)"
PROGRAM: Final = "from tests.benchmarks import counted; counted.main()"
_COUNTED: Final = re.compile(r"^(\d+) (\d+) (bare|ours) (.+)$", re.MULTILINE)
_TOTAL: Final = re.compile(r"^summary: (\d+)", re.MULTILINE)


def count(size: Size) -> dict[str, float] | None:
    """Return the instructions per request of each subject beyond a pass-through, or None without valgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    totals: dict[tuple[str, str, int], int] = {}
    with tempfile.TemporaryDirectory() as folder:
        tool = [valgrind, "--tool=cachegrind", "--cache-sim=no", "--quiet", f"--cachegrind-out-file={folder}/%p"]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        done = subprocess.run(
            [*tool, sys.executable, "-c", PROGRAM, str(size.counted)],
            cwd=ROOT,
            env={**variables, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": ""},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        for process, requests, way, name in _COUNTED.findall(done.stdout):
            (total,) = _TOTAL.findall(Path(folder, process).read_text("utf-8"))
            totals[name, way, int(requests)] = int(total)
    many = size.counted
    taken = {(name, way): (totals[name, way, many] - totals[name, way, 0]) / many for name, way, _ in totals}
    return {name: taken[name, "ours"] - taken[name, "bare"] for name in BUDGETS}


def over_budget(counts: Mapping[str, float]) -> list[str]:
    """Return the counts that are over their budgets, as sentences."""
    return [
        f"{name}: {counts[name]:,.0f} instructions per request where at most {most:,} are allowed"
        for name, most in BUDGETS.items()
        if counts[name] > most * (1 + NOISE)
    ]


def instructions(size: Size) -> Report:
    """Count, or report why not."""
    counts = count(size)
    return Report(MISSING, ("",), ()) if counts is None else _table(counts)


def _table(counts: Mapping[str, float]) -> Report:
    rows = [(name, f"{number:,.0f}", f"{BUDGETS[name]:,}") for name, number in counts.items()]
    return Report("Instructions per request beyond a pass-through", ("", "counted", "budget"), rows)


def gate(size: Size) -> int:
    """Print the counts and those over their budgets; return the exit code, which in CI is 1 without valgrind."""
    counts = count(size)
    if counts is None:
        print(MISSING)
        return int(bool(os.environ.get("CI")))
    faults = over_budget(counts)
    print(_table(counts).text(), *faults, sep="\n")
    return int(bool(faults))

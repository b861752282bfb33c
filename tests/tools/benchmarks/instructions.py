"""Instructions per request, counted by valgrind: what tells two variants apart where times are too noisy.

A count hardly differs between two runs, so the gate holds it: one that is more than 2 % over its budget fails. What is
held is the count beyond that of a pass-through that serves the same request.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .budgets import BUDGETS
from .children import ROOT, environment
from .report import Report, Table
from .size import Size

HERE: Final = f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])} {platform.machine()}"
NOISE: Final = 0.02  # by which the counts of two runs differ at most
MISSING: Final = "instructions: not counted, since valgrind is not installed (apt-get install valgrind)"
PROGRAM: Final = "from tests.tools.benchmarks import counted; counted.main()"
_COUNTED: Final = re.compile(r"^(\d+) (\d+) (bare|ours) (.+)$", re.MULTILINE)
_TOTAL: Final = re.compile(r"^summary: (\d+)", re.MULTILINE)
_BUDGETS: Final = {
    budget.figure.removeprefix("instructions/ours, ").removesuffix("/more"): budget.limit
    for budget in BUDGETS
    if budget.figure.startswith("instructions/") and budget.figure.endswith("/more")
}

Counts = Mapping[str, Mapping[str, int]]
"""By subject: the instructions of a request as it is (`ours`), and through a pass-through (`bare`)."""


def count(size: Size) -> dict[str, dict[str, int]] | None:
    """Return the instructions per request of each subject, or None without valgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    totals: dict[str, dict[str, dict[int, int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tool = [valgrind, "--tool=cachegrind", "--cache-sim=no", "--quiet", f"--cachegrind-out-file={folder}/%p"]
        program = [sys.executable, "-c", PROGRAM, str(size.counted), *size.subjects]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        fixed = environment({**kept, "PYTHONHASHSEED": "0"})
        done = subprocess.run([*tool, *program], cwd=ROOT, env=fixed, stdout=subprocess.PIPE, text=True, check=True)
        for process, requests, way, name in _COUNTED.findall(done.stdout):
            of_way = totals.setdefault(name, {}).setdefault(way, {})
            of_way[int(requests)] = int(_TOTAL.findall(Path(folder, process).read_text())[0])
    many = size.counted
    return {name: {way: round((of[many] - of[0]) / many) for way, of in ways.items()} for name, ways in totals.items()}


def beyond(counts: Counts) -> dict[str, int]:
    """Return what each subject takes more than its pass-through."""
    return {name: of["ours"] - of["bare"] for name, of in counts.items()}


def over_budget(counts: Counts) -> list[str]:
    """Return the counts that are over their budgets, as sentences."""
    return [
        f"{name}: {number:,} instructions per request where at most {_BUDGETS[name]:,.0f} are allowed"
        for name, number in beyond(counts).items()
        if name in _BUDGETS and not number <= _BUDGETS[name] * (1 + NOISE)
    ]


def table(counts: Counts) -> Table:
    """Return the counts beside the budgets."""
    more = beyond(counts)
    rows = [
        (name, f"{of['ours']:,}", f"{more[name]:,}", f"{_BUDGETS[name]:,.0f}" if name in _BUDGETS else "")
        for name, of in counts.items()
    ]
    title = f"Instructions per request ({HERE}, valgrind)"
    return Table(title, ("", "all", "beyond its pass-through", "budget"), rows)


async def instructions(size: Size) -> Report:
    """Count, or report why not."""
    counts = count(size)
    if counts is None:
        return Report([Table(MISSING, ("",), ())])
    return Report([table(counts)], figures(counts))


def figures(counts: Counts) -> dict[str, float]:
    """Return what budgets read of the counts, by its name."""
    found = {f"instructions/ours, {name}/more": float(number) for name, number in beyond(counts).items()}
    return found | {f"instructions/ours, {name}/throughput": of["bare"] / of["ours"] for name, of in counts.items()}


def gate(size: Size) -> int:
    """Hold the counts against the budgets; return the exit code."""
    counts = count(size)
    if counts is None:
        print(MISSING)
        return 0
    print(table(counts).text())
    faults = over_budget(counts)
    print(*faults, sep="\n")
    return 1 if faults else 0

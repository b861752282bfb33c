"""Instructions per request, counted by valgrind: what tells two variants apart where times are too noisy.

A count hardly differs between two runs, so the gate holds it: one that rose by more than 5 % over the committed
baseline fails, and so does one that is more than 2 % over its budget. What is held is the count beyond that of a
pass-through that serves the same request. The baseline is kept by Python version and kind of machine; the pass-through
tells another build of the same Python, and counts are read in proportion to it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from mcp_sessions._protocol._native import SWITCH, reader

from .budgets import BUDGETS, MOST_TO_ENRICH
from .children import ROOT, environment
from .report import Report, Table
from .size import Size

BASELINE: Final = Path(__file__).with_name("instructions.json")
HERE: Final = f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])} {platform.machine()}"
TOLERANCE: Final = 0.05
NOISE: Final = 0.02  # by which the counts of two runs differ at most
READERS: Final = {"0": "", **({"1": "native, "} if reader() == "native" else {})}
"""What the switch is set to, and what that puts before the names of subjects; the native one where it is built."""
SQLITE: Final = "session, sqlite:"
MOST_OVER_MEMORY: Final = 12_000  # instructions, 3 us, by which a session on SQLite costs more than one in memory
FORGED: Final = "forged session refused"
VERIFIED: Final = "session, no token cache"  # than which a forged one must not take more
_FORGED: Final = [(f"{prefix}{FORGED}", f"{prefix}{VERIFIED}") for prefix in READERS.values()]
_ENRICHED: Final = [(f"{prefix}session, enriched", f"{prefix}session") for prefix in READERS.values()]
_OF_HTTP: Final = [(f"{prefix}session, HTTP span enriched", f"{prefix}session") for prefix in READERS.values()]
MISSING: Final = "instructions: not counted, since valgrind is not installed (apt-get install valgrind)"
PROGRAM: Final = "from tests.tools.benchmarks import counted; counted.main()"
_COUNTED: Final = re.compile(r"^(\d+) (\d+) (bare|ours) (.+)$", re.MULTILINE)
_TOTAL: Final = re.compile(r"^summary: (\d+)", re.MULTILINE)

Counts = Mapping[str, Mapping[str, int]]
"""By subject: the instructions of a request as it is (`ours`), and through a pass-through (`bare`)."""


def count(size: Size) -> dict[str, dict[str, int]] | None:
    """Return the instructions per request of each subject by each reader, or None without valgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    with ThreadPoolExecutor() as pool:
        counted = pool.map(partial(_count, valgrind, size), READERS)
        return {name: number for counts in counted for name, number in counts.items()}


def _count(valgrind: str, size: Size, native: str) -> dict[str, dict[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        tool = [valgrind, "--tool=cachegrind", "--cache-sim=no", "--quiet", f"--cachegrind-out-file={folder}/%p"]
        program = [sys.executable, "-c", PROGRAM, str(size.counted), *size.subjects]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        fixed = environment({**kept, "PYTHONHASHSEED": "0", SWITCH: native})
        done = subprocess.run([*tool, *program], cwd=ROOT, env=fixed, stdout=subprocess.PIPE, text=True, check=True)
        totals: dict[str, dict[str, dict[int, int]]] = {}
        for process, requests, way, name in _COUNTED.findall(done.stdout):
            of_way = totals.setdefault(READERS[native] + name, {}).setdefault(way, {})
            of_way[int(requests)] = int(_TOTAL.findall(Path(folder, process).read_text())[0])
    many = size.counted
    return {name: {way: round((of[many] - of[0]) / many) for way, of in ways.items()} for name, ways in totals.items()}


def beyond(counts: Counts) -> dict[str, int]:
    """Return what each subject takes more than its pass-through."""
    return {name: of["ours"] - of["bare"] for name, of in counts.items()}


def limits(baseline: Counts, counts: Counts) -> dict[str, float]:
    """Return how much more each subject may take: its budget, and little more than the baseline."""
    held = beyond(baseline)
    builds = {name: counts[name]["bare"] / of["bare"] for name, of in baseline.items() if name in counts}
    allowed = {name: held[name] * build * (1 + TOLERANCE) for name, build in builds.items()}
    budgets = {name: most * builds[name] * (1 + NOISE) for name, most in _BUDGETS.items() if name in builds}
    limits = {name: min(most, budgets.get(name, most)) for name, most in allowed.items()}
    for name in limits.keys() & {f"{prefix}{SQLITE}" for prefix in READERS.values()}:
        in_memory = beyond(counts)[name.removesuffix(SQLITE) + "session"]
        limits[name] = min(limits[name], in_memory + MOST_OVER_MEMORY)
    for forged, verified in _FORGED:
        if forged in limits and verified in counts:
            limits[forged] = min(limits[forged], beyond(counts)[verified] * (1 + NOISE))
    for enriched, untraced in _ENRICHED:
        if enriched in limits and untraced in counts:
            limits[enriched] = min(limits[enriched], (beyond(counts)[untraced] + MOST_TO_ENRICH) * (1 + NOISE))
    return limits


_BUDGETS: Final = {
    budget.figure.removeprefix("instructions/ours, ").removesuffix("/more"): budget.limit
    for budget in BUDGETS
    if budget.figure.startswith("instructions/") and budget.figure.endswith("/more")
}


def risen(counts: Counts, baseline: Counts) -> list[str]:
    """Return the counts that rose over what is allowed, as sentences."""
    allowed = limits(baseline, counts)
    return [
        f"{name}: {number:,} instructions per request where at most {allowed[name]:,.0f} are allowed"
        for name, number in beyond(counts).items()
        if not number <= allowed.get(name, number)
    ]


def table(counts: Counts, baseline: Counts | None) -> Table:
    """Return the counts beside the baseline and the budgets."""
    held, more = {} if baseline is None else beyond(baseline), beyond(counts)
    rows = [
        (
            name,
            f"{of['ours']:,}",
            f"{more[name]:,}",
            f"{more[name] / held[name] - 1:+.1%}" if name in held else "none",
            f"{_BUDGETS[name]:,.0f}" if name in _BUDGETS else "",
        )
        for name, of in counts.items()
    ]
    title = f"Instructions per request ({HERE}, valgrind)"
    return Table(title, ("", "all", "beyond its pass-through", "against baseline", "budget"), rows)


def _baselines() -> dict[str, dict[str, dict[str, int]]]:
    kept: dict[str, dict[str, dict[str, int]]] = json.loads(BASELINE.read_text("utf-8"))
    return kept


async def instructions(size: Size) -> Report:
    """Count, or report why not."""
    counts = count(size)
    if counts is None:
        return Report([Table(MISSING, ("",), ())])
    return Report([table(counts, _baselines().get(HERE))], figures(counts))


def figures(counts: Counts) -> dict[str, float]:
    """Return what budgets read of the counts, by its name."""
    more = beyond(counts)
    found = {f"instructions/ours, {name}/more": float(number) for name, number in more.items()}
    found |= {f"instructions/ours, {name}/throughput": of["bare"] / of["ours"] for name, of in counts.items()}
    for forged, verified in _FORGED:
        if {forged, verified} <= counts.keys():
            found[f"instructions/ours, {forged}/times"] = round(more[forged] / more[verified], 2)  # the rest is noise
    for enriched, untraced in [*_ENRICHED, *_OF_HTTP]:
        if {enriched, untraced} <= counts.keys():
            found[f"instructions/ours, {enriched}/over untraced"] = float(more[enriched] - more[untraced])
    return found


def gate(size: Size, *, write: bool) -> int:
    """Hold the counts against the baseline, or make them the baseline; return the exit code."""
    counts, baselines = count(size), _baselines()
    if counts is None:
        print(MISSING)
        return 0
    if write:
        baselines[HERE] = counts
        BASELINE.write_text(json.dumps(baselines, indent=2, sort_keys=True) + "\n", "utf-8")
    baseline = baselines.get(HERE)
    print(table(counts, baseline).text())
    if baseline is None:
        print(f"instructions: no baseline for {HERE}; keep one with: python -m tests.tools.benchmarks --write-baseline")
    faults = [] if baseline is None else risen(counts, baseline)
    print(*faults, sep="\n")
    return 1 if faults else 0

"""Instructions per request, counted by valgrind: what tells two variants apart where times are too noisy.

A count hardly differs between two runs, so the gate holds it: one that rose by more than 5 % over the committed
baseline fails. What is held is the count beyond the pass-through's. The baseline is kept by Python version and kind
of machine; another build of the same Python is told by the pass-through, in proportion to which counts are read.
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
from pathlib import Path
from typing import Final

from .children import ROOT, environment
from .report import Report, Table
from .size import Size

BASELINE: Final = Path(__file__).with_name("instructions.json")
HERE: Final = (
    f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor} {platform.machine()}"
)
TOLERANCE: Final = 0.05
MISSING: Final = "instructions: not counted, since valgrind is not installed (apt-get install valgrind)"
PROGRAM: Final = "from tests.benchmarks import counted; counted.main()"
_COUNTED: Final = re.compile(r"^(\d+) (\d+) (.+)$", re.MULTILINE)
_TOTAL: Final = re.compile(r"^summary: (\d+)", re.MULTILINE)

Counts = Mapping[str, int]


def count(size: Size, valgrind: str) -> dict[str, int]:
    """Instructions per request of each subject, the harness included.

    Args:
        size: How many requests are counted, of which subjects.
        valgrind: Where the program is.
    """
    requests = size.counted
    with tempfile.TemporaryDirectory() as folder:
        tool = [valgrind, "--tool=cachegrind", "--cache-sim=no", "--quiet", f"--cachegrind-out-file={folder}/%p"]
        program = [sys.executable, "-c", PROGRAM, str(requests), *size.subjects]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        fixed = environment({**kept, "PYTHONHASHSEED": "0"})
        done = subprocess.run([*tool, *program], cwd=ROOT, env=fixed, stdout=subprocess.PIPE, text=True, check=True)
        children = _COUNTED.findall(done.stdout)
        totals = {(name, int(number)): _total(Path(folder, pid)) for pid, number, name in children}
    return {
        name: round((totals[name, requests] - totals[name, 0]) / requests)
        for _, number, name in children
        if number == "0"
    }


def _total(file: Path) -> int:
    found = _TOTAL.search(file.read_text("utf-8"))
    assert found is not None, f"{file} is not valgrind's"
    return int(found[1])


def beyond(counts: Counts) -> dict[str, int]:
    """What each subject takes more than the pass-through; the core stands alone."""
    return {
        name: number - (0 if name == "core" else counts["pass-through"])
        for name, number in counts.items()
        if name != "pass-through"
    }


def risen(counts: Counts, baseline: Counts) -> list[str]:
    """The counts that rose by more than may be, as sentences."""
    build = counts["pass-through"] / baseline["pass-through"]
    allowed = {name: number * build * (1 + TOLERANCE) for name, number in beyond(baseline).items()}
    return [
        f"{name}: {number:,} instructions per request where at most {allowed[name]:,.0f} are allowed"
        for name, number in beyond(counts).items()
        if not number <= allowed.get(name, number)
    ]


def table(counts: Counts, baseline: Counts | None) -> Table:
    """The counts beside the baseline."""
    held = {} if baseline is None else {**beyond(baseline), "pass-through": baseline["pass-through"]}
    more = {"pass-through": counts["pass-through"], **beyond(counts)}
    rows = [
        (name, f"{number:,}", f"{more[name]:,}", f"{more[name] / held[name] - 1:+.1%}" if name in held else "none")
        for name, number in counts.items()
    ]
    title = f"Instructions per request ({HERE}, valgrind)"
    return Table(title, ("", "all", "beyond pass-through", "against baseline"), rows)


def read() -> dict[str, dict[str, int]]:
    """The committed baselines."""
    kept: dict[str, dict[str, int]] = json.loads(BASELINE.read_text("utf-8"))
    return kept


async def instructions(size: Size) -> Report:
    """Count, or say why not."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return Report([Table(MISSING, ("",), ())])
    counts = count(size, valgrind)
    figures = {f"instructions/{name}": float(number) for name, number in counts.items()}
    return Report([table(counts, read().get(HERE))], figures)


def gate(size: Size, *, write: bool) -> int:
    """Hold the counts against the baseline, or make them the baseline; the exit code."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        print(MISSING)
        return 0
    counts, baselines = count(size, valgrind), read()
    if write:
        BASELINE.write_text(json.dumps({**baselines, HERE: counts}, indent=2, sort_keys=True) + "\n", "utf-8")
    baseline = counts if write else baselines.get(HERE)
    print(table(counts, baseline).text())
    if baseline is None:
        print(f"instructions: no baseline for {HERE}; keep one with: python -m tests.benchmarks --write-baseline")
    faults = [] if write or baseline is None else risen(counts, baseline)
    print(*faults, sep="\n")
    return 1 if faults else 0

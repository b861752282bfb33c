"""Instructions per request, counted by valgrind: they tell two variants apart where times are too noisy.

A count hardly differs between two runs, so the gate checks it: one that exceeds its budget by more than 2 % fails.

In the program that is counted, everything is set up and warmed once. Then, for each subject, one child serves no
request and another serves N: the difference is what N requests take, and nothing of what Python takes to start is in
it. Each child's process id is printed, since valgrind names its files by it. Each subject is counted twice: as it is,
and as a pass-through that serves the same request, since reading the body in the application is not the middleware's
cost.
"""

import asyncio
import gc
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from . import apps, ours
from .apps import PassThrough
from .timing import Report, Row, Size
from .traffic import Visits, message

BUDGETS: Final = {
    "ours, no session": 108_000,
    "ours, session": 303_000,
    "ours, session, state changed": 392_000,
    "ours, forged session refused": 342_000,
    "ours, session, traced": 690_000,
}
"""Instructions per request beyond a pass-through that serves the same body, in pure Python."""
ROOT: Final = Path(__file__).parents[2]
WARM: Final = 30  # requests after which the interpreter has specialised what it will
NOISE: Final = 0.02  # by which the counts of two runs differ at most
MISSING: Final = "instructions: not counted, since valgrind is not installed (apt-get install valgrind)"
PROGRAM: Final = "from tests.benchmarks import instructions; instructions.main()"
Serve = Callable[[int], Coroutine[Any, Any, None]]
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


async def instructions(size: Size) -> Report:
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
    faults = [
        f"{name}: {counts[name]:,.0f} instructions per request where at most {most:,} are allowed"
        for name, most in BUDGETS.items()
        if counts[name] > most * (1 + NOISE)
    ]
    print(_table(counts).text(), *faults, sep="\n")
    return int(bool(faults))


async def subjects() -> dict[str, dict[str, Serve]]:
    """Return what serves requests of each kind that has a budget, `bare` and `ours`; the clock stands still."""
    clock = repeat(time.time()).__next__  # a function in C, as `time.time` is
    app = ours.wrap(apps.trivial, clock=clock)
    session = await ours.created(app, modern=False)
    rows = [*await ours.kinds(clock=clock), Row("ours, session, traced", Visits.of(app, message(session=session)))]
    visits = {row.name: row.visits for row in rows if row.name in BUDGETS}
    found: dict[str, dict[str, Serve]] = {
        name: {"bare": replace(each, app=PassThrough(apps.trivial)).serve, "ours": each.serve}
        for name, each in visits.items()
    }
    found["ours, session, traced"]["ours"] = partial(_traced, visits["ours, session, traced"])
    return found


async def _traced(visits: Visits, requests: int) -> None:
    """Serve requests whose spans are recorded. What that sets up stays: it comes last."""
    apps.record_spans()
    await visits.serve(requests)


def main() -> None:
    """Serve as many requests of each subject as the command line says."""
    number, found = int(sys.argv[1]), asyncio.run(subjects())
    fork = multiprocessing.get_context("fork")
    for name, ways in found.items():
        for way, serve in ways.items():
            asyncio.run(serve(WARM))
            gc.collect()
            gc.freeze()  # else some children, and not others, look through all that was made until now
            for requests in (0, number):
                child = fork.Process(target=lambda serve, many: asyncio.run(serve(many)), args=(serve, requests + 1))
                child.start()
                child.join()
                print(child.pid, requests, way, name, flush=True)

"""The command line: `python -m tests.tools.benchmarks`.

Every section prints its tables as soon as it is done; the budgets come last. A budget that is not met is a line of
the table and never an exit code: a machine may be slow, and only instruction counts are held in the gate.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

import anyio

from . import (
    bodies,
    budgets,
    burst,
    imports,
    inprocess,
    instructions,
    load,
    page,
    scale,
    soak,
    streams,
    summary,
    tenants,
    traced,
)
from .report import Report, Table
from .size import SIZES, Size

STORES: Final = "stores"  # burst, load, tenants: each is a command of its own, and prints one table
SECTIONS: Final[dict[str, Callable[[Size], Coroutine[Any, Any, Report]]]] = {
    "trivial": inprocess.trivial,
    "sdk-json": inprocess.modern_json,
    "sdk-sse": inprocess.legacy_sse,
    "sessions": scale.sessions,
    "revocations": scale.revocations,
    "memory": scale.memory,
    "requests": bodies.requests,
    "responses": bodies.responses,
    "streams": streams.streams,
    "import": imports.imports,
    "soak": soak.soak,
    "traced": traced.traced,  # last of what runs in this process: what it sets up stays
    "instructions": instructions.instructions,
}


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.benchmarks", description=__doc__)
    parser.add_argument(
        "section",
        nargs="*",
        default=[],
        help=f"of {', '.join(SECTIONS)}; all of these where none is named; or {STORES}",
    )
    parser.add_argument("--size", choices=SIZES, default="full", help="how much is measured (full)")
    parser.add_argument("--quick", dest="size", action="store_const", const="quick", help="the same as --size quick")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="how long the section `soak` lasts")
    parser.add_argument("--write-docs", action="store_true", help="put the tables and the plot into the documentation")
    parser.add_argument("--check", action="store_true", help="count instructions, and fail above the budgets")
    options = parser.parse_args(given)
    if STORES in options.section:
        of_stores(options.size)
        options.section.remove(STORES)
        if not options.section:
            return 0
    if unknown := [name for name in options.section if name not in SECTIONS]:
        parser.error(f"no section is called {', '.join(unknown)}")
    size = replace(SIZES[options.size], soak=options.soak or SIZES[options.size].soak)
    if options.check:
        return instructions.gate(size)
    start = time.monotonic()
    report = Report.all([run(name, size) for name in options.section or SECTIONS])
    minutes = (time.monotonic() - start) / 60
    first = [summary.table(report.figures), budgets.table(report.figures, whole=not options.section)]
    show(first)
    print(f"In all: {minutes:.1f} minutes, size {options.size}.")
    if options.write_docs:
        page.write(report, first, f"size {options.size}, {minutes:.0f} minutes")
    return 0


def of_stores(size: str) -> None:
    """Measure what stores take at the size where it hurts, and print the tables."""
    small = size != "full"
    burst.main(["--writes", "16", "--seconds", "1", "--sessions", "100", "--swept", "100"] if small else [])
    load.main(["--seconds", "0.2", "--sessions", "100", "--workers", "1"] if small else [])
    tenants.main(["--sessions", "500", "--seconds", "0.5"] if small else [])


def run(name: str, size: Size) -> Report:
    """Run one section, and print its tables."""
    report = anyio.run(SECTIONS[name], size)
    show(report.tables)
    return report


def show(tables: Sequence[Table]) -> None:
    """Print tables, but for those without a row."""
    for table in tables:
        if table.rows or not any(table.columns):
            print(table.text(), end="\n\n", flush=True)

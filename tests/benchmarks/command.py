"""The command line: `python -m tests.benchmarks`.

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
    crowd,
    imports,
    inprocess,
    instructions,
    network,
    on_trio,
    page,
    rooms,
    scale,
    sdk,
    soak,
    stateful,
    streams,
    summary,
    traced,
)
from .report import Report, Table
from .size import SIZES, Size

SECTIONS: Final[dict[str, Callable[[Size], Coroutine[Any, Any, Report]]]] = {
    "core": inprocess.pure_core,
    "trivial": inprocess.trivial,
    "rooms": rooms.rooms,
    "sdk-json": sdk.modern_json,
    "sdk-sse": sdk.legacy_sse,
    "sessions": scale.sessions,
    "revocations": scale.revocations,
    "floods": scale.floods,
    "memory": scale.memory,
    "requests": bodies.requests,
    "responses": bodies.responses,
    "streams": streams.streams,
    "import": imports.imports,
    "stateful": stateful.stateful,
    "http": network.network,
    "loops": network.loops,
    "trio": on_trio.on_trio,
    "crowd": crowd.crowd,
    "soak": soak.soak,
    "traced": traced.traced,  # last: what it sets up stays
    "instructions": instructions.instructions,
}
LOOPS: Final = {"trio": "trio"}


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("section", nargs="*", default=[], help=f"of {', '.join(SECTIONS)}; all where none is named")
    parser.add_argument("--size", choices=SIZES, default="full", help="how much is measured (full)")
    parser.add_argument("--quick", dest="size", action="store_const", const="quick", help="the same as --size quick")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="how long the section `soak` lasts")
    parser.add_argument("--write-docs", action="store_true", help="put the tables and plots into docs/performance.md")
    parser.add_argument(
        "--check", action="store_true", help="count instructions, and fail where more than the baseline"
    )
    parser.add_argument(
        "--write-baseline", action="store_true", help="count instructions, and keep them as the baseline"
    )
    options = parser.parse_args(given)
    unknown = [name for name in options.section if name not in SECTIONS]
    if unknown:
        parser.error(f"no section is called {', '.join(unknown)}")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line names."""
    options = arguments(given)
    size = replace(SIZES[options.size], soak=options.soak or SIZES[options.size].soak)
    if options.check or options.write_baseline:
        return instructions.gate(size, write=options.write_baseline)
    start = time.monotonic()
    report = Report.all(run(name, size) for name in options.section or SECTIONS)
    taken = time.monotonic() - start
    judged = budgets.table(report.figures, whole=not options.section)
    first = [table for table in (summary.table(report.figures), judged) if table.rows]
    for table in first:
        show(table)
    print(f"In all: {taken / 60:.1f} minutes, size {options.size}.")
    if options.write_docs:
        page.write(report, first, f"size {options.size}, {taken / 60:.0f} minutes")
    return 0


def run(name: str, size: Size) -> Report:
    """One section, which prints its tables."""
    report = anyio.run(SECTIONS[name], size, backend=LOOPS.get(name, "asyncio"))
    for table in report.tables:
        show(table)
    return report


def show(table: Table) -> None:
    """Print a table."""
    print(table.text(), end="\n\n", flush=True)

"""The command line: `python -m tests.benchmarks`.

Every section prints its tables as soon as it is done; the budgets come last. A budget that is not met is a line of
the table and never an exit code: a machine may be slow, and only instruction counts are held in the gate.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from . import bodies, budgets, imports, inprocess, instructions, network, page, scale, sdk, streams, traced
from .report import Report, Table
from .size import SIZES, Size

SECTIONS: Final[dict[str, Callable[[Size], Coroutine[Any, Any, Report]]]] = {
    "core": inprocess.pure_core,
    "trivial": inprocess.trivial,
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
    "http": network.network,
    "traced": traced.traced,  # last: what it sets up stays
    "instructions": instructions.instructions,
}


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("section", nargs="*", default=[], help=f"of {', '.join(SECTIONS)}; all where none is named")
    parser.add_argument("--size", choices=SIZES, default="full", help="how much is measured (full)")
    parser.add_argument("--quick", dest="size", action="store_const", const="quick", help="the same as --size quick")
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
    size = SIZES[options.size]
    if options.check or options.write_baseline:
        return instructions.gate(size, write=options.write_baseline)
    report = Report.all(map(_run, options.section or SECTIONS, [size] * len(SECTIONS)))
    budget = budgets.table(report.figures, whole=not options.section)
    show(budget)
    if options.write_docs:
        page.write(report, budget)
    return 0


def _run(name: str, size: Size) -> Report:
    report = asyncio.run(SECTIONS[name](size))
    for table in report.tables:
        show(table)
    return report


def show(table: Table) -> None:
    """Print a table."""
    print(table.text(), end="\n\n", flush=True)

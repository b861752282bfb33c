"""The command line: `python -m tests.benchmarks`.

Every section prints its table as soon as it is done. Times belong to a machine and are never judged; `--check` compares
instructions and calls with their budgets, fails above them, and shows time ratios beside them.
"""

import argparse
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import anyio

from . import burst, calls, growth, instructions, races, stores
from .timing import Report, Size

SECTIONS: Final[dict[str, Callable[[Size], Awaitable[Report]]]] = {
    "trivial": races.trivial,
    "sdk-json": partial(races.sdk, modern=True),
    "sdk-sse": partial(races.sdk, modern=False),
    "stores": stores.stores,
    "capacity": stores.capacity,
    "burst": burst.burst,
    "growth": growth.growth,
    "traced": races.traced,  # last of what runs in this process, which then has a tracer provider
    "instructions": instructions.instructions,
}
SIZES: Final = {
    "tiny": Size(rounds=1, requests=2, sdk_requests=1, store_requests=20, at_once=10, counted=5, grown=(20,)),
    "quick": Size(rounds=61, store_requests=300, grown=(1_000, 10_000)),
    "full": Size(),
}


def gate(size: Size) -> int:
    """Print time ratios, calls and instructions; return 1 if calls or instructions are over a budget."""
    print(anyio.run(races.ratios, size).text())
    counts = anyio.run(calls.count)
    print(calls.table(counts).text(), *calls.faults(counts), sep="\n")
    return max(bool(calls.faults(counts)), instructions.gate(size))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("section", nargs="*", help=f"of {', '.join(SECTIONS)}; all of these where none is named")
    parser.add_argument("--size", choices=SIZES, default="full", help="how much is measured (full)")
    parser.add_argument("--quick", dest="size", action="store_const", const="quick", help="the same as --size quick")
    parser.add_argument("--check", action="store_true", help="count instructions and calls, and fail above the budgets")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.section if name not in SECTIONS]:
        parser.error(f"no section is called {', '.join(unknown)}")
    size = SIZES[options.size]
    if options.check:
        return gate(size)
    for name in options.section or SECTIONS:
        print(anyio.run(SECTIONS[name], size).text(), end="\n\n", flush=True)
    return 0

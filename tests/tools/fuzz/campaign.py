"""The trials in several processes, for a time, and a count of what was reached.

Every batch has a seed that is printed with a disagreement, so one command shows it again. Exit code 1 means that there
was one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from itertools import count, islice
from random import Random

from . import jsonrpc, sse, state, tokens
from .trials import Disagreement, Trial, run


def _later(module: str) -> Trial:
    """A trial whose module is imported when it first runs, with the frameworks that it needs."""

    def trial(random: Random) -> str:
        outcome: str = import_module(f".{module}", __package__).trial(random)
        return outcome

    return trial


TARGETS: dict[str, Trial] = {
    "tokens": tokens.trial,
    "jsonrpc": jsonrpc.trial,
    "sse": sse.trial,
    "state": state.trial,
    "paths": _later("paths"),
    "uris": _later("uris"),
}
TOGETHER = 4  # batches of each process between two looks at the clock

Outcome = tuple[Counter[str], "str | None"]


def outcome_of(target: str, seed: int, batch: int) -> Outcome:
    """One batch, in whatever process this is: what was reached, and a disagreement."""
    try:
        return run(TARGETS[target], target, seed, batch), None
    except Disagreement as found:
        return Counter(), str(found)


def attack(target: str, options: argparse.Namespace) -> bool:
    """Run one target and print what was reached; whether there was no disagreement."""
    started, outcomes, found = time.monotonic(), Counter[str](), None
    batches = count() if options.batch is None else iter([options.batch])
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        while found is None and time.monotonic() - started < options.seconds:
            some = list(islice(batches, options.jobs * TOGETHER))
            if not some:
                break
            for counted, text in pool.map(partial(outcome_of, target, options.seed), some):
                outcomes += counted
                found = found or text
    total, seconds = outcomes.total(), time.monotonic() - started
    print(f"{target}: {total:,} trials in {seconds:.0f} s, {options.jobs} process(es), seed {options.seed}")
    for outcome, times in outcomes.most_common():
        print(f"  {times:>12,}  {outcome}")
    if found is not None:
        print(f"\nDISAGREEMENT\n{found}")
    sys.stdout.flush()
    return found is None


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each target (600)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the whole run; printed")
    parser.add_argument("--batch", type=int, help="run this one batch again")
    options = parser.parse_args(given)
    targets = list(TARGETS) if options.target == "all" else [options.target]
    failed = [target for target in targets if not attack(target, options)]
    return 1 if failed else 0

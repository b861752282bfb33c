"""The trials in several processes, for a time or a number, and a count of what was reached.

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
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from importlib import import_module
from itertools import count, islice, takewhile
from random import Random

from . import jsonrpc, sse, state, tokens
from .trials import BATCH, Disagreement, Trial, run


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
ROUND = 5  # batches that a process does before it reports
TELL = 100_000  # trials between two lines about how far it is

Outcome = tuple[Counter[str], "str | None"]


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", choices=[*TARGETS, "all"], default="all")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, default=600.0, help="for each target (600)")
    length.add_argument("--tokens", type=int, help="a number of mutants of each target, instead of a time")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the whole run; printed")
    parser.add_argument("--batch", type=int, help="run this one batch again")
    return parser.parse_args(given)


def do_round(target: str, seed: int, batches: Sequence[int]) -> Outcome:
    """Some batches, in whatever process this is."""
    outcomes: Counter[str] = Counter()
    try:
        for batch in batches:
            outcomes += run(TARGETS[target], target, seed, batch)
    except Disagreement as found:
        return outcomes, str(found)
    return outcomes, None


def rounds(options: argparse.Namespace) -> Iterator[Sequence[int]]:
    """The numbers of the batches to run, some at a time, until the time or the number is over."""
    if options.batch is not None:
        yield [options.batch]
        return
    until = time.monotonic() + options.seconds
    wanted = count() if options.tokens is None else iter(range(-(-options.tokens // BATCH)))
    endless = iter(lambda: list(islice(wanted, ROUND)), [])
    yield from endless if options.tokens is not None else takewhile(lambda _: time.monotonic() < until, endless)


def attack(target: str, options: argparse.Namespace) -> bool:
    """Run one target and print what was reached; whether there was no disagreement."""
    started, outcomes, found = time.monotonic(), Counter[str](), None
    todo, running = rounds(options), set[Future[Outcome]]()
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for batches in todo:
            running.add(pool.submit(do_round, target, options.seed, batches))
            while len(running) >= options.jobs * 2 and found is None:
                found = collect(running, outcomes)
            if found is not None:
                break
        while running:
            found = collect(running, outcomes) or found
    show(target, options, outcomes, time.monotonic() - started)
    if found is not None:
        print(f"\nDISAGREEMENT\n{found}")
    return found is None


def collect(running: set[Future[Outcome]], outcomes: Counter[str]) -> str | None:
    """Take what is done; a disagreement, if there was one."""
    done = wait(running, return_when=FIRST_COMPLETED).done
    running -= done
    found, before = None, outcomes.total()
    for future in done:
        counted, text = future.result()
        outcomes.update(counted)
        found = found or text
    if before // TELL < outcomes.total() // TELL:
        print(f"  ... {outcomes.total():,}", flush=True)
    return found


def show(target: str, options: argparse.Namespace, outcomes: Counter[str], seconds: float) -> None:
    """Print the count of one target."""
    total = outcomes.total()
    print(f"{target}: {total:,} trials in {seconds:.0f} s, {options.jobs} process(es), seed {options.seed}")
    for outcome, times in outcomes.most_common():
        print(f"  {times:>12,}  {outcome}")
    sys.stdout.flush()


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line names."""
    options = arguments(given)
    targets = list(TARGETS) if options.target == "all" else [options.target]
    failed = [target for target in targets if not attack(target, options)]
    return 1 if failed else 0

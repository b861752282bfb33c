"""The program whose instructions are counted; it runs under valgrind and does not depend on it.

Everything is set up and warmed once. Then, for each subject, one child serves no request and another serves N: the
difference between the two is what N requests take, and nothing of what Python takes to start is in it. Each child's
process id is printed, since valgrind names its files by it. Each subject is counted twice: as it is, and as a
pass-through that serves the same request, since reading the body in the application is not the middleware's cost.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, Final

from . import apps, ours
from .apps import PassThrough
from .instructions import BUDGETS
from .kinds import kinds
from .timing import Row
from .traffic import Visits, message

WARM: Final = 30  # requests after which the interpreter has specialised what it will

Serve = Callable[[int], Coroutine[Any, Any, None]]


async def subjects() -> dict[str, dict[str, Serve]]:
    """Return what serves requests of each kind that has a budget, `bare` and `ours`; the clock stands still."""
    clock = repeat(time.time()).__next__  # a function in C, as `time.time` is
    app = ours.wrap(apps.trivial, clock=clock)
    session = await ours.created(app, modern=False)
    rows = [*await kinds(clock=clock), Row("ours, session, traced", Visits.of(app, message(session=session)))]
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

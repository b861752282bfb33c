"""The program whose instructions are counted; it runs under valgrind and does not depend on it.

Everything is set up and warmed once. Then, for each subject, one child serves no request and another serves N: the
difference between the two is what N requests take, and nothing of what Python takes to start is in it. Each child's
process id is printed, since valgrind names its files by it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from . import apps, ours
from .apps import PassThrough
from .kinds import kinds
from .traffic import Visits, message

WARM: Final = 30  # requests after which the interpreter has specialised what it will


async def subjects() -> dict[str, Callable[[int], Coroutine[Any, Any, None]]]:
    """Return what serves so many requests of each kind. The clock stands still, so that no run sees another time."""
    now = time.time()
    app = ours.wrap(apps.trivial, clock=lambda: now)
    bare = Visits.of(PassThrough(apps.trivial), message(session=await ours.created(app)))
    return {
        "pass-through": bare.serve,
        **{row.name.removeprefix("ours, "): row.visits.serve for row in await kinds(clock=lambda: now)},
        "session, traced": partial(traced, Visits.of(app, message(session=await ours.unnamed()))),
    }


async def traced(visits: Visits, requests: int) -> None:
    """Serve requests whose spans are recorded. What that sets up stays, so no other subject may follow."""
    # Imported here, since all others run where OpenTelemetry's SDK was never imported.
    from .traced import recording

    recording()
    await visits.serve(requests)


def main() -> None:
    """Serve as the command line says: a number of requests, and names of subjects, or none for all."""
    number, *names = sys.argv[1:]
    found = asyncio.run(subjects())
    fork = multiprocessing.get_context("fork")
    for name in names or found:
        asyncio.run(found[name](WARM))
        for requests in (0, int(number)):
            child = fork.Process(target=lambda serve, many: asyncio.run(serve(many)), args=(found[name], requests))
            child.start()
            child.join()
            print(child.pid, requests, name, flush=True)

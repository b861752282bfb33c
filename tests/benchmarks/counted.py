"""The program whose instructions are counted; it runs under valgrind and knows nothing of it.

Everything is set up and warmed once. Then, for each subject, one child serves no request and another serves N: the
difference between the two is what N requests take, and nothing of what Python takes to start is in it. Each child's
process id is printed, since valgrind names its files by it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp

from . import apps, ours
from .apps import PassThrough
from .core import Core
from .flat import OneFunction
from .timing import Contestant, Repeated
from .traffic import Visits, message

WARM: Final = 30  # requests after which the interpreter has specialised what it will


@dataclass(frozen=True, slots=True)
class Traced:
    """Requests whose spans are recorded. What that sets up stays, so nothing else may come after them.

    Args:
        app: Who serves them, or None for a middleware that does nothing but make a span.
        body: Of each.
    """

    app: ASGIApp | None
    body: bytes

    async def serve(self, requests: int) -> None:
        """Let the application serve so many of them, one after the other."""
        # Imported here, since all others run where OpenTelemetry was never imported.
        from .lonely import SpanAlone
        from .traced import recording

        recording()
        await Visits.of(self.app or SpanAlone(apps.trivial), self.body).serve(requests)


async def subjects() -> dict[str, Contestant]:
    """What is counted. The clock stands still, so that no run sees another time."""
    now = time.time()
    app = ours.wrap(apps.trivial, clock=lambda: now)
    uncached = ours.wrap(apps.trivial, clock=lambda: now, token_cache=0)
    writer = ours.wrap(apps.writing, clock=lambda: now)
    session = await ours.created(app)
    plain, named = message(), message(session=session)
    unnamed = message(session={"sessionId": ours.minted(1)[0]})  # of a client that did not say what it is
    return {
        "pass-through": Visits.of(PassThrough(apps.trivial), named),
        "no session named": Visits.of(app, plain),
        "session": Visits.of(app, named),
        "session, in one function": Visits.of(OneFunction(app), named),
        "session, no token cache": Visits.of(uncached, named),
        "session, state changed": Visits.of(writer, message(session=await ours.used(writer, session))),
        "session created": Visits.of(app, message("sessions/create", {}), method="sessions/create"),
        "session forked": Visits.of(
            app, message("sessions/fork", {"mode": "fresh"}, session=session), method="sessions/fork"
        ),
        "core": Repeated(Core()),
        "session, traced": Traced(app, unnamed),
        "a span alone": Traced(None, unnamed),
    }


def serve(contestant: Contestant, requests: int) -> None:
    """What a child does."""
    asyncio.run(contestant.serve(requests))


def run(contestants: Mapping[str, Contestant], requests: int) -> None:
    """Start the children, one after the other, and print who was who."""
    fork = multiprocessing.get_context("fork")
    for name, contestant in contestants.items():
        serve(contestant, WARM)
        for number in (0, requests):
            child = fork.Process(target=serve, args=(contestant, number))
            child.start()
            child.join()
            print(child.pid, number, name, flush=True)


def main() -> None:
    """Count what the command line asks for: a number of requests, and subjects, or all."""
    requests, *names = sys.argv[1:]
    contestants = asyncio.run(subjects())
    run({name: contestants[name] for name in names or contestants}, int(requests))

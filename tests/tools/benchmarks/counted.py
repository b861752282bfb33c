"""The program whose instructions are counted; it runs under valgrind and does not depend on it.

Everything is set up and warmed once. Then, for each subject, one child serves no request and another serves N: the
difference between the two is what N requests take, and nothing of what Python takes to start is in it. Each child's
process id is printed, since valgrind names its files by it. Each subject is counted twice: as it is, and as a
pass-through that serves the same request, since what its body takes to be read is not the middleware's.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, Final

from . import apps, ours
from .apps import PassThrough
from .kinds import kinds
from .traffic import Visits, message

WARM: Final = 30  # requests after which the interpreter has specialised what it will


Serve = Callable[[int], Coroutine[Any, Any, None]]


async def subjects() -> dict[str, dict[str, Serve]]:
    """Return what serves so many requests of each kind, `bare` and `ours`. The clock stands still in all of them."""
    clock = repeat(time.time()).__next__  # a function in C, as `time.time` is
    rows = {row.name.removeprefix("ours, "): row.visits for row in await kinds(clock=clock)}
    found = {name: {"bare": _bare(visits), "ours": visits.serve} for name, visits in rows.items()}
    on_file = ours.wrap(apps.trivial, clock=clock, store=f"sqlite:{tempfile.mkdtemp()}/sessions.db")
    visits = Visits.of(on_file, message(session=await ours.created(on_file)))
    found["session, sqlite:"] = {"bare": _bare(visits), "ours": visits.serve}
    named = message(session=await ours.created(on_file))
    found["session, SDK"] = {way: partial(_within_sdk, named, way) for way in ("bare", "ours")}
    for name, spans in (("traced", "auto"), ("enriched", "enrich")):
        wrapped = ours.wrap(apps.trivial, clock=clock, spans=spans)
        visits = Visits.of(wrapped, message(session=await ours.unnamed()))
        found[f"session, {name}"] = {"bare": _bare(visits), "ours": partial(traced, visits, around=spans == "enrich")}
    bare = replace(visits, app=PassThrough(apps.trivial))
    found["session, HTTP span enriched"] = {"bare": partial(below_http, bare), "ours": partial(below_http, visits)}
    return found


def _bare(visits: Visits) -> Serve:
    return replace(visits, app=PassThrough(apps.trivial)).serve


async def _within_sdk(body: bytes, way: str, requests: int) -> None:
    """Serve requests in a session to a new server of the official SDK, which lives in one event loop."""
    async with apps.started(apps.sdk(json_response=True)) as server:
        app = PassThrough(server) if way == "bare" else ours.wrap(server)
        await Visits.of(app, body).serve(requests)


async def traced(visits: Visits, requests: int, *, around: bool) -> None:
    """Serve requests whose spans are recorded, below another one or not. What that sets up stays: these come last."""
    # Imported here, since all others run where OpenTelemetry's SDK was never imported.
    from opentelemetry.trace import get_tracer

    from .traced import recording

    recording()
    with get_tracer(__name__).start_as_current_span("around") if around else nullcontext():
        await visits.serve(requests)


async def below_http(visits: Visits, requests: int) -> None:
    """Serve each request below a recorded span of its own, as an HTTP instrumentation makes it."""
    from opentelemetry.trace import SpanKind, get_tracer

    from .traced import recording

    recording()
    for _ in range(requests):
        known = {"http.request.method": "POST"}
        with get_tracer(__name__).start_as_current_span("POST", kind=SpanKind.SERVER, attributes=known):
            await visits.serve(1)


def main() -> None:
    """Serve as the command line says: a number of requests, and names of subjects, or none for all."""
    number, *names = sys.argv[1:]
    found = asyncio.run(subjects())
    fork = multiprocessing.get_context("fork")
    for name in names or found:
        for way, serve in found[name].items():
            asyncio.run(serve(WARM))
            gc.collect()
            gc.freeze()  # else some children, and not others, look through all that was made until now
            for requests in (0, int(number)):
                # One request more in both: after a fork, the first one opens a store's file again.
                child = fork.Process(target=lambda serve, many: asyncio.run(serve(many)), args=(serve, requests + 1))
                child.start()
                child.join()
                print(child.pid, requests, way, name, flush=True)

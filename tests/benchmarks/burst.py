"""Many requests in sessions at the same time to one worker, with default limits: how many each store refuses.

`at once` starts all requests in the same moment, as after a restart of the proxy. The rest is a steady load of callers
that each send one request after the other. Times are wall time, and belong to the machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, Final

import anyio
from clients import Answer, lifespan

from . import apps, ours
from .stores import STORES
from .timing import CREATED, ECHOED, Report, Size
from .traffic import Visits, message

CALLERS: Final = 64  # of the steady load
SESSIONS: Final = 50  # that the requests are in
KINDS: Final[dict[str, dict[str, Any]]] = {"request": {}, "tracked": {"tracked": True}, "create": {}}
COLUMNS: Final = ("", "at once", "refused", "per second", f"{CALLERS} callers", "refused", "per second")

Ask = Callable[[], Awaitable[Answer]]


async def burst(size: Size) -> Report:
    """Send bursts to every store."""
    rows: list[tuple[str, ...]] = []
    for name, place in STORES.items():
        for kind, options in KINDS.items():
            with place() as url:
                rows.append((f"{name} {kind}", *await _row(url, kind, options, size)))
    return Report(f"{size.at_once} requests at once, and {CALLERS} callers, to one worker", COLUMNS, rows)


async def _row(url: str, kind: str, options: dict[str, Any], size: Size) -> Sequence[str]:
    app = ours.wrap(apps.alive, store=url, **options)
    async with lifespan(app):
        if kind == "create":
            asks, proof = [Visits.of(app, message("sessions/create", {}), method="sessions/create").answer], CREATED
        else:
            sessions = [await ours.created(app) for _ in range(SESSIONS)]
            asks, proof = [Visits.of(app, message(session=session)).answer for session in sessions], ECHOED
        await asks[0]()
        cells: list[str] = []
        for callers in (size.at_once, CALLERS):
            refused, seconds = await _sent(asks, proof, size.at_once, callers)
            cells += (str(size.at_once), str(refused), f"{size.at_once / seconds:,.0f}")
        return cells


async def _sent(asks: Sequence[Ask], proof: bytes, requests: int, callers: int) -> tuple[int, float]:
    """Return how many requests were refused, and the seconds until the last answer."""
    refused, numbers = 0, iter(range(requests))

    async def some() -> None:
        nonlocal refused
        for number in numbers:
            answer = await asks[number % len(asks)]()
            refused += proof not in answer.body
            if callers == requests:
                return

    start = perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(callers):
            group.start_soon(some)
    return refused, perf_counter() - start

"""The official SDK's own stateful sessions beside a stateless server with this middleware, in the legacy era.

Each runs in a process of its own, without a network: clients initialize, ever more of them, and from time to time the
process looks at itself. The garbage collector is as Python sets it up, since what it has to walk through is what a
session costs.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from random import Random
from statistics import median
from typing import Any, Final

from starlette.types import ASGIApp

from . import apps, ours
from .children import output, resident
from .lineup import SERVED, prove
from .report import Report, Table
from .size import Size
from .timing import MICROSECONDS
from .traffic import LEGACY, Answer, Visits, discard, message

HEADER: Final = b"mcp-session-id"
STATEFUL: Final = "SDK, stateful"
OURS: Final = "SDK, stateless, ours"
_HELLO: Final = {
    "protocolVersion": LEGACY,
    "capabilities": {},
    "clientInfo": {"name": "benchmark", "version": "1.0.0"},
}
_PROGRAM: Final = "from tests.benchmarks import stateful; stateful.main()"
_MIB: Final = 1024 * 1024


def _stateful() -> tuple[Any, ASGIApp]:
    server = apps.sdk(json_response=True, stateless=False)
    return server, server


def _ours() -> tuple[Any, ASGIApp]:
    server = apps.sdk(json_response=True)
    return server, ours.wrap(server)


KINDS: Final[Mapping[str, Callable[[], tuple[Any, ASGIApp]]]] = {STATEFUL: _stateful, OURS: _ours}


class Pauses:
    """How long the garbage collector stopped the process."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._start = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """The collector's callback."""
        now = time.process_time()
        self._start, taken = (now, 0.0) if phase == "start" else (self._start, now - self._start)
        self.longest = max(self.longest, taken)


async def _initialize(app: ASGIApp) -> str:
    """A new session, as a client begins it."""
    hello = message("initialize", _HELLO, modern=False)
    answer = await Visits.of(app, hello, method="initialize", modern=False).answer()
    named = {"mcp-session-id": answer.headers[HEADER].decode()}
    done = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
    await Visits.of(app, done, modern=False, headers=named).one(discard)
    return named["mcp-session-id"]


async def _call(app: ASGIApp, session: str) -> Answer:
    return await Visits.of(app, message(modern=False), modern=False, headers={"mcp-session-id": session}).answer()


async def _grow(kind: str, calls: int, numbers: Sequence[int]) -> list[dict[str, float]]:
    """What the process finds at each number of sessions."""
    server, app = KINDS[kind]()
    async with apps.started(server):
        sessions = [await _initialize(app)]  # whatever is made once is made now
        prove(kind, (await _call(app, sessions[0])).body, SERVED)
        gc.collect()
        before, running = resident(), len(asyncio.all_tasks())
        found = []
        for number in numbers:
            pauses, times = Pauses(), []
            gc.callbacks.append(pauses)
            while len(sessions) < number:
                start = time.process_time()
                sessions.append(await _initialize(app))
                times.append(time.process_time() - start)
            rate = await _rate(app, sessions, calls)
            tasks, held = len(asyncio.all_tasks()) - running, resident() - before
            gc.collect()
            gc.callbacks.remove(pauses)
            found.append(
                {
                    "sessions": number,
                    "resident": held,
                    "tasks": tasks,
                    "initialize": median(times) * MICROSECONDS,
                    "worst": max(times) * 1000,
                    "pause": pauses.longest * 1000,
                    "rate": rate,
                }
            )
    return found


async def _rate(app: ASGIApp, sessions: Sequence[str], calls: int) -> float:
    """Requests per second, spread over all sessions."""
    spread = Random(len(sessions)).sample(sessions, len(sessions))
    start = time.process_time()
    for session in islice(cycle(spread), calls):
        await _call(app, session)
    return calls / (time.process_time() - start)


def main() -> None:
    """Arguments: a name in `KINDS`, the number of requests for the throughput, and the numbers of sessions."""
    kind, calls, *numbers = sys.argv[1:]
    print(json.dumps(asyncio.run(_grow(kind, int(calls), list(map(int, numbers))))))


async def stateful(size: Size) -> Report:
    """Both, one after the other."""
    rows: list[Sequence[str]] = []
    figures: dict[str, float] = {}
    for kind in KINDS:
        for found in json.loads(output(_PROGRAM, kind, *map(str, (size.calls, *size.stateful)))):
            number = found["sessions"]
            each = found["resident"] / (number - 1)  # but for the one that was there before
            rows.append(
                (
                    f"{kind}: {number:,} sessions",
                    f"{each / 1024:.1f}",
                    f"{found['tasks'] / (number - 1):.1f}",
                    f"{found['initialize']:,.0f}",
                    f"{found['worst']:,.0f}",
                    f"{found['pause']:,.0f}",
                    f"{found['rate']:,.0f}",
                )
            )
            figures |= {f"stateful/{kind}/{number}/{key}": value for key, value in found.items()}
            figures[f"stateful/{kind}/{number}/MiB"] = found["resident"] / _MIB
    columns = ("", "KiB a session", "tasks", "us to initialize", "worst ms", "longest pause ms", "requests/s")
    title = "The official SDK's stateful sessions, and its stateless server with this middleware"
    note = (
        "Legacy era, JSON, in process. To initialize: both requests of the handshake. Worst: the longest handshake. "
        "Longest pause: of the garbage collector, full collections included."
    )
    return Report([Table(title, columns, rows, note)], figures)

"""Very many event streams at once on one worker, each in a session of its own, and what others notice of them.

Each event carries the time at which the application sent it, and both programs read the same clock, so that its delay
is known where it arrives. Beside the streams one client sends small requests, one after the other.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from random import Random
from statistics import quantiles
from time import monotonic_ns
from typing import Final

from . import ours
from .children import many_descriptors, resident
from .lineup import PASS, SERVED
from .network import served
from .report import Report, Table
from .size import Size
from .traffic import message
from .wire import HOST, answer, census, raw

AROUND: Final = {PASS: "pass-through", "ours, session": "ours"}
_LEFT: Final = re.compile(rb'"data":"(\d+)"')
_MILLISECOND: Final = 1e6  # nanoseconds
_KIB: Final = 1024


@dataclass
class Found:
    """What was seen at one server, in nanoseconds and bytes."""

    delays: list[int] = field(default_factory=list)
    trips: list[int] = field(default_factory=list)
    heights: list[int] = field(default_factory=list)


class Watcher(asyncio.Protocol):
    """One client's end of a stream.

    Args:
        request: What it sends.
        delays: Where it writes down how long each event was under way.
    """

    def __init__(self, request: bytes, delays: list[int]) -> None:
        self._request = request
        self._delays = delays
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """An event, or several."""
        now = monotonic_ns()
        self._delays.extend(now - int(left) for left in _LEFT.findall(data))

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closes when it has said all."""
        self.gone.set_result(exc)


async def crowd(size: Size) -> Report:
    """Both, in turns."""
    many_descriptors()
    ids = ours.minted(size.crowd)
    found = {name: Found() for name in AROUND}
    with ExitStack() as stack:
        places = {name: stack.enter_context(served("tools", around)) for name, around in AROUND.items()}
        for turn in range(size.turns):
            for name in Random(turn).sample(list(AROUND), len(AROUND)):
                await _visit(*places[name], ids, size, found[name])
    return _report(found, size)


async def _visit(port: int, process: int, ids: Sequence[str], size: Size, found: Found) -> None:
    census(port)  # it is up, and holds no garbage
    before, expected = resident(process), len(found.delays) + size.crowd * size.ticks
    asked = {"name": "watch", "arguments": {"events": size.ticks, "pause": size.pause}}
    loop = asyncio.get_running_loop()
    watchers = [Watcher(raw(message(params=asked, session={"sessionId": each})), found.delays) for each in ids]
    await asyncio.gather(*(loop.create_connection(partial(_itself, one), HOST, port) for one in watchers))
    streams = asyncio.gather(*(watcher.gone for watcher in watchers))
    found.heights.append(0)
    while not streams.done():
        await _ask(port, process, ids[0], found)
    found.heights[-1] -= before
    assert len(found.delays) == expected, f"{expected - len(found.delays)} events got lost"


def _itself(watcher: Watcher) -> Watcher:
    return watcher


async def _ask(port: int, process: int, session: str, found: Found) -> None:
    """A small request, beside the streams."""
    request = raw(message(params={"name": "echo", "arguments": {}}, session={"sessionId": session}))
    start = monotonic_ns()
    assert SERVED in await answer(port, request)
    found.trips.append(monotonic_ns() - start)
    found.heights[-1] = max(found.heights[-1], resident(process))
    await asyncio.sleep(0.01)


def _report(found: dict[str, Found], size: Size) -> Report:
    rows: list[Sequence[str]] = []
    figures: dict[str, float] = {}
    for name, one in found.items():
        values = (*_percentiles(one.delays), *_percentiles(one.trips), one.heights[0] / size.crowd / _KIB)
        rows.append((name, *(f"{value:,.1f}" for value in values)))
        figures |= {f"crowd/{name}/{key}": value for key, value in zip(_FIGURES, values, strict=True)}
    columns = ("", "event p50 ms", "p99 ms", "request p50 ms", "p99 ms", "KiB a stream")
    title = f"{size.crowd:,} open event streams of as many sessions, one worker, over HTTP"
    note = (
        f"Each stream sends {size.ticks} events, one in {size.pause:g} s; beside them one client sends requests, "
        "each on a connection of its own. KiB a stream: resident memory, the first time that so many are open."
    )
    return Report([Table(title, columns, rows, note)], figures)


_FIGURES: Final = ("event p50", "event p99", "request p50", "request p99", "stream")


def _percentiles(nanoseconds: list[int]) -> tuple[float, float]:
    """The middle and the worst but one per cent, in milliseconds."""
    cuts = quantiles(nanoseconds * 2, n=100)  # twice, since it needs two
    return cuts[49] / _MILLISECOND, cuts[98] / _MILLISECOND

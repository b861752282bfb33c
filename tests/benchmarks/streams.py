"""Event streams: what an event costs, what is held of it, when the first one leaves, and whether a slow reader slows.

The application sends one event a message and the answer last. The reader's pace is the stream's: while it does not
take an event, the application must not get ahead, or a worker's memory belongs to whoever reads slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter, process_time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import lineup, ours
from .apps import PassThrough
from .children import resident
from .lineup import ECHOED, PASS, Row
from .memory import held
from .report import Report, Table
from .size import Size
from .timing import MICROSECONDS
from .traffic import Visits, message

_SSE: Final = [(b"content-type", b"text/event-stream")]
_NOTE: Final = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%s"}}' % (
    b"x" * 900
)
EVENT: Final = b"event: message\r\ndata: %s\r\n\r\n" % _NOTE
LAST: Final = b'event: message\r\ndata: {"jsonrpc":"2.0","id":7,"result":{"content":[]}}\r\n\r\n'
IDLE: Final = 20  # turns of the loop after which nothing moves that is not held up

Told = Callable[[], object]


class Stream:
    """An application that streams.

    Args:
        events: How many events it sends before the answer.
        before: Called before each of them.
    """

    def __init__(self, events: int, before: Told = int) -> None:
        self._events = events
        self._before = before

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": _SSE})
        for _ in range(self._events):
            self._before()
            await send({"type": "http.response.body", "body": b"%s" % EVENT, "more_body": True})
        await send({"type": "http.response.body", "body": LAST})


def _both(app: ASGIApp) -> dict[str, Visits]:
    named = message(session={"sessionId": ours.minted(1)[0]})
    return {PASS: Visits.of(PassThrough(app), named), "ours": Visits.of(ours.wrap(app), named)}


async def streams(size: Size) -> Report:
    """All of it."""
    events = size.events
    both = _both(Stream(events))
    rows = [Row(PASS, both[PASS], b"result"), Row("ours, session", both["ours"], ECHOED)]
    title = f"A stream of {events:,} events of {len(EVENT)} bytes"
    report = await lineup.run(title, "stream", rows, rounds=1 + size.rounds // 10, requests=1, machine=True)
    found = {name: await _behaviour(app, size) for name, app in (("pass-through", PassThrough), ("ours", ours.wrap))}
    own, theirs = found["ours"], found["pass-through"]
    report.tables.append(await _lasting(size, report))
    half = await _peak(ours.wrap, message(session={"sessionId": ours.minted(1)[0]}), events // 2)
    report.figures |= {
        "stream/per event": report.figures["stream/ours, session/adds"] / events,
        "stream/first byte": own[1] - theirs[1],
        "stream/events held": (own[0] - half) / len(EVENT),
        "stream/ahead of the reader": own[2],
    }
    rows_of = [(name, f"{peak:,}", f"{first:.0f}", f"{ahead}") for name, (peak, first, ahead) in found.items()]
    columns = ("", "bytes at its height", "us to the first byte", "events ahead of a slow reader")
    report.tables.append(Table(f"Behaviour of a stream of {events:,} events", columns, rows_of))
    return report


class Weighing:
    """A reader that looks at the memory of this process from time to time.

    Args:
        every: After so many messages.
    """

    def __init__(self, every: int) -> None:
        self.levels: list[int] = []
        self._every = every
        self._taken = 0

    async def __call__(self, sent: Message) -> None:
        if self._taken % self._every == 0:
            self.levels.append(resident())
        self._taken += 1


async def _lasting(size: Size, report: Report) -> Table:
    """One stream of very many events: what each costs, and how much the process grows after its first tenth."""
    rows = []
    for name, visits in _both(Stream(size.lasting)).items():
        weighing, start = Weighing(size.lasting // 10), process_time()
        await visits.one(weighing)
        each = (process_time() - start) * MICROSECONDS / size.lasting
        growth = max(weighing.levels[1:]) - weighing.levels[1]
        report.figures |= {f"stream/lasting/{name}/us": each, f"stream/lasting/{name}/growth": growth}
        rows.append((name, f"{each:.1f}", f"{growth:,}"))
    columns = ("", "us an event", "bytes that the process grew after the first tenth")
    return Table(f"One stream of {size.lasting:,} events", columns, rows)


async def _behaviour(wrap: Callable[[ASGIApp], ASGIApp], size: Size) -> tuple[int, float, int]:
    named = message(session={"sessionId": ours.minted(1)[0]})
    delays = [await _delay(wrap, named) for _ in range(size.rounds)]
    return await _peak(wrap, named, size.events), median(delays), await _ahead(wrap, named)


async def _peak(wrap: Callable[[ASGIApp], ASGIApp], named: bytes, events: int) -> int:
    streaming = Visits.of(wrap(Stream(events)), named)
    await streaming.serve(1)
    with held() as level:
        await streaming.serve(1)
    return level.peak


async def _delay(wrap: Callable[[ASGIApp], ASGIApp], named: bytes) -> float:
    """Microseconds between the application's sending of an event and its leaving."""
    sent, left = [], []

    async def leave(out: Message) -> None:
        if out.get("body"):
            left.append(perf_counter())

    await Visits.of(wrap(Stream(1, lambda: sent.append(perf_counter()))), named).one(leave)
    return (left[0] - sent[0]) * MICROSECONDS


async def _ahead(wrap: Callable[[ASGIApp], ASGIApp], named: bytes) -> int:
    """How many events the application has sent at the most that the reader has not taken."""
    sent, taken, ahead = [], [], 0
    may_take = asyncio.Semaphore(0)

    async def take(out: Message) -> None:
        await may_take.acquire()
        taken.extend([out] * out.get("body", b"").count(b"\r\n\r\n"))

    running: Awaitable[None] = asyncio.create_task(Visits.of(wrap(Stream(10, lambda: sent.append(1))), named).one(take))
    for _ in range(12):
        for _ in range(IDLE):
            await asyncio.sleep(0)
        ahead = max(ahead, len(sent) - len(taken))
        may_take.release()
    await running
    return ahead

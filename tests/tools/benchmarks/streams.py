"""Event streams: what an event costs, what is held of it, when the first one leaves, and whether a slow reader slows.

The application sends one event a message and the answer last. The reader's pace is the stream's: while it does not
take an event, the application must not get ahead, or a worker's memory belongs to its slowest readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import ours
from .apps import LAST, PassThrough
from .bodies import peak
from .report import Report, Table
from .size import Size
from .timing import MICROSECONDS, PASS, Row, run
from .traffic import Visits, message

_SSE: Final = [(b"content-type", b"text/event-stream")]
_NOTE: Final = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%b"}}'
EVENT: Final = b"event: message\r\ndata: %b\r\n\r\n" % (_NOTE % (b"x" * 900))
IDLE: Final = 20  # turns of the loop after which nothing moves that is not held up


Wrap = Callable[[ASGIApp], Visits]


class Stream:
    """An application that sends events before its answer.

    Args:
        events: How many.
        before: Called before each of them.
    """

    def __init__(self, events: int, before: Callable[[], object] = int) -> None:
        self._events = events
        self._before = before

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": _SSE})
        for _ in range(self._events):
            self._before()
            await send({"type": "http.response.body", "body": b"%b" % EVENT, "more_body": True})
        await send({"type": "http.response.body", "body": LAST})


async def streams(size: Size) -> Report:
    """Race one stream, and look at its behaviour."""
    named = message(session={"sessionId": (await ours.ids(1))[0]})
    around: dict[str, Wrap] = {
        PASS: lambda app: Visits.of(PassThrough(app), named),
        "ours, session": lambda app: Visits.of(ours.wrap(app), named),
    }
    rows = [Row(name, wrap(Stream(size.events)), b"result") for name, wrap in around.items()]
    title = f"A stream of {size.events:,} events of {len(EVENT)} bytes"
    report = await run(title, "stream", rows, rounds=1 + size.rounds // 10, requests=1)
    found, half = [], 0
    for wrap in around.values():
        half, height = [await peak(wrap(Stream(events))) for events in (size.events // 2, size.events)]
        found.append((height, median([await _delay(wrap) for _ in range(size.rounds)]), await _ahead(wrap)))
    (_, least, _), (height, first, ahead) = found
    report.figures |= {
        "stream/events held": (height - half) / len(EVENT),
        "stream/first byte": first - least,
        "stream/ahead of the reader": ahead,
    }
    cells = [(row.name, f"{each[0]:,}", f"{each[1]:.0f}", f"{each[2]}") for row, each in zip(rows, found, strict=True)]
    columns = ("", "bytes at its height", "us to the first byte", "events ahead of a slow reader")
    report.tables.append(Table(f"Behaviour of a stream of {size.events:,} events", columns, cells))
    return report


async def _delay(wrap: Wrap) -> float:
    """Return the microseconds between the application's sending of an event and its leaving."""
    sent, left = [], []

    async def leave(out: Message) -> None:
        if out.get("body"):
            left.append(perf_counter())

    await wrap(Stream(1, lambda: sent.append(perf_counter()))).one(leave)
    return (left[0] - sent[0]) * MICROSECONDS


async def _ahead(wrap: Wrap) -> int:
    """Return how many events the application has sent at most that the reader has not taken."""
    sent, taken, ahead = [], [], 0
    may_take = asyncio.Semaphore(0)

    async def take(out: Message) -> None:
        await may_take.acquire()
        taken.extend([out] * out.get("body", b"").count(b"\r\n\r\n"))

    running = asyncio.create_task(wrap(Stream(10, lambda: sent.append(1))).one(take))
    for _ in range(12):
        for _ in range(IDLE):
            await asyncio.sleep(0)
        ahead = max(ahead, len(sent) - len(taken))
        may_take.release()
    await running
    return ahead

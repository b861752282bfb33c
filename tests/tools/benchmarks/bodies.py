"""Large bodies: whether time and memory grow with them and no faster, in either direction.

A request's body arrives as servers hand it over, in pieces of 64 KiB that are not held elsewhere; the application reads
it and answers at once. A response is written by the application while the request is served, as one piece.
Peaks are what one request takes at its height beyond what was held before it; copies are peaks in times of the body.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from . import apps, ours
from .apps import PassThrough
from .report import Report, Table
from .scale import weighed
from .size import Size
from .timing import ECHOED, Row, run
from .traffic import Arrival, Visits, message

_PIECE: Final = 64 * 1024
_ITEM: Final = json.dumps({"id": 12345, "name": "an item", "tags": ["one", "two"], "price": 12.5, "note": None})
Pair = tuple[Visits, Visits]


def items(size: int) -> bytes:
    """Return a JSON array of small objects, of about so many bytes."""
    return f"[{','.join([_ITEM] * max(1, size // (len(_ITEM) + 1)))}]".encode()


class InPieces(Arrival):
    """A `receive` that cuts the body as it goes, so that the pieces belong to the receiver."""

    __slots__ = ("_at",)

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._at = 0

    async def __call__(self) -> Message:
        body = self._body or b""
        piece, self._at = body[self._at : self._at + _PIECE], self._at + _PIECE
        return {"type": "http.request", "body": piece, "more_body": self._at < len(body)}


async def sink(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, and answer the least."""
    more = True
    while more:
        more = (await receive())["more_body"]
    await apps.respond(send, apps.DONE)


class Source:
    """An application that answers with so many bytes of JSON, all at once, as the SDK does."""

    def __init__(self, size: int) -> None:
        self._items = items(size)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b'{"jsonrpc":"2.0","id":7,"result":{"content":[],"structuredContent":%b}}' % self._items
        await apps.respond(send, body)


async def requests(size: Size) -> Report:
    """Send request bodies up to the cap."""
    app, bare, (session,) = ours.wrap(sink), PassThrough(sink), await ours.ids(1)
    empty = message(params={"name": "echo", "arguments": {"items": "@"}}, session={"sessionId": session})
    sent = [empty.replace(b'"@"', items(number - len(empty))) for number in size.bodies]
    pairs = [(Visits.of(bare, body), Visits.of(app, body)) for body in sent]
    for visits in (each for pair in pairs for each in pair):
        visits.arrive = InPieces
    return await _grown("Request bodies", "requests", [len(body) for body in sent], pairs, size)


async def responses(size: Size) -> Report:
    """Receive response bodies of a request that names a session."""
    named = message(session={"sessionId": (await ours.ids(1))[0]})
    sources = [Source(number) for number in size.responses]
    pairs = [(Visits.of(PassThrough(source), named), Visits.of(ours.wrap(source), named)) for source in sources]
    return await _grown("Response bodies, JSON", "responses", size.responses, pairs, size)


async def _grown(title: str, prefix: str, sizes: Sequence[int], pairs: Sequence[Pair], size: Size) -> Report:
    """Report time and peak memory for each size, without us and with us."""
    rows, peaks, figures = [], [], {}
    for number, (theirs, own) in zip(sizes, pairs, strict=True):
        base = f"pass-through, {number:,} B"
        rows += [Row(base, theirs, b"result", base), Row(f"ours, {number:,} B", own, ECHOED, base)]
    report = await run(title, prefix, rows, rounds=1 + size.rounds // 20, requests=1)
    for number, (theirs, own) in zip(sizes, pairs, strict=True):
        without, within = await peak(theirs) / number, await peak(own) / number
        figures = {f"{prefix}/copies": within, f"{prefix}/extra copies": within - without}
        peaks.append((f"{number:,} B", f"{without:.2f}", f"{within:.2f}", f"{within - without:+.2f}"))
    columns = ("", "copies without us", "with us", "extra")
    report.tables.append(Table(f"{title}: memory at the height of a request", columns, peaks))
    before, last = (max(1.0, report.figures[f"{prefix}/ours, {number:,} B/adds"]) for number in sizes[-2:])
    figures[f"{prefix}/exponent"] = math.log(last / before) / math.log(sizes[-1] / sizes[-2])
    report.figures |= figures
    return report


async def peak(visits: Visits) -> int:
    """Return how many bytes one request takes at its height, when another went before."""
    await visits.serve(1)
    with weighed() as scales:
        await visits.serve(1)
        scales.weigh()
    return scales.peak

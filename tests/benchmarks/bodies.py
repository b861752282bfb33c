"""Large bodies: whether time and memory grow with them and no faster, in either direction.

A request's body arrives as servers hand it over, in pieces of 64 KiB that nobody else holds; the application reads
it and answers at once. A response is written by the application while the request is served, as one piece.
Peaks are what one request takes at its height beyond what was held before it; copies are peaks in times of the body.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import lineup, ours
from .apps import PassThrough
from .lineup import ECHOED, Row
from .memory import held
from .report import Report, Table
from .size import Size
from .traffic import Arrival, Visits, message

PIECE: Final = 64 * 1024
_ITEM: Final = {"id": 12345, "name": "an item of the answer", "tags": ["one", "two"], "price": 12.5, "note": None}
_DONE: Final = b'{"jsonrpc":"2.0","id":7,"result":{"content":[]}}'
_JSON: Final = (b"content-type", b"application/json")


def items(size: int) -> str:
    """A JSON array of small objects, of about so many bytes."""
    one = json.dumps(_ITEM)
    return f"[{','.join([one] * max(1, size // (len(one) + 1)))}]"


class InPieces(Arrival):
    """A `receive` that cuts the body as it goes, so that the pieces belong to who receives them."""

    __slots__ = ("_at",)

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._at = 0

    async def __call__(self) -> Message:
        body = self._body or b""
        piece, self._at = body[self._at : self._at + PIECE], self._at + PIECE
        return {"type": "http.request", "body": piece, "more_body": self._at < len(body)}


async def sink(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, and answer the least."""
    more = True
    while more:
        more = (await receive())["more_body"]
    await answer(send, _DONE)


class Source:
    """An application that answers with so many bytes of JSON, all at once, as the SDK does."""

    def __init__(self, size: int) -> None:
        self._items = items(size).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b'{"jsonrpc":"2.0","id":7,"result":{"content":[],"structuredContent":%s}}' % self._items
        await answer(send, body)


async def answer(send: Send, body: bytes) -> None:
    """A JSON response."""
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def requests(size: Size) -> Report:
    """Request bodies up to the cap."""
    app, bare = ours.wrap(sink), PassThrough(sink)
    session = {"sessionId": ours.minted(1)[0]}
    sent = [_upload(number, session) for number in size.bodies]
    pairs = [(_arriving(bare, body), _arriving(app, body)) for body in sent]
    return await _grown("Request bodies", "requests", [len(body) for body in sent], pairs, size)


def _upload(size: int, session: dict[str, str]) -> bytes:
    """A call with an argument that makes its body so many bytes long, and no longer."""
    params = {"name": "echo", "arguments": {"items": "@"}}
    body = message(params=params, session=session)
    return body.replace(b'"@"', items(size - len(body)).encode())


def _arriving(app: ASGIApp, body: bytes) -> Visits:
    visits = Visits.of(app, body)
    visits.arrive = InPieces
    return visits


async def responses(size: Size) -> Report:
    """Response bodies of a request that names a session."""
    named = message(session={"sessionId": ours.minted(1)[0]})
    sources = [Source(number) for number in size.responses]
    pairs = [(Visits.of(PassThrough(source), named), Visits.of(ours.wrap(source), named)) for source in sources]
    report = await _grown("Response bodies, JSON", "responses", size.responses, pairs, size)
    report.figures["responses/read without a session"] = float(not await _same_object_leaves())
    return report


async def _same_object_leaves() -> bool:
    """Whether a response to a request without a session leaves as the very object that the application sent."""
    sent: list[Message] = []

    async def keep(out: Message) -> None:
        sent.append(out)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, _DONE)

    await Visits.of(ours.wrap(app), message()).one(keep)
    return sent[-1]["body"] is _DONE


async def _grown(
    title: str, prefix: str, sizes: Sequence[int], pairs: Sequence[tuple[Visits, Visits]], size: Size
) -> Report:
    """Time and peak memory for each size, without us and with us."""
    names = [(f"pass-through, {number:,} B", f"ours, {number:,} B") for number in sizes]
    bases = [Row(base, theirs, b"result", base) for (base, _), (theirs, _) in zip(names, pairs, strict=True)]
    rows = [Row(own, visits, ECHOED, base) for (base, own), (_, visits) in zip(names, pairs, strict=True)]
    report = await lineup.run(title, prefix, [*bases, *rows], rounds=1 + size.rounds // 20, requests=1)
    report.tables.append(await _peaks(f"{title}: memory at the height of a request", sizes, pairs, report, prefix))
    last, before = (max(1.0, report.figures[f"{prefix}/{rows[place].name}/adds"]) for place in (-1, -2))
    report.figures[f"{prefix}/exponent"] = math.log(last / before) / math.log(sizes[-1] / sizes[-2])
    return report


async def _peaks(
    title: str, sizes: Sequence[int], pairs: Sequence[tuple[Visits, Visits]], report: Report, prefix: str
) -> Table:
    rows = []
    for number, (theirs, own) in zip(sizes, pairs, strict=True):
        without, within = await _peak(theirs) / number, await _peak(own) / number
        report.figures |= {f"{prefix}/copies": within, f"{prefix}/extra copies": within - without}
        rows.append((f"{number:,} B", f"{without:.2f}", f"{within:.2f}", f"{within - without:+.2f}"))
    return Table(title, ("", "copies without us", "with us", "extra"), rows)


async def _peak(visits: Visits) -> int:
    with held() as level:
        await visits.serve(1)
    return level.peak

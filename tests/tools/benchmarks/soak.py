"""Whatever clients do to a server for a while, and whether anything of it stays: tasks, descriptors, memory.

A real server and real connections. The clients create sessions, read streams and leave them, hang up in the middle of
a request or of a tool, and forge. From time to time all of them pause and the server counts what it holds; what is
printed is the slope of each count over the requests. The token cache is small, so that it is full soon, and few
sessions are deleted, since a deletion has to be remembered for as long as its session could have lived.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from statistics import linear_regression
from typing import Any, Final

from . import ours
from .report import Report, Table
from .served import CENSUS
from .size import Size
from .timing import ECHOED, REFUSED, SERVED, prove
from .traffic import message
from .wire import HOST, ask, begun, raw, served

PAUSE: Final = 0.02  # seconds between two of a client's visits
PARTS: Final = 10  # of the whole time; the server is counted after each
SETTLING: Final = 3000  # times that a count is taken again where something is still under way
EXACT: Final = ("tasks", "descriptors")
COUNTED: Final = (*EXACT, "blocks", "resident")
LIVELY: Final = {"name": "watch", "arguments": {"events": 5, "pause": 0.002}}
FAST: Final = {"name": "watch", "arguments": {"events": 500, "pause": 0}}
ENDLESS: Final = {"name": "wait", "arguments": {}}


class Client:
    """A client that does something else each time.

    Args:
        port: Where the server is.
        number: Seeds the order of what it does.
    """

    def __init__(self, port: int, number: int) -> None:
        self.requests = 0
        self._port = port
        self._random = Random(number)
        self.session: dict[str, str] = {}

    async def stay(self, end: float) -> None:
        """Visit until a time of `time.monotonic()`, in one session after the other."""
        while time.monotonic() < end:
            self.session = {"sessionId": await begun(self._port)}
            for visit in self._random.sample(VISITS, len(VISITS)):
                self.requests += 1
                await visit(self)
                await asyncio.sleep(PAUSE)
        await self.ask(message("sessions/delete", {}, session=self.session), b'"result"', "sessions/delete")

    async def flood(self) -> None:
        """Be refused: the server counts refusals of a kind for a minute, in a task that is not to be one more later."""
        self.session = {"sessionId": await begun(self._port)}
        await VISITS[2](self)

    async def ask(self, body: bytes, proof: bytes, method: str = "tools/call") -> None:
        """Send a request, and wait for its answer."""
        prove("a client", await ask(self._port, raw(body, method=method)), proof)

    async def leave(self, params: dict[str, Any], *, length: int | None = None, read: bool = False) -> None:
        """Send a request, or so many bytes of it, and hang up."""
        reader, writer = await asyncio.open_connection(HOST, self._port)
        writer.write(raw(message(params=params, session=self.session))[:length])
        await (reader.readline() if read else asyncio.sleep(PAUSE))
        writer.transport.abort()


VISITS: Final[Sequence[Callable[[Client], Coroutine[Any, Any, None]]]] = (
    lambda client: client.ask(message(session=client.session), ECHOED),
    lambda client: client.ask(message(), SERVED),
    lambda client: client.ask(message(session={"sessionId": ours.forged(client.session["sessionId"])}), REFUSED),
    lambda client: client.ask(message(params=LIVELY, session=client.session), ECHOED),
    lambda client: client.leave(LIVELY, read=True),
    lambda client: client.leave(FAST),
    lambda client: client.leave(ENDLESS),
    lambda client: client.leave(LIVELY, length=-50),
)


async def soak(size: Size) -> Report:
    """Let clients visit for so many seconds."""
    with served("uvicorn") as port:
        clients = [Client(port, number) for number in range(size.clients)]
        await Client(port, 0).flood()
        counts = [(0, await census(port))]
        for _ in range(PARTS):
            end = time.monotonic() + size.soak / PARTS
            await asyncio.gather(*(client.stay(end) for client in clients))
            counts.append((sum(client.requests for client in clients), await settled(port, counts[0][1])))
    return _report(counts, size)


async def census(port: int) -> dict[str, int]:
    """Return what a server holds."""
    counts: dict[str, int] = json.loads((await ask(port, raw(b"", path=CENSUS))).partition(b"\r\n\r\n")[2])
    return counts


async def settled(port: int, first: dict[str, int]) -> dict[str, int]:
    """Return what the server holds once it has noticed that all clients are gone."""
    now = await census(port)
    for _ in range(SETTLING):
        if all(now[name] <= first[name] for name in EXACT):
            break
        await asyncio.sleep(PAUSE)
        now = await census(port)
    return now


def _report(counts: list[tuple[int, dict[str, int]]], size: Size) -> Report:
    later = counts[len(counts) // 4 :]  # when caches are full, and what is made once is made
    rows: list[Sequence[str]] = []
    figures: dict[str, float] = {"soak/requests": counts[-1][0]}
    for name in COUNTED:
        first, values = counts[0][1][name], [count[name] for _, count in later]
        slope = linear_regression([requests / 1000 for requests, _ in later], values).slope
        rows.append((name, f"{first:,}", f"{values[0]:,}", f"{values[-1]:,}", f"{slope:+,.2f}"))
        figures[f"soak/{name} more"] = values[-1] - first
    columns = ("", "at the start", "after a quarter", "at the end", "slope per 1,000 requests")
    title = f"A soak of {size.soak:g} s: {counts[-1][0]:,} requests, many of them left in the middle"
    note = "blocks: of Python's allocator, counted exactly; resident: bytes of memory that the process holds."
    return Report([Table(title, columns, rows, note)], figures)

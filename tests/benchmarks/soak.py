"""Whatever clients do to a server for a while, and whether anything of it stays: tasks, descriptors, memory.

A real server and real connections. The clients create sessions, read streams and leave them, hang up in the middle of
a request or of a tool, and forge. From time to time all of them pause and the server counts itself; what is printed is
the slope of each count over the requests. The token cache is small, so that it is full soon, and few sessions are
deleted, since a deletion has to be remembered for as long as its session could have lived.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import linear_regression
from typing import Any, Final

from . import ours
from .lineup import ECHOED, SERVED
from .network import served
from .report import Report, Table
from .scale import REFUSED
from .size import Size
from .traffic import message
from .wire import answer, census, raw, sent, session_id

PAUSE: Final = 0.02  # seconds between two of a client's visits
PARTS: Final = 10  # of the whole time; the server counts itself after each
SETTLING: Final = 500  # times that a count is taken again where something is still under way
EXACT: Final = ("tasks", "descriptors")
COUNTED: Final = (*EXACT, "blocks", "resident")
LIVELY: Final = {"name": "watch", "arguments": {"events": 5, "pause": 0.002}}
FAST: Final = {"name": "watch", "arguments": {"events": 500, "pause": 0}}
ENDLESS: Final = {"name": "wait", "arguments": {}}


@dataclass
class Client:
    """Somebody who visits a server.

    Args:
        port: Where it is.
        random: What it does next.
        requests: How many it has made.
    """

    port: int
    random: Random
    requests: int = 0
    session: dict[str, str] = field(default_factory=dict)

    async def stay(self, end: float) -> None:
        """Visit until then, in `time.monotonic()`."""
        while time.monotonic() < end:
            await self._create()
            for visit in self.random.sample(VISITS, len(VISITS)):
                await visit(self)
                await asyncio.sleep(PAUSE)
        await self._delete()

    async def ask(self, body: bytes, proof: bytes, method: str = "tools/call") -> bytes:
        """Send a request, and read its answer, in which the proof must stand."""
        self.requests += 1
        said = await answer(self.port, raw(body, method=method))
        assert proof in said, said
        return said

    async def leave(self, params: dict[str, Any], *, length: int | None = None, read: bool = True) -> None:
        """Send a request, or so many bytes of it, and hang up."""
        self.requests += 1
        reader, writer = await sent(self.port, raw(message(params=params, session=self.session))[:length])
        await (reader.readline() if read else asyncio.sleep(PAUSE))
        writer.transport.abort()

    async def _create(self) -> None:
        said = await self.ask(message("sessions/create", {}), b'"expiresAt"', "sessions/create")
        self.session = {"sessionId": session_id(said)}

    async def _delete(self) -> None:
        gone = message("sessions/delete", {}, session=self.session)
        await self.ask(gone, b'"result"', "sessions/delete")


def _call(client: Client) -> Awaitable[object]:
    return client.ask(message(session=client.session), ECHOED)


def _without_a_session(client: Client) -> Awaitable[object]:
    return client.ask(message(), SERVED)


def _forge(client: Client) -> Awaitable[object]:
    return client.ask(message(session={"sessionId": ours.forged(client.session["sessionId"])}), REFUSED)


def _read_a_stream(client: Client) -> Awaitable[object]:
    return client.ask(message(params=LIVELY, session=client.session), ECHOED)


def _leave_a_stream(client: Client) -> Awaitable[object]:
    return client.leave(LIVELY)


def _read_nothing(client: Client) -> Awaitable[object]:
    return client.leave(FAST, read=False)


def _leave_a_tool(client: Client) -> Awaitable[object]:
    return client.leave(ENDLESS, read=False)


def _leave_a_request(client: Client) -> Awaitable[object]:
    return client.leave(LIVELY, length=-50, read=False)


VISITS: Final[Sequence[Callable[[Client], Awaitable[object]]]] = (
    _call,
    _without_a_session,
    _forge,
    _read_a_stream,
    _leave_a_stream,
    _read_nothing,
    _leave_a_tool,
    _leave_a_request,
)


async def soak(size: Size) -> Report:
    """So many seconds of it."""
    with served("tools", "ours, small cache") as (port, _):
        clients = [Client(port, Random(number)) for number in range(size.clients)]
        counts = [(0, census(port))]
        for _ in range(PARTS):
            end = time.monotonic() + size.soak / PARTS
            await asyncio.gather(*(client.stay(end) for client in clients))
            counts.append((sum(client.requests for client in clients), await settled(port, counts[0][1])))
    return _report(counts, size)


async def settled(port: int, first: dict[str, int]) -> dict[str, int]:
    """What the server holds once it has noticed that everybody is gone."""
    now = census(port)
    for _ in range(SETTLING):
        if all(now[name] <= first[name] for name in EXACT):
            break
        await asyncio.sleep(PAUSE)
        now = census(port)
    return now


def _report(counts: list[tuple[int, dict[str, int]]], size: Size) -> Report:
    later = counts[len(counts) // 4 :]  # when caches are full, and what is made once is made
    thousands = [requests / 1000 for requests, _ in later]
    rows: list[Sequence[str]] = []
    figures: dict[str, float] = {"soak/requests": counts[-1][0]}
    for name in COUNTED:
        values = [count[name] for _, count in later]
        slope = linear_regression(thousands, values).slope
        rows.append((name, f"{counts[0][1][name]:,}", f"{values[0]:,}", f"{values[-1]:,}", f"{slope:+,.2f}"))
        figures |= {f"soak/{name}": slope, f"soak/{name} more": values[-1] - counts[0][1][name]}
    columns = ("", "at the start", "after a quarter", "at the end", "slope per 1,000 requests")
    title = f"A soak of {size.soak:g} s: {counts[-1][0]:,} requests, many of them left in the middle"
    note = "blocks: of Python's allocator, counted exactly; resident: bytes of memory that the process holds."
    return Report([Table(title, columns, rows, note)], figures)

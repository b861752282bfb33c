"""Over HTTP: a server with one worker for each contestant, under wrk, in turns.

All servers are up all the time and idle but for the one whose turn it is. What is compared is the processor time that
the server's process took for a request, the kernel's work for it included, since the load generator takes as much of
the machine as it gets; requests per second are shown beside it.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

from . import lineup, ours, peers
from .children import processor_time, running
from .lineup import ECHOED, NONE, PASS, SERVED
from .report import Report, Table
from .size import Size
from .timing import MICROSECONDS, Times
from .traffic import message, scope
from .wire import session_id

MISSING: Final = "Over HTTP: not measured, since wrk is not installed (apt-get install wrk)"
CONNECTIONS: Final = 8
_REQUESTS: Final = re.compile(r"^\s*(\d+) requests in ", re.MULTILINE)
_PROGRAM: Final = "from tests.benchmarks import served; served.main()"
_SCRIPT: Final = 'wrk.method = "POST"\nwrk.path = "/mcp"\nwrk.body = [==[{body}]==]\n{headers}\n'

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sends again and again.

    Args:
        body: Of the request.
        headers: Beyond those of every request.
    """

    body: bytes
    headers: Headers

    def all_headers(self) -> dict[str, str]:
        """But for those that a client writes itself."""
        left_to_the_client = {b"host", b"connection", b"content-length"}
        sent = scope(len(self.body), headers=self.headers)["headers"]
        return {name.decode(): value.decode() for name, value in sent if name not in left_to_the_client}


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of one.

    Args:
        requests: That were served.
        taken: Seconds of processor time of the server.
    """

    requests: int
    taken: float


@dataclass(frozen=True, slots=True)
class Serving:
    """One contestant.

    Args:
        name: What the table calls it.
        around: What stands around the application.
        server: Which program serves it.
        base: The row that it is held against.
        request: Which kind of request it is asked.
    """

    name: str
    around: str
    server: str = "uvicorn"
    base: str = NONE
    request: str = "unread session"


ROWS: Final = (
    Serving(NONE, "none"),
    Serving(PASS, "pass-through"),
    Serving("ours, no session named", "ours", request="no session"),
    Serving("ours, session", "ours", request="session"),
    *(Serving(f"ours, session, {mode}", f"ours, {mode}", request="session") for mode in ours.MODES),
    Serving(peers.READ, peers.READ, request="cookie"),
    *(Serving(name, name) for name in peers.PEERS),
)
# The same two on each server, each held against its own pass-through.
LOOPS: Final = tuple(
    Serving(f"{server}: {name}", around, server, f"{server}: {PASS}", request)
    for server in ("uvicorn", "uvicorn, uvloop", "hypercorn", "hypercorn, trio")
    for name, around, request in ((PASS, "pass-through", "unread session"), ("ours, session", "ours", "session"))
)
_NOTE: Final = (
    f"One worker, wrk with {CONNECTIONS} connections. us: processor time of the server's process for a request; "
    "adds and throughput: against {}."
)


@dataclass(frozen=True, slots=True)
class Contest:
    """One table.

    Args:
        title: Of the table.
        prefix: The beginning of the names of its figures.
        app: Which application is served.
        rows: By whom.
        note: Of the table.
    """

    title: str
    prefix: str
    app: str
    rows: Sequence[Serving]
    note: str


async def network(size: Size) -> Report:
    """Everybody around both applications, or why not."""
    note = f"uvicorn. {_NOTE.format('no middleware')}"
    titles = {"trivial": "a trivial application", "sdk": "the official SDK's server, modern era, JSON"}
    contests = [Contest(f"Around {title}, over HTTP", f"http-{app}", app, ROWS, note) for app, title in titles.items()]
    return Report.all([await _hold(contest, size) for contest in contests])


async def loops(size: Size) -> Report:
    """Other servers and other loops."""
    title = "Other servers and loops, around a trivial application, over HTTP"
    note = _NOTE.format("the pass-through on the same server")
    return await _hold(Contest(title, "loops", "trivial", LOOPS, note), size)


async def _hold(contest: Contest, size: Size) -> Report:
    wrk = shutil.which("wrk")
    if wrk is None:
        return Report([Table(MISSING, ("",), ())])
    return _report(contest, _turns(contest, await peers.cookie(), size, wrk), size.seconds)


def _turns(contest: Contest, cookie: Headers, size: Size, wrk: str) -> Mapping[str, Sequence[Turn]]:
    rows = contest.rows
    turns: dict[str, list[Turn]] = {row.name: [] for row in rows}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places = {(row.around, row.server) for row in rows}
        servers = {place: stack.enter_context(served(contest.app, *place)) for place in sorted(places)}
        asked = {row.name: request(row, servers[row.around, row.server][0], cookie) for row in rows}
        for turn in range(size.network):
            for row in Random(turn).sample(rows, len(rows)):
                port, process = servers[row.around, row.server]
                proof = ECHOED if row.request == "session" else SERVED
                lineup.prove(row.name, ask(port, asked[row.name]), proof)
                before = processor_time(process)
                requests = load(wrk, port, asked[row.name], folder, size.seconds)
                turns[row.name].append(Turn(requests, processor_time(process) - before))
    return turns


def request(row: Serving, port: int, cookie: Headers) -> Request:
    """What a contestant is asked again and again; a session is one that it has created itself."""
    match row.request:
        case "session":
            said = ask(port, Request(message("sessions/create", {}), {"mcp-method": "sessions/create"}))
            return Request(message(session={"sessionId": session_id(said)}), {})
        case "cookie":
            return Request(message(), cookie)
        case "unread session":
            return Request(message(session={"sessionId": ours.minted(1)[0]}), {})
        case _:
            return Request(message(), {})


def _report(contest: Contest, turns: Mapping[str, Sequence[Turn]], seconds: int) -> Report:
    times = {
        name: Times(tuple(MICROSECONDS * turn.taken / turn.requests for turn in some)) for name, some in turns.items()
    }
    bases = {row.name: row.base for row in contest.rows}
    report = Report.of_race(contest.title, contest.prefix, times, bases=bases, note=contest.note)
    (table,) = report.tables
    rates = [f"{median(turn.requests for turn in turns[row.name]) / seconds:,.0f}" for row in contest.rows]
    cells = [(*cells, rate) for cells, rate in zip(table.rows, rates, strict=True)]
    return Report([replace(table, columns=(*table.columns, "requests/s"), rows=cells)], report.figures)


@contextmanager
def served(app: str, around: str, server: str = "uvicorn") -> Iterator[tuple[int, int]]:
    """A server that is up for as long as the block lasts; gives its port and its process id."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        number = listening.fileno()
        with running(_PROGRAM, app, around, server, str(number), pass_fds=[number]) as process:
            yield listening.getsockname()[1], process


def ask(port: int, request: Request) -> bytes:
    """What the server answers; it is waited for where it is not up yet."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/mcp", request.body, request.all_headers())
    answer = connection.getresponse().read()
    connection.close()
    return answer


def load(wrk: str, port: int, request: Request, folder: Path, seconds: int) -> int:
    """How many requests were served."""
    script = folder / "request.lua"
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in request.all_headers().items())
    script.write_text(_SCRIPT.format(body=request.body.decode(), headers=headers), "utf-8")
    how = ["--threads=1", f"--connections={CONNECTIONS}", f"--duration={seconds}s", f"--script={script}"]
    done = subprocess.run([wrk, *how, f"http://127.0.0.1:{port}/mcp"], stdout=subprocess.PIPE, text=True, check=True)
    found = _REQUESTS.search(done.stdout)
    assert found is not None, done.stdout
    assert "Non-2xx" not in done.stdout, done.stdout
    return int(found[1])

"""Over HTTP: uvicorn with one worker for each contestant, under wrk, in turns.

All servers are up all the time and idle but for the one whose turn it is. What is counted is requests per second, so
the load generator and the kernel are in it, and differences are smaller than in process.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Final

from . import lineup, ours
from .instructions import ROOT
from .report import Report, Table
from .size import Size
from .timing import MICROSECONDS, Times
from .traffic import message, scope

MISSING: Final = "Over HTTP: not measured, since wrk is not installed (apt-get install wrk)"
CONNECTIONS: Final = 8
_RATE: Final = re.compile(r"^Requests/sec:\s+([\d.]+)$", re.MULTILINE)
_PROGRAM: Final = "from tests.benchmarks import served; served.main()"
_SCRIPT: Final = 'wrk.method = "POST"\nwrk.path = "/mcp"\nwrk.body = [==[{body}]==]\n{headers}\n'

# The row's name, what stands around the application, and whether the requests name a session.
ROWS: Final = (
    ("none", "none", True),
    ("pass-through", "pass-through", True),
    ("ours, no session named", "ours", False),
    ("ours, session", "ours", True),
    ("Starlette SessionMiddleware", "Starlette SessionMiddleware", True),
    ("BaseHTTPMiddleware, empty", "BaseHTTPMiddleware, empty", True),
    ("OpenTelemetry ASGI, default", "OpenTelemetry ASGI, default", True),
    ("OpenTelemetry ASGI, one span", "OpenTelemetry ASGI, one span", True),
)


async def network(size: Size) -> Report:
    """Both applications, or why not."""
    wrk = shutil.which("wrk")
    if wrk is None:
        return Report([Table(MISSING, ("",), ())])
    titles = {"trivial": "a trivial application", "sdk": "the official SDK's server, modern era, JSON"}
    return Report.all(_race(app, f"Around {title}, over HTTP", size, wrk) for app, title in titles.items())


def _race(app: str, title: str, size: Size, wrk: str) -> Report:
    bodies = {True: message(session={"sessionId": ours.minted(1)[0]}), False: message()}
    rates: dict[str, list[float]] = {name: [] for name, _, _ in ROWS}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = {around: stack.enter_context(served(app, around)) for _, around, _ in ROWS}
        for turn in range(size.network):
            for name, around, named in Random(turn).sample(ROWS, len(ROWS)):
                proof = lineup.ECHOED if name == "ours, session" else lineup.SERVED
                lineup.prove(name, ask(ports[around], bodies[named]), proof)
                rates[name].append(load(wrk, ports[around], bodies[named], folder, size.seconds))
    return _report(app, title, rates)


def _report(app: str, title: str, rates: Mapping[str, Sequence[float]]) -> Report:
    times = {name: Times(tuple(MICROSECONDS / rate for rate in some)) for name, some in rates.items()}
    rows: list[Sequence[str]] = []
    figures: dict[str, float] = {}
    for name, own in times.items():
        left = own.throughput(times["none"])
        rows.append((name, f"{MICROSECONDS / own.median:,.0f}", f"{own.spread:.0%}", f"{left:.2f}"))
        figures |= {f"http-{app}/{name}/throughput": left, f"http-{app}/{name}/us": own.median}
    note = f"uvicorn, one worker, wrk with {CONNECTIONS} connections. Throughput: against no middleware."
    return Report([Table(title, ("", "requests/s", "spread", "throughput"), rows, note)], figures)


@contextmanager
def served(app: str, around: str) -> Iterator[int]:
    """A server that is up for as long as the block lasts; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number = listening.fileno()
        program = [sys.executable, "-c", _PROGRAM, app, around, str(number)]
        with subprocess.Popen(program, cwd=ROOT, pass_fds=[number]) as server:
            try:
                yield listening.getsockname()[1]
            finally:
                server.terminate()


def ask(port: int, body: bytes) -> bytes:
    """What the server answers; it is waited for where it is not up yet."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/mcp", body, _headers(body))
    answer = connection.getresponse().read()
    connection.close()
    return answer


def load(wrk: str, port: int, body: bytes, folder: Path, seconds: int) -> float:
    """Requests per second."""
    script = folder / "request.lua"
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in _headers(body).items())
    script.write_text(_SCRIPT.format(body=body.decode(), headers=headers), "utf-8")
    how = ["--threads=1", f"--connections={CONNECTIONS}", f"--duration={seconds}s", f"--script={script}"]
    done = subprocess.run([wrk, *how, f"http://127.0.0.1:{port}/mcp"], stdout=subprocess.PIPE, text=True, check=True)
    found = _RATE.search(done.stdout)
    assert found is not None, done.stdout
    assert "Non-2xx" not in done.stdout, done.stdout
    return float(found[1])


def _headers(body: bytes) -> dict[str, str]:
    left_to_the_client = {b"host", b"connection", b"content-length"}
    sent = scope(len(body))["headers"]
    return {name.decode(): value.decode() for name, value in sent if name not in left_to_the_client}

"""A storm: clients call and answer, while the worker of one of them is killed every few seconds.

    python -m tests.tools.storm --clients 20 --workers 4 --every 3 --seconds 60

It prints a table, and fails if a call fails that was not in flight at a kill, if a session is lost, or if an answer is
that of another call. `--signal TERM` is a rolling restart: there, no call may fail.
"""

import argparse
import itertools
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from socket import create_connection, create_server
from typing import Any

import anyio
import uvicorn

from .balancer import Balancer

ROOT = Path(__file__).resolve().parents[3]
CALL_TIMEOUT = 15  # seconds; a question whose answer was in flight at a kill is waited for until then


class Storm:
    """What happens to the calls of all clients."""

    def __init__(self, options: argparse.Namespace, url: str) -> None:
        self.options, self.url = options, url
        self.counts: Counter[str] = Counter()
        self.owners: dict[int, int] = {}  # the process that answered each client last
        self.kills: list[float] = []
        self.errors: list[str] = []
        self.slowest = 0.0
        self.is_over = False

    async def client(self, number: int) -> None:
        types = import_module("mcp").types

        async def answer(_context: Any, params: Any) -> Any:
            return types.ElicitResult(action="accept", content={"word": params.message})

        with anyio.CancelScope() as scope:
            try:
                async with connected(self.url, answer) as session:
                    for turn in itertools.count():
                        if self.is_over:
                            break
                        await self._call(session, number, turn)
            except Exception as error:  # noqa: BLE001  # what a client does with what it gets
                self.counts["sessions lost"] += 1
                self.errors.append(f"client {number}: {error!r}")
            scope.cancel()

    async def _call(self, session: Any, number: int, turn: int) -> None:
        tool, word = ("ask" if turn % 3 == 2 else "echo"), f"w{number}-{turn}"
        began = time.monotonic()
        self.counts["calls"] += 1
        try:
            with anyio.fail_after(CALL_TIMEOUT):
                result = await session.call_tool(tool, {"word": word})
            text, process = result.content[0].text.split()
        except Exception as error:  # noqa: BLE001
            self._note_failure(began, f"{tool}: {error!r}")
            return
        self.slowest = max(self.slowest, time.monotonic() - began)
        self.owners[number] = int(process)
        if text != word:
            self.counts["answers of other calls"] += 1
        await anyio.sleep(random.uniform(0, 0.05))

    def _note_failure(self, began: float, error: str) -> None:
        now = time.monotonic()
        is_hit = any(began - 0.1 <= kill <= now for kill in self.kills)
        self.counts["failed in flight at a kill" if is_hit else "failed otherwise"] += 1
        if not is_hit or "not found" in error.lower() or os.environ.get("STORM_LOG"):
            self.errors.append(f"{error} after {now - began:.0f} s")
        if "not found" in error.lower():
            self.counts["sessions lost"] += 1

    async def kill(self) -> None:
        end = time.monotonic() + self.options.seconds
        while time.monotonic() < end:
            await anyio.sleep(self.options.every)
            alive = [*filter(_is_alive, self.owners.values())]
            if alive:
                self.kills.append(time.monotonic())
                os.kill(random.choice(alive), self.options.signal)
                self.counts["kills"] += 1
        self.is_over = True

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(self.options.clients):
                tasks.start_soon(self.client, number)
            tasks.start_soon(self.kill)


def _is_alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def connected(url: str, answer: Any) -> Any:
    """Return the SDK's own client of a server, which answers its questions."""
    mcp = import_module("mcp")
    if hasattr(mcp, "Client"):
        return mcp.Client(url, mode="legacy", elicitation_callback=answer)
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def older() -> Any:
        connect = import_module("mcp.client.streamable_http").streamable_http_client
        async with connect(url) as (read, write, _), mcp.ClientSession(read, write, elicitation_callback=answer) as one:
            await one.initialize()
            yield one

    return older()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--signal", type=lambda name: signal.Signals[f"SIG{name}"], default=signal.SIGKILL)
    return parser.parse_args()


class Workers:
    """The worker processes, each with a port, started again when they end."""

    def __init__(self, count: int, folder: Path) -> None:
        self.ports = [_free_port() for _ in range(count)]
        self._folder = folder
        self._environment = {
            **os.environ,
            "STORM_KEYS": secrets.token_urlsafe(32),
            "STORM_STORE": f"sqlite:{folder}/sessions.db",
        }
        self._processes = [self._start(port) for port in self.ports]
        for port in self.ports:
            _wait_for(port)

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "uvicorn", "tests.tools.storm.server:app", "--port", str(port)]
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--log-level", "warning"], cwd=ROOT, env=self._environment, stdout=log, stderr=log
            )

    async def supervise(self) -> None:
        while True:
            await anyio.sleep(0.1)
            for place, process in enumerate(self._processes):
                if process.poll() is not None:
                    self._processes[place] = self._start(self.ports[place])

    @property
    def processes(self) -> list[int]:
        return [process.pid for process in self._processes]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _free_port() -> int:
    with create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    while True:
        with suppress(OSError), create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)


async def _run(options: argparse.Namespace, workers: Workers) -> Storm:
    port = _free_port()
    balancer = uvicorn.Server(uvicorn.Config(Balancer(workers.ports), port=port, log_level="critical", lifespan="off"))
    storm = Storm(options, f"http://127.0.0.1:{port}/mcp")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(balancer.serve)
        tasks.start_soon(workers.supervise)
        await anyio.to_thread.run_sync(_wait_for, port)
        await storm.run()
        tasks.cancel_scope.cancel()
    return storm


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        workers = Workers(options.workers, Path(folder))
        try:
            storm = anyio.run(_run, options, workers)
        finally:
            workers.stop()
        rows = ("calls", "kills", "failed in flight at a kill", "failed otherwise", "sessions lost")
        for row in (*rows, "answers of other calls"):
            print(f"{row:28} {storm.counts[row]}")
        print(f"{'slowest call, in seconds':28} {storm.slowest:.2f}")
        print(*Counter(storm.errors).most_common(20), sep="\n")
        if os.environ.get("STORM_LOG"):
            print(Path(f"{folder}/log").read_text()[-6000:])
    return 1 if any(storm.counts[row] for row in ("failed otherwise", "sessions lost", "answers of other calls")) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Programs in processes of their own, for the recipes; the log of one that never gets ready is part of the error."""

import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from socket import socket
from subprocess import DEVNULL, STDOUT
from typing import Final

import anyio
import httpx
from anyio.abc import Process
from environments import program

POLL: Final = 0.02  # seconds between looks at a log
PATIENCE: Final = 5.0  # seconds that a program may take to finish


def free_port() -> int:
    """A port of this machine's that nobody listens on."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def answering(command: Sequence[str | Path], url: str, folder: Path, **environment: str) -> Iterator[None]:
    """Run a program within the block, once it answers by HTTP, whatever it says."""
    deadline, log = time.monotonic() + 240, folder / "log"
    with log.open("wb") as output, httpx.Client(timeout=240) as client:
        process = subprocess.Popen(
            [*map(str, command)], env={**os.environ, **environment}, cwd=folder, stdout=output, stderr=STDOUT
        )
        try:
            while True:
                with suppress(httpx.TransportError):
                    client.get(url)
                    break
                runs = process.poll() is None and time.monotonic() < deadline
                assert runs, f"{command[0]} did not start:\n{log.read_text('utf-8', 'replace')[-4000:]}"
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait()


class Program:
    """A program that runs until it is ended, and listens on a port of this machine alone.

    Attributes:
        is_ready: What its log says when it is ready.
        is_failing: What it says where it tries again and again instead of ending.
        processes: How many times it says that it is ready.
    """

    is_ready: bytes
    is_failing: bytes = b"\0"
    processes = 1
    _process: Process

    def __init__(self, name: str, folder: Path, command: Sequence[str | Path], port: int, **environment: str) -> None:
        self.name = name
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"
        self._log = folder / f"{name}.log"
        self.command = [str(part) for part in command]
        self.environment = {**os.environ, **environment}

    async def launch(self) -> None:
        """Start a process, and wait until it can be used."""
        with self._log.open("ab") as log:
            start = log.tell()
            # In a group of its own, so that what it starts itself can be ended with it.
            self._process = await anyio.open_process(
                self.command, stdin=DEVNULL, stdout=log, stderr=STDOUT, env=self.environment, start_new_session=True
            )
        while (said := self._log.read_bytes()[start:]).count(self.is_ready) < self.processes:
            has_failed = self._process.returncode is not None or self.is_failing in said
            assert not has_failed, f"{self.name} did not start:\n{said.decode(errors='replace')}"
            await anyio.sleep(POLL)

    async def end(self) -> None:
        """End the process, which ends what it started; what is left of its group after a while is killed."""
        with suppress(ProcessLookupError):  # it may have ended already
            self._process.terminate()  # it alone: a worker that is ended twice may not finish what it is doing
        with suppress(ProcessLookupError):  # which is how it shows that all of the group have ended
            with anyio.move_on_after(PATIENCE, shield=True):
                await self._process.wait()
                while True:
                    os.killpg(self._process.pid, 0)
                    await anyio.sleep(POLL)
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.aclose()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Launch it, and end whatever process it has when the block is left."""
        try:
            await self.launch()
            yield
        finally:
            await self.end()


class Nginx(Program):
    """nginx with a configuration, in a folder that anyone may write to."""

    is_ready = b"start worker process "

    def __init__(self, folder: Path, configuration: str, port: int) -> None:
        main = folder / "nginx.conf"
        main.write_text(configuration, "utf-8")
        super().__init__("nginx", folder, [program("nginx"), "-p", folder, "-e", "stderr", "-c", main], port)

"""Programs in processes of their own, for the recipes: a store, servers with several workers, nginx.

A program is ready when its log says so, and is ended by the signal that lets it finish what it is doing. Its log is
part of the error if it never gets ready.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from socket import socket
from subprocess import DEVNULL, STDOUT
from typing import Final

import anyio
from anyio.abc import Process

POLL: Final = 0.02  # seconds between looks at a log
PATIENCE: Final = 5.0  # seconds that a program may take to finish
SITE: Final = Path(__file__).parents[2] / "examples" / "deployment" / "nginx.conf"
MAIN: Final = """\
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr notice;
events { worker_connections 256; }
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include site.conf;
}
"""  # what surrounds a site, for a folder that anyone may write to


def free_port() -> int:
    """A port of this machine's that nobody listens on."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class DidNotStart(Exception):
    """A program ended before it was ready; the message is its log."""


class Program:
    """A program that runs until it is ended.

    Attributes:
        name: What the timeline calls it.
        port: Where it listens, on this machine alone.
        is_ready: What its log says when it is ready.
        is_failing: What it says where it tries again and again instead of ending.
        processes: How many times it says so.
    """

    is_ready: bytes
    is_failing: bytes = b""
    processes = 1
    _process: Process
    _read: int  # bytes of the log

    def __init__(self, name: str, folder: Path, command: Sequence[str | Path], port: int, **environment: str) -> None:
        """Args:
        name: What the timeline calls it.
        folder: Where its log is kept.
        command: What starts it.
        port: Where it listens.
        environment: More variables of its environment.
        """
        self.name = name
        self.port = port
        self._log = folder / f"{name}.log"
        self.command = [str(part) for part in command]
        self.environment = {**os.environ, **environment}

    @property
    def pid(self) -> int:
        """The number of the process that runs now."""
        return self._process.pid

    async def launch(self) -> None:
        """Start a process; `ready` waits until it can be used."""
        with self._log.open("ab") as log:
            self._read = log.tell()
            # In a group of its own, so that what it starts itself can be ended with it.
            self._process = await anyio.open_process(
                self.command, stdin=DEVNULL, stdout=log, stderr=STDOUT, env=self.environment, start_new_session=True
            )

    async def ready(self) -> None:
        """Wait until its log says that it is ready.

        Raises:
            DidNotStart: It ended or failed instead.
        """
        for _ in range(self.processes):
            await self.says(self.is_ready)

    async def says(self, text: bytes) -> None:
        """Wait until its log holds a text, after what it was found to hold before.

        Raises:
            DidNotStart: It ended or failed instead.
        """
        while True:
            ended, said = self._process.returncode is not None, self._log.read_bytes()[self._read :]
            before, found, _ = said.partition(text)
            if found:
                self._read += len(before + found)
                return
            if ended or (self.is_failing and self.is_failing in said):
                raise DidNotStart(f"{self.name} did not start:\n{said.decode(errors='replace')}")
            await anyio.sleep(POLL)

    async def end(self) -> None:
        """End the process, which ends what it started; what is left of its group after a while is killed."""
        with suppress(ProcessLookupError):  # it may have ended already
            self._process.terminate()  # it alone: a worker that is ended twice may not finish what it is doing
        with suppress(ProcessLookupError):  # which is how it shows that all of the group have ended
            with anyio.move_on_after(PATIENCE, shield=True):
                await self._process.wait()
                while True:
                    os.killpg(self.pid, 0)
                    await anyio.sleep(POLL)
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.aclose()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Launch it, and end whatever process it has when the block is left."""
        await self.launch()
        try:
            yield
        finally:
            await self.end()


class Nginx(Program):
    """nginx with the site of the deployment recipe, in `site.conf` of a folder, in front of programs."""

    is_ready = b"start worker process "

    def __init__(self, program: Path, folder: Path, servers: Sequence[Program]) -> None:
        main, port = folder / "nginx.conf", free_port()
        main.write_text(MAIN, "utf-8")
        lines = "\n".join(f"    server 127.0.0.1:{server.port} max_fails=0;" for server in servers)
        site = re.sub(r"( +server 127.*\n)+", f"{lines}\n", SITE.read_text("utf-8"), count=1)
        (folder / "site.conf").write_text(site.replace("listen 80;", f"listen 127.0.0.1:{port};"), "utf-8")
        super().__init__("nginx", folder, [program, "-p", folder, "-e", "stderr", "-c", main], port)

    @property
    def url(self) -> str:
        """The address of the MCP endpoint."""
        return f"http://127.0.0.1:{self.port}/mcp"

"""Programs in processes of their own, for the recipes: a store, servers with several workers, nginx.

A program is ready when its log says so, and is ended by the signal that lets it finish what it is doing. Its log is
part of the error if it never gets ready.
"""

from __future__ import annotations

import os
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
    # A client must not send on a kept connection just as a reload closes it; nor can it know what became of that.
    keepalive_timeout 0;
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
        self._command = [str(part) for part in command]
        self._environment = {**os.environ, **environment}

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
                self._command, stdin=DEVNULL, stdout=log, stderr=STDOUT, env=self._environment, start_new_session=True
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


class Redis(Program):
    """A Redis server that has a change on disk before it answers."""

    is_ready = b"Ready to accept connections"

    def __init__(self, program: Path, folder: Path) -> None:
        port = free_port()
        command: list[str | Path] = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always"]
        super().__init__("redis", folder, command, port)

    @property
    def url(self) -> str:
        """The `store=` option of the servers."""
        return f"redis://127.0.0.1:{self.port}/0"


class Nginx(Program):
    """nginx with the site of the deployment recipe, which hands each request to the next server in use.

    To replace a server without losing a request: mark it `down`, reload, wait until the old nginx workers have exited
    (then nothing is under way to it), end it, start the new one, take `down` away, reload. A server that is ended in
    use takes requests down with it that it has accepted and not read yet, and nginx cannot know whether those were
    carried out.
    """

    is_ready = b"start worker process "

    def __init__(self, program: Path, folder: Path, replicas: Sequence[Program]) -> None:
        self._site = folder / "site.conf"
        self._replicas = replicas
        main = folder / "nginx.conf"
        main.write_text(MAIN, "utf-8")
        command: list[str | Path] = [program, "-p", folder, "-e", "stderr", "-c", main]
        super().__init__("nginx", folder, command, free_port())
        self._configure(None)

    @property
    def url(self) -> str:
        """The address of the MCP endpoint."""
        return f"http://127.0.0.1:{self.port}/mcp"

    async def take_out(self, replica: Program | None) -> None:
        """Send nothing more to a server; None puts all into use. Returns when nothing is under way to it."""
        self._configure(replica)
        os.kill(self.pid, signal.SIGHUP)
        await self.says(b"exited with code 0")  # the worker with the former configuration, after its last request

    def _configure(self, out: Program | None) -> None:
        lines = [f"server 127.0.0.1:{each.port}{' down' if each is out else ''};" for each in self._replicas]
        text = SITE.read_text("utf-8").replace("server 127.0.0.1:8000;", "\n    ".join(lines))
        self._site.write_text(text.replace("listen 80;", f"listen 127.0.0.1:{self.port};"), "utf-8")

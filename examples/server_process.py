"""One of the example servers in a process of its own, which can be ended and started again on the same address.

The keys are made once and handed to every process through the environment: that is all a restarted server needs to
know the sessions of the one before it. The log is read only until the server is ready (the few lines that follow fit
into the pipe) and is shown in the error where it never gets ready.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

MAX_START_LOG = 1 << 16  # bytes


class DidNotStart(Exception):
    """The server ended before it was ready; the message holds what it said."""


class ServerProcess:
    """A server under uvicorn on a free port of this machine.

    Attributes:
        name: The name of the server's module.
    """

    _process: Process

    def __init__(self, name: str, folder: Path) -> None:
        """Args:
        name: The name of the server's module, in which `app` is the server.
        folder: Where the module is.
        """
        self.name = name
        self._folder = folder
        self._keys = secrets.token_urlsafe(32)
        self._port = 0  # the system chooses, once

    @property
    def url(self) -> str:
        """The address of the MCP endpoint, once the server is ready."""
        return f"http://127.0.0.1:{self._port}/mcp"

    @property
    def pid(self) -> int:
        """The number of the process that serves now."""
        return self._process.pid

    async def launch(self) -> None:
        """Start a process; `ready` waits until it serves."""
        command = [sys.executable, "-m", "uvicorn", "--app-dir", str(self._folder), f"{self.name}:app"]
        command += ["--port", str(self._port), "--no-access-log", "--no-use-colors"]
        environment = {**os.environ, "MCP_SESSIONS_KEYS": self._keys}
        self._process = await anyio.open_process(command, stdin=DEVNULL, stdout=DEVNULL, env=environment)

    async def ready(self) -> None:
        """Wait until the process serves.

        Raises:
            DidNotStart: It ended instead.
        """
        assert self._process.stderr is not None
        log = BufferedByteReceiveStream(self._process.stderr)
        try:
            await log.receive_until(b"running on http://127.0.0.1:", MAX_START_LOG)
            self._port = int(await log.receive_until(b" ", len("65535 ")))
        except anyio.IncompleteRead:
            raise DidNotStart(f"{self.name} did not start:\n{log.buffer.decode(errors='replace')}") from None

    async def end(self) -> None:
        """End the process, which finishes what it is doing first."""
        with suppress(ProcessLookupError):  # it has ended by itself
            self._process.terminate()
        try:
            await self._process.wait()
        finally:  # ends it the hard way where waiting was cancelled
            await self._process.aclose()


@asynccontextmanager
async def serving(name: str, folder: Path) -> AsyncIterator[ServerProcess]:
    """Launch a server, and end whatever process it has when the block is left."""
    server = ServerProcess(name, folder)
    await server.launch()
    try:
        yield server
    finally:
        await server.end()

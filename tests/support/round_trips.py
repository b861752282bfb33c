"""A proxy in front of a store's server, which counts round trips."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
Upstream = tuple[str, int] | Path
"""A host and a port, or a Unix socket."""


class Proxy:
    """Copies bytes in both directions.

    A round trip is what a client sends over one connection and is then answered. What a server sends unasked does not
    count, nor does a farewell.
    """

    port: int

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._count = 0
        self.connections: set[asyncio.Task[Any]] = set()

    def taken(self) -> int:
        """Return how many round trips were made since this was last called."""
        count, self._count = self._count, 0
        return count

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task, up = asyncio.current_task(), self._upstream
        assert task is not None
        self.connections.add(task)
        opening = asyncio.open_unix_connection(up) if isinstance(up, Path) else asyncio.open_connection(*up)
        answers, upstream = await opening
        was_asked = False

        async def pass_on() -> None:
            nonlocal was_asked
            while data := await reader.read(1 << 16):
                was_asked = True
                upstream.write(data)
            upstream.close()

        asking = asyncio.ensure_future(pass_on())
        with suppress(OSError):
            while data := await answers.read(1 << 16):
                self._count += was_asked
                was_asked = False
                writer.write(data)
        writer.close()
        await asking
        for each in (upstream, writer):
            with suppress(OSError):
                await each.wait_closed()


@asynccontextmanager
async def proxied(upstream: Upstream) -> AsyncIterator[Proxy]:
    """Run a proxy within the block."""
    proxy = Proxy(upstream)
    async with await asyncio.start_server(proxy.connect, HOST, 0) as server:
        proxy.port = server.sockets[0].getsockname()[1]
        yield proxy
        await asyncio.gather(*proxy.connections)

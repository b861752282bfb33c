"""A proxy in front of a store's server, which counts round trips and can delay them as a network does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HOST = "127.0.0.1"
Upstream = tuple[str, int] | Path
"""A host and a port, or a Unix socket."""


class Proxy:
    """Copies bytes in both directions, in a thread of its own, so that a store on any event loop can be counted.

    A round trip is what a client sends over one connection and is then answered. What a server sends unasked does not
    count, nor does a farewell.

    Args:
        upstream: The server.
        delay: Seconds by which each answer is late.
    """

    def __init__(self, upstream: Upstream, delay: float) -> None:
        self._upstream = upstream
        self._delay = delay
        self._count = 0
        self._writers: set[asyncio.StreamWriter] = set()

    def taken(self) -> int:
        """Return how many round trips were made since this was last called."""
        count, self._count = self._count, 0
        return count

    async def serve(self, started: threading.Event, stop: asyncio.Event) -> None:
        """Listen on a free port until asked to stop."""
        server = await asyncio.start_server(self._connect, HOST, 0)
        self.port: int = server.sockets[0].getsockname()[1]
        started.set()
        await stop.wait()
        server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up = self._upstream
        opening = asyncio.open_unix_connection(up) if isinstance(up, Path) else asyncio.open_connection(*up)
        with suppress(OSError):  # a server that is down closes the client's connection
            upstream_reader, upstream_writer = await opening
            self._writers.add(upstream_writer)
            asked = asyncio.Event()
            questions = asyncio.ensure_future(self._copy_questions(reader, upstream_writer, asked))
            await self._copy_answers(upstream_reader, writer, asked)
            upstream_writer.close()
            await questions
        writer.close()

    @staticmethod
    async def _copy_questions(
        reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, asked: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                asked.set()
                upstream.write(data)
        upstream.close()

    async def _copy_answers(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: asyncio.Event
    ) -> None:
        self._writers.add(writer)
        with suppress(OSError):
            while data := await upstream.read(1 << 16):
                self._count += asked.is_set()
                asked.clear()
                await asyncio.sleep(self._delay)
                writer.write(data)
        writer.close()


@contextmanager
def proxied(upstream: Upstream, *, delay: float = 0.0) -> Iterator[Proxy]:
    """Run a proxy within the block."""
    proxy, loop = Proxy(upstream, delay), asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(proxy.serve(started, stop),))
    thread.start()
    started.wait()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()

"""What a hop costs: the same calls to the worker that has the session and to another one, in turns.

    python -m tests.tools.storm.hop --calls 500 --streams 1000

With `--streams`, that many GET streams are opened through the other worker as well, and memory and descriptors of both
workers are printed.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio

from .__main__ import Workers

HEADERS = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"


class Connection:
    """A kept-alive HTTP connection that sends one request at a time."""

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._port, self._reader, self._writer = port, reader, writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(port, *await asyncio.open_connection("127.0.0.1", port))

    def close(self) -> None:
        self._writer.close()

    def write(self, method: str, body: bytes = b"", session: str = "") -> None:
        named = f"Mcp-Session-Id: {session}\r\n" if session else ""
        head = f"{method} /mcp HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n{HEADERS}{named}"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def head(self) -> dict[str, str]:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = (line.partition(":") for line in lines[1:])
        return {"status": lines[0].split()[1], **{name.lower(): value.strip() for name, _, value in headers if name}}

    async def send(self, method: str, params: dict[str, Any], session: str = "", **envelope: Any) -> dict[str, str]:
        message = {"jsonrpc": "2.0", "method": method, "params": params, **envelope}
        self.write("POST", json.dumps(message).encode(), session)
        headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await self._reader.readline(), 16):
                await self._reader.readexactly(size + 2)
            await self._reader.readexactly(2)
        else:
            await self._reader.readexactly(int(headers["content-length"]))
        return headers


async def _begin(port: int) -> str:
    with closing(await Connection.open(port)) as connection:
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "hop", "version": "1"}}
        session = (await connection.send("initialize", client, id=1))["mcp-session-id"]
        await connection.send("notifications/initialized", {}, session)
        return session


async def _measure(ports: list[int], calls: int) -> None:
    session, times = await _begin(ports[0]), list[list[float]]([[], []])
    with closing(await Connection.open(ports[0])) as direct, closing(await Connection.open(ports[1])) as hopping:
        for turn in range(2 * calls):
            connection = (direct, hopping)[turn % 2]
            began = time.perf_counter()
            headers = await connection.send("ping", {}, session, id=turn)
            times[turn % 2].append(1000 * (time.perf_counter() - began))
            assert headers["status"] == "200", headers
    for name, found in zip(("direct", "with a hop"), times, strict=True):
        p50, p95 = statistics.median(found), statistics.quantiles(found, n=20)[-1]
        print(f"{name:12} p50 {p50:.2f} ms, p95 {p95:.2f} ms")
    print(f"{'the hop':12} p50 {statistics.median(times[1]) - statistics.median(times[0]):.2f} ms")


def _usage(process: int) -> str:
    status = Path(f"/proc/{process}/status").read_text()
    memory = int(status.partition("VmRSS:")[2].split()[0]) // 1024
    ticks = sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]))
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    return f"{memory} MiB, {len([*Path(f'/proc/{process}/fd').iterdir()])} descriptors, {seconds:.1f} s of CPU"


async def _stream(ports: list[int], processes: list[int], streams: int) -> None:
    print("before:", *map(_usage, processes), sep="\n  ")
    opened = []
    for _ in range(streams):
        session = await _begin(ports[0])
        opened.append(await Connection.open(ports[1]))
        opened[-1].write("GET", session=session)
        assert (await opened[-1].head())["status"] == "200"
    print(f"with {streams} streams through a hop:", *map(_usage, processes), sep="\n  ")
    await anyio.sleep(10)
    print("10 seconds later:", *map(_usage, processes), sep="\n  ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--streams", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workers = Workers(2, Path(folder))
        try:
            anyio.run(_measure, workers.ports, options.calls)
            if options.streams:
                anyio.run(_stream, workers.ports, workers.processes, options.streams)
        finally:
            workers.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

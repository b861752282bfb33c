"""A server in a process of its own, and a client on real connections that does no more than it must."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .children import ROOT, environment
from .traffic import message, scope

HOST: Final = "127.0.0.1"
_ID: Final = re.compile(rb'"sessionId":"([^"]+)"')
_PROGRAM: Final = "from tests.tools.benchmarks import served; served.main()"


@contextmanager
def served(server: str) -> Iterator[int]:
    """Serve as long as the block lasts; give the port."""
    with socket.create_server((HOST, 0), backlog=2048) as listening:
        number = listening.fileno()
        command = [sys.executable, "-c", _PROGRAM, server, str(number)]
        unmeasured = {name: value for name, value in environment().items() if not name.startswith("COVERAGE_")}
        with subprocess.Popen(command, cwd=ROOT, env=unmeasured, pass_fds=[number]) as child:
            try:
                yield listening.getsockname()[1]
            finally:
                child.terminate()


def raw(body: bytes, *, path: str = "/mcp", method: str = "tools/call") -> bytes:
    """Return a request as it goes over a connection, which the server closes afterwards."""
    sent = scope(len(body), method=method, headers={"connection": "close"})["headers"]
    return b"POST %b HTTP/1.1\r\n%b\r\n%b" % (path.encode(), b"".join(b"%b: %b\r\n" % each for each in sent), body)


async def ask(port: int, request: bytes) -> bytes:
    """Return all that a server answers; it is waited for where it is not up yet."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def begun(port: int) -> str:
    """Create a session; return its id."""
    request = raw(message("sessions/create", {}), method="sessions/create")
    ids: list[bytes] = _ID.findall(await ask(port, request))
    return ids[0].decode()

"""A client on a real connection that does no more than it must: one request, and what comes back until it is closed."""

from __future__ import annotations

import asyncio
import json
import re
from http.client import HTTPConnection
from typing import Any, Final

from .census import PATH
from .traffic import scope

HOST: Final = "127.0.0.1"
_ID: Final = re.compile(rb'"sessionId":"([^"]+)"')


def raw(body: bytes, *, method: str = "tools/call", close: bool = True) -> bytes:
    """A request as it goes over the connection, which the server closes afterwards unless it shall not."""
    sent = dict(scope(len(body), method=method)["headers"])
    sent[b"connection"] = b"close" if close else b"keep-alive"
    return b"POST /mcp HTTP/1.1\r\n%b\r\n%b" % (b"".join(b"%b: %b\r\n" % each for each in sent.items()), body)


async def sent(port: int, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a request went out."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(request)
    return reader, writer


async def answer(port: int, request: bytes) -> bytes:
    """All that a server says to a request."""
    reader, writer = await sent(port, request)
    said = await reader.read()
    writer.close()
    await writer.wait_closed()
    return said


def session_id(said: bytes) -> str:
    """The session that an answer names."""
    found = _ID.search(said)
    assert found is not None, said
    return found[1].decode()


def census(port: int) -> dict[str, Any]:
    """What a server says of itself; it is waited for where it is not up yet."""
    connection = HTTPConnection(HOST, port, timeout=60)
    connection.request("GET", PATH, headers={"connection": "close"})
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found

"""A small load balancer without sticky routing: each request goes to the next worker, and to another if none listens.

If a worker dies with a request, its client gets 502, as from nginx.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Any

import h11
from starlette.types import Receive, Scope, Send

_HOP = {b"connection", b"keep-alive", b"transfer-encoding"}


class Balancer:
    """An ASGI application in front of the workers at some ports."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = ports
        self._turns = count()
        self.waits = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        answering = asyncio.ensure_future(self._answer(scope, body, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            answering.cancel()
            gone.cancel()

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        reader, writer = await self._connect()
        is_started = False
        try:
            async for event in _exchange(reader, writer, scope, body):
                if isinstance(event, h11.Response):
                    is_started = True
                    headers = [(name, value) for name, value in event.headers if name not in _HOP]
                    await send({"type": "http.response.start", "status": event.status_code, "headers": headers})
                elif isinstance(event, h11.Data):
                    await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except (OSError, h11.RemoteProtocolError):
            if not is_started:
                await _bad_gateway(send)
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            for _ in self.ports:
                try:
                    return await asyncio.open_connection("127.0.0.1", self.ports[next(self._turns) % len(self.ports)])
                except OSError:
                    continue
            self.waits += 1  # all workers start just now
            await asyncio.sleep(0.2)


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, scope: Scope, body: bytes
) -> AsyncIterator[h11.Event]:
    connection = h11.Connection(h11.CLIENT)
    headers = [(name, value) for name, value in scope["headers"] if name not in _HOP | {b"content-length"}]
    headers += [(b"connection", b"close"), (b"content-length", b"%d" % len(body))]
    request = h11.Request(method=scope["method"], target=scope["raw_path"], headers=headers)
    for sent in (request, h11.Data(data=body), h11.EndOfMessage()):
        writer.write(connection.send(sent) or b"")
    while True:
        event: Any = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event, h11.EndOfMessage):
            return
        else:
            yield event


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _bad_gateway(send: Send) -> None:
    await send({"type": "http.response.start", "status": 502, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})

"""A server that keeps transport sessions, as those of the official SDK do, and names its own id in every response.

Each transport session counts its tool calls. The server keeps the requests that reached it.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import anyio
from apps import Seen, read
from starlette.types import Receive, Scope, Send

HEADER = b"mcp-session-id"


@dataclass
class Stateful:
    """The server."""

    sse: bool = False  # answer with event streams
    deletes: int = 200  # the status of answers to DELETE
    names: str = "servers-"  # the prefix of its ids
    version: dict[str, str] = field(default_factory=dict)  # what its answer to `initialize` says of the protocol
    seen: list[Seen] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    listening: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b"" if scope["method"] == "GET" else await read(receive)
        self.seen.append(Seen(scope, body))
        named, message = self.seen[-1].headers.get(HEADER), json.loads(body or b"{}")
        own = None if named is None else named.decode()
        if own is None:
            own = f"{self.names}{len(self.counts) + 1}"  # which begins, whether it may or not
            self.counts[own] = 0
            if message.get("method") == "initialize":
                await self._reply(send, own, message, {**self.version, "capabilities": {}})
            else:
                await self._send(send, own, 400, {"error": {"code": -32600, "message": "Missing session ID"}})
        elif own not in self.counts:
            await self._send(send, None, 404, {"error": {"code": -32600, "message": "Session not found"}})
        elif scope["method"] == "GET":
            await self._listen(send, own)
        elif scope["method"] == "DELETE":
            if self.deletes == 200:
                del self.counts[own]
            await self._send(send, own, self.deletes, {})
        elif "id" not in message or "method" not in message:
            await self._send(send, own, 202, None)
        elif message["method"] == "tools/call":
            self.counts[own] += 1
            await self._reply(send, own, message, {"content": self.counts[own]})
        else:
            await self._reply(send, own, message, {})

    async def _listen(self, send: Send, own: str) -> None:
        note = b'id: 7\ndata: {"jsonrpc":"2.0","method":"notifications/message"}\n\n'
        await self._start(send, own, 200, b"text/event-stream")
        await send({"type": "http.response.body", "body": note, "more_body": True})
        self.listening.set()
        await anyio.sleep_forever()

    async def _reply(self, send: Send, own: str, message: dict[str, Any], result: dict[str, Any]) -> None:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        if not self.sse:
            await self._send(send, own, 200, answer)
            return
        await self._start(send, own, 200, b"text/event-stream")
        for event in (b"id: 1\ndata: \n\n", b"id: 2\ndata: " + json.dumps(answer).encode() + b"\n\n"):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, own: str | None, status: int, body: object) -> None:
        await self._start(send, own, status, b"application/json")
        await send({"type": "http.response.body", "body": b"" if body is None else json.dumps(body).encode()})

    @staticmethod
    async def _start(send: Send, own: str | None, status: int, media_type: bytes) -> None:
        named = [] if own is None else [(b"Mcp-Session-Id", own.encode("latin-1"))]
        headers = [(b"content-type", media_type), *named]
        await send({"type": "http.response.start", "status": status, "headers": headers})

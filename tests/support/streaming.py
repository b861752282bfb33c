"""A server whose answers are event streams that wait, and that resumes broken ones (`Last-Event-ID`)."""

import json
from typing import Any

import anyio
from apps import read, reply
from starlette.types import Message, Receive, Scope, Send

from mcp_sessions import Session

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
SECRET_RESULT = "what only a live session may hear"


def event(number: str, message: dict[str, Any]) -> Message:
    """Return an event of a stream that goes on."""
    text = f"id: {number}\ndata: {json.dumps({'jsonrpc': '2.0', **message})}\n\n"
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


class Streaming:
    """The server, which sends event 1 of a call at once, and its result as event 2 when `go` is set.

    It knows events by their id alone. With `json`, the result is the whole answer. The tool `leave` ends its session.
    """

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.began = anyio.Event()  # a call is waiting
        self.left = anyio.Event()  # the tool `leave` has ended its session, and is waiting
        self.resumed = anyio.Event()  # a resumed stream is waiting
        self.go = anyio.Event()
        self.is_done = True  # a resumed stream has the result at once
        self.session: Session | None = None  # of the last call
        self.last: Scope = {}  # of the last request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.last = scope
        if scope["method"] == "GET":
            await self._resume(send)
            return
        if scope["method"] == "DELETE":
            await reply(send, b"")
            return
        message = json.loads(await read(receive))
        if message["method"] != "tools/call":
            await reply(send, json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": {}}).encode())
            return
        self.session = scope["mcp_session"]
        if message["params"].get("name") == "leave":
            assert self.session is not None
            await self.session.end("left")
            self.left.set()
        if self.json:
            await self._answer_in_json(message, send)
            return
        await send(START)
        await send(event("1", {"method": "notifications/message"}))
        self.began.set()
        await self.go.wait()
        await send(event("2", {"id": message["id"], "result": {"content": SECRET_RESULT}}))
        await send({"type": "http.response.body", "body": b""})

    async def _answer_in_json(self, message: dict[str, Any], send: Send) -> None:
        self.began.set()
        await self.go.wait()
        result = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": SECRET_RESULT}}
        await reply(send, json.dumps(result).encode())

    async def _resume(self, send: Send) -> None:
        await send(START)
        if self.is_done:
            await send(event("2", {"id": 1, "result": {"content": SECRET_RESULT}}))
        self.resumed.set()
        await self.go.wait()
        await send({"type": "http.response.body", "body": b""})

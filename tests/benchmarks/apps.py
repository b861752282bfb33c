"""The applications that are wrapped: a trivial one in several moods, the official SDK's server, and a pass-through.

The trivial one does the least that any JSON-RPC server in Python does: it reads the body with the standard library
and writes an answer with it. What a middleware costs stands out best against it.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TEXT: Final = "how much is the fish?"
_EVENTS: Final = (b"content-type", b"text/event-stream")
_NOTE: Final = (
    b'event: message\r\ndata: {"jsonrpc":"2.0","method":"notifications/message",'
    b'"params":{"level":"info","data":"%d"}}\r\n\r\n'
)
_LAST: Final = b'event: message\r\ndata: {"jsonrpc":"2.0","id":7,"result":{"content":[]}}\r\n\r\n'
_JSON: Final = (b"content-type", b"application/json")
_CONTENT: Final = {"content": [{"type": "text", "text": TEXT}], "isError": False}


async def trivial(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer each JSON-RPC request with the same result."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    request = json.loads(body)
    await _answer(send, {"jsonrpc": "2.0", "id": request.get("id"), "result": _CONTENT})


async def writing(scope: Scope, receive: Receive, send: Send) -> None:
    """As `trivial`; each call counts itself in the session's state."""
    session = scope["mcp_session"]
    if session is not None:  # the middleware asks, too, whether it may create one
        session.state["calls"] = session.state.get("calls", 0) + 1
    await trivial(scope, receive, send)


async def cookie_reading(scope: Scope, receive: Receive, send: Send) -> None:
    """As `trivial`; each call reads Starlette's cookie session."""
    scope["session"].get("calls")
    await trivial(scope, receive, send)


async def cookie_writing(scope: Scope, receive: Receive, send: Send) -> None:
    """As `trivial`; each call counts itself in Starlette's cookie session."""
    scope["session"]["calls"] = scope["session"].get("calls", 0) + 1
    await trivial(scope, receive, send)


async def _answer(send: Send, answer: dict[str, Any]) -> None:
    text = json.dumps(answer).encode()
    headers = [_JSON, (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})


async def tools(scope: Scope, receive: Receive, send: Send) -> None:
    """As `trivial`, with two more tools.

    `watch` sends `events` events, `pause` seconds apart, each with the time at which it left; `wait` answers nobody:
    it runs until its client is gone.
    """
    first = await receive()
    params = json.loads(first["body"])["params"] if first.get("body") and not first.get("more_body") else {}
    match params.get("name"):
        case "watch":
            await _watch(send, **params["arguments"])
        case "wait":
            await receive()  # that it is gone: nothing else comes after a body
        case _:
            await trivial(scope, _again(first, receive), send)


async def _watch(send: Send, events: int, pause: float) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [_EVENTS]})
    for _ in range(events):
        body = _NOTE % time.monotonic_ns()
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await anyio.sleep(pause)
    await send({"type": "http.response.body", "body": _LAST})


def _again(first: Message, receive: Receive) -> Receive:
    """A `receive` that begins with a message that was received before."""
    rest = iter([first])

    async def again() -> Message:
        return next(rest, None) or await receive()

    return again


class PassThrough:
    """The least that a middleware can be."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def sdk(*, json_response: bool, stateless: bool = True) -> Any:
    """The official SDK's server with one tool."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("benchmark", log_level="ERROR")

    @server.tool()
    def echo(text: str) -> str:
        return text

    return server.streamable_http_app(stateless_http=stateless, json_response=json_response)


@asynccontextmanager
async def started(app: Any) -> AsyncIterator[ASGIApp]:
    """A Starlette application that is up for as long as the block lasts."""
    async with app.router.lifespan_context(app):
        yield app

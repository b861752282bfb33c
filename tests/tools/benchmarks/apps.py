"""The applications that are wrapped: a trivial one in several variants, the official SDK's server, and a pass-through.

The trivial one does the least that a JSON-RPC server in Python does: it reads the body with the standard library and
writes an answer with it. What a middleware costs stands out best against it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

TEXT: Final = "how much is the fish?"
_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (b"content-type", b"text/event-stream")
_EVENT: Final = b"event: message\r\ndata: %b\r\n\r\n"
_NOTE: Final = _EVENT % b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'
_CONTENT: Final = {"content": [{"type": "text", "text": TEXT}], "isError": False}
DONE: Final = b'{"jsonrpc":"2.0","id":7,"result":{"content":[]}}'
LAST: Final = _EVENT % DONE


async def trivial(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer each JSON-RPC request with the same result."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    request = json.loads(body)
    await respond(send, json.dumps({"jsonrpc": "2.0", "id": request.get("id"), "result": _CONTENT}).encode())


async def writing(scope: Scope, receive: Receive, send: Send) -> None:
    """As `trivial`; each call counts itself in the session's state."""
    session = scope["mcp_session"]
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


async def respond(send: Send, body: bytes) -> None:
    """Send a JSON response."""
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def tools(scope: Scope, receive: Receive, send: Send) -> None:
    """A server with three tools: `echo` answers, `watch` streams, and `wait` runs until its client is gone."""
    params = json.loads((await receive())["body"])["params"]
    match params.get("name"):
        case "watch":
            await _watch(send, **params["arguments"])
        case "wait":
            await receive()  # nothing but a disconnect comes after a body
        case _:
            await respond(send, json.dumps({"jsonrpc": "2.0", "id": 7, "result": _CONTENT}).encode())


async def _watch(send: Send, events: int, pause: float) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [_EVENTS]})
    for _ in range(events):
        await send({"type": "http.response.body", "body": _NOTE, "more_body": True})
        await anyio.sleep(pause)
    await send({"type": "http.response.body", "body": LAST})


class PassThrough:
    """The least that a middleware can be."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def sdk(*, json_response: bool) -> Any:
    """Return the official SDK's server with one tool."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("benchmark", log_level="ERROR")

    @server.tool()
    def echo(text: str) -> str:
        return text

    return server.streamable_http_app(stateless_http=True, json_response=json_response)


@asynccontextmanager
async def started(app: Any) -> AsyncIterator[ASGIApp]:
    """Keep a Starlette application up for as long as the block lasts."""
    async with app.router.lifespan_context(app):
        yield app

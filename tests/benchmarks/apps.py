"""The applications that are wrapped: a trivial one in several variants, the official SDK's server, and a pass-through.

The trivial one does the least that a JSON-RPC server in Python does: it reads the body with the standard library and
writes an answer with it. What a middleware costs stands out best against it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from apps import read, reply
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

TEXT: Final = "how much is the fish?"
_CONTENT: Final = {"content": [{"type": "text", "text": TEXT}], "isError": False}


async def trivial(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer each JSON-RPC request with the same result."""
    request = json.loads(await read(receive))
    await reply(send, json.dumps({"jsonrpc": "2.0", "id": request.get("id"), "result": _CONTENT}).encode())


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


class PassThrough:
    """The least that a middleware can be."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def echo(text: str) -> str:
    """The tool of real servers."""
    return text


def sdk(*, json_response: bool) -> Any:
    """Return the official SDK's server with one tool."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("benchmark", log_level="ERROR")
    server.tool()(echo)
    return server.streamable_http_app(stateless_http=True, json_response=json_response)


def fastmcp() -> Any:
    """Return FastMCP's server with the same tool."""
    from fastmcp import FastMCP

    server = FastMCP("benchmark")
    server.tool(echo)
    return server.http_app(stateless_http=True, json_response=True)


async def answer(request: Request) -> Response:
    """Answer a JSON-RPC request as a route does."""
    asked = await request.json()
    return JSONResponse({"jsonrpc": "2.0", "id": asked["id"], "result": _CONTENT})


def fastapi(**options: Any) -> Any:
    """Return a FastAPI application."""
    from fastapi import FastAPI

    return FastAPI(**options)


ROUTES: Final = [Route("/mcp", answer, methods=["POST"])]
KINDS: Final[dict[str, Callable[[], Any]]] = {
    "official SDK": partial(sdk, json_response=True),
    "FastMCP": fastmcp,
    "FastAPI": partial(fastapi, routes=ROUTES),
    "Starlette": partial(Starlette, routes=ROUTES),
}
"""The kinds of server that answer in JSON."""


@asynccontextmanager
async def started(app: Any) -> AsyncIterator[ASGIApp]:
    """Keep a Starlette application up within the block."""
    async with app.router.lifespan_context(app):
        yield app


async def alive(scope: Scope, receive: Receive, send: Send) -> None:
    """As `trivial`, with a lifespan."""
    if scope["type"] == "http":
        await trivial(scope, receive, send)
        return
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{step}.complete"})


@cache
def record_spans() -> TracerProvider:
    """Record every span of this process from now on, with the processor that the documentation asks for."""
    # Imported here: what is counted before runs where OpenTelemetry's SDK was never imported.
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    from mcp_sessions.telemetry import SessionSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SessionSpanProcessor())
    trace.set_tracer_provider(provider)
    return provider

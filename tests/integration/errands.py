"""Servers whose one tool runs an errand: a span of its own, an HTTP request, a database query and a Redis command.

Every framework runs the same errand under the real instrumentation. An errand's name stands on its span, in the URL
and in the query, which identifies its spans; the span of a Redis command is identified by its parent.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from functools import cache, partial
from typing import Any, Final

import httpx
import redis
import redis_servers
from apps import grouped
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
from opentelemetry.instrumentation.redis import RedisInstrumentor
from opentelemetry.instrumentation.sqlite3 import SQLite3Instrumentor
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from mcp_sessions import MCPSessionMiddleware

from .servers import COVERING, KEYS, Cell, Hall, http_app, ref, server_class

HEADER: Final = "x-errand"
"""The request header that names an errand to the instrumentation around the server."""

PLAIN: Final = ("starlette", "fastapi")
ALL_CELLS: Final = [
    *COVERING,
    *(Cell(framework, modern, False, modern) for framework in PLAIN for modern in (False, True)),
]


async def errand(hall: Hall, name: str) -> str:
    """Run an errand and return the ref of the session it ran in."""
    with trace.get_tracer("errands").start_as_current_span("errand", attributes={"errand": name}):
        await hall.enter(name)
        await _fetch(name)
        _query(name)
        instrumented_redis().set(name, "done")
    return ref()


async def _fetch(name: str) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200))
    async with httpx.AsyncClient(transport=transport) as client:
        HTTPXClientInstrumentor.instrument_client(client)
        await client.get(f"http://elsewhere/{name}")


def _query(name: str) -> None:
    connection = sqlite3.connect(":memory:")
    instrumented = SQLite3Instrumentor.instrument_connection(connection)
    instrumented.cursor().execute(f"SELECT '{name}'")
    connection.close()


@cache
def instrumented_redis() -> redis.Redis:
    """Return a client of the run's Redis server; call it before an errand, since a test without Redis is skipped."""
    client = redis.Redis.from_url(redis_servers.shared().url)
    RedisInstrumentor.instrument_client(client)
    return client


def _framework(cell: Cell, hall: Hall) -> Any:
    async def run(name: str) -> str:
        return await errand(hall, name)

    mcp = server_class(cell.framework)("errands")
    mcp.tool(name="errand")(run)
    return http_app(mcp, cell)


def _starlette(cell: Cell, hall: Hall) -> Any:
    return Starlette(routes=[Route("/mcp", partial(_answer, cell, hall), methods=["POST"])])


def _fastapi(cell: Cell, hall: Hall) -> Any:
    app = FastAPI()
    app.add_route("/mcp", partial(_answer, cell, hall), methods=["POST"])
    return app


async def _answer(cell: Cell, hall: Hall, request: Request) -> Response:
    message = await request.json()
    if message["method"] != "tools/call":
        return JSONResponse({"jsonrpc": "2.0", "id": message.get("id"), "result": {"capabilities": {}}})
    if not cell.json:
        return StreamingResponse(_stream(hall, message), media_type="text/event-stream")
    return JSONResponse(await _called(hall, message))


async def _stream(hall: Hall, message: dict[str, Any]) -> AsyncIterator[bytes]:
    yield b'data: {"jsonrpc":"2.0","method":"notifications/message"}\n\n'
    yield b"data: " + json.dumps(await _called(hall, message)).encode() + b"\n\n"


async def _called(hall: Hall, message: dict[str, Any]) -> dict[str, Any]:
    text = await errand(hall, message["params"]["arguments"]["name"])
    return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": text}]}}


def _name_errand(span: trace.Span, scope: dict[str, Any]) -> None:
    named = dict(scope["headers"]).get(HEADER.encode())
    if named is not None:
        span.set_attribute("errand", named.decode())


def bare(cell: Cell, hall: Hall) -> Any:
    """Return the server as the framework makes it."""
    return {"starlette": _starlette, "fastapi": _fastapi}.get(cell.framework, _framework)(cell, hall)


def alone(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    return MCPSessionMiddleware(bare(cell, hall), **grouped(**{"keys": KEYS, "transport": "off", **options}))


def outside(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    """Put OpenTelemetry's ASGI instrumentation around the middleware, as `opentelemetry-instrument` does."""
    return OpenTelemetryMiddleware(alone(cell, hall, **options), server_request_hook=_name_errand)


def inside(cell: Cell, hall: Hall, **options: Any) -> ASGIApp:
    """Put OpenTelemetry's ASGI instrumentation within the middleware, which also names transport sessions."""
    theirs = OpenTelemetryMiddleware(bare(cell, hall), server_request_hook=_name_errand)
    return MCPSessionMiddleware(theirs, **grouped(keys=KEYS, **options))

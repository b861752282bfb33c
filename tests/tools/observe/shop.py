"""A replica of a small traced shop, on four kinds of server, with a tool that uses a database.

OpenTelemetry's HTTP instrumentation is around each, as `opentelemetry-instrument` puts it; FastAPI has its own. One
server more makes each session one trace.

    python -m observe.shop NAME ENDPOINT [HEADER=VALUE]

It prints a line of JSON, the URL of each kind, and serves until its standard input ends; by then all spans are sent.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import anyio
from fastapi import FastAPI
from fastmcp import FastMCP
from mcp.server.mcpserver import MCPServer
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.sqlite3 import SQLite3Instrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Scope

from integration.serving import serving
from mcp_sessions import MCPSessionMiddleware, Telemetry, add_sessions, current_session
from mcp_sessions.integrations import lifespan_of
from mcp_sessions.telemetry import SessionSpanProcessor

from .traffic import ONE_TRACE

database = SQLite3Instrumentor.instrument_connection(sqlite3.connect(":memory:", check_same_thread=False))
database.cursor().execute("CREATE TABLE orders (article TEXT)")

MODES: dict[str, Any] = {"stateless_http": True, "json_response": True}
SLOW = 2.1  # seconds, which is more than the page *On call* calls slow


def buy(article: str) -> str:
    """Order an article, and return the ref of the session; there is no air, and a piano takes time."""
    if article == "air":
        raise ValueError(article)
    if article == "piano":
        time.sleep(SLOW)
    database.cursor().execute("INSERT INTO orders VALUES (?)", (article,))
    session = current_session()
    return "nobody" if session is None else session.ref


def of_the_sdk() -> Any:
    """Return the official SDK's application."""
    mcp = MCPServer("shop")
    mcp.tool()(buy)
    return mcp.streamable_http_app(**MODES)


def options(**telemetry: Any) -> dict[str, Any]:
    """Return the middleware's options: replicas share their keys, from the environment, and nothing else."""

    def user(scope: Scope) -> str | None:
        return next((value.decode() for name, value in scope["headers"] if name == b"x-user"), None)

    shown = Telemetry(redact=lambda what, tool, value: value, user=lambda principal: principal.subject, **telemetry)
    return {"keys": "env:MCP_SESSIONS_KEYS", "transport": "off", "principal": user, "telemetry": shown}


def servers() -> dict[str, ASGIApp]:
    """Return an application of each kind, with sessions as the documentation shows them."""
    fastmcp = FastMCP("shop")
    fastmcp.tool(buy)
    first, second = of_the_sdk(), of_the_sdk()
    fastapi = FastAPI(lifespan=lifespan_of(first))
    fastapi.mount("/", first)
    starlette = Starlette(routes=[Mount("/", second)], lifespan=lifespan_of(second))
    for app in (fastapi, starlette):
        add_sessions(app, **options())
    return {
        "SDK": instrumented(MCPSessionMiddleware(of_the_sdk(), **options())),
        "FastMCP": instrumented(MCPSessionMiddleware(fastmcp.http_app(**MODES), **options())),
        ONE_TRACE: MCPSessionMiddleware(of_the_sdk(), **options(trace="session")),
        "FastAPI": fastapi,
        "Starlette": instrumented(starlette),
    }


def instrumented(app: ASGIApp) -> ASGIApp:
    """Return an application with OpenTelemetry's HTTP instrumentation around it."""
    return OpenTelemetryMiddleware(app, exclude_spans=["receive", "send"])


async def serve() -> None:
    """Serve every kind until standard input ends."""
    async with AsyncExitStack() as stack:
        urls = {kind: await stack.enter_async_context(serving(app)) for kind, app in servers().items()}
        print(json.dumps(urls), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


def main() -> None:
    """Run the program."""
    name, endpoint, *headers = sys.argv[1:]
    provider = TracerProvider(resource=Resource.create({"service.name": "shop", "service.instance.id": name}))
    provider.add_span_processor(SessionSpanProcessor())
    exporter = OTLPSpanExporter(endpoint, headers=dict(header.split("=", 1) for header in headers))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    anyio.run(serve)
    provider.shutdown()


if __name__ == "__main__":
    main()

"""Replicas of a small shop on several kinds of server, which send spans and log records by OTLP over HTTP.

    python -m fleet '{"sdk": "http://127.0.0.1:4318"}'

Of each kind there are two, in processes of their own, which send to the address of the kind. Their spans are set up by
the lines of `docs/tracing.md`, and Redis is instrumented, both the store's and the shop's own. The ports are printed;
all serve until the input ends, and send then what they have not sent yet.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from threading import Thread
from typing import Any

import redis
import uvicorn
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.redis import RedisInstrumentor
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.trace import get_current_span, set_span_in_context
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Scope

from integration.servers import FRAMEWORKS, Cell, http_app, server_class
from mcp_sessions import EndedSession, MCPSessionMiddleware, Session, Telemetry, add_sessions
from mcp_sessions.integrations import lifespan_of
from mcp_sessions.stores import RedisStore

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tracing.md").read_text("utf-8")
SETUP = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
tracer = trace.get_tracer("shop")


def work(name: str, context: Context | None = None) -> None:
    tracer.start_span(name, context).end()


# --- the shop ------------------------------------------------------------------------------------


def begin(session: Session, params: dict[str, Any], scope: Scope) -> None:
    work("in on_create")


def end(session: EndedSession, reason: str) -> None:
    work("in on_end")


def caller(scope: Scope) -> str:
    name: bytes = dict(scope["headers"]).get(b"x-user", b"ann")
    return name.decode()


def shop(framework: str) -> Any:
    """Return the shop as an SDK or FastMCP makes it."""
    stock = redis.Redis.from_url(os.environ["SHOP_REDIS"])

    async def look() -> str:
        return "hats"

    async def buy(article: str) -> str:
        above = set_span_in_context(get_current_span(), Context())
        with ThreadPoolExecutor(1) as pool:  # which copies no context variable
            pool.submit(work, "in a thread", above).result()
        stock.ping()
        if article == "air":
            raise LookupError(article)
        return article

    mcp = server_class(framework)("shop")
    for tool in (look, buy):
        mcp.tool()(tool)
    return http_app(mcp, Cell(framework, modern=True, stateful=False, json=True))


def served(kind: str) -> Any:
    """Return a server of a kind, with sessions; around the last, as in FastAPI itself, is an HTTP instrumentation."""
    options: Any = {
        "keys": "env:MCP_SESSIONS_KEYS",
        "store": RedisStore(os.environ["SHOP_REDIS"], prefix=os.environ["SHOP_PREFIX"], durability="ignore"),
        "tracked": True,
        "principal": caller,
        "on_create": begin,
        "on_end": end,
        "telemetry": Telemetry(user=lambda principal: principal.subject),
    }
    inner = shop(FRAMEWORKS[kind == "fastmcp"])
    if kind == "sdk":
        return MCPSessionMiddleware(inner, **options)
    if kind == "fastmcp":
        return add_sessions(inner, **options)
    if kind == "fastapi":
        app: Any = FastAPI(lifespan=lifespan_of(inner))
        app.mount("/api", inner)
        return add_sessions(app, **options)
    app = Starlette(routes=[Mount("/api", inner)], lifespan=lifespan_of(inner))
    app.add_middleware(MCPSessionMiddleware, path="/api/mcp", **options)
    return OpenTelemetryMiddleware(app, exclude_spans=["receive", "send"])


# --- the processes ---------------------------------------------------------------------------------


@contextmanager
def telemetry(endpoint: str) -> Iterator[None]:
    """Send spans and log records within the block, the last ones at its end."""
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
    names: dict[str, Any] = {}
    exec(compile(SETUP, "tracing.md", "exec", dont_inherit=True), names)
    RedisInstrumentor().instrument()
    logs = LoggerProvider(shutdown_on_exit=False)
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    ours = logging.getLogger("mcp_sessions")
    ours.addHandler(LoggingHandler(logger_provider=logs))
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        names["provider"].shutdown()
        logs.shutdown()


def serve(kind: str, endpoint: str, listening: socket) -> None:
    """Serve until the input ends."""
    with telemetry(endpoint), listening:
        config = uvicorn.Config(served(kind), log_level="warning", ws="none", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        for name in (None, "fastmcp"):  # those of the frameworks, which draw each traceback as a picture
            logging.getLogger(name).handlers.clear()

        def wait() -> None:
            sys.stdin.read()
            server.should_exit = True

        Thread(target=wait, daemon=True).start()
        server.run([listening])


def main(endpoints: Mapping[str, str]) -> None:
    """Start all, as forks of this process: its imports take longer than all the rest."""
    ports: dict[str, list[int]] = {}
    for framework in FRAMEWORKS:  # which import most when they are first used, as exporters do
        shop(framework)
    OTLPLogExporter()
    for kind in sorted([*endpoints] * 2):
        with socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()  # so that a request may come before the server is up
            ports.setdefault(kind, []).append(listening.getsockname()[1])
            if os.fork() == 0:
                serve(kind, endpoints[kind], listening)
                atexit._run_exitfuncs()
                os._exit(0)  # pragma: no cover  # coverage has ended; to take down what is imported takes seconds
    print(json.dumps(ports), flush=True)
    sys.exit(any(os.wait()[1] for of in ports.values() for _ in of))


if __name__ == "__main__":  # pragma: no branch
    main(json.loads(sys.argv[1]))

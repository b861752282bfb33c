"""A small traced server for `tests/tools/observe`: the official SDK's, with a tool that uses a database.

OpenTelemetry's HTTP instrumentation is around it, as `opentelemetry-instrument` puts it.

    python -m observe.shop PORT NAME ENDPOINT [HEADER=VALUE]

Spans go to an OTLP/HTTP endpoint as they end, so that none is lost when the server is stopped.
"""

from __future__ import annotations

import sqlite3
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.sqlite3 import SQLite3Instrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from mcp_sessions import MCPSessionMiddleware, Telemetry, current_session
from mcp_sessions.telemetry import SessionSpanProcessor

port, name, endpoint, *headers = sys.argv[1:]
provider = TracerProvider(resource=Resource.create({"service.name": name}))
provider.add_span_processor(SessionSpanProcessor())
exporter = OTLPSpanExporter(endpoint, headers=dict(header.split("=", 1) for header in headers))
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

database = SQLite3Instrumentor.instrument_connection(sqlite3.connect(":memory:", check_same_thread=False))
database.cursor().execute("CREATE TABLE orders (article TEXT)")
mcp = MCPServer("shop")


@mcp.tool()
def buy(article: str) -> str:
    """Order an article, and return the ref of the session; there is no air."""
    if article == "air":
        raise ValueError(article)
    database.cursor().execute("INSERT INTO orders VALUES (?)", (article,))
    session = current_session()
    return "nobody" if session is None else session.ref


# Both servers share their keys, from the environment, and nothing else.
sessions = MCPSessionMiddleware(
    mcp.streamable_http_app(stateless_http=True, json_response=True),
    keys="env:MCP_SESSIONS_KEYS",
    transport="off",
    telemetry=Telemetry(redact=lambda what, tool, value: value),
)
app = OpenTelemetryMiddleware(sessions, exclude_spans=["receive", "send"])

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")

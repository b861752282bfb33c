"""A replica with a tool that works and one that fails, with metrics on `/metrics/`."""

from mcp.server import MCPServer
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY, make_asgi_app
from starlette.applications import Starlette
from starlette.routing import Mount

from mcp_sessions import MCPSessionMiddleware, Telemetry
from mcp_sessions.integrations import lifespan_of
from mcp_sessions.telemetry import SessionMetrics

mcp = MCPServer("shop")


@mcp.tool()
async def buy() -> str:
    return "bought"


@mcp.tool()
async def broken() -> str:
    raise RuntimeError("broken by a deployment")


inner = mcp.streamable_http_app(stateless_http=True)
routes = [Mount("/metrics", make_asgi_app(REGISTRY)), Mount("/", inner)]
app = MCPSessionMiddleware(
    Starlette(routes=routes, lifespan=lifespan_of(inner)),
    keys="env:MCP_SESSIONS_KEYS",
    store="memory:",
    tracked=True,
    telemetry=Telemetry(metrics=SessionMetrics(MeterProvider([PrometheusMetricReader()]))),
)

"""The dashboard and the alert rules: valid, and a real Prometheus that scrapes a server answers what they ask."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from clients import SECRET
from example_servers import EXAMPLES
from mcp import Client
from mcp.server import MCPServer
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY, make_asgi_app
from starlette.applications import Starlette
from starlette.routing import Mount

from cluster import Program, free_port
from debian import install
from integration.serving import serving
from mcp_sessions import MCPSessionMiddleware, Telemetry
from mcp_sessions.integrations import lifespan_of
from mcp_sessions.telemetry import SessionMetrics

FOLDER = EXAMPLES / "observability"
PAGE = EXAMPLES.parent / "docs" / "on-call.md"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
VARIABLES = {"$__rate_interval": "10s", "$job": ".*", "$tool": ".*"}
PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def filled(query: str) -> str:
    """Put values in place of Grafana's variables."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def of_the_page() -> list[str]:
    """Return what the page asks Prometheus."""
    cells = re.findall(r"^\| [^|]+ \| `((?:[^`\\]|\\.)+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    return [cell.replace("\\|", "|") for cell in cells if "mcp_sessions_" in cell]


@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")])
def test_promtool_takes_the_alert_rules(arguments: tuple[str, ...]) -> None:
    """They are valid, and fire where their tests say so."""
    done = subprocess.run([install("promtool"), *arguments], cwd=FOLDER, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


class Prometheus(Program):
    """A Prometheus that scrapes one address every second."""

    is_ready = b"Server is ready to receive web requests"

    def __init__(self, folder: Path, target: int) -> None:
        port, config = free_port(), folder / "prometheus.json"
        scrape = {
            "job_name": "shop",
            "metrics_path": "/metrics/",
            "static_configs": [{"targets": [f"127.0.0.1:{target}"]}],
        }
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}), "utf-8")
        command: list[str | Path] = [install("prometheus"), "--config.file", config, "--storage.tsdb.path", folder]
        super().__init__("prometheus", folder, [*command, f"--web.listen-address=127.0.0.1:{port}"], port)


@asynccontextmanager
async def shop() -> AsyncIterator[str]:
    """Serve a tool that works and one that fails, with metrics on `/metrics/`."""
    mcp = MCPServer("shop")

    @mcp.tool()
    async def buy() -> str:
        """Buy."""
        return "bought"

    @mcp.tool()
    async def broken() -> str:
        """Fail."""
        raise RuntimeError("broken by a deployment")

    reader = PrometheusMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    inner = mcp.streamable_http_app(stateless_http=True)
    routes = [Mount("/metrics", make_asgi_app(REGISTRY)), Mount("/", inner)]
    app = MCPSessionMiddleware(
        Starlette(routes=routes, lifespan=lifespan_of(inner)),
        keys=SECRET,
        tracked=True,
        telemetry=Telemetry(metrics=SessionMetrics(provider)),
    )
    try:
        async with serving(app) as url:
            yield url
    finally:
        provider.shutdown()


async def answer(port: int, query: str) -> list[dict[str, Any]]:
    """Ask Prometheus, which says what is wrong with a query."""
    async with httpx.AsyncClient() as http:
        found = (await http.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query})).json()
    assert found["status"] == "success", (query, found)
    result: list[dict[str, Any]] = found["data"]["result"]
    return result


async def until(port: int, query: str, value: str) -> None:
    """Wait until a query has a value."""
    with anyio.fail_after(60):
        while True:
            found = await answer(port, query)
            if value in {sample["value"][1] for sample in found}:
                return
            await anyio.sleep(0.2)


async def forge(url: str, times: int) -> None:
    """Use session ids whose signature is changed."""
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    headers = {"accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(headers=headers) as http:
        begun = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about})
        forged = begun.headers["mcp-session-id"][:-8] + "AAAAAAAA"
        for _ in range(times):
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            assert (await http.post(url, json=ping, headers={"mcp-session-id": forged})).status_code == 404


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # Uvicorn runs on asyncio alone
async def test_a_prometheus_answers_what_the_dashboard_asks(tmp_path: Path) -> None:
    """Each query is understood and, after some calls, answered; the first burst of refusals is an increase."""
    async with shop() as url:
        target = int(url.split(":")[2].removesuffix("/mcp"))
        prometheus = Prometheus(tmp_path, target)
        async with prometheus.running():
            await prometheus.ready()
            refused = 'mcp_sessions_request_refused_total{mcp_sessions_reason="token_signature"}'
            await until(prometheus.port, refused, "0")
            async with Client(url) as client:
                for tool in ("buy", "buy", "broken"):
                    await client.call_tool(tool, {})
                await forge(url, 3)
                await until(prometheus.port, "sum(mcp_sessions_session_active) >= bool 1", "1")
                await until(prometheus.port, refused, "3")
                assert float((await answer(prometheus.port, f"increase({refused}[1m])"))[0]["value"][1]) >= 3
                for query in (*PANELS, *of_the_page()):
                    found = await answer(prometheus.port, filled(query))
                    assert found or "store_" in query or "session_duration" in query or "ended" in query, query

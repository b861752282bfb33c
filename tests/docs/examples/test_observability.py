"""The dashboard and the alert rules: valid, and a real Prometheus that scrapes a server answers what they ask."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from clients import INITIALIZE, SECRET
from environments import program
from mcp import Client
from observe import asked
from pages import EXAMPLES
from programs import Program, free_port

from mcp_sessions._refusals import REFUSALS

FOLDER = EXAMPLES / "observability"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
LIVE = DASHBOARD["panels"][0]["targets"][0]["expr"].replace("$job", ".*")
PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")])
def test_promtool_takes_the_alert_rules(arguments: tuple[str, ...]) -> None:
    """They are valid, and fire where their tests say so."""
    done = subprocess.run([program("promtool"), *arguments], cwd=FOLDER, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_each_reason_of_the_store_belongs_to_one_alert() -> None:
    """The alerts about the store share all of its reasons among them, so none is missed and none pages twice."""
    matchers = [
        re.findall(r'mcp_sessions_reason(=~|!~)"([^"]+)"', line)
        for line in (FOLDER / "alerts.yaml").read_text("utf-8").splitlines()
        if 'mcp_sessions_reason=~"store_' in line
    ]
    for reason in REFUSALS:
        if reason.startswith("store_"):
            alerts = [all((re.fullmatch(p, reason) is not None) == (op == "=~") for op, p in line) for line in matchers]
            assert alerts.count(True) == 1, reason


def test_the_alerts_name_reasons_that_exist() -> None:
    """A reason that was renamed would otherwise never fire again."""
    for pattern in re.findall(r'mcp_sessions_reason[=!]~"([^"]+)"', (FOLDER / "alerts.yaml").read_text("utf-8")):
        for word in re.sub(
            r"store_\(([^)]+)\)", lambda m: "|".join(f"store_{w}" for w in m[1].split("|")), pattern
        ).split("|"):
            assert any(re.fullmatch(word, reason) for reason in REFUSALS), word


class Replica(Program):
    """The shop with metrics, in a process of its own."""

    is_ready = b"Application startup complete"

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, *"-m uvicorn shop_with_metrics:app --app-dir".split(), str(Path(__file__).parent)]
        super().__init__(
            "replica", folder, [*command, "--port", str(port := free_port())], port, MCP_SESSIONS_KEYS=SECRET
        )


class Prometheus(Program):
    """A Prometheus that scrapes a replica every second."""

    is_ready = b"Server is ready to receive web requests"

    def __init__(self, folder: Path, replica: Replica) -> None:
        port, config = free_port(), folder / "prometheus.json"
        targets = [{"targets": [f"127.0.0.1:{replica.port}"]}]
        scrapes = [{"job_name": "shop", "metrics_path": "/metrics/", "static_configs": targets}]
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": scrapes}), "utf-8")
        command: list[str | Path] = [program("prometheus"), "--config.file", config, "--storage.tsdb.path", folder]
        super().__init__("prometheus", folder, [*command, f"--web.listen-address=127.0.0.1:{port}"], port)

    async def answer(self, query: str) -> list[dict[str, Any]]:
        """Ask it a query; it says what is wrong with one."""
        async with httpx.AsyncClient() as http:
            url = f"http://127.0.0.1:{self.port}/api/v1/query"
            found = (await http.get(url, params={"query": query})).json()
        assert found["status"] == "success", (query, found)
        result: list[dict[str, Any]] = found["data"]["result"]
        return result

    async def until(self, query: str, value: str) -> None:
        """Wait until a query has a value."""
        with anyio.fail_after(60):
            while True:
                if value in {sample["value"][1] for sample in await self.answer(query)}:
                    return
                await anyio.sleep(0.2)


@pytest.mark.nightly
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the SDK's client runs on asyncio alone
async def test_a_prometheus_answers_what_the_dashboard_asks(tmp_path: Path) -> None:
    """After some calls; the first burst of refusals is an increase, and so is a tool's first failure, by its name."""
    replica = Replica(tmp_path)
    prometheus = Prometheus(tmp_path, replica)
    async with prometheus.running(), replica.running():
        refused = 'mcp_sessions_request_refused_total{mcp_sessions_reason="token_signature"}'
        failed = 'mcp_sessions_tool_calls_total{gen_ai_tool_name="broken",mcp_sessions_outcome="tool_error"}'
        await prometheus.until(refused, "0")
        async with Client(replica.url) as peer:
            await peer.list_tools()
            await prometheus.until(failed, "0")
            for tool in ("buy", "buy", "broken"):
                await peer.call_tool(tool, {})
            async with httpx.AsyncClient(headers={"accept": "application/json, text/event-stream"}, timeout=30) as http:
                hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
                begun = (await http.post(replica.url, json=hello)).headers["mcp-session-id"]
                http.headers["mcp-session-id"] = begun[:-8] + "AAAAAAAA"
                for _ in range(3):
                    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
                    assert (await http.post(replica.url, json=ping)).status_code == 404
            await prometheus.until(f"{LIVE} >= bool 1", "1")
            for series, times in ((refused, 3), (failed, 1)):
                await prometheus.until(series, str(times))
                assert float((await prometheus.answer(f"increase({series}[5m])"))[0]["value"][1]) >= times
            for query in (*PANELS, *(query.strip("`") for query in asked("Prometheus").values())):
                found = await prometheus.answer(re.sub(r"\$(job|tool)", ".*", query.replace("$__rate_interval", "5m")))
                assert found or "store_" in query or "session_duration" in query or "ended" in query, query

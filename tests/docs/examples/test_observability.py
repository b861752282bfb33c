"""The dashboard and the alert rules: valid, and a real Prometheus that scrapes a server answers what they ask."""

import itertools
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
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

FOLDER = EXAMPLES / "observability"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
LIVE = DASHBOARD["panels"][0]["targets"][0]["expr"].replace("$job", ".*")
PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")])
def test_promtool_takes_the_alert_rules(arguments: tuple[str, ...]) -> None:
    """They are valid, and fire where their tests say so."""
    done = subprocess.run([program("promtool"), *arguments], cwd=FOLDER, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


class Prometheus(Program):
    """A Prometheus that scrapes the replicas of each job every second."""

    is_ready = b"Server is ready to receive web requests"

    def __init__(self, folder: Path, **jobs: list[Program]) -> None:
        port, config = free_port(), folder / "prometheus.json"
        scrapes = [
            {
                "job_name": job,
                "metrics_path": "/metrics/",
                "static_configs": [{"targets": [f"127.0.0.1:{replica.port}" for replica in replicas]}],
            }
            for job, replicas in jobs.items()
        ]
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


class Replica(Program):
    """The shop with metrics, in a process of its own."""

    is_ready = b"Application startup complete"

    def __init__(self, folder: Path, name: str, store: str = "") -> None:
        port = free_port()
        command = [sys.executable, *"-m uvicorn shop_with_metrics:app --app-dir".split(), str(Path(__file__).parent)]
        environment = {"SHOP_STORE": store, "MCP_SESSIONS_KEYS": SECRET}
        super().__init__(name, folder, [*command, "--port", str(port)], port, **environment)


@asynccontextmanager
async def observed(folder: Path, **jobs: list[Replica]) -> AsyncIterator[Prometheus]:
    """Run replicas, and a Prometheus that scrapes them."""
    async with AsyncExitStack() as programs:
        prometheus = Prometheus(folder, **{job: list[Program](replicas) for job, replicas in jobs.items()})
        for program in (prometheus, *itertools.chain(*jobs.values())):
            await programs.enter_async_context(program.running())
        yield prometheus


async def begin(url: str, http: httpx.AsyncClient) -> str:
    """Begin a session as clients of the handshake do; its id."""
    begun = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE})
    return begun.headers["mcp-session-id"]


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(headers={"accept": "application/json, text/event-stream"}, timeout=30)


@pytest.mark.nightly
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the SDK's client runs on asyncio alone
async def test_a_prometheus_answers_what_the_dashboard_asks(tmp_path: Path) -> None:
    """Each query is understood and, after some calls, answered; the first burst of refusals is an increase.

    So is the first failure of a tool, by its name.
    """
    replica = Replica(tmp_path, "replica", "memory:")
    async with observed(tmp_path, shop=[replica]) as prometheus:
        refused = 'mcp_sessions_request_refused_total{mcp_sessions_reason="token_signature"}'
        failed = 'mcp_sessions_tool_calls_total{gen_ai_tool_name="broken",mcp_sessions_outcome="tool_error"}'
        await prometheus.until(refused, "0")
        async with Client(replica.url) as peer:
            await peer.list_tools()
            await prometheus.until(failed, "0")
            for tool in ("buy", "buy", "broken"):
                await peer.call_tool(tool, {})
            async with client() as http:
                forged = {"mcp-session-id": (await begin(replica.url, http))[:-8] + "AAAAAAAA"}
                ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
                for _ in range(3):
                    assert (await http.post(replica.url, json=ping, headers=forged)).status_code == 404
            await prometheus.until(f"{LIVE} >= bool 1", "1")
            for series, times in ((refused, 3), (failed, 1)):
                await prometheus.until(series, str(times))
                assert float((await prometheus.answer(f"increase({series}[5m])"))[0]["value"][1]) >= times
            for query in (*PANELS, *(query.strip("`") for query in asked("Prometheus").values())):
                found = await prometheus.answer(re.sub(r"\$(job|tool)", ".*", query.replace("$__rate_interval", "5m")))
                assert found or "store_" in query or "session_duration" in query or "ended" in query, query


@pytest.mark.nightly
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_live_sessions_are_right_while_replicas_are_replaced(tmp_path: Path) -> None:
    """Two of one store, one after the other, and sessions that end meanwhile; untracked, there is no number."""
    store = f"sqlite:{tmp_path / 'sessions.db'}"
    replicas = [Replica(tmp_path, name, store) for name in ("one", "other")]
    async with (
        observed(tmp_path, shop=replicas, untracked=[Replica(tmp_path, "untracked")]) as prometheus,
        client() as http,
    ):
        held = [await begin(replica.url, http) for replica in replicas * 3]
        await prometheus.until(LIVE, "6")
        for replica, other in (replicas, reversed(replicas)):
            await replica.end()
            for session in (held.pop(), held.pop()):
                gone = await http.delete(other.url, headers={"mcp-session-id": session})
                assert gone.status_code == 200
            await prometheus.until(LIVE, str(len(held)))
            await replica.launch()
        looks = await prometheus.answer(f"({LIVE})[5m:1s]")
        assert {float(value) for _, value in looks[0]["values"]} <= {0, 1, 2, 3, 4, 5, 6}
        assert await prometheus.answer('mcp_sessions_session_active{job="untracked"}') == []
        assert await prometheus.answer('up{job="untracked"} == 1')

"""A server that is stopped exports the spans that it still holds."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from clients import SECRET
from otlp import receiving
from pages import DOCS, blocks
from programs import free_port

TRACING = blocks((DOCS / "tracing.md").read_text("utf-8"))[0]
SERVER = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from mcp_sessions import MCPSessionMiddleware

async def endpoint(request):
    return JSONResponse({"jsonrpc": "2.0", "id": (await request.json())["id"], "result": {}})

app = MCPSessionMiddleware(Starlette(routes=[Route("/mcp", endpoint, methods=["POST"])]))
"""
COMMANDS = {
    "uvicorn": ["uvicorn", "server:app", "--port"],
    "gunicorn": ["gunicorn", "server:app", "-k", "uvicorn_worker.UvicornWorker", "--bind"],
    "hypercorn": ["hypercorn", "server:app", "--bind"],
}


@pytest.mark.parametrize("server", COMMANDS)
def test_a_stopped_server_has_exported_every_call(server: str, tmp_path: Path) -> None:
    pytest.importorskip(COMMANDS[server][0])
    with receiving() as receiver:
        serve_five_calls(server, receiver.url, tmp_path)
        names = [span.name for span in receiver.spans]
    assert names.count("tools/call buy") == 5, (names, (tmp_path / "log").read_text())


def test_a_collector_that_never_answers_delays_the_stop_by_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        seconds = serve_five_calls("uvicorn", f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path)
    assert 4 < seconds < 15
    assert "Traceback" not in (tmp_path / "log").read_text()


def serve_five_calls(server: str, collector: str, folder: Path) -> float:
    """Run a server for five calls, stop it by SIGTERM, and return how many seconds it took to stop."""
    (folder / "server.py").write_text(TRACING + SERVER, "utf-8")
    port = free_port()
    address = str(port) if server == "uvicorn" else f"127.0.0.1:{port}"
    environment = {
        **os.environ,
        "MCP_SESSIONS_KEYS": SECRET,
        "OTEL_SERVICE_NAME": "shop",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_BSP_SCHEDULE_DELAY": "600000",  # ms: nothing is exported before the server stops
    }
    command = [sys.executable, "-m", *COMMANDS[server], address]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            with httpx.Client(timeout=30) as client:
                call_five_times(client, f"http://127.0.0.1:{port}/mcp")
            process.send_signal(signal.SIGTERM)
            stopped_at = time.monotonic()
            process.wait(60)
            return time.monotonic() - stopped_at
        finally:
            process.kill()
            process.wait()


def call_five_times(client: httpx.Client, url: str) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "buy"}}
    for number in range(5):
        for _ in range(300):
            try:
                assert client.post(url, json={**message, "id": number}).status_code == 200
                break
            except httpx.TransportError:
                assert number == 0
                time.sleep(0.1)

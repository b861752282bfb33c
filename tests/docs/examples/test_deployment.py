"""Several servers behind nginx: the deployment recipe, whose files are valid, and the example `routing`."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from clients import INITIALIZE, LEGACY, SECRET
from environments import program
from mcp import Client
from pages import DOCS, EXAMPLES, example
from programs import Nginx, Program, free_port
from redis_servers import serving as serving_redis

from integration.serving import serving

RECIPE = EXAMPLES / "deployment"
BIN = Path(sys.executable).parent
UNIT = (RECIPE / "mcp-server@.service").read_text("utf-8")
COMMANDS = {  # that of the unit, and what the page offers instead
    "uvicorn": re.findall(r"^ExecStart=(.+)$", UNIT, re.MULTILINE)[0],
    "gunicorn": re.findall(r"`(\S+/gunicorn [^`]+)`", (DOCS / "deployment.md").read_text("utf-8"))[0],
}
TEMPORARY = "".join(f"{name}_temp_path {name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
MAIN = f"""
daemon off; worker_processes 1; pid nginx.pid; error_log stderr notice;
events {{ worker_connections 256; }}
http {{ access_log off; {TEMPORARY} include site.conf; }}
"""  # what surrounds a site, for a folder that anyone may write to


@pytest.fixture
def anyio_backend(monkeypatch: pytest.MonkeyPatch) -> str:
    """Uvicorn runs on asyncio alone; a worker that is killed cannot save what it covered."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    return "asyncio"


class Server(Program):
    """The recipe's server, by one of its commands, with two workers on a free port."""

    is_ready = b"Application startup complete"
    is_failing = b"] died"  # a worker, which is then replaced
    processes = 2

    def __init__(self, folder: Path, command: str, store: str) -> None:
        port, self.folder = free_port(), folder
        name, *arguments = shlex.split(command.replace("%i", str(port)))
        environment = {"MCP_SESSIONS_KEYS": SECRET, "MCP_SESSIONS_STORE": store, "MCP_SERVER_HOST": "127.0.0.1"}
        environment["MCP_SESSIONS_LIMITS_STORE_TIMEOUT"] = "30"  # no test depends on speed
        environment["PYTHONPATH"] = os.pathsep.join([str(RECIPE), *sys.path])
        super().__init__("server", folder, [BIN / Path(name).name, *arguments], port, **environment)


def nginx_before(*servers: Server) -> Nginx:
    """Return nginx with the recipe's site, in `site.conf` of the servers' folder."""
    port, folder = free_port(), servers[0].folder
    lines = "\n".join(f"    server 127.0.0.1:{server.port} max_fails=0;" for server in servers)
    site = re.sub(r"( +server 127.*\n)+", f"{lines}\n", (RECIPE / "nginx.conf").read_text("utf-8"), count=1)
    (folder / "site.conf").write_text(site.replace("listen 80;", f"listen 127.0.0.1:{port};"), "utf-8")
    return Nginx(folder, MAIN, port)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
async def test_servers_of_the_recipe_serve_and_tell_their_health(tmp_path: Path, command: str) -> None:
    """A client counts through nginx and two workers; without the store the server is alive and not ready."""
    async with AsyncExitStack() as stack, httpx.AsyncClient() as http:
        redis = stack.enter_context(serving_redis(appendonly="yes", appendfsync="always"))
        server = Server(tmp_path, command, redis.url)
        nginx = nginx_before(server)
        for each in (server, nginx):
            await stack.enter_async_context(each.running())
        async with Client(nginx.url) as client:
            for number in (1, 2, 3):
                notes = (await client.call_tool("note", {"text": "x"})).structured_content
                assert notes == {"result": ["x"] * number}
        base = f"http://127.0.0.1:{server.port}"
        before = [(await http.get(f"{base}/{path}")).status_code for path in ("health", "ready")]
        redis.kill9()
        after = [await http.get(f"{base}/{path}") for path in ("health", "ready")]
    assert before == [200, 200]
    assert [answer.status_code for answer in after] == [200, 503]
    assert after[1].text == "Session store unavailable"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing to say, with a program that exists."""
    unit = tmp_path / "mcp-server@8000.service"
    text = UNIT.replace("/opt/mcp-server/.venv/bin", str(BIN)).replace("User=mcp-server", "User=root")
    unit.write_text(text, "utf-8")
    command = [str(program("systemd-analyze")), "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if "mcp-server" in line]
    assert (done.returncode, said) == (0, [])


def test_the_container_runs_what_systemd_runs() -> None:
    """The command of the container is the unit's, for one worker that listens outside."""
    last = (RECIPE / "Containerfile").read_text("utf-8").splitlines()[-1]
    started = COMMANDS["uvicorn"].partition("bin/")[2].replace("%i", "8000").replace("--workers 2 ", "")
    words = json.loads(last.removeprefix("CMD "))
    assert " ".join(words).replace("--host 0.0.0.0 --forwarded-allow-ips * ", "") == started


SYSTEMCTL = """#!/bin/sh
# What the page's script asks of systemd, for processes of this test.
set -eu
cd "{folder}"
case "$1" in
reload) kill -HUP "$(cat nginx.pid)" ;;
restart)
    port=${{2#*@}}
    if [ -f "$port.pid" ]; then
        old=$(cat "$port.pid")
        kill "$old"
        while kill -0 "$old" 2> /dev/null; do sleep 0.1; done
    fi
    {command} > "$port.log" 2>&1 &
    echo $! > "$port.pid"
    ;;
esac
"""


async def call_until(stopped: anyio.Event, url: str, answers: list[httpx.Response]) -> None:
    """Call a tool again and again in sessions of 20 notes each, on a new connection each time, and keep the answers."""
    unkept = httpx.Limits(max_keepalive_connections=0)
    accept = {"accept": "application/json, text/event-stream", "mcp-protocol-version": LEGACY}
    async with httpx.AsyncClient(headers=accept, limits=unkept, timeout=60) as http:
        while not stopped.is_set():
            begun = await http.post(url, json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE})
            session = {"mcp-session-id": begun.headers["mcp-session-id"]}
            for number in range(1, 21):
                call = {"name": "note", "arguments": {"text": "x"}}
                message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}
                answer = await http.post(url, json=message, headers=session)
                answers.append(answer)
                assert answer.status_code == 200, answer.text
                assert answer.json()["result"]["structuredContent"] == {"result": ["x"] * number}, answer.text


@pytest.mark.nightly
async def test_a_rolling_restart_loses_no_call(tmp_path: Path) -> None:
    """Two servers are replaced by the page's script while 20 clients call; every call is answered, and counts once."""
    servers = [Server(tmp_path, COMMANDS["uvicorn"], f"sqlite:{tmp_path / 'sessions.db'}") for _ in range(2)]
    ports = [str(server.port) for server in servers]
    nginx = nginx_before(*servers)
    command = shlex.join(servers[0].command).replace(ports[0], "$port")
    script = (RECIPE / "restart.sh").read_text("utf-8").replace("8000 8001", " ".join(ports))
    script = script.replace("/etc/nginx/conf.d/mcp-server.conf", str(tmp_path / "site.conf"))
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(SYSTEMCTL.format(folder=tmp_path, command=command), "utf-8")
    systemctl.chmod(0o755)
    environment = {**servers[0].environment, "PATH": f"{systemctl.parent}:{os.environ['PATH']}"}
    stopped, answers = anyio.Event(), list[httpx.Response]()

    def processes() -> list[str]:
        return [(tmp_path / f"{port}.pid").read_text() for port in ports]

    try:
        for port in ports:
            await anyio.run_process([str(systemctl), "restart", f"mcp-server@{port}"], env=environment)
            wait = ["curl", "-sf", "--retry", "60", "--retry-connrefused", f"http://127.0.0.1:{port}/ready"]
            await anyio.run_process(wait)
        before = processes()
        async with nginx.running(), anyio.create_task_group() as clients:
            for _ in range(20):
                clients.start_soon(call_until, stopped, nginx.url, answers)
            await anyio.run_process(["sh", "-c", script], env=environment, stdout=None, stderr=None)
            stopped.set()
    finally:
        for process in processes():
            os.kill(int(process), signal.SIGTERM)
    assert not {*before} & {*processes()}
    assert len(answers) > 100


async def test_a_session_of_routing_stays_on_its_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first call of a session finds a cold cache; sessions are spread over instances with equal answers."""
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)
    monkeypatch.setenv("MCP_SESSIONS_STORE", f"sqlite:{tmp_path / 'sessions.db'}")
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(example("routing"))) for _ in range(2)]
        port, ports = free_port(), [httpx.URL(url).port for url in urls]
        nginx = Nginx(tmp_path, sys.modules["routing"].configuration(port, *ports), port)
        await stack.enter_async_context(nginx.running())
        instances: set[str] = set()
        while len(instances) < 2:  # each session is on one of two
            async with Client(nginx.url, mode="legacy") as client:
                answers = [await client.call_tool("look_up", {"prefix": "s"}) for _ in range(3)]
            calls: list[Any] = [answer.structured_content for answer in answers]
            assert [call["found"] for call in calls] == ["cold", "warm", "warm"]
            assert {tuple(call["words"]) for call in calls} == {("scarf", "shirt", "shoe", "sock")}
            instances |= {call["instance"] for call in calls}

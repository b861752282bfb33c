"""The deployment recipe: its files are valid, and servers that run as it says count, tell their health and go on."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from configparser import ConfigParser
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from clients import SECRET
from environments import program
from example_servers import EXAMPLES
from mcp import Client
from programs import Nginx, Program, Redis, free_port

RECIPE = EXAMPLES / "deployment"
BIN = Path(sys.executable).parent


def service() -> str:
    """Return the command that systemd starts."""
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # the way to keep the case
    unit.read(RECIPE / "mcp-server.service", "utf-8")
    return unit["Service"]["ExecStart"]


def gunicorn() -> str:
    """Return the command that the page offers instead."""
    page = (EXAMPLES.parent / "docs" / "deployment.md").read_text("utf-8")
    (command,) = re.findall(r"`(\S+/gunicorn [^`]+)`", page)
    return str(command)


class Server(Program):
    """The recipe's server, by one of its commands, with two workers on a free port."""

    is_ready = b"Application startup complete"
    is_failing = b"] died"  # a worker, which is then replaced
    processes = 2

    def __init__(self, folder: Path, command: str, store: str) -> None:
        port = free_port()
        command = command.replace("8000", str(port)).replace("--workers 4", "--workers 2")
        program, *arguments = shlex.split(command)
        environment = {"MCP_SESSIONS_KEYS": SECRET, "MCP_SESSIONS_STORE": store, "MCP_SERVER_HOST": "127.0.0.1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(RECIPE), *sys.path])
        super().__init__("server", folder, [BIN / Path(program).name, *arguments], port, **environment)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # Uvicorn runs on asyncio alone
@pytest.mark.parametrize("command", [service(), gunicorn()], ids=["uvicorn", "gunicorn"])
async def test_servers_of_the_recipe_serve_and_tell_their_health(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client counts through nginx and two workers; without the store the server is alive and not ready."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # which a killed worker cannot save
    redis = Redis(program("redis-server"), tmp_path)
    async with AsyncExitStack() as stack, httpx.AsyncClient() as http:
        await redis.launch()
        await redis.ready()
        server = Server(tmp_path, command, redis.url)
        await stack.enter_async_context(server.running())
        await server.ready()
        nginx = Nginx(program("nginx"), tmp_path, [server])
        await stack.enter_async_context(nginx.running())
        await nginx.ready()
        async with Client(nginx.url) as client:
            for number in (1, 2, 3):
                notes = (await client.call_tool("note", {"text": "x"})).structured_content
                assert notes == {"result": ["x"] * number}
        base = f"http://127.0.0.1:{server.port}"
        before = [(await http.get(f"{base}/{path}")).status_code for path in ("health", "ready")]
        await redis.end()
        after = [await http.get(f"{base}/{path}") for path in ("health", "ready")]
    assert before == [200, 200]
    assert [answer.status_code for answer in after] == [200, 503]
    assert after[1].text == "Session store unavailable"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing to say, with a program that exists."""
    unit = tmp_path / "mcp-server.service"
    text = (RECIPE / "mcp-server.service").read_text("utf-8")
    unit.write_text(
        text.replace("/opt/mcp-server/.venv/bin", str(BIN)).replace("User=mcp-server", "User=root"), "utf-8"
    )
    done = subprocess.run(
        [program("systemd-analyze"), "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if "mcp-server" in line]
    assert (done.returncode, said) == (0, [])


def test_the_container_runs_what_systemd_runs() -> None:
    """The command of the container is the unit's, for one worker that listens outside."""
    last = (RECIPE / "Containerfile").read_text("utf-8").splitlines()[-1]
    words = [word for word in last.removeprefix("CMD ").strip("[]").replace('"', "").split(", ") if word]
    assert [word for word in words if word not in {"--host", "0.0.0.0"}] == [
        word for word in shlex.split(service().partition("bin/")[2]) if word not in {"--workers", "4"}
    ]

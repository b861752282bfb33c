"""The example `routing`: a session goes to the same instance, though any instance could serve it."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, redirect_stdout
from io import StringIO
from pathlib import Path
from runpy import run_path
from typing import Any, cast
from unittest import mock

import pytest
from clients import SECRET
from environments import program
from example_servers import EXAMPLES, fresh
from mcp import Client
from programs import Program, free_port

from integration.serving import serving

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # Uvicorn runs on asyncio alone


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what the instances share."""
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)
    monkeypatch.setenv("MCP_SESSIONS_STORE", f"sqlite:{tmp_path / 'sessions.db'}")


class Nginx(Program):
    """nginx with the example's configuration."""

    is_ready = b"start worker process "

    def __init__(self, folder: Path, *servers: int) -> None:
        port, conf = free_port(), folder / "nginx.conf"
        conf.write_text(written(port, *servers), "utf-8")
        super().__init__("nginx", folder, [program("nginx"), "-p", folder, "-e", "stderr", "-c", conf], port)


def written(*ports: int) -> str:
    """Return what the example prints as a command."""
    with mock.patch.object(sys, "argv", ["routing.py", *map(str, ports)]), redirect_stdout(StringIO()) as printed:
        run_path(str(EXAMPLES / "routing.py"), run_name="__main__")
    return printed.getvalue()


async def looked_up(client: Client) -> dict[str, Any]:
    """Return what an instance finds, and its name."""
    return cast("dict[str, Any]", (await client.call_tool("look_up", {"prefix": "s"})).structured_content)


async def test_a_session_stays_on_its_instance(tmp_path: Path) -> None:
    """Only the first call of a session finds a cold cache; sessions are spread over instances with equal answers."""
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(fresh("routing"))) for _ in range(2)]
        nginx = Nginx(tmp_path, *(int(url.split(":")[2].removesuffix("/mcp")) for url in urls))
        await stack.enter_async_context(nginx.running())
        await nginx.ready()
        instances: set[str] = set()
        while len(instances) < 2:  # each session is on one of two
            async with Client(f"http://127.0.0.1:{nginx.port}/mcp", mode="legacy") as client:
                calls = [await looked_up(client) for _ in range(3)]
            assert [call["found"] for call in calls] == ["cold", "warm", "warm"]
            assert {tuple(call["words"]) for call in calls} == {("scarf", "shirt", "shoe", "sock")}
            (instance,) = {call["instance"] for call in calls}
            instances.add(instance)

"""A stateful server of the official SDK in four worker processes, with the SDK's own client, unchanged.

Each request of the client goes to any of them; the process that has the session is killed in between.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from socket import create_server
from typing import Any

import anyio
import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # one client is enough; the servers are on asyncio
TOOLS = ("echo", "ask") * 6
DEADLINE = 120  # seconds; worker processes take long to start on a busy machine


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The endpoint of four workers of Uvicorn."""
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "tests.tools.storm.server:app", "--port", str(port), "--workers", "4"]
    store = {"STORM_KEYS": "wo4Kuqc0bb6hzC9HYkUQ7l2mQFzUkXl3", "STORM_STORE": f"sqlite:{tmp_path}/sessions.db"}
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **store}, stdout=log, stderr=log)
    try:
        while (tmp_path / "log").read_text().count("Application startup complete") < 4:
            assert server.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.terminate()
        server.wait()


async def test_a_client_goes_on_when_its_process_is_killed(url: str) -> None:
    """Calls and elicitations, before and after; all are served by one process at a time."""
    with anyio.fail_after(DEADLINE):
        async with connected(url) as session:
            first = {await process_of(session, tool) for tool in TOOLS}
            assert len(first) == 1
            os.kill(owner := first.pop(), signal.SIGKILL)
            second = {await process_of(session, tool) for tool in TOOLS}
            assert len(second) == 1
            assert owner not in second


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """Connect the SDK's own client, of either generation."""
    mcp = import_module("mcp")
    if hasattr(mcp, "Client"):
        async with mcp.Client(url, mode="legacy", elicitation_callback=answer) as client:
            yield client
        return
    connect = import_module("mcp.client.streamable_http").streamable_http_client
    async with connect(url) as (read, write, _), mcp.ClientSession(read, write, elicitation_callback=answer) as client:
        await client.initialize()
        yield client


async def process_of(session: Any, tool: str) -> int:
    """Call a tool, whose answer must be that of the call, and return the process that answered."""
    word = token_hex(4)
    text, process = (await session.call_tool(tool, {"word": word})).content[0].text.split()
    assert text == word
    return int(process)


async def answer(_context: Any, params: Any) -> Any:
    """Answer a question with its own words, as the user."""
    return import_module("mcp.types").ElicitResult(action="accept", content={"word": params.message})

"""`server_process`: a server in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_servers import EXAMPLES
from mcp import Client

from server_process import DidNotStart, serving
from session_client import HeldSession


async def test_a_restarted_server_knows_its_sessions() -> None:
    """A session goes on in another process with the same address and keys."""
    async with serving("counter", EXAMPLES) as server:
        await server.ready()
        before = (server.pid, server.url)
        async with Client(server.url) as client:
            session = await HeldSession.create(client)
            assert await session.call("count") == 1
            await server.end()
            await server.launch()
            await server.ready()
            assert await session.call("count") == 2
        assert server.url == before[1]
        assert server.pid != before[0]


async def test_a_failed_start_reports_why(tmp_path: Path) -> None:
    """The error holds the output of the process."""
    (tmp_path / "broken.py").write_text("raise ValueError('the reason')", "utf-8")
    with pytest.raises(DidNotStart, match=r"(?s)broken did not start:.*the reason"):
        async with serving("broken", tmp_path) as server:
            await server.ready()

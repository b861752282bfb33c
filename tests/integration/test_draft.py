"""The data-layer sessions draft from end to end, on every framework in every mode."""

from __future__ import annotations

from typing import Any, Final

import pytest
from clients import OFFERED

from .servers import CELLS, Cell, Hall, Running, bare, running
from .wire import Client, Reply, lifespan

WITHOUT_SESSION: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tool": ("tools/call", {"name": "whoami", "arguments": {}}),
    "tool-that-is-unknown": ("tools/call", {"name": "nothing", "arguments": {}}),
    "tools": ("tools/list", {}),
    "resource": ("resources/read", {"uri": "session://me"}),
    "prompt": ("prompts/get", {"name": "who"}),
    "method-that-is-unknown": ("nothing/at-all", {}),
}

every_cell = pytest.mark.parametrize("cell", CELLS, ids=str)


@every_cell
async def test_sessions_are_advertised_beside_the_servers_own_capabilities(cell: Cell) -> None:
    async with running(cell) as server:
        advertised = (await server.client().connect()).result
    plain = bare(cell)
    async with lifespan(plain):
        own = (await Client(plain, modern=cell.modern).connect()).result
    own["capabilities"]["sessions"] = {}
    own["capabilities"].setdefault("experimental", {})["sessions"] = {"required": "never", **OFFERED}
    assert advertised == own


@every_cell
async def test_a_request_without_a_session_gets_the_servers_own_bytes(cell: Cell) -> None:
    async with running(cell) as server:
        through = await without_session(server)
    plain = bare(cell)
    async with lifespan(plain):
        assert await without_session(Running(plain, cell, Hall())) == through


async def without_session(server: Running) -> dict[str, Reply]:
    """Send the requests of a client that knows nothing of sessions."""
    client = await server.connected()
    replies = {name: await client.request(*asked) for name, asked in WITHOUT_SESSION.items()}
    for reply in replies.values():
        reply.headers.pop("mcp-session-id", None)  # the server's own, new in every connection
    return replies

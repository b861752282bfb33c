"""What `with_sessions` takes: a URL, a transport of the SDK's or of FastMCP's, or a function; and nothing else."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from environments import INSTALLED

from integration.servers import COVERING, Cell
from mcp_sessions import ConfigurationError
from mcp_sessions.client import FileStorage, MemoryStorage, fastmcp_transport, with_sessions

from .peers import peer, served

http: Any = import_module("httpx2" if "httpx2" in INSTALLED else "httpx")
each_era = pytest.mark.parametrize("cell", COVERING[::2], ids=str)
fastmcp_cells = pytest.mark.parametrize(
    "cell", [cell for cell in COVERING[::2] if cell.framework.startswith("fastmcp")], ids=str
)


@each_era
async def test_a_url_is_connected_to(cell: Cell, tmp_path: Path) -> None:
    """As often as the program likes, and named sessions can be stored by it."""
    async with served(cell) as server:
        for expected in ("1", "2"):
            sessions = with_sessions(server.url, FileStorage(tmp_path / "sessions.db"))
            async with peer(cell, sessions) as client:
                assert await client.tool("count") == expected
        sessions = with_sessions(server.url)
        for _ in range(2):
            async with peer(cell, sessions) as client:
                assert await client.tool("count") == "1"
        assert len(server.sent("sessions/create")) == 3
        assert len(server.sent("sessions/delete")) == 2


@each_era
async def test_a_url_goes_with_a_client_of_the_programs_own(cell: Cell) -> None:
    """All requests go by it, those about sessions included, and it stays open."""
    async with served(cell) as server, http.AsyncClient(headers={"x-who": "ann"}, timeout=30) as own:
        for _ in range(2):
            async with peer(cell, with_sessions(server.url, http_client=own)) as client:
                assert await client.tool("count") == "1"
            assert not own.is_closed
        assert {headers.get("x-who") for headers, _ in server.seen} == {"ann"}
        assert len(server.sent("sessions/delete")) == 2


@fastmcp_cells
async def test_fastmcps_client_takes_sessions_as_its_transport(cell: Cell) -> None:
    async with served(cell) as server:
        transport = fastmcp_transport(with_sessions(server.url))
        assert repr(transport) == "<SessionTransport of <ClientSessions, not connected>>"
        client = import_module("fastmcp").Client(transport)
        for _ in range(2):
            async with client:
                assert (await client.call_tool("count")).content[0].text == "1"
        assert len(server.sent("sessions/create")) == 2


class Client:
    """A client, which gives no streams."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_: object) -> None: ...

    def call_tool(self) -> None: ...


NO_SOURCES = ["", "ftp://host/mcp", "host/mcp", "http://", "http://host:port", "http://[::1", None, Client()]


@pytest.mark.parametrize(
    ("source", "options", "remedy"),
    [
        *((odd, {}, r'takes the URL of a server, such as "http://.* a transport such as ') for odd in NO_SOURCES),
        (Client, {"http_client": http.AsyncClient()}, "goes with a URL; a transport has its own"),
        # of another transport nobody knows which server it connects to
        (Client, {"storage": MemoryStorage()}, r"with_sessions\(url, storage\)"),
        ("http://host/mcp", {"on_not_found": "ignore"}, 'must be "raise" or "recreate"'),
    ],
)
def test_anything_else_is_refused(source: Any, options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        with_sessions(source, **options)

"""What `with_sessions` takes: a URL, a transport of the SDK's or of FastMCP's, or a function; and nothing else."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from environments import INSTALLED, needs

from integration.servers import COVERING, Cell
from mcp_sessions import ConfigurationError
from mcp_sessions.client import SessionJar, fastmcp_transport, with_sessions

from .peers import peer, served

http: Any = import_module("httpx2" if "httpx2" in INSTALLED else "httpx")
every_cell = pytest.mark.parametrize("cell", COVERING, ids=str)
fastmcp_cells = pytest.mark.parametrize(
    "cell", [cell for cell in COVERING if cell.framework.startswith("fastmcp")], ids=str
)


class Named(http.Auth):  # type: ignore[misc]  # which library it is of depends on the SDK
    """Authentication that is seen."""

    def auth_flow(self, request: Any) -> Any:
        request.headers["x-who"] = "ann"
        yield request


@every_cell
async def test_a_url_is_connected_to(cell: Cell, tmp_path: Path) -> None:
    """As often as the program likes, and the jar knows whose sessions are whose without `server=`."""
    async with served(cell) as server:
        for expected in ("1", "2"):
            sessions = with_sessions(server.url, SessionJar(tmp_path / "jar.json"))
            async with peer(cell, sessions) as client:
                assert await client.tool("count") == expected
        sessions = with_sessions(server.url)
        for _ in range(2):
            async with peer(cell, sessions) as client:
                assert await client.tool("count") == "1"
        assert len(server.log.sent("sessions/create")) == 3
        assert len(server.log.sent("sessions/delete")) == 2


@every_cell
async def test_a_url_goes_with_headers_authentication_or_a_client(cell: Cell) -> None:
    """All requests have them, those about sessions included; the program's own HTTP client stays open."""
    async with served(cell) as server, http.AsyncClient(headers={"x-who": "ann"}, timeout=30) as own:
        for given in ({"headers": {"x-who": "ann"}}, {"auth": Named()}, {"headers": {}, "auth": Named()}):
            async with peer(cell, with_sessions(server.url, **given)) as client:
                assert await client.tool("count") == "1"
        for _ in range(2):
            async with peer(cell, with_sessions(server.url, http_client=own)) as client:
                assert await client.tool("count") == "1"
            assert not own.is_closed
        assert {headers.get("x-who") for headers, _ in server.log.seen} == {"ann"}
        assert len(server.log.sent("sessions/delete")) == 5


@fastmcp_cells
async def test_a_transport_of_fastmcps_is_connected_with_what_it_has(cell: Cell) -> None:
    """Its headers, its authentication, its HTTP client and its way to verify certificates."""
    made: list[Any] = []

    def factory(**options: Any) -> Any:
        made.append(options)
        return http.AsyncClient(**options, timeout=30)

    kind = import_module("fastmcp.client.transports").StreamableHttpTransport
    async with served(cell) as server:
        for given in ({}, {"verify": False}, {"httpx_client_factory": factory}):
            transport = kind(server.url, headers={"x-who": "ann"}, auth="a token", **given)
            sessions = with_sessions(transport, SessionJar())
            assert repr(fastmcp_transport(sessions)) == "<SessionTransport of <ClientSessions, not connected>>"
            client = import_module("fastmcp").Client(fastmcp_transport(sessions))
            for expected in ("1", "2"):
                async with client:
                    assert (await client.call_tool("count")).content[0].text == expected
        seen = {(headers.get("x-who"), headers.get("authorization")) for headers, _ in server.log.seen}
    assert seen == {("ann", "Bearer a token")}
    assert [options["follow_redirects"] for options in made] == [True, True]


@needs("mcp<2")
@pytest.mark.filterwarnings("ignore:Use `streamable_http_client` instead:DeprecationWarning")
async def test_the_older_name_of_the_sdks_transport_is_as_good(tmp_path: Path) -> None:
    """`streamablehttp_client` of SDK 1.x."""
    cell = next(cell for cell in COVERING if cell.framework == "sdk1")
    connect = import_module("mcp.client.streamable_http").streamablehttp_client
    async with served(cell) as server:
        for expected in ("1", "2"):
            sessions = with_sessions(connect(server.url), SessionJar(tmp_path / "jar.json"))
            async with peer(cell, sessions) as client:
                assert await client.tool("count") == expected


class Client:
    """A client, which gives no streams."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_: object) -> None: ...

    def call_tool(self) -> None: ...


def takes_a_url(url: str) -> Any:
    """A function that cannot be called without it."""


@pytest.mark.parametrize(
    "source",
    [
        "",
        "ftp://host/mcp",
        "host/mcp",
        "http://",
        "http://host:port",
        "http://[::1",
        None,
        7,
        Client(),
        takes_a_url,
        len,
    ],
)
def test_anything_else_is_refused(source: Any) -> None:
    with pytest.raises(ConfigurationError, match=r'takes the URL of a server, such as "http://.* a transport such as '):
        with_sessions(source)


@needs("fastmcp")
def test_transports_of_fastmcps_that_speak_something_else_are_refused() -> None:
    transports = import_module("fastmcp.client.transports")
    with pytest.raises(ConfigurationError, match="or FastMCP's StreamableHttpTransport; not <SSE"):
        with_sessions(transports.SSETransport("http://host/sse"))


URL = "http://host/mcp"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"headers": "x-who: ann"}, r"headers= takes a mapping"),
        ({"auth": "a token"}, r"auth= takes an httpx2?\.Auth; a token goes into headers="),
        ({"http_client": 7}, r"http_client= takes an httpx2?\.AsyncClient"),
        ({"http_client": http.AsyncClient(), "auth": Named()}, r"headers= and auth= conflict with http_client="),
        ({"http_client": http.AsyncClient(), "headers": {}}, r"headers= and auth= conflict with http_client="),
    ],
)
def test_options_of_a_url_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        with_sessions(URL, **options)


@pytest.mark.parametrize("options", [{"headers": {}}, {"auth": Named()}, {"http_client": http.AsyncClient()}])
def test_options_of_a_url_go_with_a_url_alone(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="go with a URL; a transport has its own"):
        with_sessions(Client, **options)

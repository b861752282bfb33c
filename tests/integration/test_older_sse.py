"""The older SSE transport beside the MCP endpoint has no sessions: what clients and operators are told."""

import warnings
from typing import Any

import pytest
from clients import lifespan
from mcp import ClientSession
from mcp.client.sse import sse_client
from starlette.applications import Starlette

from mcp_sessions import MCPSessionMiddleware, require_session

from .servers import FRAMEWORKS, KEYS, server_class
from .serving import serving


def serving_both(framework: str) -> Any:
    """Return an application with both transports, and a tool that needs a session."""

    def add(item: str) -> str:
        return require_session().ref + item

    mcp: Any = server_class(framework)("shop")
    mcp.tool()(add)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        if hasattr(mcp, "sse_app"):
            newer, older = mcp.streamable_http_app(), mcp.sse_app()
        else:
            newer, older = mcp.http_app(), mcp.http_app(transport="sse")
    return Starlette(routes=[*newer.routes, *older.routes], lifespan=newer.router.lifespan_context)


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_error_names_the_older_transport(framework: str) -> None:
    app = MCPSessionMiddleware(serving_both(framework), keys=KEYS)
    async with (
        serving(app) as url,
        sse_client(url.replace("/mcp", "/sse")) as streams,
        ClientSession(*streams) as client,
    ):
        await client.initialize()
        try:
            text = str((await client.call_tool("add", {"item": "bread"})).content)
        except Exception as error:  # noqa: BLE001  # SDK 2.x answers with an error
            text = str(error)
    assert "older SSE transport" in text


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_start_names_the_older_transport(framework: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whether it stands beside the endpoint, or alone, so that nothing is there."""
    app = serving_both(framework)
    async with lifespan(MCPSessionMiddleware(app, keys=KEYS)):
        pass
    assert [line for line in caplog.messages if "older SSE transport" in line]
    alone = Starlette(routes=[route for route in app.routes if route.path != "/mcp"])
    caplog.clear()
    async with lifespan(MCPSessionMiddleware(alone, keys=KEYS)):
        pass
    (line,) = [line for line in caplog.messages if "no route of the application serves" in line]
    assert "older SSE transport" in line

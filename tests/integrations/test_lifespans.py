"""One lifespan of several: MCP servers that are mounted in other applications."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from clients import SECRET, call, http
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse

from integration.wire import Client, lifespan
from mcp_sessions import ConfigurationError, MCPSessionMiddleware, add_sessions
from mcp_sessions.integrations.lifespans import lifespan_of
from mcp_sessions.stores.memory import MemoryStore

from .servers import sdk, whoami
from .test_sdk import sdk_app

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")


@asynccontextmanager
async def database(app: object) -> AsyncIterator[dict[str, str]]:
    """A lifespan of one's own, which gives the requests something."""
    yield {"database": "open"}


@asynccontextmanager
async def nothing(app: object) -> AsyncIterator[None]:
    """A lifespan that gives nothing."""
    yield


async def items(request: Request) -> JSONResponse:
    """An endpoint beside the MCP server's."""
    return JSONResponse(request.state.database)


def with_sessions(mcp: Any) -> Any:
    """Sessions inside of the MCP server."""
    return add_sessions(mcp, keys=SECRET, transport="off")


def wrapped(mcp: Any) -> Any:
    """Sessions around the MCP server."""
    return MCPSessionMiddleware(mcp, keys=SECRET, transport="off")


@pytest.mark.parametrize("outer", [FastAPI, Starlette])
@pytest.mark.parametrize("place", [with_sessions, wrapped])
async def test_a_mounted_server_lives_with_the_application(place: Callable[[Any], Any], outer: Any) -> None:
    """It starts and stops with it, beside what the application opens itself, and has sessions."""
    mcp = place(sdk_app(whoami))
    app = outer(lifespan=lifespan_of(database, nothing, mcp))
    app.add_route("/items", items)
    app.mount("/api", mcp)
    async with lifespan(app):
        client = Client(app, path="/api/mcp")
        await client.connect()
        assert len({await client.call("whoami", await client.create()) for _ in range(2)} | {"nobody"}) == 3


@pytest.mark.parametrize("outer", [FastAPI, Starlette])
async def test_sessions_may_come_later(outer: Any) -> None:
    """What the outer application is given is looked up at its start."""
    mcp = sdk_app(whoami)
    app = outer(lifespan=lifespan_of(mcp))
    app.mount("/api", mcp)
    add_sessions(app, keys=SECRET, transport="off")
    async with lifespan(app):
        client = Client(app, path="/api/mcp")
        await client.connect()
        assert await client.call("whoami", await client.create()) != "nobody"


async def test_what_they_yield_is_merged() -> None:
    """Requests see it as they see what one lifespan yields."""
    async with lifespan_of(nothing, Starlette(lifespan=database))(None) as state:
        assert state == {"database": "open"}
    app = Starlette()
    app.add_route("/items", items)
    assert (await call(app, http("GET", "/items", state=state))).json == "open"


async def test_the_store_is_open_while_the_application_lives() -> None:
    """Also where nothing but the middleware says so: the wrapped application has no routes."""
    events: list[str] = []

    class Store(MemoryStore):
        async def open(self) -> None:
            events.append("open")

    @asynccontextmanager
    async def last(app: object) -> AsyncIterator[None]:
        events.append("started")
        yield

    middleware = MCPSessionMiddleware(Starlette(lifespan=last), keys=SECRET, store=Store())
    async with lifespan_of(middleware)(None):
        assert events == ["open", "started"]


async def test_a_server_that_must_not_start_keeps_the_application_from_starting() -> None:
    """With the remedy."""
    guarded = sdk(authenticated=True, stateful=False, middleware=[])
    life = lifespan_of(MCPSessionMiddleware(guarded, keys=SECRET))(None)
    with pytest.raises(ConfigurationError, match="add_sessions"):
        await life.__aenter__()


def test_what_has_no_lifespan_is_refused() -> None:
    """At once, where it is written."""
    with pytest.raises(ConfigurationError, match="applications and lifespan functions, not None"):
        lifespan_of(None)

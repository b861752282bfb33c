"""Every place for the middleware: around the app, inside it, in a parent application, behind a prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
import pytest
from clients import RealClient, lifespan
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.types import ASGIApp

from mcp_sessions import MCPSessionMiddleware

from .servers import COVERING, DEADLINE, KEYS, Cell, bare


def add_to_the_app(cell: Cell) -> ASGIApp:
    """Use `add_middleware` of the Starlette app that the framework makes."""
    app = bare(cell)
    app.add_middleware(MCPSessionMiddleware, keys=KEYS, transport="off")
    return app  # type: ignore[no-any-return]  # both frameworks make a Starlette


def hand_to_the_framework(cell: Cell) -> ASGIApp:
    return bare(cell, middleware=[Middleware(MCPSessionMiddleware, keys=KEYS, transport="off")])  # type: ignore[no-any-return]


def add_to_a_fastapi_parent(cell: Cell) -> ASGIApp:
    """Use `add_middleware` of a FastAPI app that mounts the server."""
    inner = bare(cell)
    parent = FastAPI(lifespan=lambda _: inner.router.lifespan_context(inner))
    parent.mount("/", inner)
    parent.add_middleware(MCPSessionMiddleware, keys=KEYS, transport="off")
    return parent


def mount_the_wrapped_app(cell: Cell) -> ASGIApp:
    """Mount the wrapped server below a prefix; its path stays the server's own."""
    inner = bare(cell)
    wrapped = MCPSessionMiddleware(inner, keys=KEYS, transport="off")
    return Starlette(routes=[Mount("/api", wrapped)], lifespan=lambda _: inner.router.lifespan_context(inner))


def wrap_the_parent(cell: Cell) -> ASGIApp:
    """Wrap a parent that mounts the server below a prefix, which belongs to the path."""
    inner = bare(cell)
    parent = Starlette(routes=[Mount("/api", inner)], lifespan=lambda _: inner.router.lifespan_context(inner))
    return MCPSessionMiddleware(parent, keys=KEYS, transport="off", path="/api/mcp")


def guard_every_path(cell: Cell) -> ASGIApp:
    return MCPSessionMiddleware(bare(cell), keys=KEYS, transport="off", path=None)


PLACES: Final[dict[Callable[[Cell], ASGIApp], str]] = {
    add_to_the_app: "/mcp",
    hand_to_the_framework: "/mcp",
    add_to_a_fastapi_parent: "/mcp",
    mount_the_wrapped_app: "/api/mcp",
    wrap_the_parent: "/api/mcp",
    guard_every_path: "/mcp",
}
COMBINATIONS: Final = [
    pytest.param(place, cell, id=f"{place.__name__}-{cell}")
    for place in PLACES
    for cell in COVERING
    if place is not hand_to_the_framework or cell.framework.startswith("fastmcp")
]


async def live_a_session(client: RealClient) -> None:
    await client.connect()
    held = await client.create()
    assert [await client.call("count", held) for _ in range(2)] == ["1", "2"]
    assert await client.call("whoami") == "nobody"
    await client.delete(held)
    refused = await client.send("tools/call", {"name": "count", "arguments": {}}, session=held)
    assert refused.error["code"] == -32043


@pytest.mark.parametrize(("place", "cell"), COMBINATIONS)
async def test_sessions_work_wherever_the_middleware_stands(place: Callable[[Cell], ASGIApp], cell: Cell) -> None:
    app = place(cell)
    with anyio.fail_after(DEADLINE):
        async with lifespan(app):
            await live_a_session(RealClient(app, modern=cell.modern, path=PLACES[place]))


@pytest.mark.parametrize("cell", COVERING, ids=str)
async def test_a_proxys_prefix_is_not_part_of_the_path(cell: Cell) -> None:
    app = MCPSessionMiddleware(bare(cell), keys=KEYS, transport="off")
    with anyio.fail_after(DEADLINE):
        async with lifespan(app):
            await live_a_session(
                RealClient(app, modern=cell.modern, path="/behind/proxy/mcp", root_path="/behind/proxy")
            )

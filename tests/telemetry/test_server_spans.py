"""A message has one server span: the wrapped server's own where it makes one, and else ours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import pytest
from apps import Server, sessions
from clients import call, http
from environments import needs
from fastapi import FastAPI
from recorded import process_wide
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from integration.servers import CELLS, FRAMEWORKS, Cell, bare

CELL_OF = {cell.framework: cell for cell in CELLS}
MAKES = {"sdk1": False, "sdk2": True, "fastmcp3": True, "fastmcp4": True}


async def makes_its_own(app: Any, path: str | None = "/mcp") -> bool:
    """Whether the middleware leaves the span of a message to the server, which need not even have started."""
    with process_wide().recording() as spans, suppress(RuntimeError, TypeError):
        await call(sessions(app, path=path), http(path=path or "/mcp"), b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    return "ping" not in {span.name for span in spans}


def manager() -> Any:
    """The SDK's session manager, as servers without its own ASGI application use it."""
    server = import_module("mcp.server.lowlevel").Server("small")
    return import_module("mcp.server.streamable_http_manager").StreamableHTTPSessionManager(server)


def called_from_a_closure() -> Any:
    held, gone = manager(), None
    handle: Any = lambda scope, receive, send: (gone, held.handle_request(scope, receive, send))  # noqa: E731, F821
    del gone  # a name that is not bound any more
    return Starlette(routes=[Mount("/mcp", handle)])


def called_as_a_method() -> Any:
    return Starlette(routes=[Mount("/mcp", manager().handle_request)])


def called_from_a_modules_function() -> Any:
    names = {"held": manager()}
    exec("def handle(scope, receive, send):\n    return held.handle_request(scope, receive, send)", names)
    return Starlette(routes=[Mount("/mcp", names["handle"])])


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("path", ["/mcp", None])
async def test_a_frameworks_server_is_known(framework: str, path: str | None) -> None:
    """SDK 2.x and both FastMCPs make their own, SDK 1.x does not."""
    assert await makes_its_own(bare(CELL_OF[framework]), path) == MAKES[framework]


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_mounted_server_is_known(framework: str) -> None:
    app = FastAPI()
    app.mount("/tools", bare(CELL_OF[framework]))
    assert await makes_its_own(app, "/tools/mcp") == MAKES[framework]
    assert not await makes_its_own(app, "/mcp")


@pytest.mark.parametrize("make", [called_from_a_closure, called_as_a_method, called_from_a_modules_function])
async def test_a_session_manager_in_an_applications_own_lines_is_known(make: Callable[[], Any]) -> None:
    """As the SDK's examples for servers of a lower level have it."""
    assert await makes_its_own(make()) == MAKES[FRAMEWORKS[0]]


@pytest.mark.parametrize("app", [Server(), Starlette(), Starlette(routes=[Route("/mcp", partial(print))]), FastAPI()])
async def test_other_applications_make_none(app: Any) -> None:
    assert not await makes_its_own(app)


@needs("mcp>=2")
async def test_a_server_of_sdk_2_without_its_middleware_makes_none() -> None:
    held = manager()
    held.app.middleware.clear()
    assert not await makes_its_own(held.handle_request, None)


@needs("fastmcp>=4")
async def test_a_server_of_fastmcp_whose_telemetry_is_off_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("fastmcp").settings, "telemetry_mode", "propagation_only")
    assert not await makes_its_own(bare(Cell("fastmcp4", modern=True, stateful=False, json=True)))

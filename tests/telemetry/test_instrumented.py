"""It is known of a server, before its first request, whether it makes a server span for each request itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest
from apps import Server
from environments import needs
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from integration.servers import CELLS, FRAMEWORKS, Cell, bare
from mcp_sessions._server.placement import parts
from mcp_sessions.telemetry.frameworks import makes_server_spans

CELL_OF = {cell.framework: cell for cell in CELLS}
MAKES = {"sdk1": False, "sdk2": True, "fastmcp3": True, "fastmcp4": True}


def manager() -> Any:
    """The SDK's session manager, as servers without its own ASGI application use it."""
    server = import_module("mcp.server.lowlevel").Server("small")
    return import_module("mcp.server.streamable_http_manager").StreamableHTTPSessionManager(server)


def called_from_a_closure() -> Any:
    sessions, gone = manager(), None
    handle: Any = lambda scope, receive, send: (gone, sessions.handle_request(scope, receive, send))  # noqa: E731, F821
    del gone  # a name that is not bound any more
    return Starlette(routes=[Mount("/mcp", handle)])


def called_as_a_method() -> Any:
    return Starlette(routes=[Mount("/mcp", manager().handle_request)])


def called_from_a_modules_function() -> Any:
    names = {"sessions": manager()}
    exec("def handle(scope, receive, send):\n    return sessions.handle_request(scope, receive, send)", names)
    return Starlette(routes=[Mount("/mcp", names["handle"])])


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("path", ["/mcp", None])
def test_a_frameworks_server_is_known(framework: str, path: str | None) -> None:
    """SDK 2.x and both FastMCPs make their own, SDK 1.x does not; nothing has started yet."""
    assert makes_server_spans(parts(bare(CELL_OF[framework]), path)) == MAKES[framework]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_server_that_is_mounted_is_known(framework: str) -> None:
    """And what is served elsewhere does not count."""
    app = FastAPI()
    app.mount("/tools", bare(CELL_OF[framework]))
    assert makes_server_spans(parts(app, "/tools/mcp")) == MAKES[framework]
    assert not makes_server_spans(parts(app, "/mcp"))


@pytest.mark.parametrize("make", [called_from_a_closure, called_as_a_method, called_from_a_modules_function])
def test_a_session_manager_in_an_applications_own_lines_is_known(make: Callable[[], Any]) -> None:
    """As the SDK's examples for servers of a lower level have it."""
    assert makes_server_spans(parts(make(), "/mcp")) == MAKES[FRAMEWORKS[0]]


@pytest.mark.parametrize("app", [Server(), Starlette(), Starlette(routes=[Route("/mcp", partial(print))]), FastAPI()])
def test_other_applications_make_none(app: Any) -> None:
    """Whatever may be imported in this process."""
    assert not makes_server_spans(parts(app, "/mcp"))


@needs("mcp>=2")
def test_a_server_of_sdk_2_without_its_middleware_makes_none() -> None:
    """It is an ordinary entry of a list, so applications can take it out."""
    sessions = manager()
    sessions.app.middleware.clear()
    assert not makes_server_spans(parts(sessions.handle_request, None))


@needs("fastmcp>=4")
def test_a_server_of_fastmcp_whose_telemetry_is_off_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own setting says so."""
    monkeypatch.setattr(import_module("fastmcp").settings, "telemetry_mode", "propagation_only")
    assert not makes_server_spans(parts(bare(Cell("fastmcp4", modern=True, stateful=False, json=True)), "/mcp"))

"""What is found in a route tree, and what it is called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from apps import Server
from clients import SECRET
from environments import INSTALLED
from fastapi import APIRouter, FastAPI
from packaging.version import Version
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from starlette.websockets import WebSocket

from mcp_sessions import MCPSessionMiddleware
from mcp_sessions.integrations.starlette import Endpoint, find, is_routed

SERVER = Server()


def function(request: Request) -> Response | None: ...


def nothing() -> None: ...


def socket(websocket: WebSocket) -> None: ...


def paths(app: object) -> list[str]:
    """Where the endpoints are; a mounted application is marked."""
    return [endpoint.path + ("/..." if endpoint.is_subtree else "") for endpoint in find(app)]


def fastapi(*routes: Any, prefix: str = "") -> FastAPI:
    """A FastAPI application with an included router, and none of its pages."""
    app = FastAPI(openapi_url=None)
    app.include_router(APIRouter(routes=list(routes)), prefix=prefix)
    return app


def fastapi_function() -> FastAPI:
    """FastAPI with a function, which it makes a route of its own kind of."""
    app = FastAPI(openapi_url=None)
    app.post("/mcp")(nothing)
    return app


def mounted_in_itself() -> Router:
    """A router that has no end."""
    router = Router([Route("/mcp", SERVER)])
    router.routes.append(Mount("/again", router))
    return router


TREES: dict[str, tuple[Callable[[], object], list[str]]] = {
    "a route": (lambda: Starlette(routes=[Route("/mcp", SERVER)]), ["/mcp"]),
    "a route with a slash": (lambda: Starlette(routes=[Route("/mcp/", SERVER)]), ["/mcp"]),
    "a route at the root": (lambda: Starlette(routes=[Route("/", SERVER)]), [""]),
    "a function": (lambda: Starlette(routes=[Route("/mcp", function)]), ["/mcp"]),
    "a mounted app": (lambda: Starlette(routes=[Mount("/mcp", SERVER)]), ["/mcp"]),
    "a mounted app with routes": (
        lambda: Starlette(routes=[Mount("/api", Starlette(routes=[Route("/mcp", SERVER)]))]),
        ["/api/mcp", "/api/..."],
    ),
    "mounts in mounts": (
        lambda: Starlette(routes=[Mount("/a", routes=[Mount("/b", routes=[Route("/mcp", SERVER)])])]),
        ["/a/b/mcp", "/a/b/...", "/a/..."],
    ),
    "a host": (lambda: Starlette(routes=[Host("a.example", Router([Route("/mcp", SERVER)]))]), ["/mcp"]),
    "an app at a host": (lambda: Starlette(routes=[Host("a.example", SERVER)]), [""]),
    "an app behind a middleware": (lambda: CORSMiddleware(Starlette(routes=[Route("/mcp", SERVER)])), ["/mcp"]),
    "an included router": (lambda: fastapi(Route("/mcp", SERVER), prefix="/api"), ["/api/mcp"]),
    "FastAPI's own route": (fastapi_function, ["/mcp"]),
    "a router without an end": (mounted_in_itself, ["/mcp", "/again/..."]),
    "a web socket": (lambda: Starlette(routes=[WebSocketRoute("/mcp", socket)]), []),
    "no routes": (lambda: SERVER, []),
}


@pytest.mark.parametrize(("make", "found"), TREES.values(), ids=TREES)
def test_every_route_is_found_with_its_full_path(make: Callable[[], object], found: list[str]) -> None:
    """Whatever it goes through; an application with routes is found, too, after what is in it."""
    assert paths(make()) == found


def test_the_innermost_application_is_found() -> None:
    """Whatever stands in front of it at its route, the endpoint is the last of the chain."""
    front = CORSMiddleware(CORSMiddleware(SERVER))
    (endpoint,) = find(Starlette(routes=[Route("/mcp", front)]))
    assert endpoint.app is SERVER
    assert endpoint.holder is front.app


def test_a_function_is_found_as_the_app_that_starlette_makes_of_it() -> None:
    """A function endpoint is no ASGI application; what the route calls is."""
    route = Route("/mcp", function)
    (endpoint,) = find(Starlette(routes=[route]))
    assert endpoint.app is route.app


@pytest.mark.parametrize(
    ("methods", "posts"), [(["GET"], False), (["POST"], True), (["GET", "POST"], True), (None, True)]
)
def test_a_route_that_takes_no_post_is_told_apart(methods: list[str] | None, posts: bool) -> None:
    """A route without a list takes every method."""
    (endpoint,) = find(Starlette(routes=[Route("/mcp", SERVER, methods=methods)]))
    assert endpoint.posts is posts


@pytest.mark.parametrize(
    "app",
    [
        MCPSessionMiddleware(Starlette(routes=[Route("/mcp", SERVER)]), keys=SECRET),
        Starlette(routes=[Route("/mcp", SERVER)], middleware=[Middleware(MCPSessionMiddleware, keys=SECRET)]),
        Starlette(routes=[Route("/mcp", MCPSessionMiddleware(SERVER, keys=SECRET))]),
    ],
    ids=["in front of the application", "noted down in the application", "at the route"],
)
def test_a_middleware_that_is_there_is_seen(app: object) -> None:
    """Wherever it stands in front of the endpoint."""
    (endpoint,) = find(app)
    assert endpoint.has_sessions


def test_a_middleware_elsewhere_is_elsewhere() -> None:
    """Another route's sessions are not this one's."""
    app = Starlette(routes=[Route("/a", MCPSessionMiddleware(SERVER, keys=SECRET)), Route("/b", SERVER)])
    assert [endpoint.has_sessions for endpoint in find(app)] == [True, False]


# --- what serves MCP -----------------------------------------------------------------------------


def manager() -> Any:
    """The official SDK's session manager, as applications make it that bring their own routes."""
    lowlevel = import_module("mcp.server.lowlevel").Server("s")
    return import_module("mcp.server.streamable_http_manager").StreamableHTTPSessionManager(lowlevel)


def sdk() -> Any:
    """The official SDK's application."""
    modern = Version(INSTALLED["mcp"]).major > 1
    server = import_module("mcp.server.mcpserver").MCPServer if modern else import_module("mcp.server.fastmcp").FastMCP
    return server("s").streamable_http_app()


def fastmcp() -> Any:
    """FastMCP's application, whose session manager is made at its start."""
    return import_module("fastmcp").FastMCP("s").http_app()


class Holder:
    """An application's own class around the session manager."""

    def __init__(self) -> None:
        self.session_manager = manager()

    async def __call__(self, *call: Any) -> None: ...


KNOWN: dict[str, Callable[[], Any]] = {
    "the official SDK's application": sdk,
    "FastMCP's application": fastmcp,
    "the session manager's method": lambda: Router([Mount("/mcp", manager().handle_request)]),
    "an object with a session manager": lambda: Router([Route("/mcp", Holder())]),
}


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_what_serves_mcp_is_known(make: Callable[[], Any]) -> None:
    """By the names of its classes, at `/mcp`."""
    assert [endpoint.path for endpoint in find(make()) if endpoint.serves_mcp] == ["/mcp"]


@pytest.mark.parametrize("app", [SERVER, function, SERVER.__call__], ids=["an object", "a function", "a method"])
def test_anything_else_is_not(app: Any) -> None:
    """A strange application is never taken for an MCP server."""
    (endpoint,) = find(Router([Mount("/mcp", app)]))
    assert not endpoint.serves_mcp


# --- what is put there ---------------------------------------------------------------------------


class Front:
    """A middleware that does nothing."""

    def __init__(self, app: Any) -> None:
        self.app = app


def test_what_is_put_there_is_found_there() -> None:
    """The route holds the new application, and the old one behind it."""
    app = Starlette(routes=[Route("/mcp", function), Mount("/mount", SERVER), Host("a.example", SERVER)])
    before = find(app)
    for endpoint in before:
        endpoint.put(Front(endpoint.app))
    assert [_behind(endpoint) for endpoint in find(app)] == [endpoint.app for endpoint in before]


@pytest.mark.parametrize("endpoint", [SERVER, function], ids=["an object", "a function"])
def test_fastapi_makes_its_tables_anew(endpoint: Any) -> None:
    """What it made of an included router before holds the new application afterwards."""
    app = fastapi(Route("/mcp", endpoint), prefix="/api")
    (included,) = app.routes
    before = included.effective_candidates()  # type: ignore[attr-defined]
    (found,) = find(app)
    found.put(front := Front(found.app))
    (after,) = included.effective_candidates()  # type: ignore[attr-defined]
    assert after not in before
    assert after.starlette_route.app is front


def _behind(endpoint: Endpoint) -> Any:
    assert isinstance(endpoint.holder, Front)
    return endpoint.app


@pytest.mark.parametrize(
    ("app", "routed"),
    [
        (Starlette(), True),
        (CORSMiddleware(Starlette()), True),
        (FastAPI(), True),
        (SERVER, False),
        (CORSMiddleware(SERVER), False),
        (None, False),
    ],
)
def test_an_application_with_routes_is_told_apart(app: object, routed: bool) -> None:
    """It has routes itself, or the application behind its middleware has."""
    assert is_routed(app) is routed


def test_a_middleware_in_front_of_itself_has_no_routes() -> None:
    """A circle ends the search."""
    front = Front(None)
    front.app = front
    assert not is_routed(front)

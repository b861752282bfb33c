"""Every place for the middleware: around an application or in it, and where `add_sessions` finds the endpoint."""

from collections.abc import Callable
from importlib import import_module
from itertools import product
from typing import Any, Final

import anyio
import pytest
from apps import Server, grouped
from clients import SECRET, Answer, Client, RealClient, call, http, lifespan
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from starlette.applications import Starlette
from starlette.authentication import AuthenticationBackend
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from starlette.types import ASGIApp

from mcp_sessions import ConfigurationError, MCPSessionMiddleware, add_sessions

from .servers import COVERING, DEADLINE, FASTMCP, Cell, bare


async def lives_and_dies(client: RealClient) -> None:
    """A session is created, seen by the server, deleted, and refused."""
    await client.connect()
    session = await client.create()
    assert b"nobody" in (await client.tool()).body
    assert b"nobody" not in (await client.tool(session=session)).body
    assert (await client.delete(session)).result is not None
    assert (await client.tool(session=session)).error["code"] == -32043


# --- around real servers -------------------------------------------------------------------------

OPTIONS: Final[dict[str, Any]] = {"keys": SECRET, "transport": "off"}
MOUNTED: Final[dict[str, Any]] = {"path": "/api/mcp"}


def around(app: ASGIApp, **options: Any) -> ASGIApp:
    return MCPSessionMiddleware(app, **OPTIONS, **options)


def added(app: Any, **options: Any) -> ASGIApp:
    app.add_middleware(MCPSessionMiddleware, **OPTIONS, **options)
    return app  # type: ignore[no-any-return]  # both frameworks make a Starlette


def mounted(inner: Any, place: Callable[[ASGIApp], ASGIApp] = lambda app: app, outer: Any = Starlette) -> Any:
    """An application that mounts a server, with what stands in front of that, below `/api`."""
    app = outer(lifespan=lambda _: inner.router.lifespan_context(inner))
    app.mount("/api", place(inner))
    return app


PLACES: dict[str, tuple[Callable[[Cell], ASGIApp], dict[str, Any]]] = {
    "handed to the framework": (lambda cell: bare(cell, middleware=[Middleware(MCPSessionMiddleware, **OPTIONS)]), {}),
    "added to a FastAPI parent": (lambda cell: added(mounted(bare(cell), outer=FastAPI), **MOUNTED), MOUNTED),
    "in a mount": (lambda cell: mounted(bare(cell), around), MOUNTED),
    "around the parent": (lambda cell: around(mounted(bare(cell)), **MOUNTED), MOUNTED),
    "for every path": (lambda cell: around(bare(cell), path=None), {}),
    "behind a prefix": (lambda cell: around(bare(cell)), {"path": "/behind/mcp", "root_path": "/behind"}),
}


@pytest.mark.parametrize(
    ("place", "cell"),
    [
        (place, cell)
        for place, cell in product(PLACES, COVERING)
        if place != "handed to the framework" or cell.framework == FASTMCP  # the SDK takes none
    ],
    ids=str,
)
async def test_sessions_work_wherever_the_middleware_stands(place: str, cell: Cell) -> None:
    make, scope = PLACES[place]
    app = make(cell)
    with anyio.fail_after(DEADLINE):
        async with lifespan(app):
            await lives_and_dies(RealClient(app, modern=cell.modern, **scope))


# --- at the endpoint that `add_sessions` finds ---------------------------------------------------


class StreamableHTTPASGIApp(Server):
    """A server under the name that the official SDK and FastMCP give theirs."""


def known(path: str = "/mcp") -> Route:
    return Route(path, StreamableHTTPASGIApp())


async def through(request: Request) -> Response:
    """An MCP server in a function: whatever the small server answers."""
    answer = Answer()
    await Server()(request.scope, request.receive, answer)
    return Response(answer.body, answer.status, {"content-type": "application/json"})


def function() -> Route:
    return Route("/mcp", through, methods=["POST"])


async def method(request: Request) -> Response:
    return PlainTextResponse(request.method)


def starlette(*routes: Any) -> Starlette:
    return Starlette(routes=routes)


def fastapi_route() -> FastAPI:
    app = FastAPI()
    app.post("/mcp")(through)
    app.get("/mcp")(method)
    app.delete("/mcp")(method)
    return app


def fastapi_router(*, depth: int = 1) -> FastAPI:
    """FastAPI with the functions in a router that is included, or in one that is included in that."""
    router = APIRouter()
    router.post("/mcp")(through)
    router.get("/mcp")(method)
    for _ in range(depth - 1):
        outer = APIRouter()
        outer.include_router(router, prefix="/more")
        router = outer
    app = FastAPI()
    app.include_router(router, prefix="/api")
    return app


def fastapi_included(*routes: Any) -> FastAPI:
    app = FastAPI()
    app.include_router(APIRouter(routes=list(routes)), prefix="/api")
    return app


def served_before(app: Any) -> Any:
    """An application that FastAPI, if it is one, has already made its inner tables of."""
    if isinstance(app, FastAPI):
        app.openapi()
        for route in app.routes:
            getattr(route, "effective_candidates", list)()
    return app


def mounted_in_itself() -> Router:
    router = Router([Mount("/again", Server()), known()])
    router.routes[0] = Mount("/again", router)
    return router


def mounted_twice() -> Starlette:
    inner = starlette(known())
    return starlette(Mount("/a", inner), Mount("/b", inner))


Make = Callable[[], Any]

ENDPOINTS: dict[str, tuple[Make, str]] = {
    "a route": (lambda: starlette(known()), "/mcp"),
    "a mount": (lambda: starlette(Mount("/mcp", StreamableHTTPASGIApp())), "/mcp/"),
    "a mounted application": (lambda: starlette(Mount("/api", starlette(known()))), "/api/mcp"),
    "an app at a host": (lambda: starlette(Host("a.example", StreamableHTTPASGIApp())), "/"),
    "a bare router": (lambda: Router([known()]), "/mcp"),
    "a router that is mounted in itself": (mounted_in_itself, "/mcp"),
    "a route beside a web socket": (lambda: starlette(WebSocketRoute("/mcp", method), known()), "/mcp"),
    "an application mounted in FastAPI": (lambda: fastapi_included(Mount("/v1", starlette(known()))), "/api/v1/mcp"),
    "an included route": (lambda: fastapi_included(known()), "/api/mcp"),
    "an included mount": (lambda: fastapi_included(Mount("/mcp", StreamableHTTPASGIApp())), "/api/mcp/"),
    "an application mounted twice": (mounted_twice, "/a/mcp"),
    "the same application mounted twice": (mounted_twice, "/b/mcp"),
}

NAMED: dict[str, tuple[Make, str]] = {
    "a route": (lambda: starlette(Route("/mcp", Server())), "/mcp"),
    "a function": (lambda: starlette(Route("/mcp", through, methods=["POST", "GET"])), "/mcp"),
    "a function for each method": (lambda: starlette(Route("/mcp", method), function()), "/mcp"),
    "a mounted application": (lambda: starlette(Mount("/mcp", Router([Route("/", Server())]))), "/mcp/"),
    "FastAPI's routes": (fastapi_route, "/mcp"),
    "FastAPI's included routes": (fastapi_router, "/api/mcp"),
    "FastAPI's routers in routers": (lambda: fastapi_router(depth=3), "/api/more/more/mcp"),
    "an included function": (lambda: fastapi_included(function()), "/api/mcp"),
}


def at(app: ASGIApp, path: str) -> RealClient:
    return RealClient(app, modern=True, path=path, headers={"host": "a.example"})


@pytest.mark.parametrize(("make", "path"), ENDPOINTS.values(), ids=ENDPOINTS)
async def test_an_endpoint_known_by_its_class_is_found(make: Make, path: str) -> None:
    for app in (make(), served_before(make())):
        assert add_sessions(app, keys=SECRET) is app
        await lives_and_dies(at(app, path))


@pytest.mark.parametrize(("make", "path"), NAMED.values(), ids=NAMED)
async def test_any_endpoint_is_found_by_its_full_path(make: Make, path: str) -> None:
    """A function as well as an ASGI application; a trailing slash in `path=` makes no difference."""
    for app in (make(), served_before(make())):
        await lives_and_dies(at(add_sessions(app, path=path.rstrip("/") + "/", keys=SECRET), path))


def test_an_endpoint_is_known_by_the_sdk_s_session_manager() -> None:
    """By its method, or by an object with one, as applications have that bring their own routes."""
    lowlevel = import_module("mcp.server.lowlevel").Server("s")
    manager = import_module("mcp.server.streamable_http_manager").StreamableHTTPSessionManager(lowlevel)
    holder = type("Holder", (Server,), {"session_manager": manager})()
    for route in (Mount("/mcp", manager.handle_request), Route("/mcp", holder)):
        add_sessions(starlette(route), keys=SECRET)
        assert isinstance(route.app, MCPSessionMiddleware)


def test_the_middleware_comes_behind_every_other_one() -> None:
    server = StreamableHTTPASGIApp()
    front = CORSMiddleware(CORSMiddleware(server))
    add_sessions(starlette(Route("/mcp", front)), keys=SECRET)
    placed = front.app.app  # type: ignore[attr-defined]
    assert isinstance(placed, MCPSessionMiddleware)
    assert placed.app is server


@pytest.mark.parametrize("make", [fastapi_route, fastapi_router], ids=["routes", "included routes"])
async def test_other_methods_of_a_function_pass(make: Callable[[], FastAPI]) -> None:
    app = make()
    path = "/mcp" if make is fastapi_route else "/api/mcp"
    add_sessions(app, path=path, keys=SECRET)
    assert (await call(app, http("GET", path, query_string=b""))).body == b"GET"
    assert (await call(app, http("DELETE", path, query_string=b""))).status == (200 if make is fastapi_route else 405)


async def test_dependencies_of_a_function_stay_in_force() -> None:
    """FastAPI runs them behind the middleware: they judge a caller before a session is created."""
    app = FastAPI()

    async def nobody() -> None:
        raise HTTPException(403)

    app.post("/mcp", dependencies=[Depends(nobody)])(through)
    add_sessions(app, path="/mcp", keys=SECRET)
    assert (await Client(app, query_string=b"").send("sessions/create")).status == 403


async def test_inside_of_a_route_every_post_is_mcp() -> None:
    """A body that is not a message is refused there, and not forwarded in the hope that it is something else."""
    server = StreamableHTTPASGIApp()
    app = add_sessions(starlette(Route("/{tenant}/mcp", server)), keys=SECRET)
    answer = await call(app, http(path="/a/mcp", headers=[(b"content-type", b"text/plain")]), b"hello")
    assert answer.status == 400
    assert server.seen == []


async def test_around_a_mounted_application_only_messages_are_looked_at() -> None:
    """`path=` of a mount with routes of its own takes the whole application, which may serve other things."""
    server = Server()
    app = add_sessions(
        starlette(Mount("/sub", Router([Route("/form", server), Route("/mcp", server)]))), path="/sub", keys=SECRET
    )
    await lives_and_dies(at(app, "/sub/mcp"))
    answer = await call(app, http(path="/sub/form", headers=[(b"content-type", b"text/plain")]), b"{}")
    assert answer.status == 202


async def test_the_routes_of_one_endpoint_share_their_sessions() -> None:
    """One server at two mounts is one server: keys, and what was deleted, are the same."""
    server = StreamableHTTPASGIApp()
    app = add_sessions(starlette(Route("/a", server), Route("/b", server)))
    at_a, at_b = Client(app, path="/a"), Client(app, path="/b")
    session = await at_a.create()
    assert (await at_b.tool(session=session)).session is not None
    await at_b.delete(session)
    assert (await at_a.tool(session=session)).error["code"] == -32043


TWO = [known("/a/mcp"), known("/b/mcp")]
AUTHENTICATION = Middleware(AuthenticationMiddleware, backend=AuthenticationBackend())
INCLUDED: dict[str, Any] = {"path": "/api/mcp"}
AGAIN = "has sessions already"

REFUSED: dict[str, tuple[Make, dict[str, Any], str]] = {
    "no routes": (Server, {}, r"Server has none; wrap the application instead: MCPSessionMiddleware\(app"),
    "a middleware in front of itself": (
        type("Circle", (), {"app": property(lambda self: self)}),
        {},
        r"Circle has none",
    ),
    "no endpoint": (lambda: starlette(Mount("/mcp", Server().__call__)), {}, r"path='/mcp'.* wrap the application"),
    "several endpoints": (
        lambda: starlette(*TWO),
        {},
        r"several MCP endpoints \(/a/mcp, /b/mcp\); say which with path=",
    ),
    "no such path": (lambda: starlette(*TWO), {"path": "/mpc"}, r"path='/mpc' \(those that do: /a/mcp, /b/mcp\)"),
    "no POST": (lambda: starlette(Route("/mcp", method)), {"path": "/mcp"}, r"no route takes POST .*that do: none"),
    "a relative path": (lambda: starlette(*TWO), {"path": "mcp"}, r"must begin with '/'"),
    "several routers at the path": (
        lambda: starlette(*(Host(f"{name}.example", Router([Route("/mcp", Server())])) for name in "ab")),
        {"path": "/mcp"},
        r"several routers serve path='/mcp'",
    ),
    "sessions at the route": (lambda: add_sessions(starlette(known()), keys=SECRET), {}, AGAIN),
    "sessions at an included route": (lambda: add_sessions(fastapi_router(), keys=SECRET, **INCLUDED), INCLUDED, AGAIN),
    "sessions around the application": (lambda: around(starlette(known())), {}, AGAIN),
    "sessions in the application's list of middleware": (lambda: added(starlette(known())), {}, AGAIN),
    "a wrong option": (lambda: starlette(known()), {"lifetime": 0}, r"lifetime=0 must be"),
    "a mounted application that authenticates inside": (
        lambda: starlette(Mount("/sub", Starlette(routes=TWO, middleware=[AUTHENTICATION]))),
        {"path": "/sub"},
        r"/sub authenticates its callers inside; give path= the full path",
    ),
}


@pytest.mark.parametrize(("make", "options", "remedy"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_placed_is_an_error_with_the_remedy(make: Make, options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        add_sessions(make(), **grouped(**{"keys": SECRET, **options}))


async def test_one_of_several_endpoints_is_named_by_its_path() -> None:
    server = StreamableHTTPASGIApp()
    app = starlette(known("/a/mcp"), Route("/b/mcp", server))
    add_sessions(app, path="/a/mcp", keys=SECRET)
    client = Client(app, path="/b/mcp")
    assert (await client.send("sessions/create")).error["code"] == -32601
    assert len(server.seen) == 1
    await lives_and_dies(at(add_sessions(app, path="/b/mcp", keys=SECRET), "/b/mcp"))

"""A middleware outside of the application's authentication does not serve, nor does one in front of another."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from apps import Server, sessions
from clients import SECRET, by, call, http, started
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Host, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_sessions import ConfigurationError, MCPSessionMiddleware, add_sessions
from mcp_sessions._server.startup_checks import DUPLICATE_MIDDLEWARE, MISPLACED, authenticates, repeats, unserved


class Header(AuthenticationBackend):
    """Everybody is who they say they are."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        return AuthCredentials(), SimpleUser(conn.headers["x-user"])


class Derived(AuthenticationMiddleware):
    """What an application derives from Starlette's."""


class Slotted:
    """A middleware without a `__dict__`, by default in front of itself."""

    __slots__ = ("app",)

    def __init__(self, app: object = None) -> None:
        self.app = app or self


class Hostile:
    """An object whose attributes must not be asked for."""

    app = property(lambda self: pytest.fail("ran the application's code"))


SERVER = Server()
NOTED = Starlette(middleware=[Middleware(AuthenticationMiddleware, backend=Header())])


def authenticated(app: ASGIApp) -> ASGIApp:
    return AuthenticationMiddleware(app, backend=Header())


def routed(*routes: BaseRoute) -> Starlette:
    return Starlette(routes=routes)


def built(app: Any) -> Any:
    app.middleware_stack = app.build_middleware_stack()
    return app


def fastapi(inner: ASGIApp, prefix: str = "", *routes: BaseRoute) -> FastAPI:
    """A FastAPI application with an included router that has the MCP route."""
    app = FastAPI(routes=[*routes])
    app.include_router(APIRouter(routes=[Route("/mcp", inner)]), prefix=prefix)
    return app


def endless(path: str = "/mcp") -> Router:
    router = Router()
    router.routes.append(Mount(path, router))
    return router


AUTHENTICATES: dict[str, object] = {
    "the wrapped app itself": authenticated(SERVER),
    "behind another middleware": CORSMiddleware(authenticated(SERVER)),
    "behind a middleware with slots": Slotted(authenticated(SERVER)),
    "a class derived from Starlette's": Derived(SERVER, backend=Header()),
    "noted down in an application": NOTED,
    "built in an application": built(Starlette(middleware=NOTED.user_middleware)),
    "at the route": routed(Route("/mcp", authenticated(SERVER))),
    "at a route below": routed(Route("/mcp/more", authenticated(SERVER))),
    "at a route with parameters": routed(Route("/{name}", authenticated(SERVER))),
    "in a mounted app": routed(Mount("/mcp", NOTED)),
    "in an app that is mounted at the root": routed(Mount("", NOTED)),
    "at a host": routed(Host("a.example", NOTED)),
    "in a mounted FastAPI with a prefix": routed(Mount("/v1", fastapi(authenticated(SERVER), "/api"))),
}
DOES_NOT: dict[str, object] = {
    "a plain server": SERVER,
    "a plain FastAPI": built(fastapi(SERVER)),
    "another route": routed(Route("/admin", authenticated(SERVER))),
    "a router without an end": endless(),
    "a middleware in front of itself": Slotted(),
    "a property": Hostile(),
    "no application": None,
}


@pytest.mark.parametrize("app", AUTHENTICATES.values(), ids=AUTHENTICATES)
def test_authentication_on_the_way_to_the_endpoint_is_found(app: object) -> None:
    assert authenticates(app, "/mcp") or authenticates(app, "/v1/api/mcp")
    assert authenticates(app, None)


@pytest.mark.parametrize("app", DOES_NOT.values(), ids=DOES_NOT)
def test_authentication_elsewhere_is_not_ours(app: object) -> None:
    """Circles and strange objects end the walk, not the program."""
    assert not authenticates(app, "/mcp")


def noted(path: str) -> list[Middleware]:
    return [Middleware(MCPSessionMiddleware, keys=SECRET, path=path)]


def added(path: str) -> Starlette:
    return add_sessions(routed(Route(path, SERVER, methods=["POST"])), path=path, keys=SECRET)


REPEATS: dict[str, tuple[object, bool]] = {
    "the wrapped app itself": (sessions(SERVER), True),
    "for every path": (sessions(SERVER, path=None), True),
    "noted down with its path": (FastAPI(middleware=noted("/mcp/")), True),
    "at the route": (added("/mcp"), True),
    "in an app that is mounted above": (routed(Mount("/mcp", sessions(SERVER, path="/"))), True),
    "of another path": (sessions(SERVER, path="/other"), False),
    "noted down with another path": (Starlette(middleware=noted("/other")), False),
    "at another route": (added("/other"), False),
    "in another mount": (routed(Mount("/other", sessions(SERVER))), False),
    "in a mount whose path nobody knows": (routed(Mount("/{tenant}", sessions(SERVER, path=None))), False),
}


@pytest.mark.parametrize(("app", "found"), REPEATS.values(), ids=REPEATS)
def test_another_middleware_of_ours_for_the_same_requests_is_found(app: object, found: bool) -> None:
    """One for other requests is left alone, and one of which that cannot be told: what works must not stop."""
    assert repeats(app, "/mcp") is found
    assert repeats(app, None) or not found


@pytest.mark.parametrize(
    ("inner", "message", "remedy"),
    [
        (sessions(SERVER), DUPLICATE_MIDDLEWARE, "Remove one of them"),
        (authenticated(SERVER), MISPLACED, "add_sessions"),
    ],
    ids=["another one inside", "authentication inside"],
)
async def test_a_misplaced_middleware_does_not_start(inner: ASGIApp, message: str, remedy: str) -> None:
    """The server is told why, with the remedy. One that is mounted hears of no start: every MCP request fails."""
    SERVER.seen.clear()
    app = sessions(inner)
    assert await started(app) == {"type": "lifespan.startup.failed", "message": message}
    for method in ("GET", "POST", "DELETE"):
        with pytest.raises(ConfigurationError, match=remedy):
            await call(app, http(method))
    assert SERVER.seen == []
    assert (await call(app, http(path="/health", headers=[by("ann")]))).status == 202


async def test_routes_may_be_added_until_the_first_call() -> None:
    """The application is looked at when it serves first, not when it is wrapped or started."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.router.routes.append(Route("/mcp", authenticated(SERVER)))
        yield

    app = sessions(Starlette(lifespan=lifespan))
    assert (await started(app))["type"] == "lifespan.startup.complete"
    with pytest.raises(ConfigurationError):
        await call(app, http())


async def own_default(scope: Scope, receive: Receive, send: Send) -> None:
    """What a router does with a request that no route takes."""


MOUNTED = Mount("/api", Router([Route("/mcp", SERVER), Route("/health", SERVER, methods=["GET"])]))
OTHER = Route("/rpc", SERVER, methods=["POST"])
UNSERVED: dict[str, tuple[object, str | None]] = {
    "mounted": (routed(MOUNTED), "/api/mcp"),
    "built": (built(routed(OTHER)), "/rpc"),
    "behind middleware": (CORSMiddleware(Starlette(routes=[OTHER], middleware=NOTED.user_middleware)), "/rpc"),
    "in a router with middleware": (Router([OTHER], middleware=NOTED.user_middleware), "/rpc"),
    "at a host": (Router([Host("a.example", Router([OTHER]))]), "/rpc"),
    "in a mount without an end": (endless("/other"), "none"),
    "many": (Router([Route(f"/{n}", SERVER) for n in range(9)]), "/0, /1, /2, /3, /4"),
    # in doubt it is served
    **{name: (DOES_NOT[name], None) for name in DOES_NOT if name not in {"another route", "a router without an end"}},
    "a mount of another app": (Router([OTHER, Mount("", SERVER)]), None),
    "a mounted function": (Router([OTHER, Mount("/mcp", own_default)]), None),
    "an application without routes yet": (Starlette(), None),
    "a default of its own": (Router([OTHER], default=own_default), None),
    "an included router": (fastapi(SERVER, "/api"), "/api/mcp"),
}


@pytest.mark.parametrize(("app", "found"), UNSERVED.values(), ids=UNSERVED)
def test_a_path_that_no_route_serves_is_told_with_those_that_take_post(app: object, found: str | None) -> None:
    told = unserved(app, "/mcp")
    assert (told and told.partition("(routes that take POST: ")[2]) == (found and f"{found})")
    assert unserved(app, None) is None


@pytest.mark.parametrize(("path", "lines"), [("/mcp", 1), ("/api/mcp", 0), (None, 0)])
async def test_the_start_logs_a_path_that_nothing_serves(
    path: str | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Once and with the remedy; without a policy the application starts all the same."""
    app = sessions(Starlette(routes=[MOUNTED]), path=path)
    assert (await started(app))["type"] == "lifespan.startup.complete"
    errors = [line.name for line in caplog.records if line.levelname == "ERROR"]
    assert errors == ["mcp_sessions"] * lines
    assert caplog.text.count("/api/mcp") == lines


# --- a policy whose endpoint nothing serves -----------------------------------------------------

FILES = StaticFiles(directory="/")


class Serving:
    """A middleware that serves the endpoint itself, in front of another application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (SERVER if scope.get("path") in {"/mcp", "/other"} else self.app)(scope, receive, send)


def fastapi_with_function() -> FastAPI:
    app = FastAPI(routes=[OTHER])
    app.middleware("http")(pass_on)
    return app


async def pass_on(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """A function in front of the routes, which may do anything."""
    return await call_next(request)


def included(prefix: str, own: str) -> FastAPI:
    """FastAPI with a router, whose routes have a prefix, in another router that has one, too."""
    inner, outer, app = APIRouter(prefix=own), APIRouter(), FastAPI()
    inner.post("/rpc")(answer)
    outer.include_router(inner)
    app.include_router(outer, prefix=prefix)
    return app


async def answer() -> None:
    """A function that answers."""


BLIND: dict[str, tuple[Any, str]] = {
    "another route": (lambda: routed(OTHER), "/rpc"),
    "mounted": (lambda: routed(MOUNTED), "/api/mcp"),
    "FastAPI": (lambda: FastAPI(routes=[OTHER]), "/rpc"),
    "behind middleware": (lambda: Starlette(routes=[OTHER], middleware=[Middleware(CORSMiddleware)]), "/rpc"),
    "a template": (lambda: routed(Route("/{tenant}/mcp", SERVER)), "/{tenant}/mcp"),
    "another method": (lambda: routed(Route("/mcp", SERVER, methods=["GET"]), OTHER), "/rpc"),
    "files at the root": (lambda: routed(official("/rpc"), Mount("/", SERVER)), "/rpc"),
    "files by a pattern": (lambda: routed(official("/rpc"), Route("/{path:path}", SERVER)), "/rpc"),
    "an included router": (lambda: fastapi(SERVER, "/api"), "/api/mcp"),
    "a router in a router": (lambda: included("/a", "/b"), "/a/b/rpc"),
    "a prefix of the router": (lambda: included("", "/v1"), "/v1/rpc"),
    "files beside a route": (lambda: routed(OTHER, Mount("/", FILES)), "/rpc"),
    "files beside an application": (lambda: routed(Mount("/rpc", SERVER), Mount("/", FILES)), "none"),
    "files at the endpoint": (lambda: routed(official("/rpc"), Mount("/mcp", FILES)), "/rpc"),
    "a websocket": (lambda: routed(OTHER, WebSocketRoute("/ws", own_default)), "/rpc"),
}
SEEING: dict[str, tuple[Any, str | None]] = {
    "a template": (lambda: routed(Route("/{tenant}/mcp", SERVER)), "/acme/mcp"),
    "a pattern": (lambda: routed(Route("/{path:path}", SERVER)), "/mcp"),
    "below a mount": (lambda: routed(MOUNTED), "/api/mcp"),
    "FastAPI under its own root": (lambda: FastAPI(routes=[OTHER], root_path="/api"), "/api/rpc"),
    "FastAPI, below its root": (lambda: FastAPI(routes=[OTHER], root_path="/api"), "/rpc"),
    "an included router": (lambda: fastapi(SERVER, "/api"), "/api/mcp"),
    "a host": (lambda: routed(Host("a.example", Router([OTHER]))), "/rpc"),
    "every path": (lambda: routed(OTHER), None),
    "no routes to see": (lambda: SERVER, "/nowhere"),
    "two servers": (lambda: routed(official("/a"), official("/b")), "/b"),
    "a middleware that serves it": (lambda: Starlette(middleware=[Middleware(Serving)], routes=[OTHER]), "/mcp"),
    "an application that serves it": (lambda: Serving(routed(OTHER)), "/mcp"),
    "a function that serves it": (fastapi_with_function, "/mcp"),
}


class StreamableHTTPSessionManager:
    """What serves MCP, by the name of the official SDK's class."""

    stateless = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await SERVER(scope, receive, send)


def official(path: str) -> Route:
    return Route(path, StreamableHTTPSessionManager(), methods=["POST"])


@pytest.mark.filterwarnings("ignore:The `root_path` parameter is deprecated")
@pytest.mark.parametrize("require", ["always", {"tools/call": ["whoami"]}, lambda request: True])
@pytest.mark.parametrize(("make", "found"), BLIND.values(), ids=BLIND)
async def test_policy_of_path_that_nothing_serves_refuses_to_start(make: Any, found: str, require: Any) -> None:
    """Without a lifespan, the first request says so, wherever it goes, and every other one."""
    said = await started(sessions(make(), require=require))
    assert said["type"] == "lifespan.startup.failed"
    assert "no route of the application serves path='/mcp'" in said["message"]
    assert found in said["message"]
    app = sessions(make(), require=require)
    for path in ("/rpc", "/mcp", "/rpc"):
        with pytest.raises(ConfigurationError, match="no route of the application"):
            await call(app, http(path=path))


@pytest.mark.filterwarnings("ignore:The `root_path` parameter is deprecated")
@pytest.mark.parametrize(("make", "path"), SEEING.values(), ids=SEEING)
async def test_policy_of_path_that_may_be_served_starts(make: Any, path: str | None) -> None:
    assert (await started(sessions(make(), path=path, require="always")))["type"] != "lifespan.startup.failed"
    answer = await call(sessions(make(), path=path, require="always"), http(path="/x"), CALL)
    assert answer.status != 500


CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"whoami"}}'


async def test_policy_without_routes_to_see_judges_every_path() -> None:
    """A wrong path evades nothing there: what looks like MCP is judged wherever it goes."""
    answer = await call(sessions(SERVER, path="/nowhere", require="always", admission="own"), http(path="/mcp"), CALL)
    assert answer.error["code"] == -31044


DOUBTFUL: dict[str, Callable[[], Any]] = {
    "another application at the root": lambda: routed(OTHER, Mount("/", own_default)),
    "a pattern for the rest": lambda: routed(OTHER, Route("/{path:path}", SERVER)),
    "an unrelated route": lambda: routed(official("/rpc"), Route("/mcp", SERVER, methods=["POST"])),
    "a server below a pattern": lambda: routed(Mount("/{tenant}", routed(official("/rpc"))), OTHER),
    "a middleware that may serve it": lambda: Starlette(middleware=[Middleware(Serving)], routes=[OTHER]),
    "a default": lambda: Router([OTHER], default=own_default),
    "an included router": lambda: fastapi(SERVER, "/api", OTHER, Mount("/", own_default)),
}


@pytest.mark.parametrize("make", DOUBTFUL.values(), ids=DOUBTFUL)
async def test_policy_judges_every_path_if_endpoint_is_ambiguous(make: Callable[[], Any]) -> None:
    """What answers at the endpoint may be something else, and the server elsewhere."""
    app = sessions(make(), require="always", admission="own")
    assert (await call(app, http(path="/rpc"), CALL)).error["code"] == -31044
    assert (await call(app, http(path="/mcp"), CALL)).error["code"] == -31044


async def answer_plainly(_request: Request) -> Response:
    return Response()


PLAIN = Route("/rpc", answer_plainly, methods=["POST"])
CERTAIN: dict[str, Callable[[], Any]] = {
    "a route": lambda: routed(PLAIN, Route("/mcp", SERVER, methods=["POST"])),
    "a mount": lambda: routed(PLAIN, Mount("/mcp", SERVER)),
    "a server at the root": lambda: routed(PLAIN, Mount("/", routed(official("/mcp")))),
    "a server by a pattern": lambda: routed(PLAIN, official("/{endpoint}")),
    "an included router": lambda: fastapi(SERVER, "", PLAIN),
}


@pytest.mark.parametrize("make", CERTAIN.values(), ids=CERTAIN)
async def test_where_server_is_certain_other_paths_pass(make: Callable[[], Any]) -> None:
    app = sessions(make(), require="always", admission="own")
    assert (await call(app, http(path="/rpc"), CALL)).status == 200
    assert (await call(app, http(path="/mcp"), CALL)).error["code"] == -31044


async def test_policy_sees_routes_that_start_adds() -> None:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.router.routes.append(Route("/mcp", SERVER))
        yield

    app = sessions(Starlette(routes=[OTHER], lifespan=lifespan), require="always")
    assert (await started(app))["type"] == "lifespan.startup.complete"

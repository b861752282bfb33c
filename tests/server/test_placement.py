"""A middleware outside of the application's authentication does not serve, nor does one in front of another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from apps import Server, sessions
from clients import SECRET, Client, by, call, http, started, user_of
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.routing import Host, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from started import start

from mcp_sessions import ConfigurationError, MCPSessionMiddleware, add_sessions
from mcp_sessions._server.startup_checks import DUPLICATE_MIDDLEWARE, MISPLACED, authenticates, log_unserved, repeats


class Header(AuthenticationBackend):
    """Everybody is who they say they are."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        return AuthCredentials(), SimpleUser(conn.headers["x-user"])


class AuthenticationMiddlewareOfOurs(AuthenticationMiddleware):
    """What an application derives from Starlette's."""


class Slotted:
    """A middleware without a `__dict__`."""

    __slots__ = ("app",)

    def __init__(self, app: object) -> None:
        self.app = app


class Hostile:
    """An object whose attributes must not be asked for."""

    app = property(lambda self: pytest.fail("ran the application's code"))


NOTED = [Middleware(AuthenticationMiddleware, backend=Header())]


def built(app: Any) -> Any:
    app.middleware_stack = app.build_middleware_stack()
    return app


def authenticated(app: ASGIApp) -> ASGIApp:
    return AuthenticationMiddleware(app, backend=Header())


def fastapi(*, prefix: str = "", inner: ASGIApp) -> FastAPI:
    """A FastAPI application with an included router that has the MCP route."""
    router = APIRouter(routes=[Route("/mcp", inner)])
    app = FastAPI()
    app.include_router(router, prefix=prefix)
    return app


def endless(path: str = "/mcp") -> Router:
    router = Router()
    router.routes.append(Mount(path, router))
    return router


def self_wrapped() -> Slotted:
    middleware = Slotted(None)
    middleware.app = middleware
    return middleware


SERVER = Server()

INSIDE: dict[str, Callable[[], object]] = {
    "the wrapped app itself": lambda: authenticated(SERVER),
    "behind another middleware": lambda: CORSMiddleware(authenticated(SERVER)),
    "behind a middleware with slots": lambda: Slotted(authenticated(SERVER)),
    "a class derived from Starlette's": lambda: AuthenticationMiddlewareOfOurs(SERVER, backend=Header()),
    "noted down in an application": lambda: Starlette(middleware=NOTED),
    "built in an application": lambda: built(Starlette(middleware=NOTED)),
    "at the route": lambda: Starlette(routes=[Route("/mcp", authenticated(SERVER))]),
    "at a route below": lambda: Starlette(routes=[Route("/mcp/more", authenticated(SERVER))]),
    "at a route with parameters": lambda: Starlette(routes=[Route("/{name}", authenticated(SERVER))]),
    "in a mounted app": lambda: Starlette(routes=[Mount("/mcp", Starlette(middleware=NOTED))]),
    "in an app that is mounted at the root": lambda: Starlette(routes=[Mount("", Starlette(middleware=NOTED))]),
    "at a host": lambda: Starlette(routes=[Host("a.example", Starlette(middleware=NOTED))]),
    "in a mounted FastAPI with a prefix": lambda: Starlette(
        routes=[Mount("/v1", fastapi(prefix="/api", inner=authenticated(SERVER)))]
    ),
}

NOT_INSIDE: dict[str, Callable[[], object]] = {
    "a plain server": lambda: SERVER,
    "a plain FastAPI": lambda: built(fastapi(inner=SERVER)),
    "another route": lambda: Starlette(routes=[Route("/admin", authenticated(SERVER))]),
    "a router without an end": endless,
    "a middleware in front of itself": self_wrapped,
    "a property": Hostile,
    "no application": lambda: None,
}


@pytest.mark.parametrize("make", INSIDE.values(), ids=INSIDE)
def test_authentication_on_the_way_to_the_endpoint_is_found(make: Callable[[], object]) -> None:
    """Wherever it stands: noted down, built, in a route, a mount, a host or an included router."""
    assert authenticates(make(), "/mcp") or authenticates(make(), "/v1/api/mcp")
    assert authenticates(make(), None)


@pytest.mark.parametrize("make", NOT_INSIDE.values(), ids=NOT_INSIDE)
def test_authentication_elsewhere_is_not_ours(make: Callable[[], object]) -> None:
    """What cannot serve the endpoint does not matter; circles and strange objects end the walk, not the program."""
    assert not authenticates(make(), "/mcp")


def test_paths_are_taken_relative_to_the_mount() -> None:
    """Inside of a mount, the endpoint is what remains of its path."""
    app = Router([Mount("/v1", Router([Route("/v1/mcp", authenticated(SERVER))]))])
    assert [authenticates(app, path) for path in ("/v1/mcp", "/v1/v1/mcp")] == [False, True]


def noted(**options: Any) -> list[Middleware]:
    return [Middleware(MCPSessionMiddleware, keys=SECRET, **options)]


def added(path: str) -> Starlette:
    return add_sessions(Starlette(routes=[Route(path, SERVER, methods=["POST"])]), path=path, keys=SECRET)


REPEATED: dict[str, Callable[[], object]] = {
    "the wrapped app itself": lambda: sessions(SERVER),
    "for every path": lambda: sessions(SERVER, path=None),
    "noted down with its path": lambda: FastAPI(middleware=noted(path="/mcp/")),
    "at the route": lambda: added("/mcp"),
    "in an app that is mounted above": lambda: Starlette(routes=[Mount("/mcp", sessions(SERVER, path="/"))]),
}
NOT_REPEATED: dict[str, Callable[[], object]] = {
    "a plain server": lambda: SERVER,
    "of another path": lambda: sessions(SERVER, path="/other"),
    "noted down with another path": lambda: Starlette(middleware=noted(path="/other")),
    "at another route": lambda: added("/other"),
    "in another mount": lambda: Starlette(routes=[Mount("/other", sessions(SERVER))]),
    "in a mount whose path nobody knows": lambda: Starlette(routes=[Mount("/{tenant}", sessions(SERVER, path=None))]),
}


@pytest.mark.parametrize("make", REPEATED.values(), ids=REPEATED)
def test_another_middleware_of_ours_for_the_same_requests_is_found(make: Callable[[], object]) -> None:
    assert repeats(make(), "/mcp")
    assert repeats(make(), None)


@pytest.mark.parametrize("make", NOT_REPEATED.values(), ids=NOT_REPEATED)
def test_one_for_other_requests_is_none_of_our_business(make: Callable[[], object]) -> None:
    """And neither is one of which that cannot be told: what works must not stop."""
    assert not repeats(make(), "/mcp")


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


@pytest.mark.parametrize("by_the_start", [False, True])
async def test_routes_may_be_added_until_the_first_call(by_the_start: bool) -> None:
    """The application is looked at when it serves first, not when it is wrapped or started."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.router.routes.append(Route("/mcp", authenticated(SERVER)))
        yield

    inner = Starlette(lifespan=lifespan)
    app = sessions(inner)
    if by_the_start:
        assert (await started(app))["type"] == "lifespan.startup.complete"
    else:
        inner.router.routes.append(Route("/mcp", authenticated(SERVER)))
    with pytest.raises(ConfigurationError):
        await call(app, http())


async def test_with_a_principal_of_its_own_it_may_stand_anywhere() -> None:
    """`principal=` tells whose the session is, so nothing has to be seen on the scope."""
    app = sessions(authenticated(Server()), principal=user_of)
    client = Client(app)
    session = await client.create(by("ann"))
    assert "result" in (await client.tool("whoami", by("ann"), session=session)).json
    assert (await client.tool("whoami", by("bob"), session=session)).error["code"] == -32043


async def own_default(scope: Scope, receive: Receive, send: Send) -> None:
    """What a router does with a request that no route takes."""


MOUNTED = Mount("/api", Router([Route("/mcp", SERVER), Route("/health", SERVER, methods=["GET"])]))
OTHER = Route("/rpc", SERVER, methods=["POST"])

UNSERVED: dict[str, tuple[Callable[[], object], str]] = {
    "mounted": (lambda: Starlette(routes=[MOUNTED]), "/api/mcp"),
    "built": (lambda: built(Starlette(routes=[OTHER])), "/rpc"),
    "behind middleware": (lambda: CORSMiddleware(Starlette(routes=[OTHER], middleware=NOTED)), "/rpc"),
    "in a router with middleware": (lambda: Router([OTHER], middleware=NOTED), "/rpc"),
    "at a host": (lambda: Router([Host("a.example", Router([OTHER]))]), "/rpc"),
    "in a mount without an end": (lambda: endless("/other"), "none"),
    "many": (lambda: Router([Route(f"/{n}", SERVER) for n in range(9)]), "/0, /1, /2, /3, /4"),
}

MAY_BE_SERVED: dict[str, Callable[[], object]] = {
    **NOT_INSIDE,
    "a mount of another app": lambda: Router([OTHER, Mount("", SERVER)]),
    "a mounted function": lambda: Router([OTHER, Mount("/mcp", own_default)]),
    "an application without routes yet": Starlette,
    "a default of its own": lambda: Router([OTHER], default=own_default),
    "an included router": lambda: fastapi(prefix="/api", inner=SERVER),
}
for name in ("another route", "a router without an end"):
    del MAY_BE_SERVED[name]


@pytest.mark.parametrize(("make", "found"), UNSERVED.values(), ids=UNSERVED)
def test_a_path_that_no_route_serves_is_told_with_those_that_take_post(
    make: Callable[[], object], found: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_unserved(make(), "/mcp")
    log_unserved(make(), None)
    (told,) = caplog.messages
    assert "path='/mcp'" in told
    assert told.endswith(f"(routes that take POST: {found})")


@pytest.mark.parametrize("make", MAY_BE_SERVED.values(), ids=MAY_BE_SERVED)
def test_in_doubt_a_path_is_served(make: Callable[[], object], caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said of applications that cannot be looked into."""
    log_unserved(make(), "/mcp")
    assert caplog.messages == []


@pytest.mark.parametrize(("path", "lines"), [("/mcp", 1), ("/api/mcp", 0), (None, 0)])
async def test_the_start_logs_a_path_that_nothing_serves(
    path: str | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Once and with the remedy; the application starts, since a route may yet be added."""
    app = sessions(Starlette(routes=[MOUNTED]), path=path)
    assert (await started(app))["type"] == "lifespan.startup.complete"
    errors = [line.name for line in caplog.records if line.levelname == "ERROR"]
    assert errors == ["mcp_sessions"] * lines
    assert caplog.text.count("/api/mcp") == lines


SERVED = """
from starlette.applications import Starlette
from starlette.authentication import AuthenticationBackend
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from mcp_sessions import MCPSessionMiddleware

app = Starlette(middleware=[Middleware(AuthenticationMiddleware, backend=AuthenticationBackend())])
app.add_middleware(MCPSessionMiddleware, keys="a secret of the placement tests, at least 32 bytes")
"""


def test_uvicorn_ends_and_prints_the_remedy(tmp_path: Path) -> None:
    """An error in a constructor would be logged and served around; a failed start-up ends the process."""
    ended = start(tmp_path, SERVED, "app")
    assert ended.returncode == 3
    assert MISPLACED in ended.stdout
    assert "Application startup complete" not in ended.stdout

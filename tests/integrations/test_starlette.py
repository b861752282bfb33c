"""`add_sessions` finds the MCP endpoint of an application and puts the middleware there, inside of everything else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from apps import Seen, Server, grouped
from clients import SECRET, Answer, Client, Incoming, call, http
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi import Response as FastAPIResponse
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router
from starlette.types import ASGIApp, Message

from mcp_sessions import ConfigurationError, MCPSessionMiddleware, add_sessions
from mcp_sessions._server import placement
from mcp_sessions.stores.memory import MemoryStore


class StreamableHTTPASGIApp(Server):
    """A server under the name that the official SDK and FastMCP give theirs."""


class Header(AuthenticationBackend):
    """Everybody is who they say they are."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        return AuthCredentials(), SimpleUser(conn.headers["user"])


AUTHENTICATION = Middleware(AuthenticationMiddleware, backend=Header())
ANN = (b"user", b"ann")
BOB = (b"user", b"bob")


async def through(request: StarletteRequest) -> Response:
    """An MCP server in a function: whatever the small server answers."""
    answer = Answer()
    await Server()(request.scope, request.receive, answer)
    return Response(answer.body, answer.status, {"content-type": "application/json"})


async def method(request: StarletteRequest) -> Response:
    """The HTTP method, from a function."""
    return PlainTextResponse(request.method)


async def fastapi_through(request: Request) -> FastAPIResponse:
    """The same server behind FastAPI's own machinery."""
    return await through(request)


async def fastapi_method(request: Request) -> FastAPIResponse:
    """The HTTP method, behind FastAPI's own machinery."""
    return await method(request)


def starlette(*routes: Any) -> Starlette:
    """An application with the routes given."""
    return Starlette(routes=routes)


def fastapi_route() -> FastAPI:
    """FastAPI with a function for each HTTP method."""
    app = FastAPI()
    app.post("/mcp")(fastapi_through)
    app.get("/mcp")(fastapi_method)
    app.delete("/mcp")(fastapi_method)
    return app


def fastapi_router(*, depth: int = 1) -> FastAPI:
    """FastAPI with the functions in a router that is included, or in one that is included in that."""
    router = APIRouter()
    router.post("/mcp")(fastapi_through)
    router.get("/mcp")(fastapi_method)
    for _ in range(depth - 1):
        outer = APIRouter()
        outer.include_router(router, prefix="/more")
        router = outer
    app = FastAPI()
    app.include_router(router, prefix="/api")
    return app


def fastapi_included(*routes: Any) -> FastAPI:
    """FastAPI with an included router of plain routes."""
    app = FastAPI()
    app.include_router(APIRouter(routes=list(routes)), prefix="/api")
    return app


def served_before(app: FastAPI) -> FastAPI:
    """An application that FastAPI has already made its inner tables of."""
    app.openapi()
    for route in app.routes:
        getattr(route, "effective_candidates", list)()
    return app


Make = Callable[[], Any]

KNOWN: dict[str, tuple[Make, str]] = {
    "a route": (lambda: starlette(Route("/mcp", StreamableHTTPASGIApp())), "/mcp"),
    "a mount": (lambda: starlette(Mount("/mcp", StreamableHTTPASGIApp())), "/mcp/"),
    "a mounted application": (
        lambda: starlette(Mount("/api", starlette(Route("/mcp", StreamableHTTPASGIApp())))),
        "/api/mcp",
    ),
    "a host": (lambda: starlette(Host("a.example", Router([Route("/mcp", StreamableHTTPASGIApp())]))), "/mcp"),
    "a bare router": (lambda: Router([Route("/mcp", StreamableHTTPASGIApp())]), "/mcp"),
    "an application mounted in FastAPI": (
        lambda: fastapi_included(Mount("/v1", starlette(Route("/mcp", StreamableHTTPASGIApp())))),
        "/api/v1/mcp",
    ),
    "an included route": (lambda: fastapi_included(Route("/mcp", StreamableHTTPASGIApp())), "/api/mcp"),
    "an included mount": (lambda: fastapi_included(Mount("/mcp", StreamableHTTPASGIApp())), "/api/mcp/"),
    "an included mount that was served before": (
        lambda: served_before(fastapi_included(Mount("/mcp", StreamableHTTPASGIApp()))),
        "/api/mcp/",
    ),
}

NAMED: dict[str, tuple[Make, str]] = {
    "a route": (lambda: starlette(Route("/mcp", Server())), "/mcp"),
    "a function": (lambda: starlette(Route("/mcp", through, methods=["POST", "GET"])), "/mcp"),
    "a function for each method": (
        lambda: starlette(Route("/mcp", method, methods=["GET"]), Route("/mcp", through, methods=["POST"])),
        "/mcp",
    ),
    "a mounted application": (lambda: starlette(Mount("/mcp", Router([Route("/", Server())]))), "/mcp/"),
    "FastAPI's routes": (fastapi_route, "/mcp"),
    "FastAPI's included routes": (fastapi_router, "/api/mcp"),
    "FastAPI's included routes, served before": (lambda: served_before(fastapi_router()), "/api/mcp"),
    "FastAPI's routers in routers": (lambda: fastapi_router(depth=3), "/api/more/more/mcp"),
    "an included function": (lambda: fastapi_included(Route("/mcp", through, methods=["POST"])), "/api/mcp"),
    "an included function, served before": (
        lambda: served_before(fastapi_included(Route("/mcp", through, methods=["POST"]))),
        "/api/mcp",
    ),
}


async def lives_and_dies(app: ASGIApp, path: str) -> None:
    """A session is created, seen by the server, deleted, and refused."""
    client = Client(app, path=path, query_string=b"")
    created = await client.send("sessions/create", None, (b"host", b"a.example"))
    session = {"sessionId": created.result["session"]["sessionId"]}
    assert (await client.tool("whoami", (b"host", b"a.example"))).result["content"] == "nobody"
    assert (await client.tool("whoami", (b"host", b"a.example"), session=session)).session is not None
    assert (await client.send("sessions/delete", None, (b"host", b"a.example"), session=session)).result is not None
    assert (await client.tool("whoami", (b"host", b"a.example"), session=session)).error["code"] == -32043


@pytest.mark.parametrize(("make", "path"), KNOWN.values(), ids=KNOWN)
async def test_an_endpoint_known_by_its_class_is_found(make: Make, path: str) -> None:
    """Wherever it is mounted or included."""
    app = make()
    assert add_sessions(app, keys=SECRET) is app
    await lives_and_dies(app, path)


@pytest.mark.parametrize(("make", "path"), NAMED.values(), ids=NAMED)
async def test_any_endpoint_is_found_by_its_full_path(make: Make, path: str) -> None:
    """A function as well as an ASGI application; a trailing slash in `path=` makes no difference."""
    await lives_and_dies(add_sessions(make(), path=path.rstrip("/") + "/", keys=SECRET), path)


@pytest.mark.parametrize("make", [fastapi_route, fastapi_router], ids=["routes", "included routes"])
async def test_other_methods_of_a_function_pass(make: Callable[[], FastAPI]) -> None:
    """GET and DELETE reach the functions that the application has for them."""
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

    app.post("/mcp", dependencies=[Depends(nobody)])(fastapi_through)
    add_sessions(app, path="/mcp", keys=SECRET)
    assert (await Client(app, query_string=b"").send("sessions/create")).status == 403


async def test_it_stands_inside_of_the_authentication() -> None:
    """The session of one user is no session for another."""
    app = Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp())], middleware=[AUTHENTICATION])
    client = Client(add_sessions(app, keys=SECRET))
    created = await client.send("sessions/create", None, ANN)
    session = {"sessionId": created.result["session"]["sessionId"]}
    assert "result" in (await client.tool("whoami", ANN, session=session)).json
    assert (await client.tool("whoami", BOB, session=session)).error["code"] == -32043


async def test_inside_of_a_route_every_post_is_mcp() -> None:
    """What is no message is refused there, and not forwarded in the hope that it is something else."""
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
    await lives_and_dies(app, "/sub/mcp")
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


async def test_an_application_mounted_twice_gets_it_once() -> None:
    """The same inner application is reached on two ways and changed one time."""
    inner = starlette(Route("/mcp", StreamableHTTPASGIApp()))
    app = add_sessions(starlette(Mount("/a", inner), Mount("/b", inner)), keys=SECRET)
    await lives_and_dies(app, "/a/mcp")
    await lives_and_dies(app, "/b/mcp")


# --- refused -------------------------------------------------------------------------------------

TWO = [Route("/a/mcp", StreamableHTTPASGIApp()), Route("/b/mcp", StreamableHTTPASGIApp())]

REFUSED: dict[str, tuple[Make, dict[str, Any], str]] = {
    "no routes": (Server, {}, r"Server has none; wrap the application instead: MCPSessionMiddleware\(app"),
    "no endpoint": (lambda: starlette(Route("/mcp", Server())), {}, r"path='/mcp'.* wrap the application"),
    "several endpoints": (
        lambda: starlette(*TWO),
        {},
        r"several MCP endpoints \(/a/mcp, /b/mcp\); say which with path=",
    ),
    "no such path": (
        lambda: starlette(Route("/mcp", Server()), Route("/", Server())),
        {"path": "/mpc"},
        r"path='/mpc' \(those that do: /, /mcp\)",
    ),
    "no route at all": (starlette, {"path": "/mcp"}, r"those that do: none"),
    "no POST at the path": (
        lambda: starlette(Route("/mcp", method, methods=["GET"])),
        {"path": "/mcp"},
        r"no route takes POST",
    ),
    "a relative path": (lambda: starlette(*TWO), {"path": "mcp"}, r"must begin with '/'"),
    "several routers at the path": (
        lambda: starlette(
            Host("a.example", Router([Route("/mcp", Server())])), Host("b.example", Router([Route("/mcp", Server())]))
        ),
        {"path": "/mcp"},
        r"several routers serve path='/mcp'",
    ),
    "sessions at the route": (
        lambda: add_sessions(starlette(Route("/mcp", StreamableHTTPASGIApp())), keys=SECRET),
        {},
        r"/mcp has sessions already",
    ),
    "sessions at the root": (
        lambda: add_sessions(starlette(Route("/", StreamableHTTPASGIApp())), keys=SECRET),
        {},
        r"/ has sessions already",
    ),
    "sessions at FastAPI's included route": (
        lambda: add_sessions(fastapi_router(), path="/api/mcp", keys=SECRET),
        {"path": "/api/mcp"},
        r"has sessions already",
    ),
    "sessions at an included function": (
        lambda: add_sessions(fastapi_included(Route("/mcp", through, methods=["POST"])), path="/api/mcp", keys=SECRET),
        {"path": "/api/mcp"},
        r"has sessions already",
    ),
    "sessions around the application": (
        lambda: MCPSessionMiddleware(starlette(Route("/mcp", StreamableHTTPASGIApp())), keys=SECRET),
        {},
        r"has sessions already",
    ),
    "a wrong option": (
        lambda: starlette(Route("/mcp", StreamableHTTPASGIApp())),
        {"lifetime": 0},
        r"lifetime=0 must be",
    ),
    "a mounted application that authenticates inside": (
        lambda: starlette(Mount("/sub", Starlette(routes=TWO, middleware=[AUTHENTICATION]))),
        {"path": "/sub"},
        r"/sub authenticates its callers inside; give path= the full path",
    ),
}


@pytest.mark.parametrize(("make", "options", "remedy"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_placed_is_an_error_with_the_remedy(make: Make, options: dict[str, Any], remedy: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ConfigurationError, match=remedy):
        add_sessions(make(), **grouped(**{"keys": SECRET, **options}))


async def test_one_of_several_endpoints_is_named_by_its_path() -> None:
    """The others are left alone, and may get sessions of their own."""
    server = StreamableHTTPASGIApp()
    app = starlette(Route("/a/mcp", StreamableHTTPASGIApp()), Route("/b/mcp", server))
    add_sessions(app, path="/a/mcp", keys=SECRET)
    client = Client(app, path="/b/mcp")
    assert (await client.send("sessions/create")).error["code"] == -32601
    assert isinstance(server.last, Seen)
    await lives_and_dies(add_sessions(app, path="/b/mcp", keys=SECRET), "/b/mcp")


# --- several workers -----------------------------------------------------------------------------


async def started(app: ASGIApp) -> Message:
    """What an application answers to the server's start-up event, or to the one for its end after that."""
    said = Answer()
    incoming = Incoming({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    with suppress(ConfigurationError):  # Starlette tells the server, and raises
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, incoming, said)
    return said.messages[0]


SHELLS: dict[str, Callable[[Route], Any]] = {
    "Starlette": starlette,
    "FastAPI": lambda route: FastAPI(routes=[route]),
    "a bare router": lambda route: Router([route]),
    "behind a middleware": lambda route: CORSMiddleware(starlette(route)),
}


@pytest.mark.parametrize("make", SHELLS.values(), ids=SHELLS)
async def test_random_keys_with_several_workers_refuse_to_start(
    make: Callable[[Route], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application's own start-up fails, and without one every request does."""
    monkeypatch.setattr(placement, "workers", lambda argv, environ: 2)
    app = add_sessions(make(Route("/mcp", StreamableHTTPASGIApp())))
    message = await started(app)
    assert message["type"] == "lifespan.startup.failed"
    assert "2 worker processes" in message["message"]
    with pytest.raises(ConfigurationError, match="2 worker processes"):
        await call(app, http())


async def test_shared_keys_with_several_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the workers share is as good as with one of them."""
    monkeypatch.setattr(placement, "workers", lambda argv, environ: 2)
    app = add_sessions(starlette(Route("/mcp", StreamableHTTPASGIApp())), keys=SECRET)
    assert (await started(app))["type"] == "lifespan.startup.complete"


# --- start and stop ------------------------------------------------------------------------------


class Store(MemoryStore):
    """Notes when it is opened, looked into and closed.

    Args:
        trouble: Raised when it is opened.
    """

    def __init__(self, trouble: Exception | None = None) -> None:
        super().__init__()
        self.steps: list[str] = []
        self._trouble = trouble
        self.swept = anyio.Event()

    async def open(self) -> None:
        self.steps.append("open")
        if self._trouble is not None:
            raise self._trouble

    async def close(self) -> None:
        self.steps.append("close")

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        self.swept.set()
        return True


@pytest.mark.parametrize("make", SHELLS.values(), ids=SHELLS)
async def test_the_store_lives_as_long_as_the_application(
    make: Callable[[Route], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is open before the first request, what is tracked is swept without one, and at the end the store is closed."""
    store = Store()
    monkeypatch.setattr("mcp_sessions._server.runtime.stores.make", lambda given, **options: store)
    app = add_sessions(make(Route("/mcp", StreamableHTTPASGIApp())), keys=SECRET, tracked=True)
    said, incoming = Answer(), Incoming({"type": "lifespan.startup"})

    async def receive() -> Message:
        if incoming.messages:
            return await incoming()
        await store.swept.wait()
        assert store.steps == ["open"]
        return {"type": "lifespan.shutdown"}

    with anyio.fail_after(5):
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, said)
    assert [message["type"] for message in said.messages] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert store.steps == ["open", "close"]


async def test_a_store_that_is_set_up_wrongly_stops_the_start() -> None:
    """The server says what to do, and does not serve."""
    store = Store(ConfigurationError("use appendonly"))
    message = await started(add_sessions(starlette(Route("/mcp", StreamableHTTPASGIApp())), keys=SECRET, store=store))
    assert message["type"] == "lifespan.startup.failed"
    assert "use appendonly" in message["message"]


async def test_a_mounted_application_that_is_started_with_the_outer_one_starts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an MCP server in FastAPI, whose lifespan is handed on; and once where it is mounted at two places."""
    store = Store()
    monkeypatch.setattr("mcp_sessions._server.runtime.stores.make", lambda given, **options: store)
    inner = add_sessions(starlette(Route("/mcp", StreamableHTTPASGIApp())), keys=SECRET)
    async with FastAPI(lifespan=inner.router.lifespan_context).router.lifespan_context(inner):
        async with inner.router.lifespan_context(inner):
            """The other place."""
        assert "close" not in store.steps
    assert store.steps.count("close") == 1

"""Paths: whatever the wrapped application would route to the endpoint is judged, in every spelling.

Each application is called twice with the same odd paths, bare and through the middleware. Where the bare one runs the
tool, a policy must have refused it; no path is expected to be read in one way or another.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest
from apps import read, reply, sessions
from clients import Answer, Incoming, call, http
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Host, Match, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from integration.servers import FRAMEWORKS, Cell, http_app, server_class
from integration.wire import lifespan

PATHS, REAL = 10_000, 100  # over all applications, and for each real server, which takes longer
SEED = 16


@pytest.fixture
def anyio_backend() -> str:
    """Once is enough: the order of events does not matter here."""
    return "asyncio"


PIECES = ["\n", "\r", "\r\n", "/", "//", "/.", "/..", "%0a", "%2F", ";", ";a", " ", "\t", "\x00", "\x0b", "\x85",
          "\u2028", "?", "#", "\u212a", "a", "mcp", "MCP", "/mcp", "/api", "/x", "9" * 5000]  # fmt: skip
STEMS = [
    "",
    "/",
    "/mcp",
    "/mcp",
    "/mcp",
    "/mcp/",
    "/api/mcp",
    "/v1/mcp",
    "/MCP",
    "/mcp/mcp",
    "/acme/mcp",
    "//mcp",
    "/7",
]
CALL = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "buy", "arguments": {}}})
HEADERS = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
ROOTS = ["", "", "", "/api", "/api/", "/", "/mcp"]


def post(path: str, root: str = "", method: str = "POST", **more: Any) -> Scope:
    served = {"query_string": b"", "scheme": "http", "server": ("127.0.0.1", 8000), "http_version": "1.1"}
    headers = [(b"host", b"127.0.0.1:8000"), *HEADERS, *more.pop("headers", [])]
    scope: Scope = http(method, path, headers, root_path=root, **served, **more)
    return scope


class Shop:
    """An MCP server of one tool that counts how often it runs; `handle` is the same in a framework's form."""

    def __init__(self) -> None:
        self.sold = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await Router().lifespan(scope, receive, send)
            return
        answered = await self.answer(await read(receive))
        await reply(send, json.dumps(answered).encode())

    async def handle(self, request: Request) -> Response:
        return JSONResponse(await self.answer(await request.body()))

    async def answer(self, body: bytes) -> object:
        asked = json.loads(body)
        result = {} if asked["method"] == "ping" else {"content": [{"type": "text", "text": await self.buy()}]}
        return {"jsonrpc": "2.0", "id": asked["id"], "result": result}

    async def buy(self) -> str:
        """The tool."""
        self.sold += 1
        return "sold"


def post_route(shop: Shop, path: str = "/mcp") -> Route:
    return Route(path, shop.handle, methods=["POST"])


def included(shop: Shop, prefix: str = "", **options: Any) -> FastAPI:
    """FastAPI with a router in a router, and in the latter the endpoint."""
    inner, outer, app = APIRouter(), APIRouter(), FastAPI(**options)
    inner.add_api_route("/mcp", shop.handle, methods=["POST"], response_model=None)
    inner.add_api_route("/{other}/x", shop.handle, methods=["GET"], response_model=None)
    outer.include_router(inner)
    app.include_router(outer, prefix=prefix)
    return app


def fastapi(shop: Shop, **options: Any) -> FastAPI:
    app = FastAPI(**options)
    app.add_api_route("/mcp", shop.handle, methods=["POST"], response_model=None)
    return app


def behind_dispatch(shop: Shop) -> FastAPI:
    """A function in front of the routes, which might rewrite the path, and here does."""
    app = fastapi(shop)

    @app.middleware("http")
    async def rewrite(request: Request, call_next: Any) -> Response:
        request.scope["path"] = request.scope["path"].lower().replace("/x", "")
        response: Response = await call_next(request)
        return response

    return app


def framework(name: str, shop: Shop, **options: Any) -> ASGIApp:
    """A real server, whose tool is the shop's."""
    mcp = server_class(name)("s")
    mcp.tool()(shop.buy)
    app: ASGIApp = http_app(mcp, Cell(name, modern=False, stateful=False, json=True), **options)
    return app


def mounting(app: Any, *routes: BaseRoute, path: str = "/") -> Starlette:
    """A Starlette application that has another inside, and runs its lifespan."""

    @asynccontextmanager
    async def inner(_: Starlette) -> AsyncIterator[None]:
        async with lifespan(app):
            yield

    return Starlette(routes=[*routes, Mount(path, app)], lifespan=inner)


class Slashed:
    """An application of a router of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope, "path": "/mcp"}, receive, send)


class Odd(BaseRoute):
    """A route of an application's own kind."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["path"] != "/elsewhere" else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


NOTED = [Middleware(CORSMiddleware), Middleware(GZipMiddleware)]
SDK, FASTMCP = FRAMEWORKS
APPS: dict[str, tuple[str, Callable[[Shop], Any]]] = {
    "no router": ("/mcp", lambda shop: shop),
    "no router of ours": ("/mcp", Slashed),
    "a mount at the root": ("/mcp", lambda shop: Starlette(routes=[Mount("/", shop)])),
    "a mount at the endpoint": ("/mcp", lambda shop: Starlette(routes=[Mount("/mcp", shop)])),
    "a route": ("/mcp", lambda shop: Starlette(routes=[post_route(shop)], middleware=NOTED)),
    "a route of an object": ("/mcp", lambda shop: Router([Route("/mcp", shop)], middleware=NOTED)),
    "a route with a parameter": ("/acme/mcp", lambda shop: Router([Route("/{tenant}/mcp", shop)])),
    "a number that is too long": ("/7/mcp", lambda shop: Router([Mount("/{n:int}", Router([Route("/mcp", shop)]))])),
    "two routes": ("/mcp", lambda shop: Router([Route("/mcp", shop), Route("/api{rest:path}", shop)])),
    "a route in a mount": ("/v1/mcp", lambda shop: Router([Mount("/v1", Router([post_route(shop)]))])),
    "a host": ("/mcp", lambda shop: Router([Host("127.0.0.1", Router([post_route(shop)]))])),
    "a default": ("/mcp", lambda shop: Router([Route("/x", shop, methods=["GET"])], default=shop)),
    "a route of its own kind": ("/mcp", lambda shop: Router([Odd(shop)])),
    "FastAPI": ("/mcp", fastapi),
    "FastAPI under its own root": ("/mcp", partial(fastapi, root_path="/api")),
    "FastAPI under its own root, by the whole path": ("/api/mcp", partial(fastapi, root_path="/api")),
    "FastAPI with a router": ("/v1/mcp", partial(included, prefix="/v1")),
    "FastAPI with a router and a root": ("/mcp", partial(included, root_path="/api")),
    "FastAPI with a function in front": ("/mcp", behind_dispatch),
}
SERVERS: dict[str, tuple[str, Callable[[Shop], Any]]] = {
    "the SDK": ("/mcp", partial(framework, SDK)),
    "the SDK, mounted": ("/v1/mcp", lambda shop: mounting(framework(SDK, shop), path="/v1")),
    "FastMCP": ("/mcp", partial(framework, FASTMCP)),
    "FastMCP, mounted": ("/mcp/mcp", lambda shop: mounting(framework(FASTMCP, shop), path="/mcp")),
}


def odd(random: Random, stems: list[str]) -> str:
    """A path that is nearly one that is served."""
    path = random.choice(stems)
    for _ in range(random.choice((0, 1, 1, 1, 1, 2, 3))):
        at = random.choice((0, len(path), len(path), len(path), random.randrange(len(path) + 1)))
        path = path[:at] + random.choice(PIECES) + path[at:]
    return path if random.random() < 0.9 else path.swapcase()


def spellings(random: Random, endpoint: str, number: int) -> Iterator[tuple[str, str]]:
    """Paths with the `root_path` outside, the plain ones first."""
    yield from [(endpoint, ""), (endpoint + "/", ""), (endpoint + "\n", "")]
    for _ in range(number - 3):
        yield odd(random, [*STEMS, *[endpoint] * len(STEMS)]), random.choice(ROOTS)


async def sells(app: ASGIApp, shop: Shop, scope: Scope) -> bool:
    """Whether a call of the tool that names no session runs it."""
    before = shop.sold
    try:
        await call(app, scope, CALL.encode())
    except (ValueError, RecursionError):  # a number that is too long, in the router
        return False
    return shop.sold > before


@pytest.mark.filterwarnings("ignore:The `root_path` parameter is deprecated")
@pytest.mark.parametrize("name", [*APPS, *SERVERS])
async def test_no_path_reaches_the_endpoint_unjudged(name: str) -> None:
    """Where the bare application runs the tool, the policy has refused it."""
    shop, random, (endpoint, make) = Shop(), Random(f"{SEED}{name}"), {**APPS, **SERVERS}[name]
    paths = REAL if name in SERVERS else (PATHS - REAL * len(SERVERS)) // len(APPS) + 1
    bare = make(shop)
    guarded = sessions(bare, path=endpoint, require={"tools/call"}, admission="own", principal=lambda _: None)
    reached = set[str]()
    with anyio.fail_after(60):
        async with lifespan(guarded):
            for path, root in spellings(random, endpoint, paths):
                if await sells(bare, shop, post(path, root)):
                    reached.add(path)
                    assert not await sells(guarded, shop, post(path, root)), (path, root)
    assert reached.intersection({endpoint, endpoint + "/"})


class Kept:
    """An application that keeps the very scopes that it was called with."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)


def beside(kept: Kept) -> Starlette:
    """The endpoint, and others."""
    others = [Route("/other", kept, methods=["POST", "GET"]), Route("/all/{path:path}", kept), Mount("/files", kept)]
    return Starlette(routes=[post_route(Shop()), *others])


@pytest.mark.parametrize("path", ["/other", "/other\n", "/all/mcp", "/files/mcp", "/files/mcp\n"])
@pytest.mark.parametrize("require", ["never", "always"])
async def test_what_a_router_leads_elsewhere_passes_unread(path: str, require: Any) -> None:
    """Also where everything needs a session: the router's own patterns show that no server is reached."""
    kept = Kept()
    await sessions(beside(kept), require=require)(scope := post(path), Incoming(), Answer())
    assert kept.scopes[0]["headers"] is scope["headers"]


@pytest.mark.parametrize("path", ["/", "//mcp", "/MCP", "/mcp\n", "/x/mcp"])
async def test_where_nothing_depends_on_it_an_application_without_routes_is_left_alone(path: str) -> None:
    """A policy or the bridge makes the difference; below the endpoint every JSON message is judged in any case."""
    kept, shop = Kept(), Shop()
    await sessions(kept)(scope := post(path), Incoming(), Answer())
    assert kept.scopes == [scope]
    answer = await call(sessions(shop, require="always"), post(path), CALL.encode())
    assert answer.error["code"] == -31044


@pytest.mark.parametrize("header", [b"mcp-session-id", b"last-event-id"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_streams_and_sessions_are_found_by_the_same_paths(header: bytes, method: str) -> None:
    """Two session ids are refused where the server would hear them; without a header there is nothing to judge."""
    kept = Kept()
    app = sessions(Router([Route("/mcp", kept)]), admission="own")
    twice = [(b"mcp-session-id", b"a"), (b"mcp-session-id", b"b"), (header, b"c")]
    assert (await call(app, post("/mcp\n", method=method, headers=twice))).status == 400
    await app(post("/mcp\n", method=method), Incoming(), Answer())
    assert len(kept.scopes) == 1

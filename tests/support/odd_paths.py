"""Odd paths, and applications that have the endpoint at one: none may run the tool unjudged."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from clients import Answer, Incoming, chunks, http
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Host, Match, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_sessions import MCPSessionMiddleware

PIECES = ["\n", "\r", "\r\n", "/", "//", "/.", "/..", "%0a", "%2F", ";", ";a", " ", "\t", "\x00", "\x0b", "\x85",
          "\u2028", "?", "#", "\u212a", "a", "mcp", "MCP", "/mcp", "/api", "/x", "9" * 5000]  # fmt: skip
STEMS = ["", *"/ /mcp /mcp /mcp /mcp/ /api/mcp /v1/mcp /MCP /mcp/mcp /acme/mcp //mcp /7".split()]
CALL = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "buy", "arguments": {}}})
HEADERS = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
ROOTS = ["", "", "", "/api", "/api/", "/", "/mcp"]


def post(path: str, root: str = "", method: str = "POST", **more: Any) -> Scope:
    served = {"query_string": b"", "scheme": "http", "server": ("127.0.0.1", 8000), "http_version": "1.1"}
    headers = [(b"host", b"127.0.0.1:8000"), *HEADERS, *more.pop("headers", [])]
    return http(method, path, headers, root_path=root, **served, **more)


class Shop:
    """An MCP server of one tool that counts how often it runs; `handle` is the same in a framework's form."""

    def __init__(self) -> None:
        self.sold = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await Router().lifespan(scope, receive, send)
            return
        response = await self.handle(Request(scope, receive))
        await response(scope, receive, send)

    async def handle(self, request: Request) -> Response:
        asked = json.loads(await request.body())
        result = {} if asked["method"] == "ping" else {"content": [{"type": "text", "text": await self.buy()}]}
        return JSONResponse({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    async def buy(self) -> str:
        """The tool."""
        self.sold += 1
        return "sold"


def post_route(shop: Shop) -> Route:
    return Route("/mcp", shop.handle, methods=["POST"])


def fastapi(shop: Shop, **options: Any) -> FastAPI:
    app = FastAPI(**options)
    app.add_api_route("/mcp", shop.handle, methods=["POST"], response_model=None)
    return app


def included(shop: Shop, prefix: str) -> FastAPI:
    """FastAPI with a router in a router, and in the latter the endpoint."""
    inner, outer, app = APIRouter(), APIRouter(), FastAPI()
    inner.add_api_route("/mcp", shop.handle, methods=["POST"], response_model=None)
    inner.add_api_route("/{other}/x", shop.handle, methods=["GET"], response_model=None)
    outer.include_router(inner)
    app.include_router(outer, prefix=prefix)
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


class Odd(BaseRoute):
    """A route of an application's own kind."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["path"] != "/elsewhere" else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


NOTED = [Middleware(CORSMiddleware), Middleware(GZipMiddleware)]
APPS: dict[str, tuple[str, Callable[[Shop], Any]]] = {
    "no router": ("/mcp", lambda shop: shop),
    "a mount at the root": ("/mcp", lambda shop: Starlette(routes=[Mount("/", shop)])),
    "a mount at the endpoint": ("/mcp", lambda shop: Starlette(routes=[Mount("/mcp", shop)])),
    "a route": ("/mcp", lambda shop: Starlette(routes=[post_route(shop)], middleware=NOTED)),
    "a route with a parameter": ("/acme/mcp", lambda shop: Router([Route("/{tenant}/mcp", shop)])),
    "a number that is too long": ("/7/mcp", lambda shop: Router([Mount("/{n:int}", Router([Route("/mcp", shop)]))])),
    "two routes": (
        "/mcp",
        lambda shop: Router([Route("/mcp", shop), Route("/api{rest:path}", shop)], middleware=NOTED),
    ),
    "a host": ("/mcp", lambda shop: Router([Host("127.0.0.1", Router([post_route(shop)]))])),
    "a default": ("/mcp", lambda shop: Router([Route("/x", shop, methods=["GET"])], default=shop)),
    "a route of its own kind": ("/mcp", lambda shop: Router([Odd(shop)])),
    "FastAPI under its own root": ("/mcp", partial(fastapi, root_path="/api")),
    "FastAPI under its own root, by the whole path": ("/api/mcp", partial(fastapi, root_path="/api")),
    "FastAPI with a router": ("/v1/mcp", partial(included, prefix="/v1")),
    "FastAPI with a function in front": ("/mcp", behind_dispatch),
}


def odd(random: Random, stems: list[str]) -> str:
    """A path that is nearly one that is served."""
    path = random.choice(stems)
    for _ in range(random.choice((0, 1, 1, 1, 1, 2, 3))):
        at = random.choice((0, len(path), len(path), len(path), random.randrange(len(path) + 1)))
        path = path[:at] + random.choice(PIECES) + path[at:]
    return path if random.random() < 0.9 else path.swapcase()


async def sells(app: ASGIApp, shop: Shop, scope: Scope) -> bool:
    """Whether a call of the tool that names no session runs it."""
    before = shop.sold
    with suppress(ValueError, RecursionError):  # a number that is too long, in the router
        await app(scope, Incoming(*chunks(CALL.encode())), Answer())
    return shop.sold > before


def guard(app: ASGIApp, endpoint: str) -> ASGIApp:
    """The middleware, with a policy on the tool."""
    secret = "a secret of the trials, at least 32 bytes long"
    options: dict[str, Any] = {"require": {"tools/call"}, "admission": "own", "principal": lambda _: None}
    return MCPSessionMiddleware(app, keys=secret, path=endpoint, **options)


async def judge(bare: ASGIApp, guarded: ASGIApp, shop: Shop, path: str, root: str) -> bool:
    """Whether the bare application runs the tool at a path, whose call the policy then has to refuse."""
    if not await sells(bare, shop, post(path, root)):
        return False
    assert not await sells(guarded, shop, post(path, root)), f"{path!r} under {root!r} reaches the endpoint unjudged"
    return True

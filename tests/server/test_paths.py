"""Paths: whatever the wrapped application would route to the endpoint is judged, in every spelling.

Each application is called twice with the same odd paths, bare and through the middleware. Where the bare one runs the
tool, a policy must have refused it; no path is expected to be read in one way or another.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest
from apps import read, sessions
from clients import Answer, Incoming, call, chunks, http, lifespan
from fastapi import FastAPI
from hypothesis import settings
from odd_paths import APPS, CALL, ROOTS, STEMS, Shop, guard, judge, odd, post, post_route
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Mount, Route, Router
from starlette.types import Receive, Scope, Send

from integration.servers import FRAMEWORKS, Cell, http_app, server_class
from mcp_sessions._server.routing import Routing

PATHS, REAL = 40 * settings().max_examples, 50  # over all applications, and for each real server


@pytest.fixture
def anyio_backend() -> str:
    """Once is enough: the order of events does not matter here."""
    return "asyncio"


def framework(name: str, shop: Shop) -> Any:
    mcp = server_class(name)("s")
    mcp.tool()(shop.buy)
    return http_app(mcp, Cell(name, modern=False, stateful=False, json=True))


def mounted(name: str, path: str, shop: Shop) -> Starlette:
    """A Starlette application that has a framework's inside, and runs its lifespan."""
    app = framework(name, shop)

    @asynccontextmanager
    async def inner(_: Starlette) -> AsyncIterator[None]:
        async with lifespan(app):
            yield

    return Starlette(routes=[Mount(path, app)], lifespan=inner)


SDK, FASTMCP = FRAMEWORKS
SERVERS: dict[str, tuple[str, Callable[[Shop], Any]]] = {
    "the SDK": ("/mcp", partial(framework, SDK)),
    "the SDK, mounted": ("/v1/mcp", partial(mounted, SDK, "/v1")),
    "FastMCP": ("/mcp", partial(framework, FASTMCP)),
    "FastMCP, mounted": ("/mcp/mcp", partial(mounted, FASTMCP, "/mcp")),
}


def spellings(random: Random, endpoint: str, number: int) -> Iterator[tuple[str, str]]:
    """Paths with the `root_path` outside, the plain ones first."""
    yield from [(endpoint, ""), (endpoint + "/", ""), (endpoint + "\n", "")]
    for _ in range(number - 3):
        yield odd(random, [*STEMS, *[endpoint] * len(STEMS)]), random.choice(ROOTS)


@pytest.mark.filterwarnings("ignore:The `root_path` parameter is deprecated")
@pytest.mark.parametrize("name", [*APPS, *SERVERS])
async def test_no_path_reaches_the_endpoint_unjudged(name: str) -> None:
    """Where the bare application runs the tool, the policy has refused it."""
    random = Random(f"16{name}" if settings().derandomize else None)
    shop, (endpoint, make) = Shop(), {**APPS, **SERVERS}[name]
    paths = REAL if name in SERVERS else (PATHS - REAL * len(SERVERS)) // len(APPS) + 1
    bare = make(shop)
    guarded = guard(bare, endpoint)
    with anyio.fail_after(60):
        async with lifespan(guarded):
            spelt = list(spellings(random, endpoint, paths))
            reached = {path for path, root in spelt if await judge(bare, guarded, shop, path, root)}
    assert reached.intersection({endpoint, endpoint + "/"})


class Kept:
    """An application that keeps the very scopes that it was called with."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)


@pytest.mark.parametrize("path", ["/other", "/other\n", "/all/mcp", "/files/mcp", "/files/mcp\n"])
@pytest.mark.parametrize("require", ["never", "always"])
async def test_what_a_router_leads_elsewhere_passes_unread(path: str, require: Any) -> None:
    """Also where everything needs a session: the router's own patterns show that no server is reached."""
    kept = Kept()
    others = [Route("/other", kept, methods=["POST", "GET"]), Route("/all/{path:path}", kept), Mount("/files", kept)]
    app = sessions(Starlette(routes=[post_route(Shop()), *others]), require=require)
    await app(scope := post(path), Incoming(), Answer())
    assert kept.scopes[0]["headers"] is scope["headers"]


@pytest.mark.parametrize("path", ["/", "//mcp", "/MCP", "/mcp\n", "/x/mcp"])
async def test_where_nothing_depends_on_it_an_application_without_routes_is_left_alone(path: str) -> None:
    """A policy or the bridge makes the difference; below the endpoint every JSON message is judged in any case."""
    kept, shop = Kept(), Shop()
    await sessions(kept)(scope := post(path), Incoming(), Answer())
    assert kept.scopes == [scope]
    answer = await call(sessions(shop, require="always"), post(path), CALL.encode())
    assert answer.error["code"] == -31044


ENCODED = {
    **{coding: CALL.encode(coding) for coding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be")},
    "with blanks": b" \r\n\t" + CALL.encode(),
    "in a batch": f"[{CALL}]".encode(),
}


@pytest.mark.parametrize("path", ["/mcp/x", "/anything"])
@pytest.mark.parametrize("headers", [[], [(b"content-type", b"text/plain")]], ids=["no type", "another type"])
@pytest.mark.parametrize("body", ENCODED.values(), ids=ENCODED)
async def test_a_policy_judges_every_body_that_begins_as_json_does(body: bytes, headers: Any, path: str) -> None:
    """An application that cannot be looked into need not ask for the content type, or for a path."""
    app, scope = sessions(shop := Shop(), require="always"), http(path=path, headers=headers)
    for pieces in ([body], [b"", body[:1], body[1:]]):
        assert (await call(app, scope, Incoming(*chunks(*pieces)))).error["code"] in {-31044, -32600, -32700}
    assert shop.sold == 0


@pytest.mark.parametrize("pieces", [[b""], [b"grant_type=x"], [b"", b"grant_type", b"=x"]])
async def test_what_begins_otherwise_passes_as_it_comes(pieces: list[bytes]) -> None:
    """An OAuth form, or a large file: neither held back nor limited."""
    received: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        received.append(await read(receive))

    scope = http(path="/token", headers=[(b"content-type", b"text/plain")])
    await sessions(app, require="always", max_body_bytes=5)(scope, Incoming(*chunks(*pieces)), Answer())
    assert received == [b"".join(pieces)]


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


class Broken(Route):
    """A route that cannot say what it matches."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["path"] == self.path:
            raise LookupError
        return Match.NONE, {}


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that cannot be looked into."""


async def answer(request: Request) -> Response:
    return Response()  # pragma: no cover


@pytest.mark.parametrize(
    ("routes", "path", "guarded", "free"),
    [
        ([Broken("/x", answer)], "/x", "possible", "elsewhere"),
        ([Broken("/mcp", answer), Route("/y", answer, methods=["POST"])], "/y", "elsewhere", "elsewhere"),
        ([Route("/mcp", answer, methods=["POST"])], "/other", "elsewhere", "elsewhere"),
        ([Route("/mcp", answer, methods=["GET"])], "/mcp\n", "endpoint", "endpoint"),
        ([Route("/mcp/x", answer, methods=["POST"])], "/mcp/x\n", "possible", "possible"),
        ([Mount("/mcp", serve)], "/mcp//", "endpoint", "endpoint"),
        # FastAPI serves below its root path, too
        *(([route], "/api/mcp/x", "possible", "possible") for route in (Route("/mcp/x", answer), Mount("/mcp", serve))),
    ],
)
def test_where_a_request_is_follows_the_routes(routes: list[Any], path: str, guarded: str, free: str) -> None:
    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "headers": []}
    app: Any = (FastAPI if path.startswith("/api") else Starlette)(routes=routes)
    app.root_path = "/api"
    assert Routing(app, "/mcp", in_doubt="possible").place(scope) == guarded
    assert Routing(app, "/mcp", in_doubt="elsewhere").place(scope) == free
    assert Routing(app, "/mcp", in_doubt="possible").place({**scope, "path": "/x", "method": "GET"}) == "elsewhere"

"""Paths: whatever the wrapped application would route to the endpoint is judged, in every spelling.

Each application is called twice with the same odd paths, bare and through the middleware. Where the bare one runs the
tool, a policy must have refused it; no path is expected to be read in one way or another.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest
from apps import Server, read, sessions
from clients import Answer, Client, Incoming, call, chunks, http, lifespan
from fastapi import APIRouter, FastAPI
from hypothesis import settings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Host, Match, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from stateful import Stateful

from mcp_sessions._server.routing import Routing

PATHS = 40 * settings().max_examples  # over all applications
PIECES = ["\n", "\r", "/", "//", "/.", "/..", "%2F", ";a", " ", "\x00", "\x85", "\u2028", "?", "#", "\u212a", "a",
          "MCP", "/mcp", "/api", "/x", "9" * 5000]  # fmt: skip
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


def odd(random: Random, endpoint: str) -> tuple[str, str]:
    """A path that is nearly one that is served, and the `root_path` outside."""
    path = random.choice([*STEMS, *[endpoint] * len(STEMS)])
    for _ in range(random.choice((0, 1, 1, 1, 1, 2, 3))):
        at = random.choice((0, len(path), len(path), len(path), random.randrange(len(path) + 1)))
        path = path[:at] + random.choice(PIECES) + path[at:]
    return path if random.random() < 0.9 else path.swapcase(), random.choice(ROOTS)


async def sells(app: ASGIApp, shop: Shop, scope: Scope) -> bool:
    """Whether a call of the tool that names no session runs it."""
    before = shop.sold
    with suppress(ValueError, RecursionError):  # a number that is too long, in the router
        await app(scope, Incoming(*chunks(CALL.encode())), Answer())
    return shop.sold > before


@pytest.fixture
def anyio_backend() -> str:
    """Once is enough: the order of events does not matter here."""
    return "asyncio"


@pytest.mark.filterwarnings("ignore:The `root_path` parameter is deprecated")
@pytest.mark.parametrize("name", APPS)
async def test_no_path_reaches_the_endpoint_unjudged(name: str) -> None:
    """Where the bare application runs the tool, the policy has refused it."""
    random = Random(f"16{name}" if settings().derandomize else None)
    shop, (endpoint, make) = Shop(), APPS[name]
    bare, reached = make(shop), set()
    guarded = sessions(bare, path=endpoint, require={"tools/call"}, admission="own", principal=lambda _: None)
    plain = [(endpoint + end, "") for end in ("", "/", "\n")]
    with anyio.fail_after(60):
        async with lifespan(guarded):
            for path, root in [*plain, *(odd(random, endpoint) for _ in range(PATHS // len(APPS)))]:
                if await sells(bare, shop, post(path, root)):
                    reached.add(path)
                    assert not await sells(guarded, shop, post(path, root)), f"{path!r} under {root!r}"
    assert reached.intersection({endpoint, endpoint + "/"})


class Kept(list[Scope]):
    """An application that keeps the very scopes that it was called with."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.append(scope)


@pytest.mark.parametrize("path", ["/other", "/other\n", "/all/mcp", "/files/mcp", "/files/mcp\n"])
@pytest.mark.parametrize("require", ["never", "always"])
async def test_what_a_router_leads_elsewhere_passes_unread(path: str, require: Any) -> None:
    """Also where everything needs a session: the router's own patterns show that no server is reached."""
    kept = Kept()
    others = [Route("/other", kept, methods=["POST", "GET"]), Route("/all/{path:path}", kept), Mount("/files", kept)]
    app = sessions(Starlette(routes=[post_route(Shop()), *others]), require=require)
    await app(scope := post(path), Incoming(), Answer())
    assert kept[0]["headers"] is scope["headers"]


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
        ([Broken("/x", answer)], "/x", "maybe_mcp", "elsewhere"),
        ([Broken("/mcp", answer), Route("/y", answer, methods=["POST"])], "/y", "elsewhere", "elsewhere"),
        ([Route("/mcp", answer, methods=["POST"])], "/other", "elsewhere", "elsewhere"),
        ([Route("/mcp", answer, methods=["GET"])], "/mcp\n", "endpoint", "endpoint"),
        ([Route("/mcp/x", answer, methods=["POST"])], "/mcp/x\n", "maybe_mcp", "maybe_mcp"),
        ([Mount("/mcp", serve)], "/mcp//", "endpoint", "endpoint"),
        # FastAPI serves below its root path, too
        *(
            ([route], "/api/mcp/x", "maybe_mcp", "maybe_mcp")
            for route in (Route("/mcp/x", answer), Mount("/mcp", serve))
        ),
    ],
)
def test_where_a_request_is_follows_the_routes(routes: list[Any], path: str, guarded: str, free: str) -> None:
    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "headers": []}
    app: Any = (FastAPI if path.startswith("/api") else Starlette)(routes=routes)
    app.root_path = "/api"
    assert Routing(app, "/mcp", ambiguous_place="maybe_mcp").place(scope) == guarded
    assert Routing(app, "/mcp", ambiguous_place="elsewhere").place(scope) == free
    assert (
        Routing(app, "/mcp", ambiguous_place="maybe_mcp").place({**scope, "path": "/x", "method": "GET"}) == "elsewhere"
    )


@pytest.mark.parametrize("header", [b"mcp-session-id", b"last-event-id"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_streams_and_sessions_are_found_by_the_same_paths(header: bytes, method: str) -> None:
    """Two session ids are refused where the server would hear them; without a header there is nothing to judge."""
    kept = Kept()
    app = sessions(Router([Route("/mcp", kept)]), admission="own")
    twice = [(b"mcp-session-id", b"a"), (b"mcp-session-id", b"b"), (header, b"c")]
    assert (await call(app, post("/mcp\n", method=method, headers=twice))).status == 400
    await app(post("/mcp\n", method=method), Incoming(), Answer())
    assert len(kept) == 1


@pytest.mark.parametrize("path", ["/", "//mcp", "/MCP", "/mcp\n", "/x/mcp"])
async def test_where_nothing_depends_on_it_an_application_without_routes_is_left_alone(path: str) -> None:
    """A policy or the bridge makes the difference; below the endpoint every JSON message is judged in any case."""
    kept, shop = Kept(), Shop()
    await sessions(kept)(scope := post(path), Incoming(), Answer())
    assert kept == [scope]
    answer = await call(sessions(shop, require="always"), post(path), CALL.encode())
    assert answer.error["code"] == -31044


# --- what is no JSON-RPC to us, but may be to a lenient server -----------------------------------

LENIENT: dict[str, str] = {
    "no version": CALL.replace('"jsonrpc": "2.0", ', ""),
    "another version": CALL.replace('"2.0"', '"1.0"'),
    "a number for a version": CALL.replace('"2.0"', "2.0"),
    "no version in a batch": "[" + CALL.replace('"jsonrpc": "2.0", ', "") + "]",
    "among other things": '[1, {"a": 1}, ' + CALL.replace('"jsonrpc": "2.0", ', "") + "]",
    "names in other cases": CALL.replace('"jsonrpc": "2.0", ', "").replace("method", "Method").replace("name", "Name"),
    "escapes": CALL.replace('"jsonrpc": "2.0", ', "").replace("method", "m\\u0065thod").replace("tools/", "tools\\/"),
    "twice the method": '{"method": "ping", ' + CALL.replace('"jsonrpc": "2.0", ', "")[1:],
    "an id of another kind": CALL.replace('"jsonrpc": "2.0", ', "").replace('"id": 1', '"id": {"a": 1}'),
}
ORDINARY: dict[str, str] = {
    "a payment": '{"method": "card", "amount": 3, "to": "a/b"}',
    "many payments": "[" + ", ".join(['{"method": "card"}'] * 300) + "]",
    "an error report": '{"error": {"code": 1}, "method": null}',
    "a route": '{"method": "GET", "path": "/tools/call"}',
    "a text": '"tools/call"',
    "a list": '{"methods": ["tools/call"], "params": {"name": "buy"}}',
    "texts": '["method", {"a": 1}, "tools/call"]',
}


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
@pytest.mark.parametrize("require", ["always", {"tools/call": ["buy"]}, {"tools/call"}, lambda _: True])
@pytest.mark.parametrize("body", LENIENT.values(), ids=LENIENT)
async def test_lenient_servers_run_nothing_past_policy(body: str, require: Any, kind: str) -> None:
    kept, headers = Kept(), [(b"content-type", kind.encode())]
    app = sessions(kept, path=None, require=require)
    for endpoint in ("/x", "/mcp/x"):
        assert (await call(app, http(path=endpoint, headers=headers), body.encode())).status == 400
    assert kept == []


@pytest.mark.parametrize("require", ["always", {"tools/call": ["buy"]}, lambda _: True])
@pytest.mark.parametrize("body", ORDINARY.values(), ids=ORDINARY)
async def test_ordinary_json_passes_policy_for_every_path(body: str, require: Any) -> None:
    received: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        received.append(await read(receive))

    await sessions(app, path=None, require=require)(http(path="/pay"), Incoming(*chunks(body.encode())), Answer())
    assert received == [body.encode()]


@pytest.mark.parametrize("require", ["never", {"resources/read"}, {"tools/call": ["sell"]}])
async def test_lenient_message_that_no_rule_names_passes(require: Any) -> None:
    kept = Kept()
    body = LENIENT["no version"].encode()
    await sessions(kept, path=None, require=require)(http(path="/x"), Incoming(*chunks(body)), Answer())
    assert len(kept) == 1


# --- the method of HTTP -------------------------------------------------------------------------

SPELLINGS = ["post", "Post", "pOsT", "PUT", "patch", "QUERY"]


@pytest.mark.parametrize("method", SPELLINGS)
@pytest.mark.parametrize(("path", "endpoint"), [("/mcp", "/mcp"), ("/mcp\n", "/mcp"), ("/mcp/x", "/mcp"), ("/x", None)])
async def test_no_spelling_of_a_method_evades_policy(method: str, path: str, endpoint: str | None) -> None:
    """h11 and granian pass methods on as sent; Django and httpx change them to upper case."""
    shop = Shop()
    app = sessions(shop, path=endpoint, require="always", admission="own")
    answer = await call(app, post(path, method=method), CALL.encode())
    assert (answer.error["code"], shop.sold) == (-31044, 0)


@pytest.mark.parametrize("method", ["post", "PoSt"])
async def test_no_spelling_of_a_method_evades_body_limit(method: str) -> None:
    kept = Kept()
    answer = await call(sessions(kept, max_body_bytes=10), post("/mcp", method=method), CALL.encode())
    assert (answer.status, kept) == (413, [])


async def test_no_spelling_of_a_method_evades_era() -> None:
    shop, modern = Shop(), [(b"mcp-protocol-version", b"2026-07-28")]
    app = sessions(shop, era="legacy", admission="own")
    answer = await call(app, post("/mcp", method="post", headers=modern), CALL.encode())
    assert (answer.status, shop.sold) == (400, 0)


@pytest.mark.parametrize(("sent", "seen"), [("post", "POST"), ("get", "GET"), ("Delete", "DELETE"), ("pUt", "PUT")])
async def test_application_reads_method_that_was_judged(sent: str, seen: str) -> None:
    kept = Kept()
    await sessions(kept)(post("/mcp", method=sent), Incoming(*chunks(CALL.encode())), Answer())
    assert kept[0]["method"] == seen


async def test_methods_elsewhere_pass_as_sent() -> None:
    kept = Kept()
    app = sessions(Starlette(routes=[post_route(Shop()), Mount("/other", kept)]))
    await app(post("/other/x", method="post"), Incoming(), Answer())
    assert kept[0]["method"] == "post"


async def test_delete_in_lower_case_ends_session() -> None:
    client = Client(sessions(Server(), admission="own"), modern=False)
    ours = await client.initialize()
    assert (await call(client.app, http("delete", headers=[ours]))).status == 200
    assert (await client.tool("whoami", ours)).status == 404


async def test_get_in_lower_case_resumes_no_stream_of_others() -> None:
    client = Client(sessions(server := Stateful(sse=True), bridge=True), modern=False)
    mine, other = await client.initialize(), await client.initialize()
    await client.send("tools/call", None, mine)
    server.seen.clear()
    resumed = [(b"mcp-session-id", other[1]), (b"last-event-id", b"2")]
    answers = [await call(client.app, http(method, headers=resumed)) for method in ("GET", "get")]
    assert [answer.whole for answer in answers] == [answers[0].whole] * 2
    assert answers[0].status == 404
    assert all(b'"ping"' in one.body for one in server.seen)  # which asks whether the caller is admitted


async def test_first_request_fixes_no_route_for_process() -> None:
    """Until an application is built, at its first request, nobody can look into it."""
    shop = Shop()
    bare = Starlette(routes=[Route("/mcp", shop), Route("/again", shop)], middleware=NOTED)
    app = sessions(bare, require="always", admission="own")
    await call(app, http(path="/token", headers=[(b"content-type", b"text/plain")]), b"grant_type=x")
    assert not await sells(app, shop, post("/again"))

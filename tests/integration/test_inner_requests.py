"""Requests that a handler makes itself, in this process, have the session of its request; others never do.

A tool calls an ASGI application, as `FastMCP.from_fastapi` does for each of its tools. A context that leaked from
another request is no proof: servers start requests in the context of the one before on a connection.
"""

import asyncio
import contextvars
import json
from typing import Annotated, Any

import anyio
import httpx
import pytest
from clients import SECRET, Client, RealClient, lifespan
from fastapi import BackgroundTasks, Depends, FastAPI
from fastmcp import FastMCP
from starlette.middleware.base import BaseHTTPMiddleware

from mcp_sessions import ConfigurationError, MCPSessionMiddleware, Session, current_session
from mcp_sessions.integrations.fastapi import add_exception_handlers, optional_session, require_session

from .servers import ERAS, FASTMCP, FRAMEWORKS, Cell, connected, http_app, made
from .serving import serving

Optional = Annotated[Session | None, Depends(optional_session)]
Required = Annotated[Session, Depends(require_session)]


def named(session: Session | None) -> str:
    return "nobody" if session is None else session.ref


inner = FastAPI()
add_exception_handlers(inner)


@inner.post("/optional", operation_id="optional")
async def optional(session: Optional) -> str:
    return named(session)


@inner.get("/sync", operation_id="sync")
def sync(session: Optional) -> str:
    return named(session)


@inner.get("/required", operation_id="required")
async def required(session: Required) -> str:
    return named(session)


@inner.get("/plain", operation_id="plain")
async def plain(session: Annotated[Session | None, Depends(current_session)]) -> str:
    return named(session)


async def passes(request: Any, call_next: Any) -> Any:
    return await call_next(request)


ROUTES = {"/optional": "POST", "/sync": "GET", "/required": "GET", "/plain": "GET"}


async def ask(app: Any, path: str) -> Any:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://inner") as client:
        return (await client.request(ROUTES[path], path)).json()


async def whoami() -> str:
    return named(current_session())


async def asked(path: str) -> str:
    return json.dumps(await ask(inner, path))


async def asked_through_middleware(path: str) -> str:
    return json.dumps(await ask(BaseHTTPMiddleware(inner, passes), path))


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_inner_request_has_the_session_of_its_tool(framework: str, stateful: bool) -> None:
    """Also in a stateful server, whose handlers all run in the context of their connection's first request."""
    app = made(Cell(framework, stateful=stateful), whoami, asked, asked_through_middleware)
    async with connected(app, modern=False) as client:
        for held in (await client.create(), await client.create()):
            own = await client.call("whoami", held)
            for path in ROUTES:
                assert json.loads(await client.call("asked", held, path=path)) == own
                assert json.loads(await client.call("asked_through_middleware", held, path=path)) == own
        assert json.loads(await client.call("asked", path="/optional")) == "nobody"
        refused = json.loads(await client.call("asked", path="/required"))["error"]
        assert refused["code"] == -31044
        assert 'transport="auto"' in refused["message"]


@pytest.mark.parametrize("modern", ERAS)
async def test_a_server_made_from_fastapi_has_sessions_in_its_routes(modern: bool) -> None:
    app = http_app(FastMCP.from_fastapi(inner), Cell(FASTMCP))
    async with connected(app, modern=modern) as client:
        held = await client.create()
        texts = [await client.call(name, held) for name in ("optional", "sync", "required", "plain")]
        assert len(set(texts)) == 1
        assert "ses_" in texts[0]
        assert "nobody" in await client.call("optional")
        reply = await client.send("tools/call", {"name": "required", "arguments": {}})
        assert "Session required: " in reply.text
        assert "no middleware" not in reply.text


# --- contexts that leaked ---


async def test_a_request_in_the_context_of_an_answered_one_has_no_session() -> None:
    """A task that outlives a tool's request may serve anybody."""
    contexts: list[contextvars.Context] = []

    async def leak() -> str:
        contexts.append(contextvars.copy_context())
        return json.dumps([await ask(inner, path) for path in ("/optional", "/sync", "/required")])

    async with connected(made(Cell(FRAMEWORKS[0]), leak), modern=max(ERAS)) as client:
        held = await client.create()
        assert len(set(json.loads(await client.call("leak", held)))) == 1
        (context,) = contexts
        answers = [await _in(context, inner, path) for path in ("/optional", "/sync")]
        assert answers == ["nobody", "nobody"]
        with pytest.raises(ConfigurationError, match="no middleware looked for a session"):
            await _in(context, inner, "/required")


async def _in(context: contextvars.Context, app: Any, path: str) -> Any:
    return await context.run(asyncio.create_task, ask(app, path))


@pytest.mark.parametrize("outcome", ["result", "error"])
async def test_a_pipelined_request_has_not_the_session_before_it(outcome: str) -> None:
    """Uvicorn starts it in the context of the request before, which may still have work to do after its answer."""
    app, over = FastAPI(), anyio.Event()
    app.include_router(inner.router)

    @app.post("/mcp")
    async def endpoint(message: dict[str, Any], session: Optional, tasks: BackgroundTasks) -> dict[str, Any]:
        if message["method"] == "tools/call":
            tasks.add_task(over.wait)
        if message["method"] == "tools/call" and outcome == "error":  # which stores no state, and closes none
            return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -1, "message": named(session)}}
        return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": named(session)}}

    wrapped = MCPSessionMiddleware(app, keys=SECRET, admission="own")
    client = Client(wrapped, modern=False, query_string=b"")
    named_by = await client.initialize()
    body = json.dumps(client.message("tools/call", {"name": "any"})).encode()
    headers = b"".join(b"%b: %b\r\n" % header for header in [*client.headers("tools/call"), named_by])
    post = b"POST /mcp HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b" % (headers, len(body), body)
    async with serving(wrapped) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(post + b"GET /sync HTTP/1.1\r\nhost: x\r\n\r\n")
            received = b""
            while received.count(b"HTTP/1.1 200") < 2 or not received.endswith(b'"'):
                received += await stream.receive()
            over.set()
    first, second = received.split(b"HTTP/1.1 200")[1:]
    assert b"ses_" in first
    assert second.endswith(b'"nobody"')


class Users:
    """Lets a header say who calls."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        user = dict(scope.get("headers", ())).get(b"x-user")
        await self.app({**scope, "caller": user and user.decode()}, receive, send)


@pytest.mark.parametrize(("user", "seen"), [("ann", "ses_"), (None, "ses_"), ("bob", "nobody")])
async def test_an_inner_request_of_another_user_has_no_session(user: str | None, seen: str) -> None:
    """A worker that a request started may call for somebody else; an inner request may also go unauthenticated."""

    async def tool() -> str:
        app = Users(inner) if user else inner
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://inner") as client:
            return str((await client.get("/sync", headers={"x-user": user} if user else {})).json())

    options: Any = {"principal": lambda scope: scope["caller"], "transport": "off", "keys": SECRET}
    app = Users(MCPSessionMiddleware(made(Cell(FRAMEWORKS[0]), tool), **options))
    async with lifespan(app):
        client = RealClient(app, modern=max(ERAS), headers={"x-user": "ann"})
        await client.connect()
        assert (await client.call("tool", await client.create())).startswith(seen)


async def test_an_inner_request_outside_of_any_has_no_session() -> None:
    assert await ask(inner, "/optional") == "nobody"
    with pytest.raises(ConfigurationError, match="no middleware looked for a session in GET /required"):
        await ask(inner, "/required")

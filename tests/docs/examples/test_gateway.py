"""The example `gateway`: sessions for a server of the official TypeScript SDK, in a process of Node's."""

import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from clients import SECRET, RealClient, call, http, lifespan
from mcp import Client
from pages import example
from programs import free_port
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from integration.javascript import packages
from integration.javascript import serving as serving_javascript
from integration.serving import serving

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # Uvicorn runs on asyncio alone

Served = tuple[Any, Callable[[], Awaitable[str]]]  # a gateway, and what reads the next line that its server prints
forms = pytest.mark.parametrize("form", ["json", "stream"])


def gateway(origin: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("UPSTREAM", origin)
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)
    return example("gateway")


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    async with serving_javascript(packages(), tmp_path) as (origin, line):
        yield gateway(origin, monkeypatch), line


async def test_an_unchanged_client_has_a_session(served: Served) -> None:
    """The server knows each client by the name of its session."""
    async with serving(served[0]) as url, Client(url, mode="legacy") as a, Client(url, mode="legacy") as b:
        texts = [(await client.call_tool("count", {})).content[0].text for client in (a, a, b)]  # type: ignore[union-attr]
    refs, counts, *_ = zip(*(text.split() for text in texts), strict=True)
    assert refs[0] == refs[1] != refs[2]
    assert counts == ("1", "2", "1")
    assert all(ref.startswith("ses_") for ref in refs)


@forms
async def test_the_server_gets_the_session_and_the_client_its_id(served: Served, form: str) -> None:
    """The answer is whole, and holds the session, though the server would compress it if the gateway let it."""
    async with lifespan(served[0]):
        client = RealClient(served[0], headers={"x-answer": form, "accept-encoding": "gzip"})
        held = await client.create()
        answer = await client.send("tools/call", {"name": "count"}, session=dict(held))
    assert b"content-encoding" not in answer.headers
    assert answer.text.startswith("ses_")
    assert (answer.session or {})["sessionId"] == held["sessionId"]


async def test_host_and_query_are_forwarded_and_a_made_up_session_is_not(served: Served) -> None:
    """Only the gateway names a session; who has none cannot name one."""
    headers = {"host": "mcp.example", "x-mcp-session-ref": "ses_admin", "connection": "x-answer", "x-answer": "json"}
    async with lifespan(served[0]):
        client = RealClient(served[0], headers=headers, query_string=b"tenant=a%20b")
        answer = await client.send("tools/call", {"name": "count"})
    assert answer.text.split() == ["null", "1", "mcp.example", "?tenant=a%20b"]
    assert answer.headers[b"content-type"] == b"text/event-stream"  # `Connection` names what is for this hop alone


@forms
async def test_a_call_is_cancelled_when_its_client_leaves(served: Served, form: str) -> None:
    """Before the answer begins (JSON), and in the middle of it (an event stream)."""
    app, line = served
    async with lifespan(app):
        async with RealClient(app, headers={"x-answer": form}).under_way("tools/call", {"name": "wait"}):
            assert await line() == "called"
        assert await line() == "left"


LOGINS = ("/.well-known/oauth-protected-resource", "/.well-known/openid-configuration/mcp")
ASTRAY = (
    *("/.well-known/../mcp", "/.well-known/%2e%2e/mcp", "/.well-known/..%2fmcp", "/.well-known/admin"),
    *("/.well-known/oauth-protected-resource/../../admin", "/mcp/../admin", "//admin"),
)


async def test_no_path_leads_past_the_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not routed is not forwarded, however it is spelt; a login is, with GET. Here the server is down."""
    app = gateway(f"http://127.0.0.1:{free_port()}", monkeypatch)
    async with lifespan(app):
        answer = await RealClient(app).send("tools/call", {"name": "count"})
        assert (answer.status, answer.body) == (502, b"No answer from the server behind this gateway: ConnectError")
        for path in ASTRAY + LOGINS:
            client, ping = RealClient(app, path=path), b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
            statuses = [(await client.http(method, ping)).status for method in ("GET", "POST")]
            assert statuses == ([502, 405] if path in LOGINS else [404, 404]), path


class Large:
    """A `receive` of a client that sends a body of 64 MiB and waits for the answer."""

    def __init__(self) -> None:
        self.pieces = 0

    async def __call__(self) -> Message:
        await anyio.lowlevel.checkpoint()
        if self.pieces == 64:
            await anyio.sleep_forever()
        self.pieces += 1
        return {"type": "http.request", "body": bytes(1 << 20), "more_body": self.pieces < 64}


@pytest.mark.parametrize(
    ("path", "method"),
    [*(("/mcp", method) for method in "PUT PATCH HEAD OPTIONS TRACE put".split()), (LOGINS[0], "HEAD")],
)
async def test_other_methods_are_refused_unread(path: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, body = gateway(f"http://127.0.0.1:{free_port()}", monkeypatch), Large()
    async with lifespan(app):
        assert (await call(app, http(method, path, query_string=b""), body)).status == 405
    assert body.pieces == 0


@pytest.mark.parametrize(("method", "path"), [("GET", "/mcp"), ("DELETE", "/mcp"), ("GET", LOGINS[0])])
async def test_bodies_that_mean_nothing_are_dropped(method: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Piece by piece: they need no memory, and the server never sees them."""
    forwarded: list[Any] = []

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            forwarded.append((scope["method"], await Request(scope, receive).body()))
            await Response("yes")(scope, receive, send)

    async with serving(server) as url:
        app = gateway(url.removesuffix("/mcp"), monkeypatch)
        async with lifespan(app):
            tracemalloc.start()
            answer = await call(app, http(method, path, query_string=b""), Large())
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    assert (answer.body, forwarded) == (b"yes", [(method, b"")])
    assert peak < 8 << 20


async def test_posted_bodies_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    app, body = gateway(f"http://127.0.0.1:{free_port()}", monkeypatch), Large()
    async with lifespan(app):
        assert (await call(app, http(query_string=b""), body)).status == 413
    assert body.pieces < 10


@pytest.mark.parametrize("name", ["X_MCP_Session_Ref", "X-MCP_Session-Ref", "x_mcp_session_ref"])
async def test_header_with_underscores_makes_up_no_session(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """WSGI and CGI read such a header as the one with hyphens."""
    forwarded: list[set[bytes]] = []

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            forwarded.append({value for _, value in scope["headers"]})
            await Response("yes")(scope, receive, send)

    async with serving(server) as url:
        app = gateway(url.removesuffix("/mcp"), monkeypatch)
        async with lifespan(app):
            headers = [(name.lower().encode(), b"ses_victim"), (b"x_more", b"kept")]
            answer = await call(app, http("GET", query_string=b"", headers=headers))
    assert answer.body == b"yes"
    assert [{b"ses_victim", b"kept"} & values for values in forwarded] == [{b"kept"}]


@pytest.mark.parametrize("query", [b"a=b#c", b"a=\x00", b"a=\xff"])
async def test_target_that_is_no_url_is_refused(query: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    app = gateway(f"http://127.0.0.1:{free_port()}", monkeypatch)
    async with lifespan(app):
        answer = await call(app, http("GET", query_string=query))
    assert answer.status == 400

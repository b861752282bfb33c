"""The example `gateway`: sessions for a server of the official TypeScript SDK, in a process of Node's."""

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client
from pages import example
from programs import free_port

from integration.javascript import packages
from integration.javascript import serving as serving_javascript
from integration.serving import serving

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # Uvicorn runs on asyncio alone

Line = Callable[[], Awaitable[str]]

ACCEPT = {"accept": "application/json, text/event-stream"}


@asynccontextmanager
async def gateway(origin: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Serve a gateway before a server within the block, and yield the URL of its MCP endpoint."""
    monkeypatch.setenv("UPSTREAM", origin)
    monkeypatch.setenv("MCP_SESSIONS_KEYS", secrets.token_urlsafe(32))
    async with serving(example("gateway")) as url:
        yield url


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, Line]]:
    """The URL of a gateway before the server in Node, and what reads the next line that the server prints."""
    async with serving_javascript(packages(), tmp_path) as (origin, line), gateway(origin, monkeypatch) as url:
        yield url, line


async def post(http: httpx.AsyncClient, url: str, method: str, **params: Any) -> httpx.Response:
    """Send a request, and return the answer, of which each is one JSON object or one event."""
    return await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, headers=ACCEPT)


def result(answer: httpx.Response) -> Any:
    """Return the result in an answer."""
    (line,) = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith(("data: {", "{"))]
    return json.loads(line)["result"]


def counted(answer: httpx.Response) -> list[str]:
    """Return what `count` finds: the session's name, its count, and the host and query of the request."""
    text: str = result(answer)["content"][0]["text"]
    return text.split()


async def test_an_unchanged_client_has_a_session(served: tuple[str, Any]) -> None:
    """The server knows each client by the name of its session."""
    url, _ = served
    async with Client(url, mode="legacy") as a, Client(url, mode="legacy") as b:
        texts = [(await client.call_tool("count", {})).content[0].text for client in (a, a, b)]  # type: ignore[union-attr]
    refs, counts, *_ = zip(*(text.split() for text in texts), strict=True)
    assert refs[0] == refs[1] != refs[2]
    assert counts == ("1", "2", "1")
    assert all(ref.startswith("ses_") for ref in refs)


@pytest.mark.parametrize("form", ["json", "stream"])
async def test_the_server_gets_the_session_and_the_client_its_id(served: tuple[str, Any], form: str) -> None:
    """The answer is whole, and holds the session, though the server would compress it if the gateway let it."""
    url, _ = served
    async with httpx.AsyncClient(headers={"x-answer": form, "accept-encoding": "gzip"}) as http:
        session = result(await post(http, url, "sessions/create"))["session"]
        meta = {"io.modelcontextprotocol/session": {"sessionId": session["sessionId"]}}
        answer = await post(http, url, "tools/call", name="count", _meta=meta)
    assert "content-encoding" not in answer.headers
    assert counted(answer)[0].startswith("ses_")
    assert result(answer)["_meta"]["io.modelcontextprotocol/session"]["sessionId"] == session["sessionId"]


async def test_host_and_query_are_forwarded_and_a_made_up_session_is_not(served: tuple[str, Any]) -> None:
    """Only the gateway names a session; who has none cannot name one."""
    url, _ = served
    headers = {"host": "mcp.example", "x-mcp-session-ref": "ses_admin", "connection": "x-answer", "x-answer": "json"}
    async with httpx.AsyncClient(headers=headers) as http:
        answer = await post(http, f"{url}?tenant=a%20b", "tools/call", name="count")
    assert counted(answer) == ["null", "1", "mcp.example", "?tenant=a%20b"]
    assert answer.headers["content-type"] == "text/event-stream"  # `Connection` names what is for this hop alone


@pytest.mark.parametrize("form", ["json", "stream"])
async def test_a_call_is_cancelled_when_its_client_leaves(served: tuple[str, Line], form: str) -> None:
    """Before the answer begins (JSON), and in the middle of it (an event stream)."""
    url, line = served
    async with httpx.AsyncClient(headers={"x-answer": form}) as http, anyio.create_task_group() as tasks:

        async def call() -> None:
            await post(http, url, "tools/call", name="wait")

        tasks.start_soon(call)
        assert await line() == "called"
        tasks.cancel_scope.cancel()
    assert await line() == "left"


async def test_a_server_that_is_down_is_named_in_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(f"http://127.0.0.1:{free_port()}", monkeypatch) as url, httpx.AsyncClient() as http:
        answer = await post(http, url, "tools/call", name="count")
    assert (answer.status_code, answer.text) == (502, "No answer from the server behind this gateway: ConnectError")


LOGINS = ("/.well-known/oauth-protected-resource", "/.well-known/openid-configuration/mcp")
ASTRAY = (
    *("/.well-known/../mcp", "/.well-known/%2e%2e/mcp", "/.well-known/..%2fmcp", "/.well-known/admin"),
    *("/.well-known/oauth-protected-resource/../../admin", "/mcp/../admin", "//admin"),
)


async def test_no_path_leads_past_the_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the gateway does not route is not forwarded, however it is spelt; a login is, with GET, here to nobody."""
    async with gateway(f"http://127.0.0.1:{free_port()}", monkeypatch) as url:
        for path in ASTRAY + LOGINS:
            statuses = [await raw_status(url, method, path) for method in ("GET", "POST")]
            assert statuses == ([502, 405] if path in LOGINS else [404, 404]), path


async def raw_status(url: str, method: str, path: str) -> int:
    """Send a request whose path no client library has resolved, and return the status."""
    parts = httpx.URL(url)
    text = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count"}}'
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\ncontent-length: {len(text)}\r\n\r\n"
    async with await anyio.connect_tcp(parts.host, parts.port or 80) as connection:
        await connection.send(head.encode() + text)
        return int((await connection.receive()).split()[1])

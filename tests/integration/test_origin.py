"""No session id leaves the server's origin, wherever the server redirects to: by header, body or state."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import anyio
import pytest
from clients import SESSION_KEY
from environments import INSTALLED
from starlette.types import Receive, Scope, Send

from mcp_sessions.client import ClientError, with_sessions
from mcp_sessions.client._sessions import connector

from .serving import serving

http: Any = import_module("httpx2" if "httpx2" in INSTALLED else "httpx")
BODY = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {SESSION_KEY: {"sessionId": "ses-1"}}}}


class Redirecting:
    """Redirects requests for `/mcp`, or all, to a URL, answers others, and keeps them all."""

    def __init__(self, status: int = 200, to: str = "", *, everywhere: bool = False) -> None:
        self.status, self.to, self.everywhere = status, to, everywhere
        self.seen: list[tuple[str, dict[bytes, bytes], bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = (await receive()).get("body", b"")
        self.seen.append((scope["path"], dict(scope["headers"]), body))
        redirects = self.to and (self.everywhere or scope["path"] == "/mcp")
        headers = [(b"location", self.to.encode())] if redirects else []
        await send({"type": "http.response.start", "status": self.status if redirects else 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


@asynccontextmanager
async def older(url: str, *, http_client: Any) -> AsyncIterator[Any]:
    """Send a request as the transport of older SDKs does: redirects are followed."""
    headers = {"mcp-session-id": "ses-1"}
    yield await http_client.post(url, json=BODY, headers=headers, follow_redirects=True)


@pytest.fixture(autouse=True)
def older_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("mcp.client.streamable_http"), "streamable_http_client", older)


@pytest.mark.parametrize("own_client", [False, True])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_origin_is_not_followed(status: int, own_client: bool) -> None:
    """By the client of the SDK or the program's own, which is left as it was. Another port is another origin."""
    other = Redirecting()
    async with serving(other) as elsewhere, serving(Redirecting(status, elsewhere)) as url, http.AsyncClient() as own:
        with pytest.raises(ClientError, match="redirects to another origin, http://127"):
            async with connector(url, own if own_client else None)():
                """Not reached."""
        assert own.event_hooks["request"] == []
    assert other.seen == []


WRITTEN = ("/café/mcp", "/a/../mcp", "/a b", "/mcp/./x", "/{tenant}/mcp", "/mcp?of=a b", "/mcp#part", "/%7etenant/mcp")
"""Paths that a client sends in another form."""


@pytest.mark.parametrize("path", WRITTEN)
async def test_a_url_that_the_client_rewrites_keeps_its_origin(path: str) -> None:
    other, first = Redirecting(), Redirecting(307, everywhere=True)
    async with serving(other) as elsewhere, serving(first) as url:
        first.to = elsewhere
        with pytest.raises(ClientError, match="redirects to another origin"):
            async with connector(url.removesuffix("/mcp") + path, None)():
                """Not reached."""
    assert len(first.seen) == 1
    assert other.seen == []


@pytest.mark.parametrize("host", ["bücher.example", "BÜCHER.example", "Host.EXAMPLE", "host.example:80"])
async def test_a_host_that_the_client_rewrites_keeps_its_origin(host: str) -> None:
    reached = []

    async def answer(request: Any) -> Any:
        reached.append(request.url.host)
        is_elsewhere = request.url.host == "elsewhere.example"
        return http.Response(200 if is_elsewhere else 307, headers={"location": "http://elsewhere.example/mcp"})

    async with http.AsyncClient(transport=http.MockTransport(answer)) as own:
        with pytest.raises(ClientError, match=r"redirects to another origin, http://elsewhere\.example:80"):
            async with connector(f"http://{host}/mcp", own)():
                """Not reached."""
    assert len(reached) == 1


async def test_a_redirect_to_another_scheme_or_host_is_not_followed() -> None:
    for scheme, host in (("https", "127.0.0.1"), ("http", "localhost")):
        server = Redirecting(307)
        async with serving(server) as url:
            server.to = url.replace("http", scheme, 1).replace("127.0.0.1", host)
            with pytest.raises(ClientError, match=f"another origin, {scheme}://{host}"):
                async with connector(url, None)():
                    """Not reached."""


async def test_a_redirect_to_another_origin_behind_one_is_not_followed() -> None:
    """And within the origin, it is."""
    other, first = Redirecting(), Redirecting(307, "/mcp/")
    async with serving(other), serving(first) as url:
        async with connector(url, None)() as response:
            assert response.status_code == 200
        assert [path for path, _, _ in first.seen] == ["/mcp", "/mcp/"]
        assert b"ses-1" in first.seen[1][2]


async def test_other_requests_of_a_client_are_left_alone() -> None:
    """Such as those of its `Auth` to an authorization server, whose redirects are its own business."""
    other = Redirecting()
    async with (
        serving(other) as elsewhere,
        serving(Redirecting()) as url,
        serving(Redirecting(307, elsewhere)) as issuer,
        http.AsyncClient(follow_redirects=True) as own,
        connector(url, own)(),
    ):
        assert (await own.get(issuer)).status_code == 200
    assert len(other.seen) == 1


async def test_a_client_learns_of_a_redirect_to_another_origin() -> None:
    other = Redirecting()
    async with serving(other) as elsewhere, serving(Redirecting(307, elsewhere)) as url:
        with anyio.fail_after(30), pytest.raises(ClientError, match="nothing was sent there"):
            async with with_sessions(url):
                """Not reached."""
    assert other.seen == []

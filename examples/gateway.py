"""Sessions for an MCP server in any language: the middleware in front of a small streaming proxy.

    MCP_SESSIONS_KEYS=... UPSTREAM=http://127.0.0.1:3000 uvicorn --app-dir examples gateway:app

The server behind it reads the name of a request's session from the header `X-MCP-Session-Ref`. Sources: RFC 9110,
7.6 (what a proxy forwards) and 15.6.3 (502).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from mcp_sessions import MCPSessionMiddleware, current_session

REF: Final = b"x-mcp-session-ref"
HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)


class Upstream:
    """The server behind the gateway, as an ASGI application."""

    def __init__(self, origin: str) -> None:
        self._origin = httpx.URL(origin)
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(10, read=None, pool=None),  # an event stream may be silent for hours
            limits=httpx.Limits(max_connections=None),
            trust_env=False,  # ignore HTTP_PROXY: another proxy might buffer streams
        )

    @asynccontextmanager
    async def connected(self, _: Starlette) -> AsyncIterator[None]:
        """Keep connections open within the application's lifespan."""
        async with self._client:
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request, and cancel it if the client disconnects."""
        request = Request(scope, receive)
        # The middleware bounds what is posted. GET and DELETE have no body in MCP, so one is dropped as it arrives.
        body = await request.body() if request.method == "POST" else b""
        try:
            forwarded = self._forwarded(request, body)
        except (httpx.InvalidURL, UnicodeError):
            await PlainTextResponse("The request's target is not a URL", 400)(scope, receive, send)
            return
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(cancel)
            await self._exchange(forwarded, scope, receive, send)
            tasks.cancel_scope.cancel()

    def _forwarded(self, request: Request, body: bytes) -> httpx.Request:
        # The path that was routed, one of few: httpx resolves `..` in a raw one, which would lead past the routes.
        query = request.scope["query_string"]
        target = request.scope["path"].encode("ascii") + (b"?" + query if query else b"")
        headers = end_to_end(request.headers.raw, REF, b"content-length")  # the ref is ours to set
        session = current_session()
        if session is not None:
            headers.append((REF, session.ref.encode()))
        # Not by the client's `build_request`: its own `accept-encoding` would have the server compress what the
        # middleware has to read.
        return httpx.Request(request.method, self._origin.copy_with(raw_path=target), headers=headers, content=body)

    async def _exchange(self, forwarded: httpx.Request, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._client.send(forwarded, stream=True)
        except httpx.HTTPError as error:
            reason = PlainTextResponse(f"No answer from the server behind this gateway: {type(error).__name__}", 502)
            await reason(scope, receive, send)
            return
        try:
            headers = [(name.lower(), value) for name, value in end_to_end(answer.headers.raw)]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            async for chunk in answer.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body"})
        finally:
            await answer.aclose()


def end_to_end(headers: Any, *without: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers that a proxy passes on, `Host` among them."""
    named = {
        word.strip().lower() for name, value in headers if name.lower() == b"connection" for word in value.split(b",")
    }
    dropped = HOP_BY_HOP | named | set(without)
    # WSGI and CGI read `x_y` as `x-y`.
    return [(name, value) for name, value in headers if name.lower().replace(b"_", b"-") not in dropped]


class Exactly(Route):
    """A route for the methods that it names; Starlette's adds HEAD to GET."""

    def __init__(self, path: str, *methods: str) -> None:
        super().__init__(path, upstream, methods=methods)
        self.methods = set(methods)


upstream = Upstream(os.environ.get("UPSTREAM", "http://127.0.0.1:3000"))
LOGIN: Final = ("oauth-protected-resource", "oauth-authorization-server", "openid-configuration")
"""Where clients look for a login, at the origin and for the endpoint: RFC 9728 and RFC 8414."""
metadata = [Exactly(f"/.well-known/{name}{path}", "GET") for name in LOGIN for path in ("", "/mcp")]
routes = [Exactly("/mcp", "POST", "GET", "DELETE"), *metadata]
# Sessions are anonymous, since only the server behind this knows its users: see "Your own authentication" in the docs.
app = MCPSessionMiddleware.from_env(Starlette(routes=routes, lifespan=upstream.connected), principal=lambda scope: None)

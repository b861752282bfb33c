"""The frameworks' own clients with sessions, over real HTTP, and a log of what they sent."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import anyio
from clients import SESSION_KEY
from environments import INSTALLED
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from integration import serving
from integration.servers import DEADLINE, Cell, wrapped
from integration.serving import Peer
from mcp_sessions.client import ClientSessions, fastmcp_transport, with_sessions


@dataclass
class Log:
    """An application, and the requests that reached it."""

    app: ASGIApp
    seen: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    url: str = ""

    def sessions(self) -> ClientSessions:
        return with_sessions(lambda: streams_of(self.url))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()
        headers = {name.decode(): value.decode() for name, value in scope.get("headers", ())}

        async def reading() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            if body and message["type"] == "http.request" and not message.get("more_body"):
                self.seen.append((headers, json.loads(body)))
            return message

        await self.app(scope, reading, send)

    def sent(self, method: str) -> list[dict[str, Any]]:
        return [message for _, message in self.seen if message.get("method") == method]

    def carried(self, method: str) -> list[str | None]:
        metas = [message.get("params", {}).get("_meta", {}) for message in self.sent(method)]
        return [meta.get(SESSION_KEY, {}).get("sessionId") for meta in metas]

    def mirrored(self, method: str) -> list[str | None]:
        return [headers.get("mcp-session-id") for headers, message in self.seen if message.get("method") == method]


@asynccontextmanager
async def streams_of(url: str) -> AsyncIterator[Any]:
    """The SDK's own transport. No connection is used twice: one that waits may be closed by a server that is busy."""
    http = import_module("httpx2" if "httpx2" in INSTALLED else "httpx")
    connect = import_module("mcp.client.streamable_http").streamable_http_client
    limits = http.Limits(max_keepalive_connections=0)
    async with http.AsyncClient(limits=limits, timeout=None) as client, connect(url, http_client=client) as streams:
        yield streams


def peer(cell: Cell, sessions: ClientSessions) -> AbstractAsyncContextManager[Peer]:
    """Connect the cell's own client in the cell's era."""
    return serving.peer(cell, fastmcp_transport(sessions) if cell.framework.startswith("fastmcp") else sessions)


@asynccontextmanager
async def served(cell: Cell, make: Callable[..., ASGIApp] = wrapped) -> AsyncIterator[Log]:
    """The small server with the middleware, up."""
    log = Log(make(cell))
    with anyio.fail_after(DEADLINE):
        async with serving.serving(log) as log.url:
            yield log

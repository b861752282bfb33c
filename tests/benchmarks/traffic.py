"""Requests as a server hands them over, without a server: one scope, one body, and an answer that is thrown away.

Nothing is shared between two requests, since applications write into their scope. A request ends as on a connection
that stays open: after its body nothing more comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION_KEY: Final = "io.modelcontextprotocol/session"
MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"
_ENVELOPE: Final = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1.0.0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_CALL: Final = {"name": "echo", "arguments": {"text": "how much is the fish?"}}


def message(method: str = "tools/call", params: Any = None, *, session: Any = None, modern: bool = True) -> bytes:
    """Return a JSON-RPC request as a client sends it; `session` is its metadata."""
    meta = {**(_ENVELOPE if modern else {}), **({SESSION_KEY: session} if session is not None else {})}
    sent = {**(_CALL if params is None else params), **({"_meta": meta} if meta else {})}
    return json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": sent}, separators=(",", ":")).encode()


def scope(
    length: int, *, method: str = "tools/call", modern: bool = True, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the scope of a request whose body has `length` bytes."""
    era = {"mcp-protocol-version": MODERN, "mcp-method": method} if modern else {"mcp-protocol-version": LEGACY}
    named = {"mcp-name": "echo"} if modern and method == "tools/call" else {}
    sent = {
        "host": "127.0.0.1:8000",
        "accept": "application/json, text/event-stream",
        "accept-encoding": "gzip, deflate",
        "connection": "keep-alive",
        "user-agent": "benchmark/1.0.0",
        "content-type": "application/json",
        **era,
        **named,
        "content-length": str(length),
        **(headers or {}),
    }
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50_000),
        "scheme": "http",
        "root_path": "",
        "method": "POST",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }


def arrival(body: bytes) -> Receive:
    """Return the `receive` of one request: its body in one piece, and then silence."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await anyio.sleep_forever()
        return messages.pop()

    return receive


async def discard(sent: Message) -> None:
    """The `send` of a request whose answer is thrown away."""


@dataclass(slots=True)
class Visits:
    """Requests to one application.

    Args:
        app: The application.
        scope: The scope of each request; its values are not written to.
        bodies: The bodies, without end.
    """

    app: ASGIApp
    scope: Scope
    bodies: Iterator[bytes]

    @classmethod
    def of(cls, app: ASGIApp, body: bytes, **scoped: Any) -> Visits:
        """Return the same request, again and again."""
        return cls(app, scope(len(body), **scoped), repeat(body))

    async def serve(self, requests: int) -> None:
        """Let the application serve so many requests, one after the other."""
        for _ in range(requests):
            await self.one(discard)

    async def answer(self) -> Answer:
        """Return the application's answer to the next request."""
        answer = Answer()
        await self.one(answer)
        return answer

    async def one(self, send: Send) -> None:
        """Let the application serve the next request."""
        scope = {**self.scope, "headers": self.scope["headers"].copy(), "state": {}}
        await self.app(scope, arrival(next(self.bodies)), send)


@dataclass
class Answer:
    """A `send` that keeps the response."""

    body: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)

    async def __call__(self, sent: Message) -> None:
        self.headers.update(sent.get("headers", ()))
        self.body += sent.get("body", b"")

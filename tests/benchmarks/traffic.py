"""Requests as a server hands them over, without a server: one scope, one body, and an answer that is thrown away.

Nothing is shared between two requests, since applications write into their scope. A request ends as on a connection
that stays open: after its body nothing more comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from clients import Answer, Client, Incoming, chunks, http
from starlette.types import ASGIApp, Message, Scope, Send

from .apps import trivial

_CALL: Final = {"name": "echo", "arguments": {"text": "how much is the fish?"}}
_SENT: Final = {
    "host": "127.0.0.1:8000",
    "accept-encoding": "gzip, deflate",
    "connection": "keep-alive",
    "user-agent": "benchmark/1.0.0",
}
_SERVED: Final[dict[str, Any]] = {
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "server": ("127.0.0.1", 8000),
    "client": ("127.0.0.1", 50_000),
    "scheme": "http",
    "root_path": "",
    "raw_path": b"/mcp",
    "query_string": b"",
}


def message(method: str = "tools/call", params: Any = None, *, session: Any = None, modern: bool = True) -> bytes:
    """Return a JSON-RPC request as a client sends it; `session` is its metadata."""
    sent = Client(trivial, modern=modern).message(method, _CALL if params is None else params, session=session)
    return json.dumps(sent, separators=(",", ":")).encode()


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
    def of(
        cls,
        app: ASGIApp,
        body: bytes,
        *,
        method: str = "tools/call",
        modern: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Visits:
        """Return the same request, again and again."""
        named = {"mcp-name": "echo"} if modern and method == "tools/call" else {}
        more = {**_SENT, **named, "content-length": str(len(body)), **(headers or {})}
        sent = [(name.encode(), value.encode()) for name, value in more.items()]
        return cls(app, http(headers=[*Client(app, modern=modern).headers(method), *sent], **_SERVED), repeat(body))

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
        await self.app(scope, Incoming(*chunks(next(self.bodies))), send)

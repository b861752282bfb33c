"""Requests whose session is not known to be here, and how one is taken over in the name of its caller."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import ASGIApp, Scope, Send

from .._errors import Refusal
from .._protocol import rewrite
from .._protocol.headers import JSON
from .._refusals import refusal
from .._session.claims import RedactedRepr
from .ownership import Ownership
from .relay import Kept

HOP: Final = "mcp_sessions.hop"  # in the scope of a request that has come from another worker
LOST: Final = "mcp_sessions.lost"  # in the scope of a request whose session may be taken over; a `Takeover`
RETRY_AFTER: Final = 5  # seconds, for clients


@dataclass(eq=False, repr=False)
class Takeover(RedactedRepr):
    """An attempt to take a session over, on the scope of the `ping` that makes it."""

    old: Ownership
    refused: list[Any] = field(default_factory=list)  # the messages by which the server refused the replay
    refusal: Refusal | None = None  # why the session was not taken over
    has_rival: bool = False  # another worker was faster, or the session has ended
    is_over: bool = False  # the scope is that of the request itself, which is refused


@dataclass(frozen=True, repr=False)
class Incoming(RedactedRepr):
    """A request whose session is not known to be here."""

    scope: Scope
    kept: Kept
    send: Send

    async def serve(self, app: ASGIApp, takeover: Takeover | None = None) -> None:
        """Serve it here after all; nothing of it has been served elsewhere."""
        scope = self.scope if takeover is None else {**self.scope, LOST: takeover}
        await app(scope, self.kept.again(), self.send)


async def ping(app: ASGIApp, scope: Scope, takeover: Takeover) -> None:
    """Send a `ping` in the name of a request's caller; what it answers does not matter."""
    body = rewrite.request(b'"takeover"', "ping")
    dropped = {
        b"content-length",
        b"transfer-encoding",
        b"accept",
        b"content-type",
        b"last-event-id",
        b"content-encoding",
    }
    headers = [(name, value) for name, value in scope["headers"] if name not in dropped]
    headers += [
        (b"content-type", JSON),
        (b"accept", b"application/json, text/event-stream"),
        (b"content-length", b"%d" % len(body)),
    ]
    asked = {**scope, "method": "POST", "headers": headers, LOST: takeover, "state": dict(scope.get("state", ()))}
    is_sent = False

    async def receive() -> Any:
        nonlocal is_sent
        if is_sent:
            await asyncio.Event().wait()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        pass

    await app(asked, receive, send)


async def send_unreachable(send: Send) -> None:
    unreachable = refusal("owner_unreachable")
    body = rewrite.error(None, unreachable.code, unreachable.client_message)
    headers = [
        (b"content-type", JSON),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"%d" % RETRY_AFTER),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""Event streams that a client opens by GET: taken up again (`Last-Event-ID`), or to listen to a bridged server.

Servers with an event store replay what the client missed, the result of its request included. What
belonged to a session that has ended since must not come out that way. Only streams that passed this
process are known; the servers that replay keep their connections in one process, too.
Source: MCP 2025-11-25, Streamable HTTP, "Resumability and Redelivery".
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from . import splice
from .errors import Refusal, SessionEnded, SessionExpired, SessionNotFound, StoreUnavailable
from .events import RequestRefused
from .live import refusal_of
from .options import Options
from .responder import Responder, Watched, refuse
from .stores.base import Standing
from .streams import Origin

LAST_EVENT_ID: Final = b"last-event-id"
_GONE: Final = 404  # what a server answers for a stream that it does not have


class Resumption(msgspec.Struct, frozen=True):
    """A GET that resumes or opens a stream of a session.

    Args:
        app: The wrapped application.
        options: What all requests share.
        origin: The request whose answer the stream carries.
        transport: The wrapped server's transport session, or None.
        scope: The ASGI scope.
        receive: The server's `receive`.
        send: The server's `send`.
    """

    app: ASGIApp
    options: Options
    origin: Origin
    transport: str | None
    scope: Scope
    receive: Receive
    send: Send

    async def run(self) -> None:
        """Serve it while the session lives."""
        try:
            await self._check()
        except StoreUnavailable as refusal:
            await self._refuse(refusal, refusal.http_status)
        except SessionNotFound as refusal:
            await self._refuse(refusal, _GONE)
        else:
            await self._serve()

    async def _check(self) -> None:
        claims = self.origin.claims
        standing = await self.options.standing(claims)
        if standing is not Standing.LIVE:
            raise refusal_of(standing, claims)
        if not self.options.clock() < claims.expires_at:
            raise SessionExpired(ref=claims.ref)

    async def _serve(self) -> None:
        responder = Responder(self.send, _as_it_is, self._watched, max_event_bytes=self.options.max_event_bytes)
        try:
            await self.app(self.scope, self.receive, responder)
        finally:
            responder.leave()

    def _watched(self) -> Watched:
        return Watched(self.origin, self.transport, self.options.streams, self._told, is_spared=lambda: False)

    def _told(self) -> bytes:
        if self.origin.id is None:
            return b""
        refusal = SessionEnded(ref=self.origin.claims.ref)
        return splice.error(self.origin.id, self._emit(refusal), refusal.told)

    async def _refuse(self, refusal: Refusal, status: int) -> None:
        await refuse(self.send, refusal, status=status, code=self._emit(refusal))

    def _emit(self, refusal: Refusal) -> int:
        code = self.options.code(refusal)
        self.options.emit(RequestRefused(refusal.reason, code, self.origin.label, self.origin.claims.ref))
        return code


def _as_it_is(_message: bytes) -> None:
    return None

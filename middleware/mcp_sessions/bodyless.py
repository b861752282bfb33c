"""Requests without a body that name a session of ours in the header: a GET, which would open a stream, and DELETE.

A stateless server keeps a GET open for as long as the client lives and never writes to it, so the
client is told that there is none, which it does not mind; a server behind the bridge is asked for its
own. DELETE ends the transport session on every worker, and the one that is sealed inside of it.
Source: MCP 2025-11-25, Streamable HTTP, "Session Management" and "Listening for Messages from the Server".
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from .answers import Answers
from .bridge import WAY, Crossing, crossing
from .dialects.draft import Named
from .errors import Refusal, SessionNotFound, TransportNotFound
from .head import SESSION_HEADER, Head
from .live import Live
from .options import Options
from .resumption import LAST_EVENT_ID, Resumption
from .streams import Origin
from .tokens import FIELD, TRANSPORT

_METHOD_NOT_ALLOWED: Final = 405


class Bodyless(msgspec.Struct, frozen=True):
    """One such request.

    Args:
        app: The wrapped application.
        options: What all requests share.
        head: The request's head.
        header: The `Mcp-Session-Id` header, which looks like one of ours.
        scope: The ASGI scope.
        receive: The server's `receive`.
        send: The server's `send`.
    """

    app: ASGIApp
    options: Options
    head: Head
    header: str
    scope: Scope
    receive: Receive
    send: Send

    async def run(self) -> None:
        """Answer it."""
        answers = Answers(self.app, self.options, self.head, self.scope, self.receive, self.send)
        if self._would_listen_in_a_field_session():
            await answers.tell(_METHOD_NOT_ALLOWED, (b"allow", b"POST"))
            return
        try:
            self.options.role(self.header, None)
            live = await self._open()
        except SessionNotFound as refusal:
            await answers.refuse_bodyless(TransportNotFound(refusal.reason, ref=refusal.ref))
        except Refusal as refusal:
            await answers.refuse_bodyless(refusal)
        else:
            await self._serve(answers, live)

    def _would_listen_in_a_field_session(self) -> bool:
        """Whether the header mirrors a session of SEP-1364's, which is deleted by a message, as that has the field."""
        if self.options.opted is None or self.scope["method"] == "DELETE":
            return False
        ring = self.options.ring(self.options.clock())
        return self.options.tokens.kind(ring, self.header) == FIELD

    async def _serve(self, answers: Answers, live: Live | None) -> None:
        way = self.scope.get(WAY)
        if live is not None and self.scope["method"] == "DELETE":
            await answers.hang_up(live)
        elif live is not None and isinstance(way, Crossing):
            await self._listen(live, way)
        else:
            await answers.tell(_METHOD_NOT_ALLOWED, (b"allow", b"POST, DELETE"))

    async def _open(self) -> Live | None:
        """The transport session, which must live, with the way to the server's own; None where nothing needs it."""
        if not (self.scope["method"] == "DELETE" or (self.scope["method"] == "GET" and self.options.bridges)):
            return None
        named, principal = Named(self.header, None), self.options.principal(self.scope)
        live = await Live.open(named, self.options, principal=principal, kind=TRANSPORT)
        if self.options.bridges:
            self.scope[WAY] = crossing(live)
        return live

    async def _listen(self, live: Live, way: Crossing) -> None:
        """Give the client the stream that it asks for: one of the server's, new or taken up again."""
        self.scope["headers"] = [(name, value) for name, value in self.scope["headers"] if name != SESSION_HEADER]
        known = self.options.streams.origin_of(way.servers, self.head.first(LAST_EVENT_ID))
        origin = known or Origin(live.claims, None, "GET")
        await Resumption(self.app, self.options, origin, way.servers, self.scope, self.receive, self.send).run()

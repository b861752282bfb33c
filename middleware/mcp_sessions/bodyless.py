"""Requests without a body that name a session of ours in the header: a GET, which would open a stream, and DELETE.

A stateless server keeps a GET open for as long as the client lives and never writes to it, so the
client is told that there is none, which it does not mind. DELETE ends the transport session on every
worker. Nothing here is forwarded but the question whether the server lets this caller in at all.
Source: MCP 2025-11-25, Streamable HTTP, "Session Management" and "Listening for Messages from the Server".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from .answers import Answers
from .dialects.draft import Named
from .errors import Refusal, SessionNotFound, TransportNotFound
from .head import Head
from .live import Live
from .options import Options
from .tokens import TRANSPORT

_METHOD_NOT_ALLOWED: Final = 405


@dataclass(frozen=True, slots=True)
class Bodyless:
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
        try:
            self.options.role(self.header, None)
        except Refusal as refusal:
            await answers.refuse_bodyless(refusal)
            return
        if self.scope["method"] == "DELETE":
            await self._end(answers)
        else:
            await answers.tell(_METHOD_NOT_ALLOWED, (b"allow", b"POST, DELETE"))

    async def _end(self, answers: Answers) -> None:
        try:
            named, principal = Named(self.header, None), self.options.principal(self.scope)
            live = await Live.open(named, self.options, principal=principal, lenient=lambda: False, kind=TRANSPORT)
        except SessionNotFound as refusal:
            await answers.refuse_bodyless(TransportNotFound(refusal.reason, ref=refusal.ref))
        except Refusal as refusal:
            await answers.refuse_bodyless(refusal)
        else:
            await answers.hang_up(live)

"""One POST as the server gave it, and as the wrapped application gets it: with its session, and true headers.

The application is called here, with the session where handlers look for it and nowhere longer than the call
lasts. Nothing here knows what a message says, or what becomes of it.
"""

from __future__ import annotations

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from .current import session_variable
from .discreet import Discreet
from .head import ACCEPT_CODING, LENGTH, Head
from .intake import Replay
from .live import Live
from .options import Options
from .responder import BODY_AROUND_US, Responder
from .session import Session


class Forwarding(Discreet, msgspec.Struct):
    """One POST to the MCP path, as it is handed on. (A struct: a dataclass takes three times as long to make.)

    Args:
        app: The wrapped application.
        options: What all requests share.
        head: The request's head.
        header: The `Mcp-Session-Id` header where it looks like one of ours, else None.
        strict: Whether a body that is no JSON-RPC is refused; where the path may serve other things
            too, such a body is none of our business.
        scope: The ASGI scope; the session is put on it.
        receive: The server's `receive`.
        send: The server's `send`.
    """

    app: ASGIApp
    options: Options
    head: Head
    header: str | None
    strict: bool
    scope: Scope
    receive: Receive
    send: Send

    async def _call(
        self,
        body: bytes,
        send: Send,
        session: Session | None = None,
        current: Session | None = None,
        *,
        live: Live | None = None,
        responder: Responder | None = None,
    ) -> None:
        """The application, with the session where handlers look for it: on the scope, and as the current one."""
        self.scope["mcp_session"] = session
        self.scope.setdefault("state", {})["mcp_session"] = session
        token = session_variable.set(current)
        try:
            await self.app(self.scope, Replay(body, self.receive), send)
        finally:
            session_variable.reset(token)
            if responder is not None:
                responder.leave()
            if live is not None:
                live.shut()
            if current is not session:  # FastMCP's task of a connection keeps this request as its current one
                self.scope["mcp_session"] = self.scope["state"]["mcp_session"] = None

    def _take_over_response(self) -> None:
        """Keep the application from sending what cannot be changed: compressed bodies, files sent around us."""
        if ACCEPT_CODING in self.head.by_name:
            self.scope["headers"] = self.head.without(ACCEPT_CODING, self.scope["headers"])
        extensions = self.scope.get("extensions")
        if extensions and not BODY_AROUND_US.isdisjoint(extensions):
            kept = {name: value for name, value in extensions.items() if name not in BODY_AROUND_US}
            self.scope["extensions"] = kept

    def _declare(self, body: bytes) -> None:
        """Let the headers tell of a body that was changed."""
        self._edit_headers({LENGTH, b"transfer-encoding"}, (LENGTH, b"%d" % len(body)))

    def _edit_headers(self, dropped: set[bytes], *added: tuple[bytes, bytes]) -> None:
        kept = [(name, value) for name, value in self.scope["headers"] if name not in dropped]
        self.scope["headers"] = [*kept, *added]

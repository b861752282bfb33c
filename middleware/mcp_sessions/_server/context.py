"""How a request crosses the bridge.

One POST as the server gave it, and as the wrapped application gets it: with its session, and true headers.

The application is called here, with the session where handlers look for it and nowhere longer than the call
lasts. Nothing here knows what a message says, or what becomes of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from .._protocol.headers import ACCEPT_CODING, LENGTH, SESSION_HEADER, RequestHeaders
from .._session.claims import RedactedRepr
from .._session.current import session_variable
from .._session.session import Session
from ..errors import Refusal
from .body import Replay

if TYPE_CHECKING:
    from .response import Responder
    from .runtime import Runtime
    from .sessions import ActiveSession

WAY: Final = "mcp_sessions.bridge"
"""Where a request's scope holds how it crosses. The wrapped server does not see it."""


class Crossing(msgspec.Struct, frozen=True):
    """A request of a transport session.

    Args:
        ours: The id that its client holds. A credential.
        servers: The id that the wrapped server knows.
    """

    ours: str
    servers: str

    def __repr__(self) -> str:
        return "<Crossing>"


class Beginning(msgspec.Struct):
    """An `initialize`, which may begin a transport session.

    Args:
        request_id: Its id, as JSON.
        mint: Gives our id for the server's, or raises a `Refusal`.
        refuse: Answers the client with a refusal.
        stranded: The server's id that no client holds, since ours was refused.
    """

    request_id: bytes
    mint: Callable[[str], Awaitable[str]]
    refuse: Callable[[Refusal], Awaitable[None]]
    stranded: str | None = None


def has_servers_own(scope: Scope) -> bool:
    """Whether a request comes by a transport session of the wrapped server, in the header or across the bridge."""
    # What of the header is still there is the server's own.
    return SESSION_HEADER in dict(scope["headers"]) or scope.get(WAY) is not None


def crossing(live: ActiveSession) -> Crossing | None:
    """How requests of a transport session cross, or None where the server knows nothing of it.

    Raises:
        SessionNotFound: The server's id in it was not sealed for it.
    """
    servers = live.servers_id
    return None if servers is None else Crossing(live.session.id, servers)


BODY_AROUND_US: Final = frozenset({"http.response.pathsend", "http.response.zerocopysend"})
"""ASGI extensions by which a body would leave without passing here."""


class Forwarding(RedactedRepr, msgspec.Struct):
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
    options: Runtime
    head: RequestHeaders
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
        live: ActiveSession | None = None,
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

"""What every station of one request shares, and how it crosses the bridge to a server with transport sessions.

The scope is the request's own copy of the facts that the wrapped application sees, so its headers are edited here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from .._protocol.headers import ACCEPT_CODING, LENGTH, SESSION_HEADER, RequestHeaders
from .._session.claims import RedactedRepr

if TYPE_CHECKING:
    from ..telemetry.outcome import RequestTelemetry
    from .runtime import Runtime
    from .sessions import ActiveSession

BODY_AROUND_US: Final = frozenset({"http.response.pathsend", "http.response.zerocopysend"})
MAX_WAITING: Final = 10_000  # transport sessions; those of clients that never came back go first
"""ASGI extensions by which a body would leave without passing here."""


class Bridged(RedactedRepr, msgspec.Struct, frozen=True):
    """A request of a transport session that is sealed in one of ours.

    Args:
        client_id: The id that its client holds. A credential.
        server_id: The id that the wrapped server knows.
    """

    client_id: str
    server_id: str


class BridgedInitialize(RedactedRepr, msgspec.Struct):
    """An `initialize` that may begin a transport session of the wrapped server.

    Args:
        session: Ours, once it is minted for the server's.
        orphaned_id: The server's id that no client holds, since ours was refused.
    """

    session: ActiveSession | None = None
    orphaned_id: str | None = None


class RequestContext(RedactedRepr, msgspec.Struct, eq=False):
    """One request. (A struct: a dataclass takes three times as long to make.)

    Args:
        runtime: What all requests share.
        app: The wrapped application, across the bridge where there is one.
        scope: The ASGI scope; the session is put on it.
        receive: The server's `receive`.
        send: The server's `send`.
        headers: The request's headers.
        strict: Whether a body that is not JSON-RPC is refused; where the path may serve other things, it passes.
        telemetry: What records the message, once it is known; None where nothing does.
        bridge: How the request crosses the bridge; None where no id crosses.
    """

    runtime: Runtime
    app: ASGIApp
    scope: Scope
    receive: Receive
    send: Send
    headers: RequestHeaders
    strict: bool
    telemetry: RequestTelemetry | None = None
    bridge: Bridged | BridgedInitialize | None = None

    @property
    def has_upstream_session(self) -> bool:
        """Whether it belongs to a transport session of the wrapped server, by the header or across the bridge."""
        # A header of ours is taken out of the scope, so one that is still there is the server's.
        return SESSION_HEADER in dict(self.scope["headers"]) or self.bridge is not None

    def edit_headers(self, dropped: set[bytes], *added: tuple[bytes, bytes]) -> None:
        """Replace headers that the application sees."""
        kept = [(name, value) for name, value in self.scope["headers"] if name not in dropped]
        self.scope["headers"] = [*kept, *added]

    def declare(self, body: bytes) -> bytes:
        """Let the headers announce a body that was changed, and return it."""
        self.edit_headers({LENGTH, b"transfer-encoding"}, (LENGTH, b"%d" % len(body)))
        return body

    def keep_response_readable(self) -> None:
        """Keep the application from sending what cannot be changed: compressed bodies, files sent around us."""
        if ACCEPT_CODING in self.headers.by_name:
            self.scope["headers"] = self.headers.without(ACCEPT_CODING, self.scope["headers"])
        extensions = self.scope.get("extensions")
        if extensions and not BODY_AROUND_US.isdisjoint(extensions):
            kept = {name: value for name, value in extensions.items() if name not in BODY_AROUND_US}
            self.scope["extensions"] = kept


def bridged(session: ActiveSession) -> Bridged | None:
    """Return how requests of a transport session cross, or None where the server has no session of its own for it.

    Raises:
        SessionNotFound: The server's id in it was not sealed for it.
    """
    server_id = session.server_id
    return None if server_id is None else Bridged(session.token, server_id)


class PendingInitialized:
    """The wrapped server's transport sessions that wait for `notifications/initialized`.

    A server that keeps transport sessions keeps them in its process, and so does this.

    Args:
        max_waiting: How many are remembered at most; the oldest go first.
    """

    def __init__(self, *, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting: Final = max_waiting
        self._waiting: Final[OrderedDict[str, None]] = OrderedDict()

    def __contains__(self, transport: str | None) -> bool:
        return transport in self._waiting

    def add(self, transport: str) -> None:
        """Remember a transport session whose client need not confirm it."""
        self._waiting[transport] = None
        if len(self._waiting) > self._max_waiting:
            self._waiting.popitem(last=False)

    def remove(self, transport: str) -> None:
        """Forget a transport session that was confirmed."""
        self._waiting.pop(transport, None)

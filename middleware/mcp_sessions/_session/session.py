"""The session that an application sees, and `find_session()`, which finds that of the request being handled.

The id is a credential, so it stays out of `repr`, pickles and copies; `ref` is the name to log.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NoReturn, Protocol

import msgspec

from .claims import Claims, Correlation, Kind, Principal, RedactedRepr, utc
from .data import Data
from .state import State


class OpenSession(Protocol):
    """The open session of one request, which the server holds, as far as `Session` reads it."""

    token: str
    claims: Claims
    principal: Principal | None
    ends_at: int  # the earlier of absolute and idle expiry, Unix seconds

    @property
    def state(self) -> State: ...

    def data(self) -> Data: ...

    def is_handling(self, scope: MutableMapping[str, Any]) -> bool: ...

    def capabilities(self) -> Awaitable[bytes | None]: ...

    def end(self, reason: str) -> Awaitable[None]: ...


class Session(RedactedRepr, msgspec.Struct, eq=False):
    """A logical session, as seen by one request.

    Attributes:
        correlation: The name that the client of this request gives its conversation, if `correlate=` finds one, else
            None. Clients can send any name: never base access to data on it.
    """

    _active: OpenSession
    _ended: bool = False
    _data: Data | None = None
    correlation: Correlation | None = None

    @property
    def ref(self) -> str:
        """The session's public name: safe in logs and traces, worthless as a credential."""
        return self._active.claims.ref

    @property
    def kind(self) -> Kind:
        """What names it: `"session"` (the draft), `"transport"` (the header), `"cookie"`, `"field"` or `"beside"`
        (SEP-1364). Nothing names a `"principal"` one, which all conversations of its principal share.
        """
        return self._active.claims.kind

    @property
    def principal(self) -> Principal | None:
        """The principal that the session belongs to, or None for an anonymous one."""
        return self._active.principal

    @property
    def client(self) -> str | None:
        """The name and version that the client reported when the session was created, or None."""
        return self._active.claims.client

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of the session's start, for links from your own spans, or None."""
        return self._active.claims.trace

    @property
    def id(self) -> str:
        """The session id: a credential. Never log, trace or display it. Empty if its `kind` is `"principal"`."""
        return self._active.token

    @property
    def created_at(self) -> datetime:
        """When it was created, UTC."""
        return utc(self._active.claims.issued_at)

    @property
    def expires_at(self) -> datetime:
        """When it expires, UTC."""
        return utc(self._active.ends_at)

    @property
    def state(self) -> State:
        """Data that the client carries; changes are written back with the response."""
        return self._active.state

    @property
    def data(self) -> Data:
        """Data that the server keeps, shared by all requests of the session on every worker; no change is lost."""
        if self._data is None:
            self._data = self._active.data()
        return self._data

    async def client_capabilities(self) -> dict[str, Any] | None:
        """Return the latest capabilities of the client of a SEP-1364 session; None for other sessions.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        kept = await self._active.capabilities()
        return None if kept is None else msgspec.json.decode(kept, type=dict[str, Any])

    async def end(self, reason: str = "ended") -> None:
        """End the session: once this returns, every worker that shares the store refuses it.

        With the store's `freshness=`, other workers may accept it for that many seconds more.

        The request that ends it still gets its answer. Other requests of the session that are running get "Session not
        found", and `on_end` runs immediately, even if their handlers are still running. Ending it again has no effect.

        Args:
            reason: The reason, for the log and for `on_end`.

        Raises:
            StoreUnavailable: The store did not confirm the change, so the session may still be alive.
        """
        if not self._ended:
            await self._active.end(reason)
            self._ended = True

    def __repr__(self) -> str:
        return f"<Session {self.ref}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Session holds a credential and belongs to one request; keep session.ref instead")

    __copy__ = __reduce__
    __replace__ = __reduce__  # type: ignore[assignment]  # it gives nothing back


@dataclass(frozen=True, slots=True)
class EndedSession:
    """A session that has ended, as passed to `on_end`. Its id is not available.

    Args:
        ref: Its public name.
        created_at: When it was created, UTC.
        expires_at: When it would have expired, UTC.
        data: Its data, which can be read until `on_end` returns.
    """

    ref: str
    created_at: datetime
    expires_at: datetime
    data: Data


# --- the session of the request being handled ---

# The ASGI scope is the authority. In the stateful modes of SDK 1.x and FastMCP 3 a handler runs in a task of the
# connection's first request, where a context variable is stuck, so the framework is asked for its request first, and
# the variable comes last. A framework that was never imported cannot be handling a request.

shown_variable: Final[ContextVar[Mapping[str, Any]]] = ContextVar("mcp_session", default=MappingProxyType({}))
"""What the middleware shows of each request that it forwards, by the names that it has on the scope."""


def find_session() -> Session | None:
    """Return the session of the request that is being handled, or None when it has none."""
    return current_both()[0]


def current_correlation() -> Correlation | None:
    """Return the name that the client gives the conversation, or None where it gives none or `correlate=` is off."""
    return current_both()[1]


def current_both() -> tuple[Session | None, Correlation | None]:
    """Return the session of the request that is being handled, and the name of its conversation."""
    scope = framework_scope()
    shown = shown_variable.get() if scope is None else scope
    session: Session | None = shown.get("mcp_session")
    return session, shown.get("mcp_correlation") if session is None else session.correlation


def shown_around(scope: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Return what is shown of the request whose handler makes this one, such as a call of an ASGI application.

    Nothing if this is a request of its own, whose context is another's by accident.
    """
    outer = framework_scope()
    shown = outer if outer is not None and "mcp_session" in outer else shown_variable.get()
    session: Session | None = shown.get("mcp_session")
    is_inner = session is None or session._active.is_handling(scope)  # noqa: SLF001  # no part of the public class
    return shown if is_inner else {}


def framework_scope() -> Mapping[str, Any] | None:
    """Return the ASGI scope of the request that a framework is handling, or None where none handles one."""
    for module, request_of in _FRAMEWORKS.items():
        if module in sys.modules and (request := request_of(sys.modules[module])) is not None:
            scope: Mapping[str, Any] = request.scope
            return scope
    return None


def _fastmcp_request(dependencies: Any) -> Any:
    try:
        return dependencies.get_http_request()
    except RuntimeError:  # no HTTP request is being handled
        return None


def _sdk_request(server: Any) -> Any:
    variable = getattr(server, "request_ctx", None)
    context = None if variable is None else variable.get(None)
    return getattr(context, "request", None)


_FRAMEWORKS: Final[dict[str, Callable[[Any], Any]]] = {
    "fastmcp.server.dependencies": _fastmcp_request,  # FastMCP 3 and 4
    "mcp.server.lowlevel.server": _sdk_request,  # SDK 1.x; in 2.x the middleware's own variable is right
}

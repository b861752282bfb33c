"""The session that an application sees, and `find_session()`, which finds that of the request being handled.

The id is a credential, so it stays out of `repr`, pickles and copies; `ref` is the name to log.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, Final, NoReturn, Protocol

import msgspec

from .._errors import StoreUnavailable
from .claims import Claims, Correlation, Kind, Principal, RedactedRepr, utc
from .data import Data
from .endings import Ending
from .state import State


class SessionRuntime(Protocol):
    """The middleware that a session is in, as far as `Session` asks it."""

    @property
    def principal(self) -> Callable[[MutableMapping[str, Any]], Principal | None]:
        """Return the caller of a request, given its ASGI scope."""
        ...

    def data(self, ref: str, expires_at: int, subject: str | None, loop: Any) -> Data:
        """Return the data of a session; threads wait for this event loop."""
        ...

    def client_capabilities(self, claims: Claims) -> Awaitable[bytes | None]:
        """Return what the client of a session states that it can do, a JSON object, or None."""
        ...

    def end_session(self, claims: Claims, reason: str) -> Awaitable[None]:
        """End a session, or raise `StoreUnavailable`."""
        ...


class Session(RedactedRepr, msgspec.Struct, eq=False):
    """A logical session, as seen by one request.

    Attributes:
        correlation: The name that the client of this request gives its conversation, if `correlate=` finds one, else
            None. Clients can send any name: never base access to data on it.
    """

    _is_pending: ClassVar[bool] = False  # it is created only if the application uses it, which it has not done yet
    # Members with an underscore are for the middleware. None refers back to the session: that would be a cycle.
    _runtime: SessionRuntime
    _claims: Claims  # verified
    _principal: Principal | None  # the caller
    _ends_at: int  # the earlier of absolute and idle expiry, Unix seconds
    _state: State
    _token: str = ""  # the session id as the client holds it; empty until it is minted, and if the store remembers it
    correlation: Correlation | None = None
    _data: Data | None = None  # once it is asked for
    _loop: Any = None  # the event loop, for which threads of the application wait
    _ring: Any = None  # the `KeyRing` that was valid when the request came
    _key: Any = None  # the `Key` that verified the token; None for a new session
    _recheck_at: float = 0  # when the store has to be asked again, as the session may have ended by then, Unix seconds
    _carries_state: bool = False  # its client carries the state; the store has it otherwise
    _is_offered: bool = False  # it was offered to a client, and is created at its first use
    _forget: Callable[[], Awaitable[None]] | None = None  # deletes by what the store remembers it, once it has ended
    _ended: bool = False  # the store has confirmed the end
    _ended_by_own_request: bool = False  # so the request goes on when its session ends
    _answered: bool = False  # the application has sent the end of its response, or no response is expected

    @property
    def ref(self) -> str:
        """The session's public name: safe in logs and traces, worthless as a credential."""
        return self._claims.ref

    @property
    def kind(self) -> Kind:
        """What names it: `"session"` (the draft), `"transport"` (the header), `"cookie"`, `"field"` or `"beside"`
        (SEP-1364); or what the store remembers it by: `"user"`, `"conversation"` or `"argument"`.
        """
        return self._claims.kind

    @property
    def principal(self) -> Principal | None:
        """The principal that the session belongs to, or None for an anonymous one."""
        return self._principal

    @property
    def client(self) -> str | None:
        """The name and version that the client reported when the session was created, or None."""
        return self._claims.client

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of the session's start, for links from your own spans, or None."""
        return self._claims.trace

    @property
    def id(self) -> str:
        """The session id: a credential. Never log, trace or display it. Empty if the store remembers it."""
        return self._token

    @property
    def created_at(self) -> datetime:
        """When it was created, UTC."""
        return utc(self._claims.issued_at)

    @property
    def expires_at(self) -> datetime:
        """When it expires, UTC."""
        return utc(self._ends_at)

    @property
    def state(self) -> State:
        """Data that the client carries; changes are written back with the response."""
        return self._state

    @property
    def data(self) -> Data:
        """Data that the server keeps, shared by all requests of the session on every worker; no change is lost."""
        if self._data is None:
            claims = self._claims
            self._data = self._runtime.data(claims.ref, claims.expires_at, claims.subject, self._loop)
        return self._data

    async def client_capabilities(self) -> dict[str, Any] | None:
        """Return the latest capabilities of the client of a SEP-1364 session; None for other sessions.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        stated = await self._runtime.client_capabilities(self._claims)
        return None if stated is None else msgspec.json.decode(stated, type=dict[str, Any])

    async def end(self, reason: str = "ended", *, by: str | None = None) -> None:
        """End the session: once this returns, every worker that shares the store refuses it.

        With the store's `freshness=`, other workers may accept it for that many seconds more.

        The request that ends it still gets its answer. Other requests of the session that are running get "Session not
        found", and `on_end` runs immediately, even if their handlers are still running. Ending it again has no effect.

        Args:
            reason: The reason, for the log and for `on_end`.
            by: The part of the application that ends it, such as `"fraud check"`, for logs and spans.

        Raises:
            StoreUnavailable: The store did not confirm the change, so the session may still be alive.
        """
        await self._end(Ending(reason, "application", by))

    async def _end(self, ending: Ending) -> None:
        if self._ended:
            return
        self._ended_by_own_request = True  # before the store knows: this request's stream may be looked at meanwhile
        try:
            await self._runtime.end_session(self._claims, ending.to_text())
        except StoreUnavailable:
            self._ended_by_own_request = False
            raise
        self._ended = True
        if self._forget is not None:
            await self._forget()

    @property
    def _has_begun(self) -> bool:
        """Whether an offered session was used before; only then the store has a state for it, if an empty one."""
        state = self._state
        return not self._is_offered or state._stored is not None or state._fault is not None

    def _is_handling(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether a request that a handler makes counts as a part of the handler's request.

        Contexts leak: servers may start another user's request in the context of the one before it on a connection, and
        tasks outlive the request that they come from. So this ends with the response, and at another caller.
        """
        if self._state._closed or self._answered:
            return False
        caller = None
        with suppress(Exception):  # where `principal=` reads what a server puts on the scope, a handler's has none
            caller = self._runtime.principal(scope)
        return caller is None or caller == self._principal

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


def session_in_use() -> Session | None:
    """Return the session of the request that is being handled, unless it is created only if it is used."""
    session = find_session()
    return None if session is None or session._is_pending else session


def current_correlation() -> Correlation | None:
    """Return the client's name for the conversation, or None if it gives none or `correlate=` is off."""
    return current_both()[1]


def current_both() -> tuple[Session | None, Correlation | None]:
    """Return the session of the request that is being handled, and the name of its conversation."""
    scope = framework_scope()
    shown = shown_variable.get() if scope is None else scope
    session: Session | None = shown.get("mcp_session")
    return session, shown.get("mcp_correlation") if session is None else session.correlation


def shown_around(scope: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Return what is shown of the request whose handler makes this one, such as a call of an ASGI application.

    Nothing if this request is independent and has the context of another by accident.
    """
    outer = framework_scope()
    shown = outer if outer is not None and "mcp_session" in outer else shown_variable.get()
    session: Session | None = shown.get("mcp_session")
    is_inner = session is None or session._is_handling(scope)
    return shown if is_inner else {}


def framework_scope() -> Mapping[str, Any] | None:
    """Return the ASGI scope of the request that a framework is handling, or None if no framework handles one."""
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

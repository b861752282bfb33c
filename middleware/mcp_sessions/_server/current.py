"""The session and the principal of a request: `current_session()`, `require_session()`, and `principal=`.

The principal is read from what an authentication middleware left on the scope: the user of the official SDK and FastMCP
(client id, issuer, subject), and Starlette's. The log says why a request has no session.

An `Absence` lies on the scope of each forwarded request without one, and in a context variable: SDK 2.x gives its
handlers no scope, and in the stateful mode of SDK 1.x a variable is stuck in the connection's first request. It is
read only where a handler asks for a session without success.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from starlette.authentication import SimpleUser
from starlette.types import Scope

from .._errors import ConfigurationError, SessionRequired
from .._protocol import cookies
from .._protocol.cookies import SHARED_JAR
from .._protocol.draft import speaks_draft
from .._protocol.headers import SESSION_HEADER, RequestHeaders
from .._protocol.jsonrpc import Message
from .._protocol.labels import client_of
from .._session.claims import MAX_CLIENT_CHARS, Principal, RedactedRepr
from .._session.session import Session, find_session, framework_scope

if TYPE_CHECKING:
    from .runtime import Runtime

ABSENCE_KEY: Final = "mcp_sessions.absence"  # of the scope of a request without a session
NEEDED: Final = (
    "Session required: create one with sessions/create, keep the cookies that the server sets, or wrap the client with "
    "mcp_sessions.client.with_sessions"
)
WITH_SESSIONS: Final = "wrap the client with mcp_sessions.client.with_sessions"
STATELESS: Final = "give the wrapped server stateless_http=True, or set transport=TransportSessions(bridge=True)"
UNSEEN: Final = (
    "a handler asked for its session, but the request has none: its client sent none, or MCPSessionMiddleware did not "
    "see the request as an MCP message: wrap the application, and set path= to the path of the MCP endpoint"
)
_warned: Final[set[str]] = set()  # reasons, in our own words: what clients send is never kept
_log: Final = logging.getLogger("mcp_sessions")


def warn_once(reason: str, text: str, *values: object) -> None:
    """Log a warning, the first for this reason in this process."""
    if reason not in _warned:
        _warned.add(reason)
        _log.warning(text, *values)


Why = Literal["unnamed", "list", "handshake"]
"""The request names no session, or its handler gets none by design."""


class Absence(RedactedRepr, msgspec.Struct, frozen=True):
    """What tells why a request has no session."""

    runtime: Runtime
    headers: RequestHeaders
    message: Message | None  # None for a batch, and for a handshake, whose scope a connection may keep
    why: Why = "unnamed"

    @property
    def client(self) -> str:
        """What the client calls itself, as far as a line of a log has room for it."""
        named = None if self.message is None else client_of(self.message)
        return ascii((named or self.headers.first(b"user-agent") or "an MCP client")[:MAX_CLIENT_CHARS])

    @property
    def cause(self) -> tuple[str, str] | None:
        """Why there is none, and the remedy; None for a handshake, before which there can be none."""
        headers, message = self.headers, self.message
        if self.why == "handshake":
            return None
        if message is None:
            return "it sent a batch, which cannot carry one", "send its messages one by one"
        if self.why == "list":
            return "lists are the same in all sessions of the modern era", 'set wire=Wire(lists="session")'
        if headers.cookie == SHARED_JAR:
            return (
                "it shares its HTTP client, and so a cookie jar, with another MCP client",
                f'give each an HTTP client of its own, {WITH_SESSIONS}, or set TransportSessions(cookie="shared")',
            )
        if speaks_draft(message):
            return "it names sessions itself and named none", "let it call sessions/create first"
        if not self.runtime.keys_persistent:
            return (
                "with keys=None, keys die with the process, and clients without session support get no session",
                'set keys="env:MCP_SESSIONS_KEYS"',
            )
        return self._modern_cause if headers.is_modern else self._legacy_cause

    @property
    def _modern_cause(self) -> tuple[str, str]:
        if self.runtime.cookie_name is None:
            return "cookies are off", 'set transport="auto"'
        if cookies.is_cross_site(self.headers):
            return "a page of another site sent the request, so its cookies are ignored", WITH_SESSIONS
        return "it keeps no cookies, or sent no server/discover", f'{WITH_SESSIONS}, or set wire=Wire(era="legacy")'

    @property
    def _legacy_cause(self) -> tuple[str, str]:
        if not self.runtime.transport and not self.runtime.bridges:
            return "sessions by the transport header are off", 'set transport="auto"'
        if SESSION_HEADER in self.headers.by_name:
            return "the wrapped server keeps transport sessions of its own", STATELESS
        return "it sent no Mcp-Session-Id", WITH_SESSIONS


absence_variable: Final[ContextVar[Absence | None]] = ContextVar("mcp_session_absence", default=None)
"""Set by the middleware around each request that it forwards without a session."""


def current_session() -> Session | None:
    """Return the session of the request that is being handled, or None if it has none.

    It works in tools, resources, prompts and completions of the official SDK 1.x and 2.x and of FastMCP 3 and 4, in
    plain ASGI handlers, and in tasks and threads that these start. The log says why requests have no session, once for
    each reason.
    """
    session = find_session()
    if session is None:
        _explain(framework_scope())
    return session


def require_session() -> Session:
    """Return the session of the request that is being handled.

    It also works as a dependency: `Resolve(require_session)` in SDK 2.x, `Depends(require_session)` in FastMCP and
    FastAPI.

    Raises:
        SessionRequired: The request has none; the log says why. The client gets the JSON-RPC error -31044 with SDK 2.x
            and, given `add_sessions` or `add_exception_handlers`, with Starlette and FastAPI; tools of SDK 1.x and of
            FastMCP answer with a failed result.
    """
    session = find_session()
    if session is None:
        raise session_required(framework_scope())
    return session


def session_required(scope: Mapping[str, Any] | None) -> SessionRequired:
    """Log why a request has no session, and return the error, given its ASGI scope where that is known."""
    _explain(scope)
    error = _error_for(sys.modules.get("fastmcp.exceptions"), sys.modules.get("mcp.shared.exceptions"))
    refusal: SessionRequired = error()
    return refusal


def _explain(scope: Mapping[str, Any] | None) -> None:
    absence: Absence | None = absence_variable.get() if scope is None else scope.get(ABSENCE_KEY)
    if absence is None:
        warn_once(UNSEEN, UNSEEN)
    elif (cause := absence.cause) is not None:
        why, remedy = cause
        warn_once(why, "%s has no session: %s; %s", absence.client, why, remedy)


@cache
def _error_for(fastmcp: Any, mcp: Any) -> type[Any]:
    """Return the class of `SessionRequired` that the frameworks which are imported take for an error of theirs."""
    of_fastmcp = () if fastmcp is None else (fastmcp.FastMCPError,)
    of_sdk = () if mcp is None else (getattr(mcp, "MCPError", None) or mcp.McpError,)

    class SessionRequiredHere(SessionRequired, *of_fastmcp, *of_sdk):  # type: ignore[misc]  # as many bases as there are
        log_level = logging.WARNING  # FastMCP's

        def __init__(self) -> None:
            Exception.__init__(self, NEEDED)
            error = None if mcp is None else mcp.ErrorData(code=self.code, message=NEEDED)
            self.__dict__.update(message=NEEDED, client_message=NEEDED, ref=None, error=error)

    SessionRequiredHere.__name__ = SessionRequiredHere.__qualname__ = SessionRequired.__name__
    return SessionRequiredHere


# --- the principal ---

PrincipalOf = Callable[[Scope], "Principal | str | None"]
"""The `principal=` option: returns who a request is authenticated as, given its scope."""

ReadPrincipal = Callable[[Scope], "Principal | None"]


def from_scope(scope: Scope) -> Principal | None:
    """Return the principal that an authentication middleware left on the scope, or None.

    Where nothing distinguishes the user from others, only `principal=` can: `ConfigurationError`.
    """
    user = scope.get("user")
    if user is None or not getattr(user, "is_authenticated", True):
        return None
    token = getattr(user, "access_token", None)
    found = _from_user(user) if token is None else _from_token(token)
    if found == Principal():
        raise ConfigurationError(
            f"nothing in {type(user).__name__} distinguishes users; pass principal=, a function of the ASGI "
            "scope that returns who the caller is"
        )
    return found


def _from_token(token: Any) -> Principal:
    claims = getattr(token, "claims", None) or {}
    subject = getattr(token, "subject", None)
    return Principal(
        client_id=_text(getattr(token, "client_id", None)),
        issuer=_text(claims.get("iss")),
        subject=_text(claims.get("sub") if subject is None else subject),  # FastMCP 3 has it in the claims only
    )


def _from_user(user: Any) -> Principal:
    if isinstance(user, SimpleUser):  # elsewhere a display name identifies no user, but this has nothing else
        return Principal(subject=user.username)
    try:
        return Principal(subject=_text(user.identity))
    except (NotImplementedError, AttributeError):
        return Principal()


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def reader(principal: PrincipalOf | None) -> ReadPrincipal:
    """Return the function that reads the principal of every request."""
    if principal is None:
        return from_scope
    if not callable(principal):
        raise ConfigurationError(
            "principal= takes a function of the ASGI scope that returns a Principal, a str or None"
        )

    def read(scope: Scope) -> Principal | None:
        given: Any = principal(scope)
        if given is None:
            return None
        found = given if isinstance(given, Principal) else Principal(subject=str(given))
        if not given or given is True or not (found.client_id or found.subject):
            raise ConfigurationError(
                f"principal= returned {given!r}, which would make all callers the same; return what identifies "
                "the caller, or None for an anonymous one"
            )
        return found

    return read

"""The session of a request: `current_session()` and `require_session()`. The log says why a request has none.

A forwarded request without a session has a `MissingSession` on its scope and in the context variable, since SDK 2.x
gives its handlers no scope, and in the stateful mode of SDK 1.x the variable stays that of the connection's first
request. It is read only if a handler asks for a session and gets none. It is None if no session can exist yet, as in a
handshake, or if no message is being handled.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .._errors import SessionRequired
from .._protocol.headers import RequestHeaders
from .._protocol.jsonrpc import Message
from .._protocol.labels import client_of
from .._protocol.origins import is_own_page
from .._session.claims import MAX_CLIENT_CHARS, RedactedRepr
from .._session.session import Session, find_session, framework_scope, shown_variable
from ..stores._threads import is_detached
from .credentials import CREATE, NoCredential
from .logs import say_once

if TYPE_CHECKING:
    from .runtime import Runtime

MISSING_SESSION_KEY: Final = "mcp_sessions.missing_session"  # of the scope of a request without a session
NEEDED: Final = (
    "Session required: create one with sessions/create, keep the cookies that the server sets, or wrap the client with "
    "mcp_sessions.client.with_sessions"
)
WRAP_APPLICATION: Final = "wrap the application, and set path= to the path of the MCP endpoint"
UNWRAPPED: Final = NoCredential("MCPSessionMiddleware did not see the request as an MCP message", WRAP_APPLICATION)
OLDER_SSE: Final = NoCredential(
    "the client uses the older SSE transport, which has no sessions",
    "connect it to the Streamable HTTP endpoint, such as /mcp",
)
OUTSIDE: Final = NoCredential(
    "MCPSessionMiddleware did not see the request, it came by the older SSE transport, or this runs outside of any",
    WRAP_APPLICATION,
)
DETACHED: Final = NoCredential(
    "the thread lacks the context of the request",
    "start it with anyio.to_thread.run_sync, or call its function by contextvars.copy_context().run",
)
BATCH: Final = NoCredential("it sent a batch, which cannot carry one", "send its messages one by one")
LISTS: Final = NoCredential("lists are the same in all sessions of the modern era", 'set wire=Wire(lists="session")')
UNSEEN: Final = NoCredential(
    "it sends an Authorization header, but the middleware does not see who the caller is",
    "pass principal=, or use add_sessions",
)
FOREIGN_PAGE: Final = NoCredential(
    "a page of another site sent the request, so what its browser adds by itself is ignored",
    f"{CREATE}; or, if Origin has https and the page is yours, let the server trust X-Forwarded-Proto of its proxy",
)
STORE_FAULT: Final = NoCredential(
    "the session store does not answer", "see the warning about it, and restore the store"
)
EPHEMERAL_KEYS: Final = NoCredential(
    "with keys=None, keys die with the process, and clients without session support get no session",
    'set keys="env:MCP_SESSIONS_KEYS"',
)
OFF: Final = NoCredential("sessions for clients of its era are off", 'set transport="auto"')

Absence = Callable[[RequestHeaders, Message], "NoCredential | None"]


class MissingSession(RedactedRepr, msgspec.Struct, frozen=True):
    """What explains, if a handler asks, why a request has no session."""

    runtime: Runtime
    headers: RequestHeaders
    message: Message | None  # None for a batch
    known: NoCredential | None = None  # why it is so whatever its client sends
    absent: NoCredential | None = None  # what a dialect said when it found none
    absences: Sequence[Absence] = ()  # by which dialects explain that they found none
    scheme: str = "http"  # of the request

    @property
    def client(self) -> str:
        """The client's name for itself, cut to fit into a log line."""
        name = None if self.message is None else client_of(self.message)
        return ascii((name or self.headers.first(b"user-agent") or "an MCP client")[:MAX_CLIENT_CHARS])

    def cause(self) -> NoCredential:
        """Return the first cause that applies."""
        message = self.message
        if message is None:
            return BATCH
        if self.known is not None:
            return self.known
        if not is_own_page(self.headers, self.scheme):
            return FOREIGN_PAGE
        if self.runtime.store_fault is not None:
            return STORE_FAULT
        if not self.runtime.keys_persistent:
            return EPHEMERAL_KEYS
        said = (absence(self.headers, message) for absence in self.absences)
        return self.absent or next(filter(None, said), OFF)


@contextmanager
def without_session(scope: MutableMapping[str, Any]) -> Iterator[None]:
    """Give a request no session, and the log nothing to explain."""
    scope[MISSING_SESSION_KEY] = None
    token = shown_variable.set({MISSING_SESSION_KEY: None})
    try:
        yield
    finally:
        shown_variable.reset(token)


def current_session() -> Session | None:
    """Return the session of the request that is being handled, or None if it has none.

    It works in tools, resources, prompts and completions of the official SDK 1.x and 2.x and of FastMCP 3 and 4, in
    plain ASGI handlers, and in tasks and threads that these start. The log says why requests have no session, at INFO,
    once for each reason.
    """
    session = find_session()
    if session is None:
        explain(framework_scope())
    return session


def require_session() -> Session:
    """Return the session of the request that is being handled.

    It also works as a dependency: `Resolve(require_session)` in SDK 2.x, `Depends(require_session)` in FastMCP and
    FastAPI.

    Raises:
        SessionRequired: The request has none; the message says why. The client gets the JSON-RPC error -31044 with SDK
            2.x and, given `add_sessions` or `add_exception_handlers`, with Starlette and FastAPI; tools of SDK 1.x and
            of FastMCP answer with a failed result.
    """
    session = find_session()
    if session is None:
        raise session_required(framework_scope())
    return session


def session_required(scope: Mapping[str, Any] | None) -> SessionRequired:
    """Log why a request has no session, and return the error; `scope` is None if it is not known."""
    cause = explain(scope)
    error = _error_for(sys.modules.get("fastmcp.exceptions"), sys.modules.get("mcp.shared.exceptions"))
    refusal: SessionRequired = error(NEEDED if cause is None else f"Session required: {cause.cause}; {cause.remedy}")
    return refusal


def explain(scope: Mapping[str, Any] | None) -> NoCredential | None:
    """Log why a request has no session, once for each cause, and return it; None for a handshake."""
    shown = shown_variable.get() if scope is None else scope
    missing: MissingSession | None = shown.get(MISSING_SESSION_KEY)
    if missing is None and MISSING_SESSION_KEY in shown:
        return None
    if missing is not None:
        client, cause = missing.client, missing.cause()
    elif scope is not None:
        client, cause = "a request", OLDER_SSE if b"session_id=" in scope.get("query_string", b"") else UNWRAPPED
    else:
        client, cause = "a handler", DETACHED if is_detached() else OUTSIDE
    say_once(cause.cause, "%s has no session: %s; %s", client, cause.cause, cause.remedy)
    return cause


@cache
def _error_for(fastmcp: Any, mcp: Any) -> type[Any]:
    """Return a subclass of `SessionRequired` and of the errors that the imported frameworks handle themselves."""
    of_fastmcp = () if fastmcp is None else (fastmcp.FastMCPError,)
    of_sdk = () if mcp is None else (getattr(mcp, "MCPError", None) or mcp.McpError,)

    class SessionRequiredHere(SessionRequired, *of_fastmcp, *of_sdk):  # type: ignore[misc]  # as many bases as there are
        log_level = logging.WARNING  # FastMCP's

        def __init__(self, text: str) -> None:
            Exception.__init__(self, text)
            error = None if mcp is None else mcp.ErrorData(code=self.code, message=text)
            self.__dict__.update(message=text, client_message=text, ref=None, error=error)

    SessionRequiredHere.__name__ = SessionRequiredHere.__qualname__ = SessionRequired.__name__
    return SessionRequiredHere

"""`current_session()`: the session of the request that is being handled, found with no argument.

The ASGI scope is the authority. In the stateful modes of SDK 1.x and FastMCP 3 a handler runs in a task of the
connection's first request, where a context variable is stuck. So the framework is asked for its current request
first, and the variable comes last. A framework that was never imported cannot be handling a request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from .claims import Correlation
from .session import Session

session_variable: Final[ContextVar[Session | None]] = ContextVar("mcp_session", default=None)
"""Set by the middleware around each request that it forwards."""

correlation_variable: Final[ContextVar[Correlation | None]] = ContextVar("mcp_correlation", default=None)
"""Set by the middleware around each request that it forwards, where `correlate=` is on."""


def current_session() -> Session | None:
    """Return the session of the request that is being handled, or None when it has none.

    Works inside tools, resources, prompts and completions of the official SDK 1.x and 2.x and of
    FastMCP 3 and 4, in plain ASGI handlers, and in tasks and threads that these start.
    """
    scope = framework_scope()
    if scope is None:
        return session_variable.get()
    found: Session | None = scope.get("mcp_session")
    return found


def current_correlation() -> Correlation | None:
    """Return the name that the client gives the conversation, or None where it gives none or `correlate=` is off."""
    return current_both()[1]


def current_both() -> tuple[Session | None, Correlation | None]:
    """Return the session of the request that is being handled, and the name of its conversation."""
    scope = framework_scope()
    if scope is None:
        return session_variable.get(), correlation_variable.get()
    session: Session | None = scope.get("mcp_session")
    return session, scope.get("mcp_correlation") if session is None else session.correlation


def framework_scope() -> Mapping[str, Any] | None:
    """Return the ASGI scope of the request that a framework is handling, or None where none handles one."""
    for module, request_of in _FRAMEWORKS.items():
        if module in sys.modules and (request := request_of(sys.modules[module])) is not None:
            scope: Mapping[str, Any] = request.scope
            return scope
    return None


def _fastmcp_request(dependencies: Any) -> Any:
    """FastMCP 3 and 4; their call raises where no HTTP request is being handled."""
    try:
        return dependencies.get_http_request()
    except RuntimeError:
        return None


def _sdk_request(server: Any) -> Any:
    """SDK 1.x; SDK 2.x has no such variable, and there the middleware's own is right."""
    variable = vars(server).get("request_ctx")  # not to be there costs `getattr` an exception
    context = None if variable is None else variable.get(None)
    return getattr(context, "request", None)


_FRAMEWORKS: Final[dict[str, Callable[[Any], Any]]] = {
    "fastmcp.server.dependencies": _fastmcp_request,
    "mcp.server.lowlevel.server": _sdk_request,
}

"""The session in handlers of the official SDK, 1.x and 2.x.

With SDK 2.x a tool asks for it as for any resolved argument, which is not part of the tool's schema:
`Annotated[Session, Resolve(require_session)]`, or `Annotated[Session | None, Resolve(current_session)]`. With
SDK 1.x, which resolves nothing, a handler calls either. The SDK is imported only to raise its own error.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .._server.placement import code_of
from .._session.session import Session, current_session, framework_scope
from ..errors import SessionRequired

__all__ = ["current_session", "require_session"]


def require_session() -> Session:
    """Return the session of the request that is being handled.

    Raises:
        MCPError: The request named none (`McpError` with SDK 1.x). SDK 2.x makes it the JSON-RPC error "Session
            required"; tools of SDK 1.x answer with a failed result.
    """
    session = current_session()
    if session is not None:
        return session
    exceptions: Any = import_module("mcp.shared.exceptions")
    code, message = code_of(SessionRequired(), framework_scope()), SessionRequired.message
    if hasattr(exceptions, "MCPError"):
        raise exceptions.MCPError(code=code, message=message)
    # SDK 1.x
    raise exceptions.McpError(import_module("mcp.types").ErrorData(code=code, message=message))

"""The session as a dependency of FastAPI, for MCP endpoints that are functions of your own.

async def endpoint(message: dict[str, Any], session: Annotated[Session, Depends(require_session)]) -> ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from .._errors import ConfigurationError, Refusal
from .._server.current import MISSING_SESSION_KEY, explain, session_required
from .._session.session import Session, shown_around

__all__ = ["add_exception_handlers", "optional_session", "require_session"]


async def optional_session(connection: HTTPConnection) -> Session | None:
    """Return the session of the request, or None if it has none; the log says why.

    A request that a handler makes in this process (`FastMCP.from_fastapi`, `httpx.ASGITransport`) has the session of
    the handler's request.
    """
    shown = _shown(connection)
    session: Session | None = shown.get("mcp_session")
    if session is None:
        explain(shown)
    return session


async def require_session(connection: HTTPConnection) -> Session:
    """Return the session of the request; see `optional_session`.

    Raises:
        SessionRequired: The request has none; the message says why. `add_exception_handlers` answers it as a JSON-RPC
            error.
        ConfigurationError: The request bypassed the middleware: it is not a POST, or its route is not covered.
    """
    shown = _shown(connection)
    session: Session | None = shown.get("mcp_session")
    if session is not None:
        return session
    is_inner = shown is not connection.scope and MISSING_SESSION_KEY in shown
    if not (is_inner or "mcp_session" in shown):
        raise ConfigurationError(
            f"no middleware looked for a session in {connection.scope.get('method')} {connection.url.path}: a session "
            "comes with a POST to an MCP endpoint; name the route's path in add_sessions(app, path=...), or in "
            "app.add_middleware(MCPSessionMiddleware, path=...)"
        )
    raise session_required(shown)


def _shown(connection: HTTPConnection) -> Mapping[str, Any]:
    is_seen = "mcp_session" in connection.scope or MISSING_SESSION_KEY in connection.scope
    return connection.scope if is_seen else shown_around(connection.scope)


def add_exception_handlers(app: Starlette) -> None:
    """Make a FastAPI or Starlette application answer errors of this package as JSON-RPC errors."""
    app.add_exception_handler(Refusal, answer_refusal)


async def answer_refusal(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    error = {"code": refusal.code, "message": refusal.client_message}
    answer = {"jsonrpc": "2.0", "id": await _id(request), "error": error}
    headers = {} if refusal.retry_after is None else {"retry-after": str(refusal.retry_after)}
    return JSONResponse(answer, refusal.http_status, headers)


async def _id(request: Request) -> Any:
    try:
        message = json.loads(await request.body())
    except (ValueError, RuntimeError, ClientDisconnect):
        # Not JSON; or too deep for the stack, or a stream that the endpoint has read already; or the client has left.
        return None
    return message.get("id") if isinstance(message, dict) else None

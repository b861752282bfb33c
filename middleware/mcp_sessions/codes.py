"""The JSON-RPC codes of a deployment, for refusals that the application raises itself.

A dependency such as `require_session` stands behind the middleware and knows none of its options. Where a deployment
has codes of its own (`not_found_code=`, `required_code=`), they travel with each request that is handed over; where it
has none, nothing does. Nothing here answers a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import Refusal, SessionNotFound, SessionRequired

Code = Callable[[Refusal], int]

_SCOPE_KEY: Final = "mcp_sessions.code"
_variable: Final[ContextVar[Code | None]] = ContextVar("mcp_sessions_code", default=None)


class Coded:
    """An application that is told its deployment's codes.

    Args:
        app: The application.
        code: The code of a refusal.
    """

    def __init__(self, app: ASGIApp, code: Code) -> None:
        self._app = app
        self._code = code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_SCOPE_KEY] = self._code
        token = _variable.set(self._code)
        try:
            await self._app(scope, receive, send)
        finally:
            _variable.reset(token)


def told(app: ASGIApp, code: Code) -> ASGIApp:
    """The application, which is told the codes where they are not the usual ones.

    Args:
        app: The application.
        code: The code of a refusal.
    """
    usual = all(code(refusal()) == refusal.code for refusal in (SessionNotFound, SessionRequired))
    return app if usual else Coded(app, code)


def code_of(refusal: Refusal, scope: Mapping[str, Any] | None) -> int:
    """The code of a refusal, in the deployment whose request is being handled.

    Args:
        refusal: What is raised.
        scope: The ASGI scope of the request, or None where only the context tells.
    """
    code = _variable.get() if scope is None else scope.get(_SCOPE_KEY)
    return refusal.code if code is None else code(refusal)

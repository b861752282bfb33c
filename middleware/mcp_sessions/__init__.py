"""Logical sessions for MCP servers, as one pluggable ASGI middleware.

    app = MCPSessionMiddleware(mcp.streamable_http_app(stateless_http=True), keys="env:MCP_SESSIONS_KEYS")

Inside a tool, `require_session()` returns the session of the request that is being handled; `current_session()` returns
None without one. Names that most servers do not need are imported on first use.
More is in `errors`, `events`, `handles`, `keys`, `operator`, `stores`, `dialects`, `telemetry`, `client` and `testing`.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, Final

from ._dialects import Options, TransportSessions
from ._server.current import current_session, require_session
from ._server.environment import from_env
from ._server.middleware import MCPSessionMiddleware
from ._server.options import Affinity, Limits, Telemetry, Tracking, Wire
from ._session.claims import Principal
from ._session.data import Data
from ._session.session import Session
from ._session.state import State
from ._tokens.keys import KeyRing
from .errors import ConfigurationError, CreateRefused, DataError, MCPSessionsError, StateError

if TYPE_CHECKING:
    from ._server.operator import Sessions
    from .integrations._starlette import add_sessions

    __version__: str

__all__ = [
    "Affinity",
    "ConfigurationError",
    "CreateRefused",
    "Data",
    "DataError",
    "KeyRing",
    "Limits",
    "MCPSessionMiddleware",
    "MCPSessionsError",
    "Options",
    "Principal",
    "Session",
    "Sessions",
    "State",
    "StateError",
    "Telemetry",
    "Tracking",
    "TransportSessions",
    "Wire",
    "add_sessions",
    "current_session",
    "from_env",
    "require_session",
]

_WHEN_ASKED_FOR: Final = {"Sessions": "._server.operator", "add_sessions": ".integrations._starlette"}
"""The modules of the names that are imported on first use."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("mcp-sessions")
    if name in _WHEN_ASKED_FOR:
        return getattr(import_module(_WHEN_ASKED_FOR[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

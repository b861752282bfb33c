"""Logical sessions for MCP servers, as one pluggable ASGI middleware.

    app = MCPSessionMiddleware(mcp.streamable_http_app(stateless_http=True), keys="env:MCP_SESSIONS_KEYS")

Inside a tool, `require_session()` returns the session of the request that is being handled; `current_session()` returns
None if there is none. Names that most servers do not need are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ._dialects import Options, TransportSessions
from ._errors import (
    ConfigurationError,
    CreateRefused,
    DataError,
    DataGone,
    DataNotInteger,
    DataNotJSON,
    DataTooLarge,
    MCPSessionsError,
    StateClosed,
    StateError,
    StateNotJSON,
    StateTooLarge,
)
from ._server.current import current_session, require_session
from ._server.environment import from_env
from ._server.middleware import MCPSessionMiddleware
from ._server.options import Limits, Telemetry, Tracking, Wire
from ._session.claims import Claims, Correlation, Principal
from ._session.data import Data, SyncData
from ._session.events import RequestRefused, SessionCreated, SessionDeleted, SessionEvent, SessionUsed
from ._session.session import EndedSession, Session, current_correlation
from ._session.state import State
from ._tokens.keys import Key, KeyRing
from .stores._base import Record, SessionStatus

if TYPE_CHECKING:
    from ._server.operator import Sessions
    from .handles import Handle, HandleError, HandleOf, Handles
    from .integrations._starlette import add_sessions

__all__ = [
    "Claims",
    "ConfigurationError",
    "Correlation",
    "CreateRefused",
    "Data",
    "DataError",
    "DataGone",
    "DataNotInteger",
    "DataNotJSON",
    "DataTooLarge",
    "EndedSession",
    "Handle",
    "HandleError",
    "HandleOf",
    "Handles",
    "Key",
    "KeyRing",
    "Limits",
    "MCPSessionMiddleware",
    "MCPSessionsError",
    "Options",
    "Principal",
    "Record",
    "RequestRefused",
    "Session",
    "SessionCreated",
    "SessionDeleted",
    "SessionEvent",
    "SessionStatus",
    "SessionUsed",
    "Sessions",
    "State",
    "StateClosed",
    "StateError",
    "StateNotJSON",
    "StateTooLarge",
    "SyncData",
    "Telemetry",
    "Tracking",
    "TransportSessions",
    "Wire",
    "add_sessions",
    "current_correlation",
    "current_session",
    "from_env",
    "require_session",
]
__version__ = "0.1.0"

for _name in __all__:
    if isinstance(_found := globals().get(_name), type) and issubclass(_found, MCPSessionsError):
        _found.__module__ = __name__  # so that a traceback names the place to import it from

_WHEN_ASKED_FOR: Final = {
    "_server.operator": ("Sessions",),
    "handles": ("Handle", "HandleError", "HandleOf", "Handles"),
    "integrations._starlette": ("add_sessions",),
}
"""The names imported on first use, by module."""


def __getattr__(name: str) -> Any:
    for module, names in _WHEN_ASKED_FOR.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

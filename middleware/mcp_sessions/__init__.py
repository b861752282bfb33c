"""Logical sessions for MCP servers, as one pluggable ASGI middleware.

    app = MCPSessionMiddleware(mcp.streamable_http_app(stateless_http=True), keys="env:MCP_SESSIONS_KEYS")

Inside a tool, `require_session()` returns the session of the request that is being handled; `current_session()` returns
None if there is none. Names that most servers do not need are imported on first use.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

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
from ._server.middleware import MCPSessionMiddleware
from ._session.claims import Correlation, Principal
from ._session.session import EndedSession, Session, current_correlation
from ._session.state import State
from ._tokens.keys import KeyRing

if TYPE_CHECKING:
    from ._protocol.sep1364 import SEP1364Create, SEP1364Initialize
    from ._server.operator import Sessions
    from ._server.options import Limits, Telemetry, Tracking, TransportSessions, Wire, from_env
    from ._session.claims import Claims
    from ._session.data import Data, SyncData
    from ._session.events import RequestRefused, SessionCreated, SessionDeleted, SessionEvent, SessionUsed
    from ._tokens.keys import Key
    from .handles import Handle, HandleError, HandleOf, Handles
    from .integrations._starlette import add_sessions
    from .stores._base import Record, SessionStatus

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
    "Principal",
    "Record",
    "RequestRefused",
    "SEP1364Create",
    "SEP1364Initialize",
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

_WHEN_ASKED_FOR: Final = MappingProxyType(
    {
        "_protocol.sep1364": ("SEP1364Create", "SEP1364Initialize"),
        "_server.operator": ("Sessions",),
        "_server.options": ("Limits", "Telemetry", "Tracking", "TransportSessions", "Wire", "from_env"),
        "_session.claims": ("Claims",),
        "_session.data": ("Data", "SyncData"),
        "_session.events": ("SessionEvent", "RequestRefused", "SessionCreated", "SessionDeleted", "SessionUsed"),
        "_tokens.keys": ("Key",),
        "handles": ("Handle", "HandleError", "HandleOf", "Handles"),
        "integrations._starlette": ("add_sessions",),
        "stores._base": ("Record", "SessionStatus"),
    }
)
"""The names imported on first use, by module."""


def __getattr__(name: str) -> Any:
    for module, names in _WHEN_ASKED_FOR.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

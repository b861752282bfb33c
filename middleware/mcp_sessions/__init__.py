"""Logical sessions for MCP servers, as one pluggable ASGI middleware.

    app = MCPSessionMiddleware(mcp.streamable_http_app(stateless_http=True), keys="env:MCP_SESSION_KEYS")

Inside a tool, `require_session()` is the session of the request that is being handled; `current_session()` is None
where there is none. What most servers do without is imported when it is first asked for.
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
    from ._server.environment import from_env
    from ._server.operator import Sessions
    from ._server.options import Limits, Telemetry, Tracking, TransportSessions, Wire
    from ._session.claims import Claims
    from ._session.data import Data
    from ._session.events import Fact, RequestRefused, SessionCreated, SessionDeleted, SessionUsed
    from ._tokens.handles import Handle, HandleError
    from ._tokens.keys import Key
    from .integrations._handle_types import HandleOf
    from .integrations._handles import Handles
    from .integrations._starlette import add_sessions
    from .stores._base import Record, Standing

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
    "Fact",
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
    "SessionUsed",
    "Sessions",
    "Standing",
    "State",
    "StateClosed",
    "StateError",
    "StateNotJSON",
    "StateTooLarge",
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
        "Claims": "_session.claims",
        "Data": "_session.data",
        "Fact": "_session.events",
        "Handle": "_tokens.handles",
        "HandleError": "_tokens.handles",
        "HandleOf": "integrations._handle_types",
        "Handles": "integrations._handles",
        "Key": "_tokens.keys",
        "Limits": "_server.options",
        "Record": "stores._base",
        "RequestRefused": "_session.events",
        "SEP1364Create": "_protocol.sep1364",
        "SEP1364Initialize": "_protocol.sep1364",
        "SessionCreated": "_session.events",
        "SessionDeleted": "_session.events",
        "SessionUsed": "_session.events",
        "Sessions": "_server.operator",
        "Standing": "stores._base",
        "Telemetry": "_server.options",
        "Tracking": "_server.options",
        "TransportSessions": "_server.options",
        "Wire": "_server.options",
        "add_sessions": "integrations._starlette",
        "from_env": "_server.environment",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHEN_ASKED_FOR[name]}", __name__), name)

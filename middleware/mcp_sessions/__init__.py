"""Logical sessions for MCP servers, as one pluggable ASGI middleware.

    app = MCPSessionMiddleware(mcp.streamable_http_app(), keys="env:MCP_SESSION_KEYS")

Inside a tool, `current_session()` is the session of the request that is being handled. What most
servers do without is imported when it is first asked for.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from .carried import State
from .current import current_correlation, current_session
from .errors import (
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
from .keys import KeyRing
from .middleware import MCPSessionMiddleware
from .session import Correlation, EndedSession, Principal, Session

if TYPE_CHECKING:
    from .dialects.sep1364_create import SEP1364Create
    from .dialects.sep1364_initialize import SEP1364Initialize
    from .explicit_handles import Handles
    from .handles import Handle, HandleError
    from .integrations.handle_types import HandleOf
    from .integrations.starlette import add_sessions
    from .sessions import Sessions

__all__ = [
    "ConfigurationError",
    "Correlation",
    "CreateRefused",
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
    "KeyRing",
    "MCPSessionMiddleware",
    "MCPSessionsError",
    "Principal",
    "SEP1364Create",
    "SEP1364Initialize",
    "Session",
    "Sessions",
    "State",
    "StateClosed",
    "StateError",
    "StateNotJSON",
    "StateTooLarge",
    "add_sessions",
    "current_correlation",
    "current_session",
]
__version__ = "0.1.0"

_WHEN_ASKED_FOR: Final = MappingProxyType(
    {
        "Handle": "handles",
        "HandleError": "handles",
        "HandleOf": "integrations.handle_types",
        "Handles": "explicit_handles",
        "SEP1364Create": "dialects.sep1364_create",
        "SEP1364Initialize": "dialects.sep1364_initialize",
        "Sessions": "sessions",
        "add_sessions": "integrations.starlette",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHEN_ASKED_FOR[name]}", __name__), name)

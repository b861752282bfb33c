"""Logical sessions for MCP servers, as one pluggable ASGI middleware.

    app = MCPSessionMiddleware(mcp.streamable_http_app(), keys="env:MCP_SESSION_KEYS")

Inside a tool, `current_session()` is the session of the request that is being handled.
"""

from .current import current_session
from .errors import (
    ConfigurationError,
    MCPSessionsError,
    StateClosed,
    StateError,
    StateNotJSON,
    StateTooLarge,
)
from .integrations.starlette import add_sessions
from .keys import KeyRing
from .middleware import MCPSessionMiddleware
from .session import Principal, Session, State

__all__ = [
    "ConfigurationError",
    "KeyRing",
    "MCPSessionMiddleware",
    "MCPSessionsError",
    "Principal",
    "Session",
    "State",
    "StateClosed",
    "StateError",
    "StateNotJSON",
    "StateTooLarge",
    "add_sessions",
    "current_session",
]
__version__ = "0.1.0"

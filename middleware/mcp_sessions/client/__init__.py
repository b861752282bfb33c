"""Sessions for any Python MCP client, in one line:

sessions = with_sessions("https://host.example/mcp", FileStorage("sessions.db"))
async with Client(sessions) as client: ...
"""

from ._session import (
    ClientError,
    ClientSession,
    ListedSession,
    NoAnswer,
    NotOffered,
    Refused,
    SessionMetadata,
    SessionNotFound,
    SessionPage,
)
from ._sessions import ClientSessions, fastmcp_transport, with_sessions
from ._storage import FileStorage, MemoryStorage, SessionStorage

__all__ = [
    "ClientError",
    "ClientSession",
    "ClientSessions",
    "FileStorage",
    "ListedSession",
    "MemoryStorage",
    "NoAnswer",
    "NotOffered",
    "Refused",
    "SessionMetadata",
    "SessionNotFound",
    "SessionPage",
    "SessionStorage",
    "fastmcp_transport",
    "with_sessions",
]

"""Sessions for any Python MCP client, in one line:

sessions = with_sessions(streamable_http_client(url), SessionJar("sessions.json"))
async with Client(sessions) as client: ...
"""

from ._jar import SessionJar
from ._session import (
    ClientError,
    HeldSession,
    JarUnreadable,
    ListedSession,
    NoAnswer,
    NotOffered,
    Refused,
    SessionLost,
    SessionPage,
)
from ._sessions import ClientSessions, fastmcp_transport, with_sessions

__all__ = [
    "ClientError",
    "ClientSessions",
    "HeldSession",
    "JarUnreadable",
    "ListedSession",
    "NoAnswer",
    "NotOffered",
    "Refused",
    "SessionJar",
    "SessionLost",
    "SessionPage",
    "fastmcp_transport",
    "with_sessions",
]

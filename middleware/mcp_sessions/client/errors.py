"""What can go wrong on the client's side of a session.

    ClientError
    ├── Refused          the server answered one of our own requests with an error
    ├── NoAnswer         the server did not answer one of our own requests, or the connection is gone
    ├── NotOffered       the server does not offer what was asked for
    ├── SessionLost      the session has ended, and its handle with it
    └── JarUnreadable    the jar holds something else than sessions; what it held was kept

Every one is an `MCPSessionsError`. None holds a session id or a state: both are credentials.
"""

from __future__ import annotations

from ..errors import MCPSessionsError


class ClientError(MCPSessionsError):
    """Base of what the client raises."""


class Refused(ClientError):
    """The server answered a request of our own, `server/discover` or one about sessions, with an error.

    Attributes:
        method: What was asked.
        code: The JSON-RPC error code.
    """

    def __init__(self, method: str, code: int, message: str) -> None:
        super().__init__(f"{method} was refused: {code} {message}")
        self.method = method
        self.code = code


class NoAnswer(ClientError):
    """The server did not answer, or not with what was asked for."""


class NotOffered(ClientError):
    """The server's capabilities do not have what was asked for: forks, or lists."""


class SessionLost(ClientError):
    """The session has ended, so nothing more can be asked in it. Begin another with `new()`."""


class JarUnreadable(ClientError):
    """The jar cannot be read. The message says where its content was kept."""

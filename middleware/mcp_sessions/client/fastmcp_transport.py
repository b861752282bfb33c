"""Sessions for FastMCP's client, which takes a transport of its own kind instead of streams.

FastMCP 3 and 4 alike: the transport opens the connection anew each time that the client connects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from .client_sessions import ClientSessions


def fastmcp_transport(sessions: ClientSessions) -> Any:
    """A transport for `fastmcp.Client`.

    Args:
        sessions: What `with_sessions` made, best of a function that makes a transport, so that the client can
            connect again: `with_sessions(lambda: streamable_http_client(url), jar)`.
    """
    from fastmcp.client.transports import ClientTransport
    from mcp import ClientSession

    class SessionTransport(ClientTransport):
        """The streams of a connection with sessions, and the SDK's client session on them."""

        @asynccontextmanager
        async def connect_session(self, *, transport_options: Any = None, **options: Any) -> AsyncIterator[Any]:
            kind = getattr(transport_options, "session_class", ClientSession)
            async with sessions as (read, write, *_), kind(read, write, **options) as session:
                yield session

        def __repr__(self) -> str:
            return f"<SessionTransport of {sessions!r}>"

    return SessionTransport()

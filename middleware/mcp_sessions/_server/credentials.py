"""`NoCredential`: why nothing identifies the session of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class NoCredential:
    """Why nothing identifies the session of a request, for refusals, the log and `require_session()`.

    Args:
        cause: Why the session is missing, as the end of a sentence about the client.
        remedy: What to do about it.
        reason: The reason of the refusal if a session is required.
    """

    cause: str
    remedy: str
    reason: str = "required"


WRAP: Final = "wrap the client with mcp_sessions.client.with_sessions"
"""A remedy for clients in Python."""
RECONNECT: Final = "connect it again, or set TransportSessions(per_user=True) if its users are authenticated"
"""A remedy for clients in any language."""
CREATE: Final = "let the client create sessions itself, as examples/sessions.ts does"
"""A remedy for pages."""

"""Requests that are refused for how their session stands, and for a store that does not say.

Why a session id was refused stays in the log. The tree is drawn in the package.
"""

from __future__ import annotations

from .refusal import Refusal

# --- the draft's own codes -----------------------------------------------------------------------


class SessionNotFound(Refusal):
    """The session is unknown, forged, foreign, expired or deleted: one answer for all of them."""

    code = -32043
    http_status = 200
    message = "Session not found"
    reason = "unknown"


class SessionExpired(SessionNotFound):
    """An authentic session of this caller that is past its end."""

    reason = "expired"


class SessionEnded(SessionNotFound):
    """An authentic session of this caller that was deleted."""

    reason = "ended"


class TransportNotFound(SessionNotFound):
    """A transport session that is over or was never ours; the status tells clients to begin anew."""

    http_status = 404


class SessionRequired(Refusal):
    """The deployment's policy asks for a session and the request carries none."""

    code = -31044
    http_status = 200
    message = "Session required"
    reason = "required"


class PrincipalRequired(Refusal):
    """What is asked is about all sessions of a principal, and the caller is nobody."""

    code = -31046
    http_status = 200
    message = "Principal required: only an authenticated caller has sessions of its own"
    reason = "principal_required"


class CreateLimited(Refusal):
    """The caller has created as many sessions within a minute as `create_limit` allows."""

    code = -31029  # outside of the range that JSON-RPC reserves, as MCP 2026-07-28 asks of new codes
    http_status = 429
    message = "Too many sessions; try again later"
    reason = "create_limit"

    def __init__(self, *, retry_after: int = 60) -> None:
        super().__init__()
        self.retry_after = retry_after


class CreateRefused(Refusal):
    """Raised by `on_create` to refuse a session. The message goes to the client.

    Args:
        message: What the client is told.
    """

    code = -31045
    http_status = 200
    message = "Session refused"
    reason = "create_refused"

    def __init__(self, message: str = message) -> None:
        super().__init__()
        self.args = (message,)

    @property
    def told(self) -> str:
        """What the client is told."""
        return str(self)


class StoreUnavailable(Refusal):
    """The store did not answer, so nobody knows whether the session lives. Clients may retry."""

    retry_after: int | None = 1
    code = -32603
    http_status = 503
    message = "Session store unavailable"
    reason = "store_unavailable"


class StoreFull(StoreUnavailable):
    """The store holds as many revocations as it may, so it cannot take this one."""

    message = "Session store full"
    reason = "store_full"

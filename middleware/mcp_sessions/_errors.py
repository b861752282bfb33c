"""Every error of this package, in one tree; `_refusals` has the table of their reasons.

    MCPSessionsError
    ├── ConfigurationError        a wrong option; raised at construction, with the remedy
    ├── StateError                the application wrote invalid session state
    │   ├── StateTooLarge
    │   ├── StateNotJSON
    │   └── StateClosed
    ├── DataError                 the application requested an invalid change of session data
    │   ├── DataTooLarge
    │   │   └── PrincipalDataTooLarge
    │   ├── DataNotJSON
    │   ├── DataNotInteger
    │   └── DataGone              the session has ended
    ├── ClientError               raised by the client; see `client._session`
    └── Refusal                   becomes one JSON-RPC error on the wire
        ├── ParseError            -32700   the body is not JSON as every parser reads it
        ├── InvalidRequest        -32600   JSON, but not a message that can be forwarded
        ├── InvalidParams         -32602   the session metadata is malformed
        │   └── StateUnreadable
        ├── HeaderMismatch        -32020   header and body disagree
        ├── EraRefused            -32022   the deployment serves the handshake versions only
        ├── DiscoveryRefused      -32601   the same, as clients understand it that have just asked
        ├── SessionNotFound       -32043   the draft's one answer for every bad session
        │   ├── SessionExpired
        │   └── SessionEnded
        ├── SessionRequired       -31044   the policy requires a session
        ├── CreateLimited         -31029   the caller created too many sessions
        ├── TooManySessions       -31047   the caller has too many sessions
        │   └── TooMuchData
        ├── CreateRefused         -31045   the application's `on_create` refused, in its own words
        ├── CreateFailed          -32603   the application's `on_create` has a bug
        ├── PrincipalRequired     -31046   an anonymous caller, where sessions belong to users
        └── StoreUnavailable      -32603   the store did not answer
            └── StoreFull

The reason goes to logs and spans and never to the client, who must not learn why a session id was refused.
Codes: JSON-RPC 2.0 section 5.1, the data-layer sessions draft, and MCP 2026-07-28 (-32020).
"""

from __future__ import annotations

from typing import Any, ClassVar


class MCPSessionsError(Exception):
    """The base class of all errors of this package."""


class ConfigurationError(MCPSessionsError, ValueError):
    """An option is wrong. The message names the option and the remedy."""


class StateError(MCPSessionsError, ValueError):
    """The application wrote invalid session state."""


class StateTooLarge(StateError):
    """The sealed state would take `size` bytes, more than `limit` (`Limits.state_bytes`)."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"session state would take {size} bytes sealed; the limit is {limit} (Limits.state_bytes)")
        self.size = size
        self.limit = limit


class StateNotJSON(StateError):
    """A value in the session state does not survive a round trip through JSON."""


class StateClosed(StateError):
    """The state was changed after the response was sent, too late to reach the client."""


class DataError(MCPSessionsError, ValueError):
    """The application requested an invalid change of session data."""


class DataTooLarge(DataError):
    """A value, or the session's data in total, would exceed its limit."""


class PrincipalDataTooLarge(DataTooLarge):
    """The data of all sessions of one principal would exceed their limit."""


class DataNotJSON(DataError):
    """A value does not survive a round trip through JSON."""


class DataNotInteger(DataError):
    """`increment` was called for a value that is not an integer, or the sum exceeds 64 bits."""


class DataGone(DataError):
    """The session has ended, so its data cannot be changed."""


class Refusal(MCPSessionsError):
    """A request that is answered with a JSON-RPC error instead of being forwarded.

    Attributes:
        code: JSON-RPC error code.
        http_status: HTTP status of the answer.
        message: The fixed text for the reason.
        client_message: The text that is sent to the client.
        reason: Machine-readable cause for logs and spans. Never sent.
        ref: The public name of the session concerned, for logs, where its id is authentic. Never sent.
        retry_after: Seconds after which to try again, for the header of that name, or None.
    """

    code: ClassVar[int]
    http_status: int = 400
    message: str
    client_message: str
    reason: str
    retry_after: int | None = None

    def __init__(
        self,
        reason: str | None = None,
        ref: str | None = None,
        message: str | None = None,
        http_status: int | None = None,
    ) -> None:
        self.message = self.client_message = message or self.message
        if http_status is not None:
            self.http_status = http_status
        self.reason = reason or self.reason
        self.ref = ref
        super().__init__(self.message)


class ParseError(Refusal):
    """The body is not JSON, or not JSON that every parser reads alike (RFC 8259 sections 4 and 8)."""

    code = -32700
    message = "Parse error: the body is not JSON"
    reason = "not_json"


class InvalidRequest(Refusal):
    """The body is JSON, but not a message that can be forwarded safely."""

    code = -32600
    message = "Invalid request"
    reason = "invalid_request"


class InvalidParams(Refusal):
    """Session metadata or the request envelope is malformed. In the legacy era it travels at HTTP 200."""

    code = -32602
    message = "Invalid params"
    reason = "invalid_params"


class StateUnreadable(InvalidParams):
    """The state that came with a session is not one that was sealed for it."""

    message = "Invalid params: the session's state is unreadable"
    reason = "state_unreadable"


class HeaderMismatch(Refusal):
    """A header contradicts the body (MCP 2026-07-28, Streamable HTTP)."""

    code = -32020
    message = "Header mismatch"
    reason = "header_mismatch"


class EraRefused(Refusal):
    """The deployment serves clients of the legacy era only (`era="legacy"`)."""

    code = -32022  # MCP 2026-07-28, "Unsupported protocol version"
    message = "Unsupported protocol version"
    reason = "modern_era"


class DiscoveryRefused(Refusal):
    """The deployment serves clients of the legacy era only, and answers `server/discover` as a legacy server does.

    Every client that was tried falls back to `initialize` then; some give up at `EraRefused`.
    """

    code = -32601
    http_status = 404  # as servers of the modern era answer an unknown method
    message = "Method not found"
    reason = "discovery_refused"


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


class SessionRequired(Refusal):
    """The deployment's policy requires a session and the request carries none."""

    code = -31044
    http_status = 200
    message = "Session required"
    reason = "required"


class PrincipalRequired(Refusal):
    """The caller is anonymous where it must not be: it asks for all of its sessions, or nothing shows who it is."""

    code = -31046
    http_status = 200
    message = "Principal required: only an authenticated caller has sessions of its own"
    reason = "principal_required"


class CreateLimited(Refusal):
    """The caller has created as many sessions within a minute as `creates_per_minute` allows."""

    code = -31029  # outside of the range that JSON-RPC reserves, as MCP 2026-07-28 asks of new codes
    http_status = 429
    message = "Too many sessions; try again later"
    reason = "create_limit"

    def __init__(self, *, retry_after: int = 60) -> None:
        super().__init__()
        self.retry_after: int | None = retry_after


class TooManySessions(Refusal):
    """The caller has as many recorded sessions as the deployment allows."""

    code = -31047
    http_status = 200
    message = "Too many sessions: end some of them first"
    reason = "sessions_full"


class TooMuchData(TooManySessions):
    """The sessions of the caller hold as much data as the deployment allows."""

    message = "Too much data in your sessions: end some of them first"
    reason = "data_full"


class CreateRefused(Refusal):
    """Raise it in `on_create` to refuse a session. The client gets its text; logs and spans do not."""

    code = -31045
    http_status = 200
    message = "Session refused"
    reason = "create_refused"

    def __init__(self, message: str = message) -> None:
        super().__init__()
        self.args: tuple[Any, ...] = (message,)
        self.client_message: str = str(message)


class CreateFailed(Refusal):
    """The application's `on_create` raised an error other than a refusal; the log has it."""

    code = -32603
    http_status = 200
    message = "Internal error: the session was not created"
    reason = "on_create_failed"


class StoreUnavailable(Refusal):
    """The store did not answer, so the status of the session is unknown. Clients may retry.

    Attributes:
        cause: The cause in plain words for the log, if the store has one; without anything secret.
    """

    code = -32603
    http_status = 503
    retry_after: int | None = 1
    message = "Session store unavailable"
    reason = "store_unavailable"

    def __init__(self, reason: str | None = None, *, cause: str = "", **given: Any) -> None:
        super().__init__(reason, **given)
        self.cause = cause


class StoreFull(StoreUnavailable):
    """The store holds as many revocations as it may, so it cannot take this one."""

    message = "Session store full"
    reason = "store_full"

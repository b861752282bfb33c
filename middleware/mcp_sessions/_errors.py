"""Every error of this package, in one tree.

    MCPSessionsError
    ├── ConfigurationError        a wrong option; raised at construction, with the remedy
    │   └── UnknownKeyword        a keyword that is no option
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
    └── Refusal                   becomes one JSON-RPC error on the wire; `_refusals` has each by its reason
        ├── SessionNotFound       the draft's one answer for every bad session
        │   ├── SessionExpired
        │   └── SessionEnded
        ├── StateUnreadable       the state that came with a session is not one that was sealed for it
        ├── SessionRequired       the policy requires a session
        ├── CreateRefused         the application's `on_create` refused, in its own words
        └── StoreUnavailable      the store did not answer
            └── StoreFull

The reason goes to logs and spans and never to the client, who must not learn why a session id was refused.
"""

from __future__ import annotations

from typing import Any


class MCPSessionsError(Exception):
    """The base class of all errors of this package."""


class ConfigurationError(MCPSessionsError, ValueError):
    """An option is wrong. The message names the option and the remedy."""


class UnknownKeyword(ConfigurationError, TypeError):
    """A keyword is no option. The message has the one that was meant. A `TypeError`, too, as Python raises."""


class StateError(MCPSessionsError, ValueError):
    """The application wrote invalid session state."""


class StateTooLarge(StateError):
    """The state would take `size` bytes as JSON, more than `limit` (`Limits.state_bytes`)."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"session state would take {size} bytes as JSON; the limit is {limit} (Limits.state_bytes): keep large "
            "values in session.data"
        )
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
        ref: The public name of the session if its id is authentic, for logs. Never sent.
        claim: The claim of the session id that is wrong, for logs. Never sent.
        retry_after: Seconds for the header `Retry-After`, or None.
        executed: True if the server had received the call, so that it may have run.
        sent_id: The session id as its sender wrote it, which the answer repeats to that sender. Never logged.
    """

    code: int
    http_status: int = 400
    message: str
    client_message: str
    reason: str
    retry_after: int | None = None
    executed: bool = False
    sent_id: str | None = None

    def __init__(
        self,
        reason: str | None = None,
        ref: str | None = None,
        *,
        claim: str | None = None,
        code: int | None = None,
        message: str | None = None,
        http_status: int | None = None,
        retry_after: int | None = None,
    ) -> None:
        self.code = code or self.code
        self.http_status = http_status or self.http_status
        self.message = self.client_message = message or self.message
        self.reason = reason or self.reason
        self.retry_after = retry_after or self.retry_after
        self.ref = ref
        self.claim = claim
        super().__init__(self.message)


class StateUnreadable(Refusal):
    """The state that came with a session is not one that was sealed for it."""

    code = -32602
    message = "Invalid params: the session's state is unreadable"
    reason = "state_unreadable"


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


class CreateRefused(Refusal):
    """Raise it in `on_create` to refuse a session. The client gets its text; logs and spans do not."""

    code = -31045
    http_status = 200
    message = "Session refused"
    reason = "create_refused"

    def __init__(self, message: str = "Session refused") -> None:
        super().__init__()
        self.args: tuple[Any, ...] = (message,)
        self.client_message: str = str(message)


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

"""Every error of this package, in one tree.

    MCPSessionsError
    ├── ConfigurationError        a wrong option; raised at construction, says the remedy
    ├── StateError                the app wrote session state that cannot be kept
    │   ├── StateTooLarge
    │   ├── StateNotJSON
    │   └── StateClosed
    ├── DataError                 the app asked of session data what cannot be done
    │   ├── DataTooLarge
    │   ├── DataNotJSON
    │   ├── DataNotInteger
    │   └── DataGone              the session has ended
    ├── ClientError               what the client raises; its own tree is drawn in `client.errors`
    └── Refusal                   becomes one JSON-RPC error on the wire
        ├── ParseError            -32700   the body is not JSON as every parser reads it
        ├── InvalidRequest        -32600   JSON, but not a message that we pass on
        ├── InvalidParams         -32602   the session metadata is malformed
        ├── HeaderMismatch        -32020   header and body disagree
        ├── EraRefused            -32022   the deployment serves the handshake versions only
        ├── SessionNotFound       -32043   the draft's one answer for every bad session
        ├── SessionRequired       -31044   the policy asks for a session
        ├── CreateLimited         -31029   the caller created too many sessions
        ├── CreateRefused         -31045   the application's `on_create` said no, in its own words
        ├── PrincipalRequired     -31046   an anonymous caller asks for all of its sessions
        └── StoreUnavailable      -32603   nobody knows whether the session lives

`application` holds what the application is told, `refusal` what all refusals have, `malformed` those of
requests that are not as they should be, and `standing` those that come of a session or its store.
A refusal's `message` is fixed per class and goes to the client. Its `reason` goes to logs and
spans and never to the client: a caller must not learn why a session id was refused, unless the
id is authentically its own. Codes: JSON-RPC 2.0 section 5.1, the data-layer sessions draft, and
MCP 2026-07-28 (-32020).

What the application is told when it asks for something that cannot be: wrong options, state, data.

None of these reaches a client by itself. The tree is drawn in the package.

What every refusal has: a code, an HTTP status and one text for the client, and one reason for the log.

The reason never leaves the server. The tree is drawn in the package.

Requests that are refused for what they are: the body, the message, the metadata, the headers.

No session is looked at for any of them. The tree is drawn in the package.

Requests that are refused for how their session stands, and for a store that does not say.

Why a session id was refused stays in the log. The tree is drawn in the package.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BatchRefused",
    "BatchTooLarge",
    "BodyCutShort",
    "BodyTimeout",
    "BodyTooLarge",
    "ByteOrderMark",
    "CapabilitiesMissing",
    "CapabilitiesTooLarge",
    "ConfigurationError",
    "CreateLimited",
    "CreateRefused",
    "CursorUnknown",
    "DataError",
    "DataGone",
    "DataNotInteger",
    "DataNotJSON",
    "DataTooLarge",
    "DescendantsRefused",
    "DuplicateMember",
    "DuplicateSessionHeader",
    "EncodingRefused",
    "EnvelopeIncomplete",
    "EraRefused",
    "FieldHeaderMissing",
    "FieldNotString",
    "ForkModeUnknown",
    "HeaderMismatch",
    "IdNotStringOrInteger",
    "InvalidParams",
    "InvalidRequest",
    "LoneSurrogate",
    "MCPSessionsError",
    "MalformedSession",
    "MetaNotObject",
    "MethodHeaderMismatch",
    "MethodNotString",
    "NestingTooDeep",
    "NotJSONRPC",
    "NotUTF8",
    "ParamsNotObject",
    "ParseError",
    "PrincipalRequired",
    "Refusal",
    "SessionEnded",
    "SessionExpired",
    "SessionFieldMismatch",
    "SessionHeaderAlone",
    "SessionHeaderMismatch",
    "SessionMethodNeedsId",
    "SessionMissing",
    "SessionNotFound",
    "SessionOnCreate",
    "SessionRequired",
    "StateClosed",
    "StateError",
    "StateNotJSON",
    "StateTooLarge",
    "StateUnreadable",
    "StoreFull",
    "StoreUnavailable",
    "TransportNotFound",
    "VersionHeaderMismatch",
]


class MCPSessionsError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigurationError(MCPSessionsError, ValueError):
    """An option is wrong. The message names the option and the remedy."""


class StateError(MCPSessionsError, ValueError):
    """The application wrote session state that cannot be kept."""


class StateTooLarge(StateError):
    """The sealed state would take `size` bytes and may take `limit` (`max_state_bytes`)."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"session state would take {size} bytes sealed; the limit is {limit} (max_state_bytes)")
        self.size = size
        self.limit = limit


class StateNotJSON(StateError):
    """A value in the session state has no JSON form."""


class StateClosed(StateError):
    """The response has left, so a change to the state could no longer reach the client."""


class DataError(MCPSessionsError, ValueError):
    """The application asked of session data what cannot be done."""


class DataTooLarge(DataError):
    """A value, or all of a session's data together, would exceed its limit."""


class DataNotJSON(DataError):
    """A value has no JSON form, or would not come back as it is."""


class DataNotInteger(DataError):
    """`increment` was asked of a value that is no integer, or the sum does not fit 64 bits."""


class DataGone(DataError):
    """The session has ended, so its data can no longer be changed."""


class Refusal(MCPSessionsError):
    """A request that is answered with a JSON-RPC error instead of being forwarded.

    Attributes:
        code: JSON-RPC error code.
        http_status: HTTP status of the answer.
        message: The wire text, the same for every instance of the class.
        reason: Machine-readable cause for logs and spans. Never sent.
        ref: The public name of the session concerned, for logs, where its id is authentic. Never sent.
        retry_after: Seconds after which to try again, for the header of that name, or None.
    """

    code: ClassVar[int]
    http_status: ClassVar[int]
    message: ClassVar[str]
    reason: str
    ref: str | None
    retry_after: int | None = None

    def __init__(self, reason: str | None = None, *, ref: str | None = None) -> None:
        super().__init__(self.message)
        if reason is not None:
            self.reason = reason
        self.ref = ref

    @property
    def told(self) -> str:
        """What the client is told."""
        return self.message


# --- -32700: not JSON as every parser reads it ---------------------------------------------------


class ParseError(Refusal):
    """The body is not JSON, or not JSON that every parser reads alike (RFC 8259 sections 4 and 8)."""

    code = -32700
    http_status = 400
    message = "Parse error: the body is not JSON"
    reason = "not_json"


class NotUTF8(ParseError):
    message = "Parse error: the body is not UTF-8"
    reason = "not_utf8"


class ByteOrderMark(ParseError):
    message = "Parse error: the body begins with a byte order mark"
    reason = "byte_order_mark"


class NestingTooDeep(ParseError):
    message = "Parse error: the body is nested too deeply"
    reason = "nesting_too_deep"


class BodyCutShort(ParseError):
    message = "Parse error: the body ended early"
    reason = "body_cut_short"


# --- -32600: JSON, but not a message that we pass on ---------------------------------------------


class InvalidRequest(Refusal):
    """The body is JSON, but not a message that can be forwarded safely."""

    code = -32600
    http_status = 400
    message = "Invalid request"
    reason = "invalid_request"


class NotJSONRPC(InvalidRequest):
    message = "Invalid request: the body is not a JSON-RPC 2.0 message"
    reason = "not_jsonrpc"


class DuplicateMember(InvalidRequest):
    message = "Invalid request: a member is given twice"
    reason = "duplicate_member"


class MethodNotString(InvalidRequest):
    message = "Invalid request: method is not a string"
    reason = "method_not_string"


class IdNotStringOrInteger(InvalidRequest):
    message = "Invalid request: id is neither a string nor an integer"
    reason = "id_not_string_or_integer"


class ParamsNotObject(InvalidRequest):
    message = "Invalid request: params is not an object"
    reason = "params_not_object"


class LoneSurrogate(InvalidRequest):
    message = "Invalid request: a member that must be read holds a lone surrogate"
    reason = "lone_surrogate"


class BatchRefused(InvalidRequest):
    message = "Invalid request: a batch cannot carry or need a session; send its messages one by one"
    reason = "batch"


class BatchTooLarge(InvalidRequest):
    message = "Invalid request: the batch holds too many messages"
    reason = "batch_too_large"


class SessionMethodNeedsId(InvalidRequest):
    message = "Invalid request: this method is a request and needs an id"
    reason = "session_method_as_notification"


class DuplicateSessionHeader(InvalidRequest):
    message = "Invalid request: Mcp-Session-Id is given twice"
    reason = "duplicate_session_header"


class BodyTooLarge(InvalidRequest):
    http_status = 413
    message = "Invalid request: the body is too large"
    reason = "body_too_large"


class BodyTimeout(InvalidRequest):
    http_status = 408
    message = "Invalid request: the body took too long to arrive"
    reason = "body_timeout"


class EncodingRefused(InvalidRequest):
    http_status = 415
    message = "Invalid request: Content-Encoding must be identity"
    reason = "content_encoding"


# --- -32602: malformed session metadata ----------------------------------------------------------


class InvalidParams(Refusal):
    """Session metadata or the request envelope is malformed. In the legacy era it travels at HTTP 200."""

    code = -32602
    http_status = 400
    message = "Invalid params"
    reason = "invalid_params"


class MetaNotObject(InvalidParams):
    message = "Invalid params: _meta is not an object"
    reason = "meta_not_object"


class MalformedSession(InvalidParams):
    message = "Invalid params: session metadata must be an object with a string sessionId and an optional string state"
    reason = "malformed_session"


class SessionOnCreate(InvalidParams):
    message = "Invalid params: sessions/create must not carry session metadata"
    reason = "session_on_create"


class SessionMissing(InvalidParams):
    message = "Invalid params: this method must carry the session in _meta"
    reason = "session_missing"


class ForkModeUnknown(InvalidParams):
    message = "Invalid params: mode must be share, copy or fresh"
    reason = "fork_mode_unknown"


class CursorUnknown(InvalidParams):
    message = "Invalid params: the cursor is unknown"
    reason = "cursor_unknown"


class DescendantsRefused(InvalidParams):
    message = "Invalid params: descendants must be true or false, and true for a session that is no fork"
    reason = "descendants_refused"


class FieldNotString(InvalidParams):
    message = "Invalid params: sessionId must be a string or null"
    reason = "field_not_string"


class SessionFieldMismatch(InvalidParams):
    message = "Invalid params: the message names two different sessions"
    reason = "session_field_mismatch"


class CapabilitiesMissing(InvalidParams):
    message = "Invalid params: capabilities must be an object"
    reason = "capabilities_missing"


class CapabilitiesTooLarge(InvalidParams):
    message = "Invalid params: capabilities are too large to be kept"
    reason = "capabilities_too_large"


class StateUnreadable(InvalidParams):
    message = "Invalid params: the session's state is unreadable"
    reason = "state_unreadable"


class EnvelopeIncomplete(InvalidParams):
    message = "Invalid params: _meta must carry the protocol version and the client capabilities"
    reason = "envelope_incomplete"


# --- -32020: header and body disagree ------------------------------------------------------------


class HeaderMismatch(Refusal):
    """A header contradicts the body (MCP 2026-07-28, Streamable HTTP)."""

    code = -32020
    http_status = 400
    message = "Header mismatch"
    reason = "header_mismatch"


class SessionHeaderMismatch(HeaderMismatch):
    message = "Header mismatch: Mcp-Session-Id differs from the session in _meta"
    reason = "session_header_mismatch"


class SessionHeaderAlone(HeaderMismatch):
    message = "Header mismatch: Mcp-Session-Id names a session that _meta does not"
    reason = "session_header_alone"


class FieldHeaderMissing(HeaderMismatch):
    message = "Header mismatch: Mcp-Session-Id must mirror sessionId"
    reason = "field_header_missing"


class VersionHeaderMismatch(HeaderMismatch):
    message = "Header mismatch: MCP-Protocol-Version differs from the version in _meta"
    reason = "version_header_mismatch"


class MethodHeaderMismatch(HeaderMismatch):
    message = "Header mismatch: Mcp-Method is missing or differs from the method"
    reason = "method_header_mismatch"


class EraRefused(Refusal):
    """The deployment serves clients of the legacy era only (`era="legacy"`)."""

    code = -32022  # MCP 2026-07-28, "Unsupported protocol version"
    http_status = 400
    message = "Unsupported protocol version"
    reason = "modern_era"


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

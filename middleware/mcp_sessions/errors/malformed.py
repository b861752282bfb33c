"""Requests that are refused for what they are: the body, the message, the metadata, the headers.

No session is looked at for any of them. The tree is drawn in the package.
"""

from __future__ import annotations

from .refusal import Refusal

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

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
"""

from __future__ import annotations

from .application import (
    ConfigurationError,
    DataError,
    DataGone,
    DataNotInteger,
    DataNotJSON,
    DataTooLarge,
    MCPSessionsError,
    StateClosed,
    StateError,
    StateNotJSON,
    StateTooLarge,
)
from .malformed import (
    BatchRefused,
    BatchTooLarge,
    BodyCutShort,
    BodyTimeout,
    BodyTooLarge,
    ByteOrderMark,
    CapabilitiesMissing,
    CapabilitiesTooLarge,
    CursorUnknown,
    DescendantsRefused,
    DuplicateMember,
    DuplicateSessionHeader,
    EncodingRefused,
    EnvelopeIncomplete,
    EraRefused,
    FieldHeaderMissing,
    FieldNotString,
    ForkModeUnknown,
    HeaderMismatch,
    IdNotStringOrInteger,
    InvalidParams,
    InvalidRequest,
    LoneSurrogate,
    MalformedSession,
    MetaNotObject,
    MethodHeaderMismatch,
    MethodNotString,
    NestingTooDeep,
    NotJSONRPC,
    NotUTF8,
    ParamsNotObject,
    ParseError,
    SessionFieldMismatch,
    SessionHeaderAlone,
    SessionHeaderMismatch,
    SessionMethodNeedsId,
    SessionMissing,
    SessionOnCreate,
    StateUnreadable,
    VersionHeaderMismatch,
)
from .refusal import Refusal
from .standing import (
    CreateLimited,
    CreateRefused,
    PrincipalRequired,
    SessionEnded,
    SessionExpired,
    SessionNotFound,
    SessionRequired,
    StoreFull,
    StoreUnavailable,
    TransportNotFound,
)

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

"""Every reason for which a request is refused or a session ends: its answer on the wire and its remedy in the log.

The client gets the code and the text. The reason is for logs, spans and metrics; `docs/errors.md` says what each one
means. Metrics count each reason from 0.
Codes: JSON-RPC 2.0 section 5.1; MCP 2026-07-28 (-32020, -32022); the sessions draft (-32043); our own (-31xxx).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ._errors import Refusal

FLOOD_THRESHOLD: Final = 20
"""The number of equal refusals within a minute that may indicate an attack."""


class Reason(NamedTuple):
    """The answer for a reason, and what operators can do. Without a code, a class in `_errors` has the answer."""

    code: int | None = None
    message: str = ""
    http_status: int = 400
    remedy: str = ""
    warn_at: int | None = None  # how many of them within a minute are a warning in the log; None: any number is normal


PARSE_ERROR: Final = -32700, "Parse error"
INVALID_REQUEST: Final = -32600, "Invalid request"
INVALID_PARAMS: Final = -32602, "Invalid params"  # in the legacy era at HTTP 200
HEADER_MISMATCH: Final = -32020, "Header mismatch"
_SESSION_REQUIRED: Final = -31044, "Session required"
_PRINCIPAL_REQUIRED: Final = -31046, "Principal required"


def _reply(kind: tuple[int, str], text: str, http_status: int = 400) -> Reason:
    """Return a reason whose text follows the name of its kind on the wire."""
    code, name = kind
    return Reason(code, f"{name}: {text}", http_status)


def _group(remedy: str, classes: str = "", /, *, warn_at: int | None = None, **rows: Reason) -> dict[str, Reason]:
    """Return reasons that have one remedy: the names of those whose answer a class has, and rows for the others."""
    reasons = {**dict.fromkeys(classes.split(), Reason()), **rows}
    return {reason: row._replace(remedy=remedy, warn_at=warn_at) for reason, row in reasons.items()}


_FIX: Final = "fix the client; the answer says what is wrong"
REFUSALS: Final[Mapping[str, Reason]] = {
    **_group(
        _FIX,
        "sessionless",
        not_json=_reply(PARSE_ERROR, "the body is not JSON"),
        not_utf8=_reply(PARSE_ERROR, "the body is not UTF-8"),
        byte_order_mark=_reply(PARSE_ERROR, "the body begins with a byte order mark"),
        body_cut_short=_reply(PARSE_ERROR, "the body ended early"),
        not_jsonrpc=_reply(INVALID_REQUEST, "the body is not a JSON-RPC 2.0 message"),
        method_not_string=_reply(INVALID_REQUEST, "method is not a string"),
        id_not_string_or_integer=_reply(INVALID_REQUEST, "id is neither a string nor an integer"),
        params_not_object=_reply(INVALID_REQUEST, "params is not an object"),
        batch=_reply(INVALID_REQUEST, "a batch cannot carry or need a session; send its messages one by one"),
        session_method_as_notification=_reply(INVALID_REQUEST, "this method is a request and needs an id"),
        content_encoding=_reply(INVALID_REQUEST, "Content-Encoding must be identity", 415),
        invalid_params=Reason(-32602, "Invalid params"),
        meta_not_object=_reply(INVALID_PARAMS, "_meta is not an object"),
        malformed_session=_reply(
            INVALID_PARAMS,
            "session metadata must be an object with a string sessionId and an optional string state",
        ),
        session_on_create=_reply(INVALID_PARAMS, "sessions/create must not carry session metadata"),
        session_missing=_reply(INVALID_PARAMS, "this method must carry the session in _meta"),
        field_missing=_reply(INVALID_PARAMS, "terminate must carry the session in sessionId"),
        cursor_unknown=_reply(INVALID_PARAMS, "the cursor is unknown"),
        field_not_string=_reply(INVALID_PARAMS, "sessionId must be a string or null"),
        capabilities_missing=_reply(INVALID_PARAMS, "capabilities must be an object"),
        capabilities_too_large=_reply(INVALID_PARAMS, "capabilities are too large to be kept"),
        envelope_incomplete=_reply(INVALID_PARAMS, "_meta must carry the protocol version and the client capabilities"),
        modern_era=Reason(-32022, "Unsupported protocol version"),
        required=Reason(*_SESSION_REQUIRED, 200),
        # HTTP 404, at which clients send `initialize` again, by the specification.
        session_header_stale=_reply(
            _SESSION_REQUIRED, "Mcp-Session-Id comes from an earlier deployment; initialize again", 404
        ),
        cookie_jar_shared=_reply(
            _SESSION_REQUIRED,
            "two clients share one cookie jar; give each its own HTTP client, or use with_sessions",
            200,
        ),
        principal_required=_reply(_PRINCIPAL_REQUIRED, "only an authenticated caller has sessions of its own", 200),
    ),
    **_group(
        f"{_FIX}; look for a proxy that changes requests, or a scanner if there are many",
        warn_at=FLOOD_THRESHOLD,
        nesting_too_deep=_reply(PARSE_ERROR, "the body is nested too deeply"),
        duplicate_member=_reply(INVALID_REQUEST, "a member is given twice"),
        member_case=_reply(INVALID_REQUEST, "a member's name differs in case from one that is read"),
        too_many_members=_reply(INVALID_REQUEST, "an object that must be read has too many members"),
        lone_surrogate=_reply(INVALID_REQUEST, "a member that must be read holds a lone surrogate"),
        batch_too_large=_reply(INVALID_REQUEST, "the batch holds too many messages"),
        duplicate_session_header=_reply(INVALID_REQUEST, "Mcp-Session-Id is given twice"),
        duplicate_event_header=_reply(INVALID_REQUEST, "Last-Event-ID is given twice"),
        body_too_large=_reply(INVALID_REQUEST, "the body is too large", 413),
        body_timeout=_reply(INVALID_REQUEST, "the body took too long to arrive", 408),
        session_header_mismatch=_reply(HEADER_MISMATCH, "Mcp-Session-Id differs from the session in _meta"),
        session_header_alone=_reply(HEADER_MISMATCH, "Mcp-Session-Id names a session that _meta does not"),
        session_field_mismatch=_reply(INVALID_PARAMS, "the message names two different sessions"),
        field_header_missing=_reply(HEADER_MISMATCH, "Mcp-Session-Id must mirror sessionId"),
        version_header_mismatch=_reply(HEADER_MISMATCH, "MCP-Protocol-Version differs from the version in _meta"),
        method_header_mismatch=_reply(HEADER_MISMATCH, "Mcp-Method is missing or differs from the method"),
    ),
    **_group(
        "treat the session as stolen: ask its owner, end it by its ref, and find out where its id leaked",
        "token_principal event_foreign",
        warn_at=1,
    ),
    **_group(
        "nothing leaked: a client of the same user registered again; let `principal=` name the user alone",
        "token_other_client",
    ),
    **_group(
        "ignore a single stale or mistyped id; many are guesses: rate-limit their address in front of the server",
        "token_shape token_size token_header token_algorithm token_signature token_claim token_kind "
        "state_size state_shape state_seal state_not_an_object state_unreadable bridge_seal unknown event_unknown "
        "handle_unknown",
        warn_at=FLOOD_THRESHOLD,
    ),
    **_group(
        "give all servers the same `keys=`, with the old key after the new one until its sessions have ended",
        "token_key_unknown state_key_unknown bridge_key_unknown principal_under_public_key token_issuer token_audience",
        warn_at=FLOOD_THRESHOLD,
    ),
    **_group(
        "authenticate outside of the middleware (`add_sessions`), or pass `principal=`",
        principal_unseen=_reply(
            _PRINCIPAL_REQUIRED,
            "the server does not see whose Authorization header this is; its log has the remedy",
            200,
        ),
        principal_is_client=_reply(
            _PRINCIPAL_REQUIRED,
            "the caller is an OAuth client, which many users may share; the server's log has the remedy",
            200,
        ),
    ),
    **_group(
        "put compression outside of the middleware",
        events_compressed=Reason(-32603, "Internal error: the event stream is compressed", 500),
    ),
    **_group(
        "if workers have not just ended, let them reach each other, as `docs/several-workers.md` says",
        owner_lost=Reason(-32603, "Internal error: the process of this call is gone; it may or may not have run", 200),
        owner_unreachable=Reason(
            -32603, "Internal error: the process that has this session cannot be reached; try again later", 503
        ),
    ),
    **_group("nothing is wrong: the client initializes again", "session_lost"),
    **_group("synchronize the clocks of all servers", "token_from_the_future state_from_the_future"),
    **_group("give all workers one persistent store, as the log says", "begun_in_another_process store_lost"),
    **_group("nothing is wrong: the client creates another session", "expired ended"),
    **_group(
        "nothing is wrong: the client falls back to `initialize`",
        # The error of legacy servers, since some clients give up at `modern_era`.
        discovery_refused=Reason(-32601, "Method not found", 404),
    ),
    **_group(
        "raise the limit, or let the caller end what it does not need",
        warn_at=FLOOD_THRESHOLD,
        create_limit=Reason(-31029, "Too many sessions; try again later", 429),
        conversations_full=Reason(-31047, "Too many conversations in use: try again later", 200),
        sessions_full=Reason(-31047, "Too many sessions: end some of them first", 200),
        data_full=Reason(-31047, "Too much data in your sessions: end some of them first", 200),
    ),
    **_group(
        "fix the application's `on_create`; the log has its traceback",
        "create_refused",
        on_create_failed=Reason(-32603, "Internal error: the session was not created", 200),
    ),
    **_group(
        "check the store; the log has its address and the cause, once a minute",
        "store_unavailable store_error store_timeout store_unreachable store_restarting store_loading store_readonly "
        "store_cluster_down store_no_replicas store_closed store_locked store_io_error store_corrupt store_vanished "
        "store_too_many_connections",
    ),
    **_group(
        "give the store more room; nothing is evicted, so new sessions and data are refused until something ends",
        "store_full store_full_disk store_out_of_memory store_cannot_save",
    ),
    **_group(
        "correct the store's URL or its configuration",
        "store_forbidden store_no_database store_no_tables store_tls store_read_only store_cannot_open "
        "store_misconfigured",
    ),
}
"""Why requests are refused."""

NOT_JSONRPC: Final = "not_jsonrpc"
"""The reason for a body that may be meant for something else on the path."""

ENDS: Final = ("deleted", "ended", "ended_all", "expired", "inspector", "idle")
"""Why sessions end. An application may give other reasons."""


def refusal(reason: str, *, ref: str | None = None, retry_after: int | None = None) -> Refusal:
    """Return the refusal for a reason that has a code.

    Args:
        reason: The reason.
        ref: The public name of the session, for logs.
        retry_after: Seconds after which the client may try again.
    """
    row = REFUSALS[reason]
    assert row.code is not None, "a class in `_errors` has the answer"
    return Refusal(
        reason, ref, code=row.code, message=row.message, http_status=row.http_status, retry_after=retry_after
    )

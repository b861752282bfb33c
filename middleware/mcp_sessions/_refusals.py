"""Every reason for which a request is refused or a session ends: its answer on the wire, and its meaning to operators.

A client gets the text and the code, and never the reason, which goes to logs, spans and metrics. `docs/errors.md` shows
these tables; metrics count each reason from 0, and the log warns of those that may indicate an attack.
Codes: JSON-RPC 2.0 section 5.1; MCP 2026-07-28 (-32020, -32022); the draft (-32043); our own lie beyond both ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from ._errors import Refusal

Origin = Literal["client", "caller", "keys", "deployment", "application", "store", "none"]
"""Where the cause lies: in the program that sends, with its user, in the deployment's keys or options, in the
application's code, in the store, or nowhere."""

Suspicion = Literal["no", "in numbers", "yes"]
"""Whether it may indicate an attack: never, when many come within a minute, or each time."""


class Reason(NamedTuple):
    """What a reason means, and the answer of a refusal for it; without a code, an error class has the answer."""

    meaning: str
    code: int | None = None
    message: str = ""
    http_status: int = 400
    origin: Origin = "none"
    remedy: str = ""
    suspicion: Suspicion = "no"


PARSE_ERROR: Final = -32700, "Parse error"
INVALID_REQUEST: Final = -32600, "Invalid request"
INVALID_PARAMS: Final = -32602, "Invalid params"  # in the legacy era at HTTP 200
HEADER_MISMATCH: Final = -32020, "Header mismatch"


def _sent(kind: tuple[int, str], text: str, http_status: int = 400) -> Reason:
    """Return a reason whose meaning the client gets, after the name of its kind."""
    code, name = kind
    return Reason(text, code, f"{name}: {text}", http_status)


def _group(origin: Origin, remedy: str, suspicion: Suspicion, /, **rows: str | Reason) -> dict[str, Reason]:
    reasons = {reason: Reason(row) if isinstance(row, str) else row for reason, row in rows.items()}
    return {reason: row._replace(origin=origin, remedy=remedy, suspicion=suspicion) for reason, row in reasons.items()}


_FIX: Final = "fix the client; the answer says what is wrong"
REFUSALS: Final[Mapping[str, Reason]] = {
    **_group(
        "client",
        _FIX,
        "no",
        not_json=_sent(PARSE_ERROR, "the body is not JSON"),
        not_utf8=_sent(PARSE_ERROR, "the body is not UTF-8"),
        byte_order_mark=_sent(PARSE_ERROR, "the body begins with a byte order mark"),
        body_cut_short=_sent(PARSE_ERROR, "the body ended early"),
        not_jsonrpc=_sent(INVALID_REQUEST, "the body is not a JSON-RPC 2.0 message"),
        method_not_string=_sent(INVALID_REQUEST, "method is not a string"),
        id_not_string_or_integer=_sent(INVALID_REQUEST, "id is neither a string nor an integer"),
        params_not_object=_sent(INVALID_REQUEST, "params is not an object"),
        batch=_sent(INVALID_REQUEST, "a batch cannot carry or need a session; send its messages one by one"),
        session_method_as_notification=_sent(INVALID_REQUEST, "this method is a request and needs an id"),
        content_encoding=_sent(INVALID_REQUEST, "Content-Encoding must be identity", 415),
        invalid_params=Reason("params that cannot be read as Python values", -32602, "Invalid params"),
        meta_not_object=_sent(INVALID_PARAMS, "_meta is not an object"),
        malformed_session=_sent(
            INVALID_PARAMS,
            "session metadata must be an object with a string sessionId and an optional string state",
        ),
        session_on_create=_sent(INVALID_PARAMS, "sessions/create must not carry session metadata"),
        session_missing=_sent(INVALID_PARAMS, "this method must carry the session in _meta"),
        field_missing=_sent(INVALID_PARAMS, "terminate must carry the session in sessionId"),
        cursor_unknown=_sent(INVALID_PARAMS, "the cursor is unknown"),
        field_not_string=_sent(INVALID_PARAMS, "sessionId must be a string or null"),
        capabilities_missing=_sent(INVALID_PARAMS, "capabilities must be an object"),
        capabilities_too_large=_sent(INVALID_PARAMS, "capabilities are too large to be kept"),
        envelope_incomplete=_sent(INVALID_PARAMS, "_meta must carry the protocol version and the client capabilities"),
        modern_era=Reason(
            'a client of the modern era, with `Wire(era="legacy")`', -32022, "Unsupported protocol version"
        ),
        discovery_refused=Reason(  # as servers answer an unknown method, since some clients give up at `modern_era`
            '`server/discover`, with `Wire(era="legacy")`: its client falls back to `initialize`',
            -32601,
            "Method not found",
            404,
        ),
        required=Reason("no session, where `require=` asks for one", -31044, "Session required", 200),
        cookie_jar_shared=_sent(
            (-31044, "Session required"),
            "two clients share one cookie jar; give each its own HTTP client, or use with_sessions",
            200,
        ),
        sessionless="a session where the dialect has none",
        principal_required=Reason(
            "an anonymous caller lists its sessions",
            -31046,
            "Principal required: only an authenticated caller has sessions of its own",
            200,
        ),
    ),
    **_group(
        "client",
        f"{_FIX}; look for a proxy that changes requests, or a scanner if there are many",
        "in numbers",
        nesting_too_deep=_sent(PARSE_ERROR, "the body is nested too deeply"),
        duplicate_member=_sent(INVALID_REQUEST, "a member is given twice"),
        member_case=_sent(INVALID_REQUEST, "a member's name differs in case from one that is read"),
        too_many_members=_sent(INVALID_REQUEST, "an object that must be read has too many members"),
        lone_surrogate=_sent(INVALID_REQUEST, "a member that must be read holds a lone surrogate"),
        batch_too_large=_sent(INVALID_REQUEST, "the batch holds too many messages"),
        duplicate_session_header=_sent(INVALID_REQUEST, "Mcp-Session-Id is given twice"),
        duplicate_event_header=_sent(INVALID_REQUEST, "Last-Event-ID is given twice"),
        body_too_large=_sent(INVALID_REQUEST, "the body is too large", 413),
        body_timeout=_sent(INVALID_REQUEST, "the body took too long to arrive", 408),
        session_header_mismatch=_sent(HEADER_MISMATCH, "Mcp-Session-Id differs from the session in _meta"),
        session_header_alone=_sent(HEADER_MISMATCH, "Mcp-Session-Id names a session that _meta does not"),
        session_field_mismatch=_sent(INVALID_PARAMS, "the message names two different sessions"),
        field_header_missing=_sent(HEADER_MISMATCH, "Mcp-Session-Id must mirror sessionId"),
        version_header_mismatch=_sent(HEADER_MISMATCH, "MCP-Protocol-Version differs from the version in _meta"),
        method_header_mismatch=_sent(HEADER_MISMATCH, "Mcp-Method is missing or differs from the method"),
    ),
    **_group(
        "caller",
        "treat the session as stolen: ask its owner, end it by its ref, and find out where its id leaked",
        "yes",
        token_principal="an authentic session id, used by a caller that it does not belong to",
        event_foreign="an authentic event id, used outside of its session or by another caller",
    ),
    **_group(
        "caller",
        "ignore a single stale or mistyped id; many are guesses: rate-limit their address in front of the server",
        "in numbers",
        token_shape="not the shape of a session id",
        token_size="longer than a session id may be",
        token_header="the header of a token of another kind, or a changed one",
        token_algorithm="a key's id, with an algorithm other than the key's",
        token_signature="a changed or forged session id",
        token_claims="claims that are not those of a session id",
        **{
            f"token_claim_{name}": f"a claim `{name}` that is not that of a session id"
            for name in "iss aud jti iat exp knd sub tp cli up boot als".split()
        },
        token_kind="an id of another kind: a cookie in `_meta`, say",
        state_size="a session's state is longer than `Limits.state_bytes`",
        state_shape="not the shape of a session's state",
        state_seal="a changed state, or that of another session",
        state_not_an_object="a state that is not a JSON object",
        state_unreadable="a state that cannot be opened",
        bridge_seal="the wrapped server's id in a session cannot be opened",
        unknown="an id that cannot be one of ours",
        event_unknown="an event id that was not signed with our keys, such as the wrapped server's own",
    ),
    **_group(
        "keys",
        "give all servers the same `keys=`, with the old key after the new one until its sessions are over",
        "in numbers",
        token_key_unknown="signed with a key that this server does not have",
        state_key_unknown="sealed with a key that this server does not have",
        bridge_key_unknown="the server's id is sealed with a key that this server does not have",
        principal_under_public_key="a user's session, but this server has only the public key",
        token_issuer="of another `Wire.issuer`",
        token_audience="for another `audience=`",
    ),
    **_group(
        "deployment",
        "authenticate outside of the middleware (`add_sessions`), or pass `principal=`",
        "no",
        principal_unseen=_sent(
            (-31046, "Principal required"),
            "the server does not see whose Authorization header this is; its log has the remedy",
            200,
        ),
        principal_is_client=_sent(
            (-31046, "Principal required"),
            "the caller is an OAuth client, which many users may share; the server's log has the remedy",
            200,
        ),
    ),
    **_group(
        "deployment",
        "put compression outside of the middleware",
        "no",
        events_compressed=Reason(
            "an event stream that the wrapped server compresses although it was not asked to",
            -32603,
            "Internal error: the event stream is compressed",
            500,
        ),
    ),
    **_group(
        "deployment",
        "synchronize the clocks of all servers",
        "no",
        token_from_the_future="issued over a minute ahead of this server's clock",
        state_from_the_future="sealed over a minute ahead of this server's clock",
    ),
    **_group(
        "deployment",
        "give all workers one persistent store, as the log says",
        "no",
        begun_in_another_process="its state is in another process's memory",
        store_lost="the store has no record of it, or lost data since",
    ),
    **_group(
        "none",
        "none; the client creates another session",
        "no",
        expired="past its lifetime or its idle timeout",
        ended="ended already; the log line of its end says why",
    ),
    **_group(
        "caller",
        "raise the limit, or let the caller end what it does not need",
        "in numbers",
        create_limit=Reason(
            "more sessions in a minute than `Limits.creates_per_minute`",
            -31029,
            "Too many sessions; try again later",
            429,
        ),
        sessions_full=Reason(
            "as many sessions as `Limits.sessions_per_principal` or `anonymous_sessions`",
            -31047,
            "Too many sessions: end some of them first",
            200,
        ),
        data_full=Reason(
            "as much data as `Limits.data_bytes_per_principal`",
            -31047,
            "Too much data in your sessions: end some of them first",
            200,
        ),
    ),
    **_group(
        "application",
        "fix the application's `on_create`; the log has its traceback",
        "no",
        create_refused="`on_create` refused, in its own words",
        on_create_failed=Reason(
            "`on_create` raised an error", -32603, "Internal error: the session was not created", 200
        ),
    ),
    **_group(
        "store",
        "check the store; the log has its address and the cause, once a minute",
        "no",
        store_unavailable="the store does not answer",
        store_error="the store's driver raised an error",
        store_timeout="no answer within `Limits.store_timeout`",
        store_unreachable="no connection",
        store_restarting="it is starting or stopping",
        store_loading="it reads its files after a restart",
        store_readonly="it is a replica",
        store_cluster_down="the cluster does not serve all slots",
        store_no_replicas="it has too few replicas to accept changes",
        store_closed="it was closed while the call was under way",
        store_locked="another process holds its lock too long",
        store_io_error="its disk fails",
        store_corrupt="its file or a table is damaged",
        store_vanished="its file was deleted or replaced",
        store_log_vanished="its log (`-wal`) was deleted: restart every server that uses it",
        store_too_many_connections="the server takes no more connections",
    ),
    **_group(
        "store",
        "give it more room; nothing is evicted, so new sessions and data are refused until something ends",
        "no",
        store_full="it holds as much as it may",
        store_full_disk="its disk or file is full",
        store_out_of_memory="its memory is full",
        store_cannot_save="Redis cannot write to its disk (MISCONF)",
    ),
    **_group(
        "deployment",
        "correct the store's URL or its configuration",
        "no",
        store_forbidden="it refuses this user",
        store_no_database="it has no such database",
        store_no_tables="its tables were dropped",
        store_tls="its certificate is not accepted",
        store_read_only="its file cannot be written",
        store_cannot_open="its file cannot be opened",
        store_misconfigured="it is set up wrongly; the log has the remedy",
    ),
}
"""Why requests are refused."""

NOT_JSONRPC: Final = "not_jsonrpc"  # checked by name, as such a body may be meant for something else on the path


def refusal(reason: str, *, ref: str | None = None, retry_after: int | None = None) -> Refusal:
    """Return the refusal that a reason stands for.

    `ref` names the session concerned, for logs; `retry_after` is in seconds.
    """
    row = REFUSALS[reason]
    assert row.code is not None, "a reason that is given to a class"
    return Refusal(
        reason, ref, code=row.code, message=row.message, http_status=row.http_status, retry_after=retry_after
    )


ENDS: Final[Mapping[str, str]] = {
    "deleted": "its client deleted it",
    "ended": "the application or an operator ended it",
    "ended_all": "with all sessions of its principal",
    "expired": "its lifetime is over",
    "inspector": "a developer ended it in the inspector",
    "idle": "no request for as long as `idle_timeout`, or for a day if tracked",
    "superseded": "another session of its principal began at the same time",
}
"""Why sessions end; an application may give a reason of its own."""

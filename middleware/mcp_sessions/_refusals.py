"""Every reason for which a request is refused or a session ends: its text on the wire, and what it means to operators.

A client gets the text and the code, and never the reason, which goes to logs, spans and metrics. `docs/errors.md` shows
these tables; metrics count each reason from 0, and the log warns of those that may indicate an attack.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from ._errors import (
    HeaderMismatch,
    InvalidParams,
    InvalidRequest,
    ParseError,
    PrincipalRequired,
    Refusal,
    SessionRequired,
    TooManySessions,
)

Origin = Literal["client", "caller", "keys", "deployment", "application", "store", "none"]
"""Where the cause lies: in the program that sends, with its user, in the deployment's keys or options, in the
application's code, in the store, or nowhere."""

Suspicion = Literal["no", "in numbers", "yes"]
"""Whether it may indicate an attack: never, when many come within a minute, or each time."""


class Reason(NamedTuple):
    """What a reason means, and the refusal that it stands for; without a text of its own, the text is its class's."""

    meaning: str
    origin: Origin = "none"
    remedy: str = ""
    suspicion: Suspicion = "no"
    refusal: type[Refusal] | None = None  # None where the reason is given to a class
    message: str | None = None
    http_status: int | None = None


def _sent(refusal: type[Refusal], text: str, http_status: int | None = None) -> Reason:
    """Return a refusal with its own text, which follows the first words of its class."""
    return Reason(
        text, refusal=refusal, message=f"{refusal.message.partition(':')[0]}: {text}", http_status=http_status
    )


_FIX: Final = "fix the client; the answer says what is wrong"
_GROUPS: Final[tuple[tuple[Origin, str, Suspicion, Mapping[str, str | Reason]], ...]] = (
    (
        "client",
        _FIX,
        "no",
        {
            "not_json": "the body is not JSON",
            "not_utf8": _sent(ParseError, "the body is not UTF-8"),
            "byte_order_mark": _sent(ParseError, "the body begins with a byte order mark"),
            "body_cut_short": _sent(ParseError, "the body ended early"),
            "not_jsonrpc": _sent(InvalidRequest, "the body is not a JSON-RPC 2.0 message"),
            "method_not_string": _sent(InvalidRequest, "method is not a string"),
            "id_not_string_or_integer": _sent(InvalidRequest, "id is neither a string nor an integer"),
            "params_not_object": _sent(InvalidRequest, "params is not an object"),
            "batch": _sent(InvalidRequest, "a batch cannot carry or need a session; send its messages one by one"),
            "session_method_as_notification": _sent(InvalidRequest, "this method is a request and needs an id"),
            "content_encoding": _sent(InvalidRequest, "Content-Encoding must be identity", 415),
            "invalid_params": "params that cannot be read as Python values",
            "meta_not_object": _sent(InvalidParams, "_meta is not an object"),
            "malformed_session": _sent(
                InvalidParams,
                "session metadata must be an object with a string sessionId and an optional string state",
            ),
            "session_on_create": _sent(InvalidParams, "sessions/create must not carry session metadata"),
            "session_missing": _sent(InvalidParams, "this method must carry the session in _meta"),
            "field_missing": _sent(InvalidParams, "terminate must carry the session in sessionId"),
            "cursor_unknown": _sent(InvalidParams, "the cursor is unknown"),
            "field_not_string": _sent(InvalidParams, "sessionId must be a string or null"),
            "capabilities_missing": _sent(InvalidParams, "capabilities must be an object"),
            "capabilities_too_large": _sent(InvalidParams, "capabilities are too large to be kept"),
            "envelope_incomplete": _sent(
                InvalidParams, "_meta must carry the protocol version and the client capabilities"
            ),
            "modern_era": 'a client of the modern era, with `Wire(era="legacy")`',
            "discovery_refused": '`server/discover`, with `Wire(era="legacy")`: its client falls back to `initialize`',
            "invalid_request": "a message that cannot be forwarded",
            "required": Reason("no session, where `require=` asks for one", refusal=SessionRequired),
            "cookie_jar_shared": _sent(
                SessionRequired, "two clients share one cookie jar; give each its own HTTP client, or use with_sessions"
            ),
            "sessionless": "a session where the dialect has none",
            "principal_required": "an anonymous caller lists its sessions",
        },
    ),
    (
        "client",
        f"{_FIX}; look for a proxy that changes requests, or a scanner if there are many",
        "in numbers",
        {
            "nesting_too_deep": _sent(ParseError, "the body is nested too deeply"),
            "duplicate_member": _sent(InvalidRequest, "a member is given twice"),
            "member_case": _sent(InvalidRequest, "a member's name differs in case from one that is read"),
            "lone_surrogate": _sent(InvalidRequest, "a member that must be read holds a lone surrogate"),
            "batch_too_large": _sent(InvalidRequest, "the batch holds too many messages"),
            "duplicate_session_header": _sent(InvalidRequest, "Mcp-Session-Id is given twice"),
            "body_too_large": _sent(InvalidRequest, "the body is too large", 413),
            "body_timeout": _sent(InvalidRequest, "the body took too long to arrive", 408),
            "session_header_mismatch": _sent(HeaderMismatch, "Mcp-Session-Id differs from the session in _meta"),
            "session_header_alone": _sent(HeaderMismatch, "Mcp-Session-Id names a session that _meta does not"),
            "session_field_mismatch": _sent(InvalidParams, "the message names two different sessions"),
            "field_header_missing": _sent(HeaderMismatch, "Mcp-Session-Id must mirror sessionId"),
            "header_mismatch": "a header contradicts the body",
            "version_header_mismatch": _sent(HeaderMismatch, "MCP-Protocol-Version differs from the version in _meta"),
            "method_header_mismatch": _sent(HeaderMismatch, "Mcp-Method is missing or differs from the method"),
        },
    ),
    (
        "caller",
        "treat the session as stolen: ask its owner, end it by its ref, and find out where its id leaked",
        "yes",
        {
            "token_principal": "an authentic session id, used by a caller that it does not belong to",
            "event_foreign": "a resumed stream of another session or caller",
        },
    ),
    (
        "caller",
        "ignore a single stale or mistyped id; many are guesses: rate-limit their address in front of the server",
        "in numbers",
        {
            "token_shape": "not the shape of a session id",
            "token_size": "longer than a session id may be",
            "token_header": "the header of a token of another kind, or a changed one",
            "token_algorithm": "a key's id with another algorithm than the key's",
            "token_signature": "a changed or forged session id",
            "token_claims": "claims that are not those of a session id",
            **{
                f"token_claim_{name}": f"a claim `{name}` that is not that of a session id"
                for name in "iss aud jti iat exp knd sub tp cli up boot".split()
            },
            "token_kind": "an id of another kind: a cookie in `_meta`, say",
            "state_size": "a session's state is longer than `Limits.state_bytes`",
            "state_shape": "not the shape of a session's state",
            "state_seal": "a changed state, or that of another session",
            "state_not_an_object": "a state that is not a JSON object",
            "state_unreadable": "a state that cannot be opened",
            "bridge_seal": "the wrapped server's id in a session cannot be opened",
            "unknown": "an id that cannot be one of ours",
        },
    ),
    (
        "keys",
        "give all servers the same `keys=`, with the old key after the new one until its sessions are over",
        "in numbers",
        {
            "token_key_unknown": "signed with a key that this server does not have",
            "state_key_unknown": "sealed with a key that this server does not have",
            "bridge_key_unknown": "the server's id is sealed with a key that this server does not have",
            "principal_under_public_key": "a user's session, but this server has only the public key",
            "token_issuer": "of another `Wire.issuer`",
            "token_audience": "for another `audience=`",
        },
    ),
    (
        "deployment",
        "authenticate outside of the middleware (`add_sessions`), or pass `principal=`",
        "no",
        {
            "principal_unseen": _sent(
                PrincipalRequired, "the server does not see whose Authorization header this is; its log has the remedy"
            ),
        },
    ),
    (
        "deployment",
        "synchronize the clocks of all servers",
        "no",
        {
            "token_from_the_future": "issued over a minute ahead of this server's clock",
            "state_from_the_future": "sealed over a minute ahead of this server's clock",
        },
    ),
    (
        "deployment",
        "give all workers one persistent store, as the log says",
        "no",
        {
            "begun_in_another_process": "its state is in another process's memory",
            "store_lost": "the store has no record of it, or lost data since",
        },
    ),
    (
        "none",
        "none; the client creates another session",
        "no",
        {
            "expired": "past its lifetime or its idle timeout",
            "ended": "it was ended before; the line of its end says why",
        },
    ),
    (
        "caller",
        "raise the limit, or let the caller end what it does not need",
        "in numbers",
        {
            "create_limit": "more sessions in a minute than `Limits.creates_per_minute`",
            "sessions_full": Reason(
                "as many sessions as `Limits.sessions_per_principal` or `anonymous_sessions`", refusal=TooManySessions
            ),
            "data_full": "as much data as `Limits.data_bytes_per_principal`",
        },
    ),
    (
        "application",
        "fix the application's `on_create`; the log has its traceback",
        "no",
        {"create_refused": "`on_create` refused, in its own words", "on_create_failed": "`on_create` raised an error"},
    ),
    (
        "store",
        "check the store; the log has its address and the cause, once a minute",
        "no",
        {
            "store_unavailable": "the store does not answer",
            "store_error": "the store's driver raised an error",
            "store_timeout": "no answer within `Limits.store_timeout`",
            "store_unreachable": "no connection",
            "store_restarting": "it is starting or stopping",
            "store_loading": "it reads its files after a restart",
            "store_readonly": "it is a replica",
            "store_cluster_down": "the cluster does not serve all slots",
            "store_no_replicas": "it has too few replicas to accept changes",
            "store_closed": "it was closed while the call was under way",
            "store_locked": "another process holds its lock too long",
            "store_io_error": "its disk fails",
            "store_corrupt": "its file or a table is damaged",
            "store_vanished": "its file was deleted or replaced",
            "store_log_vanished": "its log (`-wal`) was deleted: restart every server that uses it",
            "store_too_many_connections": "the server takes no more connections",
        },
    ),
    (
        "store",
        "give it more room; nothing is evicted, so new sessions and data are refused until something ends",
        "no",
        {
            "store_full": "it holds as much as it may",
            "store_full_disk": "its disk or file is full",
            "store_out_of_memory": "its memory is full",
            "store_cannot_save": "Redis cannot write to its disk (MISCONF)",
        },
    ),
    (
        "deployment",
        "correct the store's URL or its configuration",
        "no",
        {
            "store_forbidden": "it refuses this user",
            "store_no_database": "it has no such database",
            "store_no_tables": "its tables were dropped",
            "store_tls": "its certificate is not accepted",
            "store_read_only": "its file cannot be written",
            "store_cannot_open": "its file cannot be opened",
            "store_misfit": "its file belongs to another program or version",
            "store_misconfigured": "it is set up wrongly; the log has the remedy",
        },
    ),
)


REFUSALS: Final[Mapping[str, Reason]] = {
    reason: (Reason(row) if isinstance(row, str) else row)._replace(origin=origin, remedy=remedy, suspicion=suspicion)
    for origin, remedy, suspicion, rows in _GROUPS
    for reason, row in rows.items()
}
"""Why requests are refused."""

NOT_JSONRPC: Final = "not_jsonrpc"  # checked by name, as such a body may be meant for something else on the path


def refusal(reason: str, *, ref: str | None = None) -> Refusal:
    """Return the refusal that a reason stands for; `ref` names the session concerned, for logs."""
    row = REFUSALS[reason]
    assert row.refusal is not None, "a reason that is given to a class"
    return row.refusal(reason, ref=ref, message=row.message, http_status=row.http_status)


ENDS: Final[Mapping[str, str]] = {
    "deleted": "its client deleted it",
    "ended": "the application or an operator ended it",
    "ended_all": "with all sessions of its principal",
    "expired": "its lifetime is over",
    "inspector": "a developer ended it in the inspector",
    "idle": "no request for as long as `idle_timeout`, or for a day if tracked",
}
"""Why sessions end; an application may give a reason of its own."""

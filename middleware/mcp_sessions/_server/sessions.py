"""Opening the sessions that a request names; `active` writes them back and ends them, `minting` makes new ones.

A session of the draft comes from its token and the state that its client carries; the store is asked for its status
alone. For header and cookie sessions, whose clients carry none, the store holds the state, too.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from .._errors import (
    Refusal,
    SessionExpired,
    SessionNotFound,
    StateUnreadable,
    StoreUnavailable,
)
from .._protocol.decision import Decision
from .._protocol.draft import SessionMetadata
from .._refusals import refusal
from .._session.claims import SESSION, TRANSPORT, Claims, Kind
from .._tokens import seal
from ..stores._base import LIVE, SessionStatus
from .active import ActiveSession, end_of
from .context import RequestContext
from .logs import log_extra
from .resumption import refusal_for_status

if TYPE_CHECKING:
    from .runtime import Runtime

_AUTHENTIC_BUT_DEAD: Final = frozenset(
    {"expired", "ended", "store_lost", "begun_in_another_process", "bridge_key_unknown", "bridge_seal"}
)
RECHECK_AFTER: Final = 1.0  # seconds; for an answer later than this, the store is asked again

_log: Final = logging.getLogger("mcp_sessions")


async def open_session(
    ctx: RequestContext, metadata: SessionMetadata, kind: Kind = SESSION, *, fail_open: bool = False
) -> ActiveSession:
    """Return the live session that a request names; with `fail_open` also where the store does not answer.

    With a bridge, a transport session lets the request cross it.

    Raises:
        SessionNotFound: The token is not valid for this caller, or its session does not live.
        StateUnreadable: The state that its client sent is not this session's.
        StoreUnavailable: The store did not answer.
    """
    runtime, principal = ctx.runtime, ctx.principal
    now = runtime.clock()
    verified = runtime.tokens.verify(runtime.ring(now), metadata.session_id, now=now, principal=principal, kind=kind)
    claims, payload, last_seen = verified.claims, None, int(verified.claims.issued_at)
    status = await checked_status(claims, runtime, fail_open=fail_open)
    if status is not LIVE:
        raise refusal_for_status(status, claims)
    if metadata.state is not None:
        try:
            state = seal.open(verified.ring, metadata.state, claims, max_bytes=runtime.limits.state_bytes, now=now)
        except StateUnreadable as error:
            error.ref = claims.ref
            raise
        payload, last_seen = state.payload, state.last_seen
    if runtime.tracked or kind != SESSION:  # the record has when it was seen, if anything does
        last_seen = int(now)
    ends_at, recheck_at = end_of(claims, runtime, last_seen), now + RECHECK_AFTER
    if not now < ends_at:
        raise SessionExpired(ref=claims.ref)
    session = ActiveSession(
        metadata.session_id, claims, verified.ring, runtime, principal, payload, ends_at, recheck_at, verified
    )
    if kind != SESSION:
        await session.load_state(fail_open=fail_open)
    if kind == TRANSPORT and runtime.transport.bridges:
        ctx.bridge = session.bridge
    return session


async def checked_status(claims: Claims, runtime: Runtime, *, fail_open: bool) -> SessionStatus:
    """Return the status of a session, recording its use where sessions are tracked."""
    try:
        return await runtime.status(claims)
    except StoreUnavailable as error:
        if not fail_open:
            error.ref = claims.ref
            raise
        _log.warning(
            "session %s accepted without a revocation check: store unavailable (%s)",
            claims.ref,
            error.reason,
            extra=log_extra(claims.ref),
        )
        return LIVE


async def open_named_session(ctx: RequestContext, decision: Decision) -> ActiveSession | None:
    """Open the session that a message names, and return it, or None where it names none.

    Where the header and the body each name one, both are checked, and the body's is returned. Raises as `open_session`,
    with 404 for the header's, or `session_header_mismatch` where the header does not fit the body.
    """
    session, metadata, fail_open = None, decision.metadata, decision.fail_open
    if metadata is not None and decision.kind != SESSION:
        session = await open_session(ctx, metadata, decision.kind, fail_open=fail_open)
        if decision.contradicts:
            raise refusal("session_header_mismatch", ref=session.claims.ref)
    if decision.header_token is not None:
        try:
            transport = await open_transport(ctx, decision.header_token, fail_open=fail_open)
        except SessionNotFound as error:
            if metadata is None or error.reason in _AUTHENTIC_BUT_DEAD:
                raise
            raise refusal("session_header_mismatch", ref=error.ref) from None
        session = session or transport
    if metadata is not None and decision.kind == SESSION:
        session = await open_session(ctx, metadata, fail_open=fail_open)
    return session


async def open_transport(
    ctx: RequestContext, session_id: str, *, kind: Kind = TRANSPORT, fail_open: bool = False
) -> ActiveSession:
    """Return the live session that a header names, or refuse with 404, which makes clients begin anew."""
    try:
        return await open_session(ctx, SessionMetadata(session_id), kind, fail_open=fail_open)
    except SessionNotFound as error:
        error.http_status = 404
        raise


def refused_claims(ctx: RequestContext, refused: Refusal, *ids: str | None) -> Claims | None:
    """Return the claims of the session that was refused, if one of these ids is authentically it."""
    ring = ctx.runtime.ring(ctx.runtime.clock())
    for session_id in filter(None, () if refused.ref is None else ids):
        with suppress(SessionNotFound):
            claims = ctx.runtime.tokens.authentic(ring, session_id)
            if claims.ref == refused.ref:  # a thief must not be recorded under the name of the owner's client
                return msgspec.structs.replace(claims, client=None) if refused.reason == "token_principal" else claims
    return None

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
from .._session.claims import Claims, Kind
from .._tokens import seal
from ..stores._base import LIVE, SessionStatus
from .active import ActiveSession, end_of
from .context import Request
from .logs import log_extra
from .resumption import refusal_for_status

if TYPE_CHECKING:
    from .runtime import Runtime

RECHECK_AFTER: Final = 1.0  # seconds; for an answer later than this, the store is asked again

_log: Final = logging.getLogger("mcp_sessions")


async def open_session(
    request: Request,
    token: str,
    kind: Kind,
    *,
    state: str | None = None,
    carries_state: bool = False,
    is_offered: bool = False,
    fail_open: bool = False,
) -> ActiveSession:
    """Return the live session of a token; with `fail_open` also if the store does not answer.

    Args:
        request: The request that carries it.
        token: The session id, unverified.
        kind: What it is used as.
        state: The sealed state that came with it, if any.
        carries_state: Whether its client carries the state; the store has it otherwise.
        is_offered: Whether it may have been offered and never used.
        fail_open: Whether a session is accepted without a revocation check if the store does not answer.

    Raises:
        SessionNotFound: The token is not valid for this caller, or its session does not live.
        StateUnreadable: The state that its client sent is not this session's.
        StoreUnavailable: The store did not answer.
    """
    runtime, principal = request.runtime, request.principal
    now = runtime.clock()
    verified = runtime.tokens.verify(runtime.ring(now), token, now=now, principal=principal, kind=kind)
    claims, payload, last_seen = verified.claims, None, int(verified.claims.issued_at)
    status = await checked_status(claims, runtime, is_offered=is_offered, fail_open=fail_open)
    if status is not LIVE:
        raise refusal_for_status(status, claims)
    if state is not None:
        try:
            opened = seal.open(verified.ring, state, claims, max_bytes=runtime.limits.state_bytes, now=now)
        except StateUnreadable as error:
            error.ref = claims.ref
            raise
        payload, last_seen = opened.payload, opened.last_seen
    if runtime.tracked or not carries_state:  # the record has when it was seen, if anything does
        last_seen = int(now)
    ends_at, recheck_at = end_of(claims, runtime, last_seen), now + RECHECK_AFTER
    if not now < ends_at:
        raise SessionExpired(ref=claims.ref)
    session = ActiveSession(
        *(token, claims, verified.ring, runtime, principal, payload, ends_at, recheck_at, verified),
        carries_state=carries_state,
        is_offered=is_offered,
    )
    if not carries_state:
        await session.load_state(fail_open=fail_open)
    return session


async def checked_status(
    claims: Claims, runtime: Runtime, *, is_offered: bool = False, fail_open: bool
) -> SessionStatus:
    """Return the status of a session, recording its use where sessions are tracked."""
    try:
        return await runtime.status(claims, is_offered=is_offered)
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


def refused_claims(request: Request, refused: Refusal, *ids: str | None) -> Claims | None:
    """Return the claims of the session that was refused, if one of these ids is authentically it."""
    ring = request.runtime.ring(request.runtime.clock())
    for session_id in filter(None, () if refused.ref is None else ids):
        with suppress(SessionNotFound):
            claims = request.runtime.tokens.authentic(ring, session_id)
            if claims.ref == refused.ref:  # a thief must not be recorded under the name of the owner's client
                return msgspec.structs.replace(claims, client=None) if refused.reason == "token_principal" else claims
    return None

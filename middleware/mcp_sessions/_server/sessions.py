"""Sessions between a request and the store: opened, read and written back. `minting` creates new ones.

A session of the draft comes from its token and the state that its client carries; the store is asked for its status
alone. For header and cookie sessions, whose clients carry none, the store holds the state, too. Each is one question.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

import msgspec

from .._errors import (
    DataGone,
    DataTooLarge,
    PrincipalDataTooLarge,
    Refusal,
    SessionEnded,
    SessionExpired,
    SessionNotFound,
    StateUnreadable,
    StoreUnavailable,
)
from .._protocol import metadata
from .._refusals import refusal
from .._session.claims import Claims, Kind, Principal
from .._session.session import Session
from .._session.state import State
from .._tokens import seal
from .._tokens.keys import KeyRing
from ..stores._base import LIVE, STATE_KEY, Found, SessionStatus
from ..stores._threads import running_loop
from .context import Request
from .logs import log_extra, warn_once
from .resumption import refusal_for_status
from .runtime import CAPABILITIES_KEY, Runtime

RECHECK_AFTER: Final = 1.0  # seconds; for an answer later than this, the store is asked again
MAX_CAPABILITIES_BYTES: Final = 16 * 1024  # that any caller who may create sessions can have kept for each
BEGUN_ELSEWHERE: Final = (
    'refusing a session that another process began, whose state is lost: store="memory:" holds the state of clients '
    "without session support in one process. Name a store that lasts and that all workers share, as in "
    'store="sqlite:sessions.db" on one machine or store="redis://..." on many'
)

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
) -> Session:
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
    claims, carried, last_seen = verified.claims, None, int(verified.claims.issued_at)
    found, fault = await look_up(runtime, claims, state=not carries_state, fail_open=fail_open)
    if not (found.status is LIVE or (is_offered and found.status is SessionStatus.UNRECORDED)):
        raise refusal_for_status(found.status, claims)  # an offered one is recorded at its first use
    if state is not None:
        try:
            max_bytes = seal.sealed_size(runtime.limits.state_bytes)
            opened = seal.open(verified.ring, state, claims, max_bytes=max_bytes, now=now)
        except StateUnreadable as error:
            error.ref = claims.ref
            raise
        carried, last_seen = opened.payload, opened.last_seen
    if runtime.tracked or not carries_state:  # the record has when it was seen, if anything does
        last_seen = int(now)
    ends_at = end_of(claims, runtime, last_seen)
    if not now < ends_at:
        raise SessionExpired(ref=claims.ref)
    session = make_session(runtime, claims, principal, verified.ring, now=now, ends_at=ends_at, state=carried)
    session._token, session._key = token, verified.key
    session._carries_state, session._is_offered = carries_state, is_offered
    if not carries_state:
        load_stored(runtime, session, found.state, fault)
    return session


def make_session(
    runtime: Runtime,
    claims: Claims,
    principal: Principal | None,
    ring: KeyRing,
    *,
    now: float,
    ends_at: int,
    state: bytes | None = None,
) -> Session:
    """Return a session of a request, given the state that its client carries. Call it on the event loop."""
    recheck_at, loop = now + RECHECK_AFTER, running_loop()
    held = State(state, check=runtime.check_state)
    return Session(runtime, claims, principal, ends_at, held, _ring=ring, _recheck_at=recheck_at, _loop=loop)


def end_of(claims: Claims, runtime: Runtime, last_seen: int) -> int:
    """Return the earlier of absolute and idle expiry, Unix seconds."""
    idle, end = runtime.idle_timeout, claims.expires_at
    return end if idle is None else min(last_seen + idle, end)


async def look_up(runtime: Runtime, claims: Claims, *, state: bool, fail_open: bool) -> tuple[Found, str | None]:
    """Return what the store has of a session; with `fail_open` LIVE and why, if the store does not answer."""
    try:
        (found,) = await runtime.look_ups.ask(claims, state=state)
    except StoreUnavailable as error:
        if not fail_open:
            error.ref = claims.ref
            raise
        without = "a revocation check and without its state" if state else "a revocation check"
        text = "session %s accepted without %s: store unavailable (%s)"
        _log.warning(text, claims.ref, without, error.reason, extra=log_extra(claims.ref))
        return Found(LIVE), error.reason
    return found, None


def refused_claims(request: Request, refused: Refusal, *ids: str | None) -> Claims | None:
    """Return the claims of the session that was refused, if one of these ids is authentically it."""
    if request.claims is not None and request.claims.ref == refused.ref:
        return request.claims
    ring = request.runtime.ring(request.runtime.clock())
    for session_id in filter(None, () if refused.ref is None else ids):
        with suppress(SessionNotFound):
            claims = request.runtime.tokens.authentic(ring, session_id)
            if claims.ref == refused.ref:  # a thief must not be recorded under the name of the owner's client
                is_others = refused.reason in {"token_principal", "token_other_client"}
                return msgspec.structs.replace(claims, client=None) if is_others else claims
    return None


# --- what the store has of a session ---


def load_stored(runtime: Runtime, session: Session, stored: bytes | None, fault: str | None) -> None:
    """Give a session whose client carries no state the stored one, or why the store did not answer.

    Raises:
        SessionNotFound: The state was stored in another process.
    """
    claims = session._claims
    if claims.boot != runtime.boot():
        warn_once(BEGUN_ELSEWHERE, BEGUN_ELSEWHERE)
        raise SessionNotFound("begun_in_another_process", ref=claims.ref)
    set_stored(runtime, session, stored)
    session._state._fault = fault


def set_stored(runtime: Runtime, session: Session, stored: bytes | None) -> None:
    """Give a session the state that the store has, after the trace of an offered session, which its token lacks."""
    if session._is_offered and stored is not None:
        trace, brace, rest = stored.partition(b"{")
        stored = brace + rest or None  # else another request is about to begin the session
        if stored is not None and trace:
            session._claims = msgspec.structs.replace(session._claims, trace=trace.decode("ascii"))
    session._state = State(stored, check=runtime.check_state)


async def store_state(runtime: Runtime, session: Session) -> None:
    """Close the state of a session whose client carries none, and store it if it changed."""
    session._state._close()
    changed = session._state._changed()
    if changed is not None and not session._ended_by_own_request:  # an ended session has nothing to keep
        await write_state(runtime, session, changed)


async def write_state(runtime: Runtime, session: Session, state: bytes) -> None:
    """Store a state, a JSON object, where `load_stored` reads it."""
    trace = session._claims.trace if session._is_offered else None
    value = (trace or "").encode("ascii") + state
    await runtime.data_store.write(runtime.namespace_of(session._claims), STATE_KEY, value)
    session._state._stored = state


async def store_capabilities(runtime: Runtime, session: Session, value: bytes) -> None:
    """Store what the client states that it can do, a JSON object, in place of what it stated before."""
    claims = session._claims
    check_capabilities(value, claims.ref)
    try:
        await runtime.store.write(runtime.namespace_of(claims), CAPABILITIES_KEY, value)
    except PrincipalDataTooLarge:
        raise refusal("data_full", ref=claims.ref) from None
    except DataTooLarge:
        raise refusal("capabilities_too_large", ref=claims.ref) from None
    except DataGone:
        raise SessionEnded(ref=claims.ref) from None


def check_capabilities(value: bytes, ref: str | None = None) -> None:
    """Check that the capabilities of a client may be kept for a session, or refuse with `capabilities_too_large`."""
    if not len(value) <= MAX_CAPABILITIES_BYTES:
        raise refusal("capabilities_too_large", ref=ref)


# --- what its client gets ---


def encode_metadata(runtime: Runtime, session: Session) -> bytes:
    """Return the JSON of the metadata of a session as it stands now, with its state if that changed.

    Raises:
        StateNotJSON: A nested value of the state has no JSON form.
        StateTooLarge: A nested value of the state grew past the limit.
    """
    claims, state = session._claims, session._state
    changed = state._changed()
    carries_last_seen = runtime.idle_timeout is not None and not runtime.tracked
    if changed is None and not carries_last_seen:
        return metadata.metadata(session._token, session._ends_at)
    now = int(runtime.clock())
    payload = (state._stored or b"{}") if changed is None else changed
    sealed = seal.seal(session._ring.signing, payload, claims, last_seen=now)
    return metadata.metadata(session._token, end_of(claims, runtime, now), sealed)

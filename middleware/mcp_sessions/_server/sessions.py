"""Sessions during one request: opened from what it names, written back, ended; `minting` makes new ones.

What is known about a session comes from its token and the state that its client carries; the store is asked for its
status alone.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import partial
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
    StateTooLarge,
    StateUnreadable,
    StoreUnavailable,
    TooMuchData,
)
from .._protocol import draft
from .._protocol.decision import Decision
from .._protocol.draft import SessionMetadata
from .._refusals import refusal
from .._session.claims import SESSION, TRANSPORT, Claims, Kind, Principal, RedactedRepr
from .._session.data import Data, Namespace
from .._session.session import Session
from .._session.state import RequestState, UnreadableState
from .._tokens import seal
from .._tokens.jwt import VerifiedToken
from .._tokens.keys import KeyRing
from .._tokens.seal import UnsealedState
from ..stores._base import LIVE, SessionStatus
from .context import Bridged, RequestContext
from .current import warn_once
from .logs import about
from .runtime import Runtime

# Where the state of a transport session and its client's capabilities are stored; `session.data` has no such names.
STATE_KEY: Final = ""
CAPABILITIES_KEY: Final = "\0client_capabilities"
MAX_CAPABILITIES_BYTES: Final = 16 * 1024  # that any caller who may create sessions can have kept for each
_OWN_IS_OVER: Final = frozenset(
    {SessionExpired.reason, SessionEnded.reason, "store_lost", "begun_in_another_process"}
    | {"bridge_key_unknown", "bridge_seal"}
)
BEGUN_ELSEWHERE: Final = (
    'refusing a session that another process began, whose state is lost: store="memory:" holds the state of clients '
    "without session support in one process. Name a store that lasts and that all workers share, as in "
    'store="sqlite:sessions.db" on one machine or store="redis://..." on many'
)
RECHECK_AFTER: Final = 1.0  # seconds after which the status that the store gave at the beginning is asked for again

_log: Final = logging.getLogger("mcp_sessions")


class ActiveSession(RedactedRepr, msgspec.Struct, eq=False):
    """One session during one request; what the application sees of it is made of this."""

    token: str  # the session id as the client holds it
    claims: Claims  # verified
    ring: KeyRing  # the keys that are valid now
    runtime: Runtime
    principal: Principal | None  # the caller
    payload: bytes | None  # the state that came with it or was kept for it, a JSON object
    ends_at: int  # the earlier of absolute and idle expiry, Unix seconds
    recheck_at: float  # from when on the store has to be asked again, since the session may have ended, Unix seconds
    verified: VerifiedToken | None = None  # None for a new session
    ended_by_own_request: bool = False  # so that the request goes on when its session ends
    unread: str | None = None  # why its state could not be read from the store
    opened: RequestState | None = None  # its state, once it was looked at
    closed: bool = False  # the response has left, so that nothing changes any more

    @property
    def session(self) -> Session:
        """The session, made anew: to keep it here would be a circle, which only the garbage collector ends."""
        return Session(self)

    @property
    def state(self) -> RequestState:
        """The state that its client carried, or that the store has for it; the latter may be out of reach."""
        if self.opened is None:
            check = partial(check_state, limit=self.runtime.limits.state_bytes)  # and nothing that leads back here
            self.opened = (
                RequestState(self.payload, check=check) if self.unread is None else UnreadableState(self.unread)
            )
            if self.closed:
                self.opened.shut()
        return self.opened

    def has_expired(self) -> bool:
        return not self.runtime.clock() < self.ends_at

    def close(self) -> None:
        """Refuse further changes of the state: the response has left, or never will."""
        self.closed = True
        if self.opened is not None:
            self.opened.shut()

    def data(self) -> Data:
        return self.runtime.data(self.claims.ref, self.claims.expires_at, self.claims.subject)

    async def capabilities(self) -> bytes | None:
        return await self.runtime.store.read(self._namespace, CAPABILITIES_KEY)

    async def end(self, reason: str) -> None:
        self.ended_by_own_request = True  # before the store knows: this request's stream may be looked at meanwhile
        try:
            await self.runtime.terminator.end(self.claims, reason)
        except StoreUnavailable:
            self.ended_by_own_request = False
            raise

    async def load_state(self, *, fail_open: bool) -> None:
        """Read the state of a session whose client carries none, which another process's memory may have."""
        runtime = self.runtime
        if self.claims.boot != (runtime.origin and f"{runtime.origin}{os.getpid():08x}"):
            warn_once(BEGUN_ELSEWHERE, BEGUN_ELSEWHERE)
            raise SessionNotFound("begun_in_another_process", ref=self.claims.ref)
        try:
            self.payload = await self.runtime.store.read(self._namespace, STATE_KEY)
        except StoreUnavailable as error:
            if not fail_open:
                error.ref = self.claims.ref
                raise
            self.unread = error.reason
            _log.warning(
                "session %s continues without its state: store unavailable (%s)",
                self.claims.ref,
                self.unread,
                extra=about(self.claims.ref),
            )

    async def save(self) -> None:
        """Keep a state that changed in the store, for a client that carries none."""
        changed = self.state.close()
        if changed is not None and not self.ended_by_own_request:  # which keeps nothing
            await self.runtime.store.write(self._namespace, STATE_KEY, changed)

    async def save_changes(self) -> None:
        """Keep what changed so far in the store, while a handler may go on changing it."""
        if self.opened is not None:
            while not self.ended_by_own_request and (changed := self.opened.changes()) is not None:
                await self.runtime.store.write(self._namespace, STATE_KEY, changed)
                self.opened.rebase(changed)

    async def keep_capabilities(self, value: bytes) -> None:
        """Keep what the client states that it can do, a JSON object, in place of what it stated before."""
        check_capabilities(value, self.claims.ref)
        try:
            await self.runtime.store.write(self._namespace, CAPABILITIES_KEY, value)
        except PrincipalDataTooLarge:
            raise TooMuchData(ref=self.claims.ref) from None
        except DataTooLarge:
            raise refusal("capabilities_too_large", ref=self.claims.ref) from None
        except DataGone:
            raise SessionEnded(ref=self.claims.ref) from None

    @property
    def bridge(self) -> Bridged | None:
        """How its requests cross the bridge, or None where the wrapped server has no session of its own for it."""
        assert self.verified is not None
        server_id = seal.open_upstream(self.verified.key, self.claims, audience=self.runtime.audience)
        return None if server_id is None else Bridged(self.token, server_id)

    def metadata(self) -> bytes:
        """Return the JSON of its metadata as it stands now; closes the state, since it leaves with the response."""
        self.closed, runtime = True, self.runtime
        is_in_state = runtime.idle_timeout is not None and not runtime.tracked  # when it was seen last
        if self.opened is None and not is_in_state:
            return draft.metadata(self.token, self.ends_at)
        changed = None if self.opened is None else self.opened.close()
        now, claims = int(runtime.clock()), self.claims
        plain = draft.metadata(self.token, end_of(claims, runtime, now))
        if changed is None and not is_in_state:
            return plain
        payload = (self.payload or b"{}") if changed is None else changed
        sealed = seal.seal(self.ring.signing, payload, claims.jti, claims.subject, runtime.audience, now)
        return draft.with_state(plain, sealed)

    @property
    def _namespace(self) -> Namespace:
        return self.runtime.namespace(self.claims.ref, self.claims.expires_at, subject=self.claims.subject)


async def open_session(
    metadata: SessionMetadata,
    runtime: Runtime,
    principal: Principal | None,
    *,
    fail_open: bool = False,
    kind: Kind = SESSION,
) -> ActiveSession:
    """Return the live session that a request names; with `fail_open` also where the store does not answer.

    Raises:
        SessionNotFound: The token is not valid for this caller, or its session does not live.
        StateUnreadable: The state is not this session's.
        StoreUnavailable: The store did not answer.
    """
    now = runtime.clock()
    verified = runtime.tokens.known(runtime.ring(now), metadata.session_id, now, principal, kind)
    status = None if runtime.status_nowait is None else runtime.status_nowait(verified.claims)
    if status is None:
        status = await _ask_status(verified.claims, runtime, fail_open=fail_open)
    if status is not LIVE:
        raise refusal_of(status, verified.claims)
    session = build_session(metadata, verified, runtime, principal, now)
    if kind != SESSION:
        await session.load_state(fail_open=fail_open)
    return session


async def _ask_status(claims: Claims, runtime: Runtime, *, fail_open: bool) -> SessionStatus:
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
            extra=about(claims.ref),
        )
        return LIVE


def build_session(
    metadata: SessionMetadata, verified: VerifiedToken, runtime: Runtime, principal: Principal | None, now: float
) -> ActiveSession:
    """Return a session that lives by its token and by the store, with the state that its client sent.

    Raises:
        SessionExpired: It was idle for too long.
        StateUnreadable: The state is not this session's.
    """
    claims, payload, last_seen = verified.claims, None, int(verified.claims.issued_at)
    if metadata.state is not None:
        unsealed = _unseal(metadata.state, verified, runtime, now)
        payload, last_seen = unsealed.payload, unsealed.last_seen
    if runtime.tracked or claims.kind != SESSION:  # the record has when it was seen, if anything does
        last_seen = int(now)
    ends_at = end_of(claims, runtime, last_seen)
    if not now < ends_at:
        raise SessionExpired(ref=claims.ref)
    recheck_at = now + RECHECK_AFTER
    return ActiveSession(
        metadata.session_id, claims, verified.ring, runtime, principal, payload, ends_at, recheck_at, verified
    )


def _unseal(state: str, verified: VerifiedToken, runtime: Runtime, now: float) -> UnsealedState:
    claims, max_bytes = verified.claims, runtime.limits.state_bytes
    try:
        return seal.open(verified.ring, state, claims.jti, claims.subject, runtime.audience, max_bytes, now)
    except StateUnreadable as error:
        error.ref = claims.ref
        raise


async def open_sessions(ctx: RequestContext, decision: Decision) -> ActiveSession | None:
    """Open the sessions that a message names, and return the one that it is in, if any: its body counts first.

    Raises as `open_session`, with 404 for a transport session; or `session_header_mismatch`: the header contradicts
    the body, whose session is the caller's, or names no session that ever was the caller's.
    """
    session, named, fail_open = None, decision.metadata, decision.fail_open
    if named is not None and decision.kind != SESSION:
        session = await _open_across(ctx, named, decision.kind, fail_open=fail_open)
        if decision.contradicts:
            raise refusal("session_header_mismatch", ref=session.claims.ref)
    if decision.transport_id is not None:
        try:
            transport = await open_transport(ctx, decision.transport_id, fail_open=fail_open)
        except SessionNotFound as error:
            if named is None or error.reason in _OWN_IS_OVER:
                raise
            raise refusal("session_header_mismatch", ref=error.ref) from None
        session = session or transport
    if named is not None and decision.kind == SESSION:
        session = await open_session(named, ctx.runtime, ctx.runtime.principal(ctx.scope), fail_open=fail_open)
    return session


async def open_transport(
    ctx: RequestContext, session_id: str, *, kind: Kind = TRANSPORT, fail_open: bool = False
) -> ActiveSession:
    """Return the live session that a header alone names, and let the request cross the bridge."""
    try:
        return await _open_across(ctx, SessionMetadata(session_id), kind, fail_open=fail_open)
    except SessionNotFound as error:  # the status makes clients begin anew
        raise SessionNotFound(error.reason, ref=error.ref, http_status=404) from None


async def _open_across(ctx: RequestContext, named: SessionMetadata, kind: Kind, *, fail_open: bool) -> ActiveSession:
    runtime, principal = ctx.runtime, ctx.runtime.principal(ctx.scope)
    session = await open_session(named, runtime, principal, fail_open=fail_open, kind=kind)
    if runtime.bridges and kind == TRANSPORT:
        ctx.bridge = session.bridge
    return session


def refused_claims(ctx: RequestContext, refusal: Refusal | None, *ids: str | None) -> Claims | None:
    """Return the claims of the authentic session that is refused, of those that a request names, or None."""
    if refusal is None or refusal.ref is None:
        return None
    runtime, found = ctx.runtime, dict[str, Claims]()
    ring = runtime.ring(runtime.clock())
    for session_id in filter(None, ids):
        with suppress(SessionNotFound):
            claims = runtime.tokens.authentic(ring, session_id)
            found[claims.ref] = claims
    return found.get(refusal.ref)


def end_of(claims: Claims, runtime: Runtime, last_seen: int) -> int:
    """Return the earlier of absolute and idle expiry, Unix seconds."""
    idle, end = runtime.idle_timeout, claims.expires_at
    if idle is None:
        return end
    idle_end = last_seen + int(idle)
    return idle_end if idle_end < end else end  # noqa: FURB136  # `min` takes ten times as long


def check_state(payload: bytes, limit: int) -> None:
    size = seal.sealed_size(len(payload))
    if size > limit:
        raise StateTooLarge(size, limit)


def check_capabilities(value: bytes, ref: str | None = None) -> None:
    """Check that the capabilities of a client may be kept for a session, or refuse with `capabilities_too_large`."""
    if not len(value) <= MAX_CAPABILITIES_BYTES:
        raise refusal("capabilities_too_large", ref=ref)


def refusal_of(standing: SessionStatus, claims: Claims) -> SessionNotFound:
    if standing is SessionStatus.UNKNOWN:
        return SessionNotFound("store_lost", ref=claims.ref)
    return SessionExpired(ref=claims.ref) if standing is SessionStatus.IDLE else SessionEnded(ref=claims.ref)

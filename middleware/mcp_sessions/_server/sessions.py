"""Sessions during one request: opened from what it names, written back, ended.

What is known about a session comes from its token and the state that its client carries; the store is asked for its
status alone. How a session is named on the wire is decided elsewhere, and `minting` makes new ones.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

import msgspec

from .._protocol import draft
from .._protocol.decision import Decision
from .._protocol.draft import SessionMetadata
from .._session import claims
from .._session.claims import SESSION, TRANSPORT, Claims, Kind, Principal, RedactedRepr
from .._session.data import Data, Namespace
from .._session.session import Session
from .._session.state import State, UnreadableState
from .._tokens import seal
from .._tokens.keys import KeyRing
from ..errors import (
    DataGone,
    DataTooLarge,
    SessionEnded,
    SessionExpired,
    SessionNotFound,
    StateTooLarge,
    StoreUnavailable,
    refuse,
)
from ..stores.base import LIVE, Standing
from .context import RequestContext, bridged
from .runtime import Runtime

STATE_KEY: Final = ""
"""Where the state of a transport session lies in the store: a name that `session.data` cannot have."""
CAPABILITIES_KEY: Final = "\0client_capabilities"
"""Where the capabilities lie that the client of a session has stated: another such name."""
MAX_CAPABILITIES_BYTES: Final = 16 * 1024
"""A caller who may create sessions may have so much kept for each, without the application's doing."""

LATE: Final = 1.0  # seconds after which the status that the store gave at the beginning is asked for again

_log: Final = logging.getLogger("mcp_sessions")


class ActiveSession(RedactedRepr, msgspec.Struct, eq=False):
    """One session during one request; what the application sees of it is made of this.

    Args:
        token: The session id as the client holds it.
        claims: Its verified claims.
        ring: The keys that are valid now.
        runtime: What all requests share.
        principal: The caller.
        payload: The state that came with it or was kept for it, a JSON object, or None.
        ends_at: The earlier of absolute and idle expiry, Unix seconds.
        late_at: From when on the store has to be asked again, since the session may have ended, Unix seconds.
        ended_by_own_request: Whether the request goes on when its session ends: it ends it itself.
        unread: Why its state could not be read from the store, or None.
        opened: Its state, once it was looked at.
        is_shut: Whether the response has left, so that nothing changes any more.
    """

    token: str
    claims: Claims
    ring: KeyRing
    runtime: Runtime
    principal: Principal | None
    payload: bytes | None
    ends_at: int
    late_at: float
    ended_by_own_request: bool = False
    unread: str | None = None
    opened: State | None = None
    is_shut: bool = False

    # --- what the application sees -----------------------------------------------------------

    @property
    def session(self) -> Session:
        """The session, made anew: to keep it here would be a circle, which only the garbage collector ends."""
        return Session(self)

    @property
    def state(self) -> State:
        """The state that its client carried, or that the store has for it; the latter may be out of reach."""
        if self.opened is None:
            check = partial(check_state, limit=self.runtime.max_state_bytes)  # and nothing that leads back here
            self.opened = State(self.payload, check=check) if self.unread is None else UnreadableState(self.unread)
            if self.is_shut:
                self.opened.shut()
        return self.opened

    def shut(self) -> None:
        """Refuse further changes of the state: the response has left, or never will."""
        self.is_shut = True
        if self.opened is not None:
            self.opened.shut()

    def data(self) -> Data:
        """Return what the server keeps for it, or for the session whose data it shares."""
        return self.runtime.data(claims.owner(self.claims), self.claims.expires_at)

    async def capabilities(self) -> bytes | None:
        """Return the capabilities that its client has stated, as JSON."""
        return await self.runtime.store.read(self._namespace, CAPABILITIES_KEY)

    async def end(self, reason: str, *, descendants: bool = False) -> None:
        """Make every worker refuse it."""
        self.ended_by_own_request = True  # before the store knows: this request's stream may be looked at meanwhile
        try:
            if descendants:  # first, so that a caller who learns of a failure can try again
                await self.runtime.terminator.end_below(self.claims, tracked=self.runtime.tracked)
            await self.runtime.terminator.end(self.claims, reason)
        except StoreUnavailable:
            self.ended_by_own_request = False
            raise

    # --- what is kept and written back -------------------------------------------------------

    async def load_state(self, *, fail_open: bool) -> None:
        """Read the state of a session whose client carries none."""
        try:
            self.payload = await self.runtime.store.read(self._namespace, STATE_KEY)
        except StoreUnavailable as error:
            if not fail_open:
                raise
            _log.warning(
                "session %s goes on without its state, which is out of reach (%s)", self.claims.ref, error.reason
            )
            self.unread = error.reason

    async def save(self) -> None:
        """Keep a state that changed in the store, for a client that carries none.

        Raises:
            StateError: What the application wrote cannot be kept.
            DataError: The session has ended, or there is no room.
            StoreUnavailable: The store did not take it.
        """
        changed = self.state.close()
        if changed is not None and not self.ended_by_own_request:  # which keeps nothing
            await self.runtime.store.write(self._namespace, STATE_KEY, changed)

    async def keep_capabilities(self, value: bytes) -> None:
        """Keep what the client states that it can do, in place of what it stated before.

        Args:
            value: A JSON object.

        Raises:
            Refusal: `capabilities_too_large`: There is no room for it.
            SessionEnded: The session ended meanwhile.
            StoreUnavailable: The store did not take it.
        """
        check_capabilities(value, self.claims.ref)
        try:
            await self.runtime.store.write(self._namespace, CAPABILITIES_KEY, value)
        except DataTooLarge:
            raise refuse("capabilities_too_large", ref=self.claims.ref) from None
        except DataGone:
            raise SessionEnded(ref=self.claims.ref) from None

    @property
    def server_id(self) -> str | None:
        """The wrapped server's own id of the transport session, or None where it has none.

        Raises:
            SessionNotFound: It was not sealed for this session.
        """
        return seal.open_upstream(self.ring, self.claims, audience=self.runtime.audience)

    def metadata(self) -> dict[str, Any]:
        """Return its `SessionMetadata` as it stands now; closes the state, since it leaves with the response.

        Raises:
            StateError: What the application wrote cannot be kept.
        """
        changed, runtime = self.state.close(), self.runtime
        now = int(runtime.clock())
        ends_at = end_of(self.claims, runtime, now)
        if changed is None and not runtime.idle_in_state:
            return draft.metadata(self.token, expires_at=ends_at, state=None)
        # The state must also carry that the session was seen.
        payload = self.state.payload if changed is None else changed
        sealed = seal.seal(
            self.ring.signing,
            payload,
            jti=self.claims.jti,
            subject=self.claims.subject,
            audience=runtime.audience,
            last_seen=now,
        )
        return draft.metadata(self.token, expires_at=ends_at, state=sealed)

    def echo(self) -> bytes:
        """Return the JSON of `metadata`; the bytes that were made before where the state was not looked at."""
        if self.opened is None and self.runtime.idle_timeout is None:
            self.is_shut = True
            return draft.without_state(self.token, self.ends_at)
        return draft.encode(self.metadata())

    @property
    def _namespace(self) -> Namespace:
        """Its own place in the store, also where it shares another session's data."""
        return self.runtime.namespace(self.claims.ref, self.claims.expires_at)


# --- opened ----------------------------------------------------------------------------------------


async def open_session(
    metadata: SessionMetadata,
    runtime: Runtime,
    *,
    principal: Principal | None,
    fail_open: bool = False,
    kind: Kind = SESSION,
) -> ActiveSession:
    """Return the live session that a request names.

    Args:
        metadata: What the request names.
        runtime: What all requests share.
        principal: The caller.
        fail_open: Whether the request may go on where the store does not answer.
        kind: What the token is used as.

    Raises:
        SessionNotFound: It does not verify, belongs to another caller, or is over.
        StateUnreadable: The state that came with it is not this session's.
        StoreUnavailable: The store did not answer.
    """
    now = runtime.clock()
    ring = runtime.ring(now)
    claims = runtime.tokens.verify(ring, metadata.session_id, now=now, principal=principal, kind=kind)
    is_plain = claims.root is None and not runtime.tracked  # most are, and need not go by way of the runtime
    try:
        status = await (runtime.store.status(claims) if is_plain else runtime.status(claims))
    except StoreUnavailable as error:
        if not fail_open:
            raise
        _log.warning(
            "accepting session %s without a revocation check: store unavailable (%s)", claims.ref, error.reason
        )
    else:
        if status is not LIVE:
            raise refusal_of(status, claims)
    payload, last_seen = None, claims.issued_at
    if metadata.state is not None:
        unsealed = seal.open(
            ring,
            metadata.state,
            jti=claims.jti,
            subject=claims.subject,
            audience=runtime.audience,
            max_bytes=runtime.max_state_bytes,
            now=now,
        )
        payload, last_seen = unsealed.payload, unsealed.last_seen
    if runtime.tracked or kind != SESSION:  # the record has when it was seen, if anything does
        last_seen = int(now)
    ends_at = claims.expires_at if runtime.idle_timeout is None else end_of(claims, runtime, last_seen)
    if not now < ends_at:
        raise SessionExpired(ref=claims.ref)
    session = ActiveSession(metadata.session_id, claims, ring, runtime, principal, payload, ends_at, now + LATE)
    if kind != SESSION:
        await session.load_state(fail_open=fail_open)
    return session


async def open_others(ctx: RequestContext, decision: Decision) -> ActiveSession | None:
    """Return the live session that a header or a field names, and let the request cross the bridge.

    Raises:
        SessionNotFound: One of them is not live.
        StoreUnavailable: The store did not answer.
    """
    session, runtime = None, ctx.runtime
    if decision.transport_id is not None:
        session = await open_transport(ctx, decision.transport_id, fail_open=decision.fail_open)
    if decision.metadata is not None and decision.kind != SESSION:
        principal, fail_open, kind = runtime.principal(ctx.scope), decision.fail_open, decision.kind
        session = await open_session(decision.metadata, runtime, principal=principal, fail_open=fail_open, kind=kind)
        if runtime.bridges and kind == TRANSPORT:
            ctx.bridge = bridged(session)
    return session


async def open_transport(ctx: RequestContext, session_id: str, *, fail_open: bool = False) -> ActiveSession:
    """Return the live transport session that a header names, and let the request cross the bridge.

    Raises:
        SessionNotFound: It is over or was never ours; the status tells clients to begin anew.
        StoreUnavailable: The store did not answer.
    """
    runtime = ctx.runtime
    try:
        session = await open_session(
            SessionMetadata(session_id),
            runtime,
            principal=runtime.principal(ctx.scope),
            fail_open=fail_open,
            kind=TRANSPORT,
        )
        if runtime.bridges:
            ctx.bridge = bridged(session)
    except SessionNotFound as refusal:
        raise SessionNotFound(refusal.reason, ref=refusal.ref, http_status=404) from None
    return session


def end_of(claims: Claims, runtime: Runtime, last_seen: int) -> int:
    """Return the earlier of absolute and idle expiry, Unix seconds."""
    idle = runtime.idle_timeout
    return claims.expires_at if idle is None else min(claims.expires_at, last_seen + int(idle))


def check_state(payload: bytes, limit: int) -> None:
    """Check that a state may be sealed in so many bytes, or raise `StateTooLarge`."""
    size = seal.sealed_size(len(payload))
    if size > limit:
        raise StateTooLarge(size, limit)


def check_capabilities(value: bytes, ref: str | None = None) -> None:
    """Check that the capabilities of a client may be kept for a session, or refuse with `capabilities_too_large`."""
    if not len(value) <= MAX_CAPABILITIES_BYTES:
        raise refuse("capabilities_too_large", ref=ref)


def refusal_of(standing: Standing, claims: Claims) -> SessionNotFound:
    """Return the refusal of a request whose session is not live."""
    if standing is Standing.LOST:
        return SessionNotFound("store_lost", ref=claims.ref)
    return SessionExpired(ref=claims.ref) if standing is Standing.IDLE else SessionEnded(ref=claims.ref)

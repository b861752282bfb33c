"""Sessions during one request: opened from what it names, minted, forked, written back, ended.

What is known about a session comes from its token and the state that its client carries; the store is asked for its
status alone. A new session is recorded, filled by the application, and only then announced: what fails on the way
leaves nothing behind. How a session is named on the wire is decided elsewhere.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.types import Scope

from .._protocol import draft
from .._protocol.decision import Decision
from .._protocol.draft import SessionMetadata
from .._protocol.jsonrpc import Message
from .._protocol.labels import client_of
from .._session import claims
from .._session.claims import SESSION, TRANSPORT, Claims, Kind, Mode, Principal, RedactedRepr
from .._session.data import Data, Namespace
from .._session.events import SessionCreated
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
from ..stores.base import LIVE, Record, Standing
from . import options
from .context import RequestContext, bridged
from .lifecycle import NOT_BEGUN
from .runtime import Runtime

if TYPE_CHECKING:
    from ..telemetry.spans import Start

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
        return self.runtime.keep(claims.owner(self.claims), self.claims.expires_at)

    async def capabilities(self) -> bytes | None:
        """Return the capabilities that its client has stated, as JSON."""
        return await self.runtime.store.read(self._namespace, CAPABILITIES_KEY)

    async def end(self, reason: str, *, descendants: bool = False) -> None:
        """Make every worker refuse it."""
        self.ended_by_own_request = True  # before the store knows: this request's stream may be looked at meanwhile
        try:
            if descendants:  # first, so that a caller who learns of a failure can try again
                await self.runtime.endings.end_below(self.claims, tracked=self.runtime.tracked)
            await self.runtime.endings.end(self.claims, reason)
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
        return self.runtime.shelf(self.claims.ref, self.claims.expires_at)


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


# --- minted ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewSession:
    """A new session before it is announced: what follows is `commit`, or `abort`.

    Args:
        active: The session.
        session: The same, as the application sees it.
        start: Its start as it is traced, or None.
    """

    active: ActiveSession
    session: Session
    start: Start | None

    async def record(self) -> None:
        """Register it in the store, where sessions are tracked.

        Raises:
            StoreUnavailable: It cannot be recorded.
        """
        if self.active.runtime.tracked:
            await self.active.runtime.store.register(Record.of(self.active.claims))

    async def prepare(self, params: dict[str, Any], scope: Scope) -> None:
        """Let the application fill it.

        Raises:
            CreateRefused: The application refuses.
        """
        on_create = self.active.runtime.on_create
        if on_create is not None:
            await options.call(on_create, self.session, params, scope)

    def commit(self) -> None:
        """Announce that it is complete."""
        claims, runtime = self.active.claims, self.active.runtime
        if self.start is not None:
            runtime.telemetry().created(claims, self.start)
        runtime.emit(SessionCreated(claims.ref, claims.expires_at, claims.parent))

    def abort(self, error: BaseException) -> None:
        """Record that it came to nothing."""
        if self.start is not None:
            self.start.end(error)


async def mint(
    runtime: Runtime,
    *,
    principal: Principal | None,
    params: dict[str, Any],
    scope: Scope,
    kind: Kind = SESSION,
    client: str | None = None,
    server_id: str | None = None,
) -> ActiveSession:
    """Mint a session for a caller, as far as the application lets it.

    Args:
        runtime: What all requests share.
        principal: The caller.
        params: The params of `sessions/create`, for `on_create`.
        scope: The ASGI scope, for `on_create`.
        kind: What its token may be used as.
        client: The name that the client gives itself, or None.
        server_id: The wrapped server's own transport session, to be sealed inside.

    Raises:
        CreateLimited: The caller has made too many.
        CreateRefused: The application refuses.
        StoreUnavailable: The session cannot be recorded.
    """
    # A store that is opened by the first use only could take a session for one from before it began to remember.
    await runtime.store.open()
    lasts = runtime.transport_lifetime if kind == TRANSPORT else runtime.lifetime
    now = int(runtime.clock())
    made = _make(
        runtime, principal, now=now, server_id=server_id, kind=kind, expires_at=now + int(lasts), client=client
    )
    try:
        if runtime.tracked:
            await made.record()  # before the hook: what it makes is freed by `on_end`, which only a record leads to
        if runtime.on_create is not None:
            await _prepared(made, params, scope)
    except BaseException as error:
        made.abort(error)
        raise
    made.commit()
    return made.active


async def _prepared(made: NewSession, params: dict[str, Any], scope: Scope) -> None:
    """Let the application fill a new session, and leave nothing behind where it refuses."""
    active = made.active
    try:
        await made.prepare(params, scope)
    except BaseException:
        if active.runtime.tracked or made.session.has_data:  # what was kept for a session that never was
            await active.runtime.endings.forget(active.claims.ref)
        raise


async def initialize_session(
    ctx: RequestContext, message: Message, kind: Kind, server_id: str | None = None
) -> ActiveSession:
    """Mint the session that an `initialize` begins.

    Raises:
        Refusal: As for `mint`.
    """
    with nullcontext() if ctx.telemetry is None else ctx.telemetry.current():
        return await mint(
            ctx.runtime,
            principal=ctx.runtime.principal(ctx.scope),
            params={},
            scope=ctx.scope,
            kind=kind,
            client=client_of(message),
            server_id=server_id,
        )


async def mint_with_capabilities(value: bytes, mint: Callable[[], Awaitable[ActiveSession]]) -> ActiveSession:
    """Mint a session and keep what its client can do; where that is not kept, no session is left.

    Args:
        value: What the client can do, a JSON object.
        mint: Mints the session.

    Raises:
        Refusal: `capabilities_too_large`: There is no room for it.
        SessionEnded: The session ended meanwhile.
        StoreUnavailable: The store did not take it.
    """
    check_capabilities(value)
    session = await mint()
    try:
        await session.keep_capabilities(value)
    except BaseException:  # `on_create` has run, and no client will ever know the id: `on_end` frees what it made
        with suppress(StoreUnavailable):
            await session.session.end(NOT_BEGUN)
        raise
    return session


def _make(
    runtime: Runtime, principal: Principal | None, *, now: int, server_id: str | None = None, **given: Any
) -> NewSession:
    """Make a new session, with these claims beside its name, its making and its owner."""
    ring = runtime.ring(now)
    subject = ring.signing.subject(principal)
    if runtime.create_limit is not None:
        runtime.create_limit.spend(subject, now=now)
    jti = secrets.token_urlsafe(16)
    if server_id is not None:
        given["upstream"] = seal.seal_upstream(
            ring.signing, server_id, jti=jti, subject=subject, audience=runtime.audience
        )
    new = Claims(jti=jti, issued_at=now, subject=subject, kid=ring.signing.kid, audience=runtime.audience, **given)
    start = runtime.telemetry().start(new) if runtime.tells() else None
    claims = new if start is None else msgspec.structs.replace(new, trace=start.trace)
    token, ends_at = runtime.tokens.mint(ring, claims), end_of(claims, runtime, now)
    active = ActiveSession(token, claims, ring, runtime, principal, None, ends_at, now + LATE)
    return NewSession(active, active.session, start)


# --- forked ----------------------------------------------------------------------------------------


async def fork(parent: ActiveSession, mode: Mode, *, params: dict[str, Any], scope: Scope) -> ActiveSession:
    """Make a session from a live one of the same caller, which shares its data, copies it or begins empty.

    Where sessions are tracked, the parent is looked at once more after the fork is on record: a lineage that is ended
    in between has either the record or no fork.

    Args:
        parent: The session that it is made from.
        mode: What it begins with.
        params: The params of `sessions/fork`, for `on_create`.
        scope: The ASGI scope, for `on_create`.

    Raises:
        CreateLimited: The caller has made too many sessions.
        CreateRefused: The application refuses.
        SessionEnded: The parent was ended meanwhile.
        StoreUnavailable: The fork cannot be recorded, or the data cannot be copied.
    """
    runtime = parent.runtime
    made = _make(runtime, parent.principal, now=int(runtime.clock()), **claims.below(parent.claims, mode))
    child = made.active
    try:
        await made.record()
        try:
            await _fill(child, parent, mode)
            await _check_again(child, parent)
            await made.prepare(params, scope)
        except BaseException:  # leave nothing behind
            await runtime.endings.forget(child.claims.ref)
            raise
    except BaseException as error:
        made.abort(error)
        raise
    made.commit()
    return child


async def _fill(child: ActiveSession, parent: ActiveSession, mode: Mode) -> None:
    """Give a fork what it begins with. Its client holds the state, so that is copied wherever data is shared."""
    if mode == "fresh":
        return
    runtime = parent.runtime
    child.session.state.update(parent.session.state)
    if mode == "copy":
        source = runtime.shelf(claims.owner(parent.claims), parent.claims.expires_at)
        await runtime.store.copy(source, runtime.shelf(child.claims.ref, child.claims.expires_at))


async def _check_again(child: ActiveSession, parent: ActiveSession) -> None:
    runtime = parent.runtime
    if not runtime.tracked:  # what ends the lineage ends this fork, too, at its first request
        return
    found = await runtime.store.statuses([parent.claims, claims.mark(child.claims)])
    if not all(standing is LIVE for standing in found):
        raise SessionEnded(ref=parent.claims.ref)

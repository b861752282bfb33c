"""Live sessions: opened from what a request names, written back, ended.

Everything that is known about a session comes from its token and the state that the client
carries; the store is asked one thing only, how the session stands. Nothing here knows how a session
is named on the wire.

New sessions: made, recorded, filled by the application, and only then told to anybody.

What goes wrong on the way leaves nothing behind. Nothing here knows how a session is named on the wire.

A session made from another one, which shares its data, begins with a copy of it, or begins empty.

The application's `on_create` sees a fork as it sees any new session, with `session.parent` set and the data in place.
Where sessions are tracked, the parent is looked at once more after the fork is on record: whoever ends a lineage in
between finds either the record or no fork.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.types import Scope

from .._protocol import draft
from .._protocol.draft import SessionMetadata
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
from .lifecycle import call_hook
from .runtime import Runtime

if TYPE_CHECKING:
    from ..telemetry.spans import Start

STATE_KEY: Final = ""
"""Where the state of a transport session lies in the store: a name that `session.data` gives to nobody."""
CAPABILITIES_KEY: Final = "\0client_capabilities"
"""Where lies what the client of a session said that it can do: another such name."""
MAX_CAPABILITIES_BYTES: Final = 16 * 1024
"""Whoever may create sessions may have so much kept for each, without the application's doing."""

LATE: Final = 1.0  # seconds after which an answer is no longer let out on what the store said at its beginning

_log: Final = logging.getLogger("mcp_sessions")


class ActiveSession(RedactedRepr, msgspec.Struct, eq=False):
    """One session during one request; what the application sees of it is made of this.

    Args:
        token: The session id as the client holds it.
        claims: What it says.
        ring: The keys that are valid now.
        options: The deployment's.
        principal: Who the caller is.
        payload: The state that came with it or was kept for it, a JSON object, or None.
        ends_at: The earlier of absolute and idle expiry, Unix seconds.
        late_at: From when on the store has to be asked again, since the session may have ended, Unix seconds.
        outlives: Whether the request goes on when its session ends: it ends it itself.
        unread: Why its state could not be read from where it is kept, or None.
        opened: Its state, once somebody has looked at it.
        is_shut: Whether the response has left, so that nothing changes any more.
    """

    token: str
    claims: Claims
    ring: KeyRing
    options: Runtime
    principal: Principal | None
    payload: bytes | None
    ends_at: int
    late_at: float
    outlives: bool = False
    unread: str | None = None
    opened: State | None = None
    is_shut: bool = False

    @classmethod
    async def open(
        cls,
        named: SessionMetadata,
        options: Runtime,
        *,
        principal: Principal | None,
        lenient: bool = False,
        kind: Kind = SESSION,
    ) -> ActiveSession:
        """The live session that a request names.

        Args:
            named: What the request says.
            options: The deployment's.
            principal: Who the caller is.
            lenient: Whether the request may go on where the store does not answer.
            kind: What the token is used as.

        Raises:
            SessionNotFound: It does not verify, belongs to somebody else, or is over.
            StateUnreadable: The state that came with it is not this session's.
            StoreUnavailable: Nobody knows whether it was ended.
        """
        now = options.clock()
        ring = options.ring(now)
        claims = options.tokens.verify(ring, named.session_id, now=now, principal=principal, kind=kind)
        try:
            standing = await options.status(claims)
        except StoreUnavailable as error:
            if not lenient:
                raise
            _log.warning("session %s is let in, though nobody knows whether it ended (%s)", claims.ref, error.reason)
        else:
            if standing is not LIVE:
                raise refusal_of(standing, claims)
        payload, last_seen = None, claims.issued_at
        if named.state is not None:
            opened = seal.open(
                ring,
                named.state,
                jti=claims.jti,
                subject=claims.subject,
                audience=options.audience,
                max_bytes=options.max_state_bytes,
                now=now,
            )
            payload, last_seen = opened.payload, opened.last_seen
        if options.tracked or kind != SESSION:  # the record tells when it was seen, if anything does
            last_seen = int(now)
        ends_at = end_of(claims, options, last_seen)
        if not now < ends_at:
            raise SessionExpired(ref=claims.ref)
        live = cls(named.session_id, claims, ring, options, principal, payload, ends_at, now + LATE)
        if kind != SESSION:
            await live._fetch_state(lenient=lenient)
        return live

    # --- what the application sees -----------------------------------------------------------

    @property
    def session(self) -> Session:
        """The session, made anew: to keep it here would be a circle, which only the garbage collector ends."""
        return Session(self)

    @property
    def state(self) -> State:
        """What its client carried, or what the store has for it; the latter may be out of reach."""
        if self.opened is None:
            self.opened = self._opened()
        return self.opened

    def _opened(self) -> State:
        check = partial(check_state, limit=self.options.max_state_bytes)  # and nothing that leads back here
        opened = State(self.payload, check=check) if self.unread is None else UnreadableState(self.unread)
        if self.is_shut:
            opened.shut()
        return opened

    def shut(self) -> None:
        """Refuse further changes of the state: the response has left, or never will."""
        self.is_shut = True
        if self.opened is not None:
            self.opened.shut()

    def data(self) -> Data:
        """What the server keeps for it, or for the session whose data it shares."""
        return self.options.keep(claims.owner(self.claims), self.claims.expires_at)

    def capabilities(self) -> Awaitable[bytes | None]:
        """What its client said that it can do, as JSON."""
        return self.options.store.read(self._shelf, CAPABILITIES_KEY)

    async def end(self, reason: str, *, descendants: bool = False) -> None:
        """Make every worker refuse it."""
        self.outlives = True  # before the store knows, since this request's stream may open or be looked at meanwhile
        try:
            if descendants:  # first, so that who is told of a failure can try again
                await self.options.endings.end_below(self.claims, tracked=self.options.tracked)
            await self.options.endings.end(self.claims, reason)
        except StoreUnavailable:
            self.outlives = False
            raise

    # --- what is kept and written back -------------------------------------------------------

    async def _fetch_state(self, *, lenient: bool) -> None:
        """Take the state from where it is kept: what is no session of the draft carries none."""
        try:
            self.payload = await self.options.store.read(self._shelf, STATE_KEY)
        except StoreUnavailable as error:
            if not lenient:
                raise
            _log.warning(
                "session %s goes on without its state, which is out of reach (%s)", self.claims.ref, error.reason
            )
            self.unread = error.reason

    @property
    def servers_id(self) -> str | None:
        """What the wrapped server calls the transport session, or None where it knows of none.

        Raises:
            SessionNotFound: It was not sealed for this session.
        """
        return seal.open_upstream(self.ring, self.claims, audience=self.options.audience)

    def metadata(self) -> dict[str, Any]:
        """`SessionMetadata` as it stands now; closes the state, since it leaves with the response.

        Raises:
            StateError: What the application wrote cannot be kept.
        """
        changed = self.state.close()
        now = int(self.options.clock())
        if changed is None and not self.options.idle_in_state:
            return draft.metadata(self.token, expires_at=end_of(self.claims, self.options, now), state=None)
        # The state must also carry that the session was seen.
        sealed = self._seal(self.state.payload if changed is None else changed, now)
        return draft.metadata(self.token, expires_at=end_of(self.claims, self.options, now), state=sealed)

    def echo(self) -> bytes:
        """The JSON of `metadata`; the bytes that were made before where nobody looked at the state."""
        if self.opened is None and self.options.idle_timeout is None:
            self.is_shut = True
            return draft.without_state(self.token, self.ends_at)
        return draft.encode(self.metadata())

    async def keep_capabilities(self, said: bytes) -> None:
        """Keep what the client says that it can do, in place of what it said before.

        Args:
            said: A JSON object.

        Raises:
            Refusal: `capabilities_too_large`: There is no room for it.
            SessionEnded: The session ended meanwhile.
            StoreUnavailable: The store did not take it.
        """
        check_capabilities(said, self.claims.ref)
        try:
            await self.options.store.write(self._shelf, CAPABILITIES_KEY, said)
        except DataTooLarge:
            raise refuse("capabilities_too_large", ref=self.claims.ref) from None
        except DataGone:
            raise SessionEnded(ref=self.claims.ref) from None

    async def save(self) -> None:
        """Keep a state that changed in the store, for a client that carries none.

        Raises:
            StateError: What the application wrote cannot be kept.
            DataError: The session has ended, or there is no room.
            StoreUnavailable: The store did not take it.
        """
        changed = self.state.close()
        if changed is not None and not self.outlives:  # a session that its own request has ended keeps nothing
            await self.options.store.write(self._shelf, STATE_KEY, changed)

    def _seal(self, payload: bytes, now: int) -> str:
        claims = self.claims
        return seal.seal(
            self.ring.signing,
            payload,
            jti=claims.jti,
            subject=claims.subject,
            audience=self.options.audience,
            last_seen=now,
        )

    @property
    def _shelf(self) -> Namespace:
        """Its own place in the store, whosever data it has."""
        return self.options.shelf(self.claims.ref, self.claims.expires_at)


def end_of(claims: Claims, options: Runtime, last_seen: int) -> int:
    """The earlier of absolute and idle expiry, Unix seconds."""
    idle = options.idle_timeout
    return claims.expires_at if idle is None else min(claims.expires_at, last_seen + int(idle))


def check_state(payload: bytes, limit: int) -> None:
    """That a state may be sealed in so many bytes, or `StateTooLarge`."""
    size = seal.sealed_size(len(payload))
    if size > limit:
        raise StateTooLarge(size, limit)


def check_capabilities(said: bytes, ref: str | None = None) -> None:
    """That what a client says that it can do may be kept for a session, or a refusal, `capabilities_too_large`."""
    if not len(said) <= MAX_CAPABILITIES_BYTES:
        raise refuse("capabilities_too_large", ref=ref)


def refusal_of(standing: Standing, claims: Claims) -> SessionNotFound:
    """What a request is refused with whose session does not stand as live."""
    if standing is Standing.LOST:
        return SessionNotFound("store_lost", ref=claims.ref)
    return SessionExpired(ref=claims.ref) if standing is Standing.IDLE else SessionEnded(ref=claims.ref)


@dataclass(frozen=True, slots=True)
class Minted:
    """A new session, before anybody knows of it: what follows is `announce`, or `unmade`.

    Args:
        live: The session.
        session: The same, as the application sees it.
        start: Its start as it is traced, or None.
    """

    live: ActiveSession
    session: Session
    start: Start | None

    async def record(self) -> None:
        """Note it in the store, where sessions are tracked.

        Raises:
            StoreUnavailable: It cannot be recorded.
        """
        options = self.live.options
        if options.tracked:
            await options.store.register(Record.of(self.live.claims))

    async def prepare(self, params: dict[str, Any], scope: Scope) -> None:
        """Let the application fill it.

        Raises:
            CreateRefused: The application refuses.
        """
        if self.live.options.on_create is not None:
            await call_hook(self.live.options.on_create, self.session, params, scope)

    def announce(self) -> None:
        """Tell that it is complete."""
        claims, options = self.live.claims, self.live.options
        if self.start is not None:
            options.telemetry().created(claims, self.start)
        options.emit(SessionCreated(claims.ref, claims.expires_at, claims.parent))

    def unmade(self, error: BaseException) -> None:
        """Tell that it came to nothing."""
        if self.start is not None:
            self.start.end(error)


async def mint(
    options: Runtime,
    *,
    principal: Principal | None,
    params: dict[str, Any],
    scope: Scope,
    kind: Kind = SESSION,
    client: str | None = None,
    servers_id: str | None = None,
) -> ActiveSession:
    """Make a session for a caller, as far as the application lets it.

    Args:
        options: The deployment's.
        principal: Who the caller is.
        params: What `sessions/create` was called with, for `on_create`.
        scope: The ASGI scope, likewise.
        kind: What its token may be used as.
        client: What the client calls itself, or None.
        servers_id: The wrapped server's own transport session, to be sealed inside.

    Raises:
        CreateLimited: The caller has made too many.
        CreateRefused: The application refuses.
        StoreUnavailable: The session cannot be recorded.
    """
    # A store that is opened by the first use only could take a session for one from before it began to remember.
    await options.store.open()
    lasts = options.transport_lifetime if kind == TRANSPORT else options.lifetime
    now = int(options.clock())
    said: dict[str, Any] = {"kind": kind, "expires_at": now + int(lasts), "client": client}
    minted = make(options, principal, now=now, servers_id=servers_id, **said)
    try:
        await minted.record()  # before the hook: what it makes is freed by `on_end`, which only a record leads to
        await _prepared(minted, params, scope)
    except BaseException as error:
        minted.unmade(error)
        raise
    minted.announce()
    return minted.live


async def _prepared(minted: Minted, params: dict[str, Any], scope: Scope) -> None:
    """Let the application fill a new session, and leave nothing behind where it refuses."""
    live = minted.live
    try:
        await minted.prepare(params, scope)
    except BaseException:
        if live.options.tracked or minted.session.has_data:  # what was kept for a session that never was
            await live.options.endings.forget(live.claims.ref)
        raise


def make(
    options: Runtime, principal: Principal | None, *, now: int, servers_id: str | None = None, **said: Any
) -> Minted:
    """A new session, before anybody knows of it.

    Args:
        options: The deployment's.
        principal: Who the caller is.
        now: Unix seconds.
        servers_id: What the wrapped server calls its transport session, to be sealed inside.
        said: What its claims say, but for its name, its making and whose it is.

    Raises:
        CreateLimited: The caller has made too many.
    """
    ring = options.ring(now)
    subject = ring.signing.subject(principal)
    if options.create_limit is not None:
        options.create_limit.spend(subject, now=now)
    jti = secrets.token_urlsafe(16)
    if servers_id is not None:
        said["upstream"] = seal.seal_upstream(
            ring.signing, servers_id, jti=jti, subject=subject, audience=options.audience
        )
    new = Claims(jti=jti, issued_at=now, subject=subject, kid=ring.signing.kid, audience=options.audience, **said)
    start = options.telemetry().start(new) if options.tells() else None
    claims = new if start is None else msgspec.structs.replace(new, trace=start.trace)
    token = options.tokens.mint(ring, claims)
    live = ActiveSession(token, claims, ring, options, principal, None, end_of(claims, options, now), now + LATE)
    return Minted(live, live.session, start)


async def fork(
    parent: ActiveSession,
    mode: Mode,
    options: Runtime,
    *,
    principal: Principal | None,
    params: dict[str, Any],
    scope: Scope,
) -> ActiveSession:
    """Make a session from a live one of the same caller.

    Args:
        parent: The session that it is made from.
        mode: What it begins with.
        options: The deployment's.
        principal: Who the caller is.
        params: What `sessions/fork` was called with, for `on_create`.
        scope: The ASGI scope, likewise.

    Raises:
        CreateLimited: The caller has made too many sessions.
        CreateRefused: The application refuses.
        SessionEnded: The parent was ended meanwhile.
        StoreUnavailable: The fork cannot be recorded, or the data cannot be copied.
    """
    minted = make(options, principal, now=int(options.clock()), **claims.below(parent.claims, mode))
    child = minted.live
    try:
        await minted.record()
        try:
            await _fill(child, parent, mode, options)
            await _check_again(child, parent, options)
            await minted.prepare(params, scope)
        except BaseException:  # leave nothing behind
            await options.endings.forget(child.claims.ref)
            raise
    except BaseException as error:
        minted.unmade(error)
        raise
    minted.announce()
    return child


async def _fill(child: ActiveSession, parent: ActiveSession, mode: Mode, options: Runtime) -> None:
    """Give a fork what it begins with. Its client holds the state, so that is copied wherever data is shared."""
    if mode == "fresh":
        return
    child.session.state.update(parent.session.state)
    if mode == "copy":
        source = options.shelf(claims.owner(parent.claims), parent.claims.expires_at)
        await options.store.copy(source, options.shelf(child.claims.ref, child.claims.expires_at))


async def _check_again(child: ActiveSession, parent: ActiveSession, options: Runtime) -> None:
    if not options.tracked:  # what ends the lineage ends this fork, too, at its first request
        return
    found = await options.store.statuses([parent.claims, claims.mark(child.claims)])
    if not all(standing is Standing.LIVE for standing in found):
        raise SessionEnded(ref=parent.claims.ref)

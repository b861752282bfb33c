"""Live sessions: minted, opened from what a request names, written back, ended.

Everything that is known about a session comes from its token and the state that the client
carries; the store is asked one thing only, how the session stands. Nothing here knows how a session
is named on the wire.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.types import Scope

from . import hooks, lineage, state
from .data import Data, Shelf
from .dialects import draft, upstream
from .dialects.draft import Named
from .errors import (
    CapabilitiesTooLarge,
    DataGone,
    DataTooLarge,
    SessionEnded,
    SessionExpired,
    SessionNotFound,
    StateTooLarge,
    StoreUnavailable,
)
from .events import SessionCreated
from .hooks import OnCreate
from .keys import KeyRing
from .options import Options
from .session import Principal, Session, State, UnreadState
from .stores.base import Record, Standing
from .tokens import SESSION, TRANSPORT, Claims, Kind

if TYPE_CHECKING:
    from .telemetry.session_spans import Start

STATE_KEY: Final = ""
"""Where the state of a transport session lies in the store: a name that `session.data` gives to nobody."""
CAPABILITIES_KEY: Final = "\0client_capabilities"
"""Where lies what the client of a session said that it can do: another such name."""
MAX_CAPABILITIES_BYTES: Final = 16 * 1024
"""Whoever may create sessions may have so much kept for each, without the application's doing."""

LATE: Final = 1.0  # seconds after which an answer is no longer let out on what the store said at its beginning

_log: Final = logging.getLogger("mcp_sessions")


class Live:
    """One session during one request.

    Attributes:
        session: What the application sees.
        claims: What its token says.
        outlives: Whether the request goes on when its session ends: it ends it itself.
        late_at: From when on the store has to be asked again, since the session may have ended, Unix seconds.
    """

    __slots__ = ("_ends_at", "_options", "_ring", "_start", "claims", "late_at", "outlives", "session")

    def __init__(
        self,
        token: str,
        claims: Claims,
        ring: KeyRing,
        options: Options,
        *,
        principal: Principal | None,
        payload: bytes | None,
        last_seen: int,
        now: float,
    ) -> None:
        self.claims = claims
        self.late_at = now + LATE
        self.outlives = False
        self._start: Start | None = None
        self._ring = ring
        self._options = options
        self._ends_at = self._end(last_seen)
        self.session = Session(
            token,
            ref=claims.ref,
            created_at=claims.issued_at,
            expires_at=self._ends_at,
            state=State(payload, check=self._check_size),
            ender=self._end_session,
            make_data=self._data,
            read_capabilities=self._capabilities,
            principal=principal,
            parent=claims.parent,
            client=claims.client,
            traceparent=claims.trace,
        )

    @classmethod
    async def mint(
        cls,
        options: Options,
        *,
        principal: Principal | None,
        params: dict[str, Any],
        scope: Scope,
        kind: Kind = SESSION,
        client: str | None = None,
        servers_id: str | None = None,
    ) -> Live:
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
        live = cls.made(options, principal, now=now, servers_id=servers_id, **said)
        try:
            if options.tracked:  # before the hook: what it makes is freed by `on_end`, which only a record leads to
                await live.record()
            if options.on_create is not None:
                await live.prepare(options.on_create, params, scope)
        except BaseException as error:
            live.unmade(error)
            raise
        live.announce()
        return live

    def announce(self) -> None:
        """Tell that a new session is complete."""
        claims = self.claims
        if self._start is not None:
            self._options.telemetry().created(claims, self._start)
        self._options.emit(SessionCreated(claims.ref, claims.expires_at, claims.parent))

    def unmade(self, error: BaseException) -> None:
        """Tell that a new session came to nothing."""
        if self._start is not None:
            self._start.end(error)

    async def record(self) -> None:
        """Note a new session in the store.

        Raises:
            StoreUnavailable: It cannot be recorded.
        """
        await self._options.store.record(Record.of(self.claims))

    async def prepare(self, on_create: OnCreate, params: dict[str, Any], scope: Scope) -> None:
        """Let the application fill a new session, and leave nothing behind where it refuses."""
        try:
            await hooks.call(on_create, self.session, params, scope)
        except BaseException:
            if self._options.tracked or self.session.has_data:  # what was kept for a session that never was
                await self._options.endings.forget(self.claims.ref)
            raise

    @classmethod
    def made(
        cls, options: Options, principal: Principal | None, *, now: int, servers_id: str | None = None, **said: Any
    ) -> Live:
        """A new session, before anybody knows of it: what follows is `announce`, or `unmade`.

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
            said["upstream"] = upstream.seal(
                ring.signing, servers_id, jti=jti, subject=subject, audience=options.audience
            )
        new = Claims(jti=jti, issued_at=now, subject=subject, kid=ring.signing.kid, audience=options.audience, **said)
        start = options.telemetry().start(new) if options.tells() else None
        claims = new if start is None else msgspec.structs.replace(new, trace=start.trace)
        token = options.tokens.mint(ring, claims)
        live = cls(token, claims, ring, options, principal=principal, payload=None, last_seen=now, now=now)
        live._start = start
        return live

    @classmethod
    async def open(
        cls,
        named: Named,
        options: Options,
        *,
        principal: Principal | None,
        lenient: Callable[[], bool],
        kind: Kind = SESSION,
    ) -> Live:
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
            standing = await options.standing(claims)
        except StoreUnavailable as error:
            if not lenient():
                raise
            _log.warning("session %s is let in, though nobody knows whether it ended (%s)", claims.ref, error.reason)
        else:
            if standing is not Standing.LIVE:
                raise refusal_of(standing, claims)
        payload, last_seen = None, claims.issued_at
        if named.state is not None:
            opened = state.open(
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
        live = cls(
            named.session_id, claims, ring, options, principal=principal, payload=payload, last_seen=last_seen, now=now
        )
        if now < live._ends_at:
            if kind != SESSION:
                await live._fetch_state(lenient)
            return live
        raise SessionExpired(ref=claims.ref)

    async def _fetch_state(self, lenient: Callable[[], bool]) -> None:
        """Take the state from where it is kept: what is no session of the draft carries none."""
        try:
            payload = await self._options.store.read(self._shelf, STATE_KEY)
        except StoreUnavailable as error:
            if not lenient():
                raise
            _log.warning(
                "session %s goes on without its state, which is out of reach (%s)", self.claims.ref, error.reason
            )
            self.session.state = UnreadState(error.reason)
        else:
            self.session.state = State(payload, check=self._check_size)

    @property
    def servers_id(self) -> str | None:
        """What the wrapped server calls the transport session, or None where it knows of none.

        Raises:
            SessionNotFound: It was not sealed for this session.
        """
        return upstream.open(self._ring, self.claims, audience=self._options.audience)

    def metadata(self) -> dict[str, Any]:
        """`SessionMetadata` as it stands now; closes the state, since it leaves with the response.

        Raises:
            StateError: What the application wrote cannot be kept.
        """
        changed = self.session.state.close()
        now = int(self._options.clock())
        if changed is None and not self._options.idle_in_state:
            return draft.metadata(self.session.id, expires_at=self._end(now), state=None)
        # The state must also carry that the session was seen.
        sealed = self._seal(self.session.state.payload if changed is None else changed, now)
        return draft.metadata(self.session.id, expires_at=self._end(now), state=sealed)

    def echo(self) -> bytes:
        """The JSON of `metadata`; the bytes that were made before where nobody looked at the state."""
        state = self.session.state
        if state.untouched and self._options.idle_timeout is None:
            state.shut()
            return draft.without_state(self.session.id, self._ends_at)
        return draft.encode(self.metadata())

    async def keep_capabilities(self, said: bytes) -> None:
        """Keep what the client says that it can do, in place of what it said before.

        Args:
            said: A JSON object.

        Raises:
            CapabilitiesTooLarge: There is no room for it.
            SessionEnded: The session ended meanwhile.
            StoreUnavailable: The store did not take it.
        """
        check_capabilities(said, self.claims.ref)
        try:
            await self._options.store.write(self._shelf, CAPABILITIES_KEY, said)
        except DataTooLarge:
            raise CapabilitiesTooLarge(ref=self.claims.ref) from None
        except DataGone:
            raise SessionEnded(ref=self.claims.ref) from None

    async def save(self) -> None:
        """Keep a state that changed in the store, for a client that carries none.

        Raises:
            StateError: What the application wrote cannot be kept.
            DataError: The session has ended, or there is no room.
            StoreUnavailable: The store did not take it.
        """
        changed = self.session.state.close()
        if changed is not None and not self.outlives:  # a session that its own request has ended keeps nothing
            await self._options.store.write(self._shelf, STATE_KEY, changed)

    def _seal(self, payload: bytes, now: int) -> str:
        claims = self.claims
        return state.seal(
            self._ring.signing,
            payload,
            jti=claims.jti,
            subject=claims.subject,
            audience=self._options.audience,
            last_seen=now,
        )

    def _end(self, last_seen: int) -> int:
        """The earlier of absolute and idle expiry, Unix seconds."""
        idle = self._options.idle_timeout
        absolute = self.claims.expires_at
        return absolute if idle is None else min(absolute, last_seen + int(idle))

    def _check_size(self, payload: bytes) -> None:
        size, limit = state.sealed_size(len(payload)), self._options.max_state_bytes
        if size > limit:
            raise StateTooLarge(size, limit)

    def _capabilities(self) -> Awaitable[bytes | None]:
        return self._options.store.read(self._shelf, CAPABILITIES_KEY)

    @property
    def _shelf(self) -> Shelf:
        """Its own place in the store, whosever data it has."""
        return self._options.shelf(self.claims.ref, self.claims.expires_at)

    def _data(self) -> Data:
        return self._options.keep(lineage.owner(self.claims), self.claims.expires_at)

    async def _end_session(self, _session: Session, reason: str, descendants: bool) -> None:
        self.outlives = True  # before the store knows, since this request's stream may open or be looked at meanwhile
        try:
            if descendants:  # first, so that who is told of a failure can try again
                await self._options.endings.end_below(self.claims, tracked=self._options.tracked)
            await self._options.endings.end(self.claims, reason)
        except StoreUnavailable:
            self.outlives = False
            raise


def check_capabilities(said: bytes, ref: str | None = None) -> None:
    """That what a client says that it can do may be kept for a session, or `CapabilitiesTooLarge`."""
    if not len(said) <= MAX_CAPABILITIES_BYTES:
        raise CapabilitiesTooLarge(ref=ref)


def refusal_of(standing: Standing, claims: Claims) -> SessionNotFound:
    """What a request is refused with whose session does not stand as live."""
    if standing is Standing.LOST:
        return SessionNotFound("store_lost", ref=claims.ref)
    return SessionExpired(ref=claims.ref) if standing is Standing.IDLE else SessionEnded(ref=claims.ref)

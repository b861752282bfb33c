"""Live sessions: minted, opened from what a request names, written back, ended.

Everything that is known about a session comes from its token and the state that the client
carries; the store is asked one thing only, whether the session was ended. Nothing here knows how a
session is named on the wire.
"""

from __future__ import annotations

import secrets
from typing import Any

from . import state
from .dialects import draft
from .dialects.draft import Named
from .errors import SessionEnded, SessionExpired, StateTooLarge
from .events import SessionCreated, SessionDeleted
from .keys import KeyRing
from .options import Options
from .session import Principal, Session, State
from .tokens import SESSION, Claims


class Live:
    """One session during one request.

    Attributes:
        session: What the application sees.
    """

    __slots__ = ("_claims", "_ends_at", "_options", "_ring", "session")

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
    ) -> None:
        self._claims = claims
        self._ring = ring
        self._options = options
        self._ends_at = self._end(last_seen)
        self.session = Session(
            token,
            ref=claims.ref,
            created_at=claims.issued_at,
            expires_at=self._ends_at,
            state=State(payload, check=self._check_size),
            ender=self._revoke,
            principal=principal,
        )

    @classmethod
    def mint(cls, options: Options, *, principal: Principal | None) -> Live:
        """Make a session for a caller.

        Raises:
            CreateLimited: The caller has made too many.
        """
        now = int(options.clock())
        ring = options.ring(now)
        subject = ring.signing.subject(principal)
        if options.create_limit is not None:
            options.create_limit.spend(subject, now=now)
        claims = Claims(
            kind=SESSION,
            jti=secrets.token_urlsafe(16),
            issued_at=now,
            expires_at=now + int(options.lifetime),
            subject=subject,
            kid=ring.signing.kid,
        )
        options.emit(SessionCreated(claims.ref, claims.expires_at))
        return cls(
            options.tokens.mint(ring, claims), claims, ring, options, principal=principal, payload=None, last_seen=now
        )

    @classmethod
    async def open(cls, named: Named, options: Options, *, principal: Principal | None) -> Live:
        """The live session that a request names.

        Raises:
            SessionNotFound: It does not verify, belongs to somebody else, or is over.
            StateUnreadable: The state that came with it is not this session's.
            StoreUnavailable: Nobody knows whether it was ended.
        """
        now = options.clock()
        ring = options.ring(now)
        claims = options.tokens.verify(ring, named.session_id, now=now, principal=principal)
        if await options.store.is_revoked(claims.jti, expires_at=claims.expires_at):
            raise SessionEnded(ref=claims.ref)
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
        live = cls(named.session_id, claims, ring, options, principal=principal, payload=payload, last_seen=last_seen)
        if now < live._ends_at:
            return live
        raise SessionExpired(ref=claims.ref)

    def metadata(self) -> dict[str, Any]:
        """`SessionMetadata` as it stands now; closes the state, since it leaves with the response.

        Raises:
            StateError: What the application wrote cannot be kept.
        """
        changed = self.session.state.close()
        if changed is None and self._options.idle_timeout is None:
            return draft.metadata(self.session.id, expires_at=self._ends_at, state=None)
        now = int(self._options.clock())  # the state must also carry that the session was seen
        sealed = self._seal(self.session.state.payload if changed is None else changed, now)
        return draft.metadata(self.session.id, expires_at=self._end(now), state=sealed)

    def echo(self) -> bytes:
        """The JSON of `metadata`; the bytes that were made before where nobody looked at the state."""
        state = self.session.state
        if state.untouched and self._options.idle_timeout is None:
            state.shut()
            return draft.without_state(self.session.id, self._ends_at)
        return draft.encode(self.metadata())

    def _seal(self, payload: bytes, now: int) -> str:
        claims = self._claims
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
        absolute = self._claims.expires_at
        return absolute if idle is None else min(absolute, last_seen + int(idle))

    def _check_size(self, payload: bytes) -> None:
        size, limit = state.sealed_size(len(payload)), self._options.max_state_bytes
        if size > limit:
            raise StateTooLarge(size, limit)

    async def _revoke(self, session: Session, reason: str) -> None:
        await self._options.store.revoke(self._claims.jti, expires_at=self._claims.expires_at)
        self._options.emit(SessionDeleted(session.ref, reason))

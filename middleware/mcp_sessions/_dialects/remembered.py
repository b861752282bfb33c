"""Remembered sessions: the client holds nothing, and the store finds the session by a key (`TransportSessions`).

The key of an authenticated caller is the keyed hash of its principal, with the audience. A worker keeps what it has
read for as long as that session is live, since another one can follow only when it has ended. So a request costs as
much as one with a header or a cookie. A new session is stored by compare-and-swap: if two workers create one at once,
one of them ends its own and uses the other's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec

from .._errors import StoreUnavailable
from .._protocol.headers import SESSION_HEADER
from .._protocol.jsonrpc import REQUEST
from .._protocol.methods import SESSIONLESS
from .._server.answers import admits
from .._server.changes import SaveState
from .._server.context import Request
from .._server.minting import mint_for
from .._server.response import Change
from .._server.runtime import Runtime
from .._server.sessions import load_stored, look_up, make_session
from .._session.claims import PRINCIPAL, Claims, RedactedRepr, ref_of
from .._session.data import Namespace
from .._session.session import Session
from ..stores._base import LIVE, idle_at, is_touch_due
from .base import Credential, Dialect, NoCredential

_KEY: Final = "session"
_MAX_BYTES: Final = 4096
_ATTEMPTS: Final = 3
_CLIENT: Final = NoCredential(
    "it is authenticated as an OAuth client and not as a user", "see the warning about it in the server's log"
)
_log: Final = logging.getLogger("mcp_sessions")


class _Known(NamedTuple):
    """A live session."""

    claims: Claims
    state: bytes | None  # as it is stored
    fault: str | None = None  # why the store did not answer

    def __repr__(self) -> str:
        return f"<_Known {self.claims.ref}>"  # tracebacks and error reporters print it


class _Current(RedactedRepr, msgspec.Struct, frozen=True):
    """The present session of a key, as the store has it."""

    claims: Claims
    seen_at: float  # Unix seconds; it may lag, and counts only if sessions are not tracked


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Current).decode


class PerUser(Dialect):
    """One session per authenticated user, for clients that send nothing else.

    Args:
        lifetime: Seconds from creation to expiry.
        idle: Seconds without a request after which a session ends.
    """

    name: str = "principal"
    has_token: bool = False

    def __init__(self, *, lifetime: float, idle: int) -> None:
        self.lifetime = lifetime
        self._idle: Final = idle

    def find(self, request: Request, earlier: Sequence[Credential]) -> Credential | NoCredential | None:
        """Return the session of the principal; handshakes, pings and notifications are outside of it."""
        message = request.message
        if earlier or message is None or request.is_answered or not request.is_own_page:
            return None
        if message.kind is not REQUEST or message.method in SESSIONLESS or SESSION_HEADER in request.headers.by_name:
            return None
        if request.user is not None:
            return Credential(self, kind=PRINCIPAL)
        return None if request.principal is None else _CLIENT

    async def open(self, request: Request, credential: Credential, *, fail_open: bool) -> Session | None:
        """Load the session, or create one; None if the server does not admit the caller, or lists are stable."""
        principal = request.user
        if principal is None or not request.attaches:
            return None
        runtime = request.runtime
        now = runtime.clock()
        ring = runtime.ring(now)
        try:
            known = await self._find_or_create(request, sorted(ring.subjects(principal)), fail_open=fail_open)
            if known is None:
                return None
            ends_at = min(known.claims.expires_at, int(now + self._idle))
            session = make_session(runtime, known.claims, principal, ring, now=now, ends_at=ends_at)
            load_stored(runtime, session, known.state, known.fault)
        except StoreUnavailable as error:
            if not fail_open:
                raise
            _log.warning("a request goes without its principal's session: store unavailable (%s)", error.reason)
            return None
        return session

    def changes(self, request: Request, session: Session | None) -> Sequence[Change]:
        """Store the session's state."""
        return () if session is None else (SaveState(session=session),)

    async def _find_or_create(self, request: Request, subjects: Sequence[str], *, fail_open: bool) -> _Known | None:
        runtime = request.runtime
        known = await self._find(runtime, subjects, fail_open=fail_open)
        if known is not None:
            return known
        async with runtime.principals.beginning(subjects[0]):
            # Another request may have created one meanwhile.
            known = await self._find(runtime, subjects, fail_open=fail_open)
            if known is not None or not await admits(request):
                return known
            try:
                made = await mint_for(request, self, PRINCIPAL, publish=partial(self._publish, runtime))
            except StoreUnavailable:
                if (known := await self._find(runtime, subjects, fail_open=fail_open)) is None:
                    raise
                return known
            return _Known(made._claims, made._state._stored)

    async def _find(self, runtime: Runtime, subjects: Sequence[str], *, fail_open: bool) -> _Known | None:
        """Return the live session of a principal, whose name differs by the key that hashed it, or None."""
        for subject in subjects:
            remembered = runtime.principals.get(subject)
            known = await self._touch_if_live(runtime, subject, remembered, fail_open=fail_open)
            if known is None:
                stored = await runtime.store.read(_namespace_of(runtime, subject), _KEY)
                if stored != remembered:
                    known = await self._touch_if_live(runtime, subject, stored, fail_open=fail_open)
            if known is not None:
                return known
        return None

    async def _touch_if_live(
        self, runtime: Runtime, subject: str, kept: bytes | None, *, fail_open: bool
    ) -> _Known | None:
        """Return the session that is remembered or stored if it is live, and record its use."""
        if kept is None:
            return None
        current, now = _decode(kept), runtime.clock()
        claims, idle = current.claims, self._idle_here(runtime)
        is_ours = claims.boot == runtime.boot() and now < min(claims.expires_at, idle_at(current.seen_at, idle))
        found, fault = None, None
        if is_ours:
            found, fault = await look_up(runtime, claims, state=True, fail_open=fail_open)
        if found is None or found.status is not LIVE:
            runtime.principals.put(subject, None)
            return None
        if idle is not None and is_touch_due(current.seen_at, now, idle):
            with suppress(StoreUnavailable):  # it is noted next time
                touched = _encode(_Current(claims, now))
                place = _namespace_of(runtime, subject, claims.expires_at)
                if not await runtime.store.compare_and_swap(place, _KEY, kept, touched):
                    runtime.principals.put(subject, None)
                    return None  # another worker was faster, so this is not what the store has
                kept = touched
        runtime.principals.put(subject, kept)
        return _Known(claims, found.state, fault)

    async def _publish(self, runtime: Runtime, new: Session) -> None:
        """Put a new session in the place of one that has ended, if there was any."""
        subject = new._claims.subject or ""
        place, current = (
            _namespace_of(runtime, subject, new._claims.expires_at),
            _encode(_Current(new._claims, runtime.clock())),
        )
        for _ in range(_ATTEMPTS):  # what has expired may be dropped after it was read
            kept = await runtime.store.read(place, _KEY)
            if kept is not None and await self._touch_if_live(runtime, subject, kept, fail_open=False):
                break
            if await runtime.store.compare_and_swap(place, _KEY, kept, current):
                runtime.principals.put(subject, current)
                old, idle = None if kept is None else _decode(kept), self._idle_here(runtime)
                if old is not None and idle_at(old.seen_at, idle) <= runtime.clock() < old.claims.expires_at:
                    with suppress(StoreUnavailable):  # nothing sweeps it, and its data is to be purged
                        await runtime.terminator.end(old.claims, "idle")
                return
        raise StoreUnavailable(cause="another worker has begun a session of the same principal")

    def _idle_here(self, runtime: Runtime) -> int | None:
        """Return the seconds after which a session is idle, counted here; None if the store counts them."""
        return None if runtime.tracked else self._idle


def _namespace_of(runtime: Runtime, subject: str, expires_at: int = 0) -> Namespace:
    """Return the namespace in which the store has the session of a principal."""
    owner = ref_of(f"principal/{subject}/{runtime.audience}")
    return Namespace(owner, expires_at, _MAX_BYTES, audience=runtime.audience)

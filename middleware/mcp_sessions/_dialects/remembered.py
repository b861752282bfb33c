"""Remembered sessions: the client holds nothing, and any worker finds the session in the store by a key.

The store has one entry for each key: the claims of its session, and when that was last used. The entry is put there by
compare-and-swap before the session is created, so parallel first requests, on any worker, agree on one session, and
`minting.activate` lets one of them create it. A worker keeps the entries that it has read: another session can follow
only when one has ended, and the store is asked for that with each request. So a request costs as much as one with a
cookie. `Session.end` deletes the entry; a session that an operator or the sweeper has ended is replaced at the next
request.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from .._errors import StoreUnavailable
from .._protocol.headers import SESSION_HEADER
from .._protocol.jsonrpc import REQUEST
from .._protocol.methods import SESSIONLESS
from .._server.answers import admits
from .._server.changes import SaveState
from .._server.context import Request
from .._server.minting import activate, new_session
from .._server.response import Change
from .._server.runtime import Runtime
from .._server.sessions import load_stored, look_up, make_session
from .._session.claims import USER, Claims, Kind, RedactedRepr, ref_of
from .._session.data import Namespace
from .._session.session import Session
from .._tokens.keys import KeyRing
from ..stores._base import LIVE, STATE_KEY, SessionStatus, idle_at, is_touch_due
from .base import Credential, Dialect, NoCredential

ENTRY_KEY: Final = "session"  # under which the store has an entry, in the namespace of its key
_MAX_BYTES: Final = 4096
_ATTEMPTS: Final = 3
_USABLE: Final = frozenset({LIVE, SessionStatus.UNRECORDED})  # a session is recorded when it is created
CLIENT: Final = NoCredential(
    "it is authenticated as an OAuth client and not as a user", "see the warning about it in the server's log"
)
_log: Final = logging.getLogger("mcp_sessions")


class Known(RedactedRepr, msgspec.Struct, frozen=True):
    """A live session, which may not be created yet."""

    claims: Claims
    state: bytes | None = None  # as it is stored
    fault: str | None = None  # why the store did not answer


class Entry(RedactedRepr, msgspec.Struct, frozen=True):
    """What the store has under a key."""

    claims: Claims
    seen_at: float  # Unix seconds; it may lag, and counts only if sessions are not tracked


encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder(Entry).decode


class Remembered(Dialect):
    """Sessions that the store finds by a key, for authenticated users.

    Args:
        lifetime: Seconds from creation to expiry.
        idle: Seconds without a request after which a session ends.
    """

    kind: Kind
    notes_every_use: bool = False  # also if the store counts idle time

    def __init__(self, *, lifetime: float, idle: int) -> None:
        self.lifetime = lifetime
        self._idle: Final = idle

    @abstractmethod
    def names(self, ring: KeyRing, request: Request, credential: Credential) -> list[str]:
        """Return the names that the store may have for the key of a request, one for each secret of the ring."""

    async def make_room(self, request: Request, name: str, new: Claims) -> None:
        """Refuse a new session if its user has too many."""

    def may_use(self, request: Request) -> bool:
        """Return whether a request may be in a session that its client does not name.

        Handshakes, pings and notifications are outside of it, and so are requests that a browser authenticates for a
        page of another site.
        """
        message = request.message
        if message is None or request.is_answered or not request.is_own_page:
            return False
        return message.kind is REQUEST and message.method not in SESSIONLESS

    async def open(self, request: Request, credential: Credential, *, fail_open: bool) -> Session | None:
        """Load the session, or create one; None if the server does not admit the caller, or lists are stable."""
        if request.user_or_warn() is None or not request.attaches:
            return None
        names = self.names(request.runtime.ring(request.runtime.clock()), request, credential)
        try:
            return await self.open_named(request, names, enters=True, fail_open=fail_open)
        except StoreUnavailable as error:
            self.go_without(error, fail_open=fail_open)
            return None

    async def open_named(
        self, request: Request, names: Sequence[str], *, enters: bool, fail_open: bool
    ) -> Session | None:
        """Load the session of a key. Without one, create it if `enters`, and if the server admits the caller."""
        runtime = request.runtime
        now = runtime.clock()
        known = await self._find(runtime, names, fail_open=fail_open)
        is_admitted = known is None and enters and await admits(request)
        if is_admitted:
            known = await self._enter(request, names[0])
        if known is None:
            return None
        ends_at = min(known.claims.expires_at, int(now + self._idle))
        session = make_session(runtime, known.claims, request.principal, runtime.ring(now), now=now, ends_at=ends_at)
        session._is_offered, session._forget = True, partial(self.forget, runtime, names, known.claims)
        load_stored(runtime, session, known.state, known.fault)
        if not session._has_begun:
            if not (is_admitted or await admits(request)):
                return None
            await activate(runtime, session, request.scope)
        return session

    def go_without(self, error: StoreUnavailable, *, fail_open: bool) -> None:
        """Let a request go on without its session if `on_store_error` allows that."""
        if not fail_open:
            raise error
        _log.warning("a request goes without the session of its %s: store unavailable (%s)", self.kind, error.reason)

    def changes(self, request: Request, session: Session | None) -> Sequence[Change]:
        """Store the session's state."""
        return () if session is None else (SaveState(session=session),)

    async def _find(self, runtime: Runtime, names: Sequence[str], *, fail_open: bool) -> Known | None:
        """Return the live session of a key, or None."""
        for name in names:
            remembered = runtime.principals.get(name)
            known = await self._touch_if_live(runtime, name, remembered, fail_open=fail_open)
            if known is None:
                stored = await runtime.store.read(place_of(runtime, name), ENTRY_KEY)
                if stored != remembered:
                    known = await self._touch_if_live(runtime, name, stored, fail_open=fail_open)
            if known is not None:
                return known
        return None

    async def _touch_if_live(
        self, runtime: Runtime, name: str, stored: bytes | None, *, fail_open: bool
    ) -> Known | None:
        """Return the session of an entry if it is live, and record its use."""
        if stored is None:
            return None
        entry, now = decode(stored), runtime.clock()
        claims = entry.claims
        idle = self.idle_here(runtime, claims)
        is_here = claims.boot == runtime.boot() and now < min(claims.expires_at, idle_at(entry.seen_at, idle))
        found, fault = None, None
        if is_here:
            found, fault = await look_up(runtime, claims, state=True, fail_open=fail_open)
        if found is None or found.status not in _USABLE:
            runtime.principals.put(name, None)
            return None
        if (idle is not None or self.notes_every_use) and is_touch_due(entry.seen_at, now, self._idle):
            with suppress(StoreUnavailable):  # it is noted next time
                touched = encode(Entry(claims, now))
                place = place_of(runtime, name, claims.expires_at)
                if not await runtime.store.compare_and_swap(place, ENTRY_KEY, stored, touched):
                    runtime.principals.put(name, None)
                    return None  # another worker was faster, so this is not what the store has
                stored = touched
        runtime.principals.put(name, stored)
        return Known(claims, found.state, fault)

    async def _enter(self, request: Request, name: str) -> Known:
        """Put the claims of a new session in the place of those of one that has ended, if there are any."""
        runtime, store = request.runtime, request.runtime.store
        await store.open()  # a store that the first use opens could take the session for one from before it began
        new = new_session(request, self, self.kind)._claims
        place, entered = place_of(runtime, name, new.expires_at), encode(Entry(new, runtime.clock()))
        await self.make_room(request, name, new)
        with suppress(StoreUnavailable):
            await store.register_at_epoch(new)
        for _ in range(_ATTEMPTS):  # what has expired may be dropped after it was read
            stored = await store.read(place, ENTRY_KEY)
            if (known := await self._touch_if_live(runtime, name, stored, fail_open=False)) is not None:
                return known
            if await store.compare_and_swap(place, ENTRY_KEY, stored, entered):
                runtime.principals.put(name, entered)
                old = None if stored is None else decode(stored)
                if old is not None and idle_at(old.seen_at, self.idle_here(runtime, old.claims)) <= runtime.clock():
                    await end_idle(runtime, old.claims)
                return Known(new)
        raise StoreUnavailable(cause="other workers enter sessions under the same key")

    def idle_here(self, runtime: Runtime, claims: Claims) -> int | None:  # for those who override it
        """Return the seconds after which a session is idle, counted here; None if the store counts them."""
        return None if runtime.tracked else self._idle

    async def forget(self, runtime: Runtime, names: Sequence[str], claims: Claims) -> None:
        """Delete the entry of a session that has ended, unless another session has taken its place."""
        for name in names:
            runtime.principals.put(name, None)
            place = place_of(runtime, name, claims.expires_at)
            with suppress(StoreUnavailable):  # the next request replaces it
                stored = await runtime.store.read(place, ENTRY_KEY)
                if stored is not None and decode(stored).claims.jti == claims.jti:
                    await runtime.store.compare_and_swap(place, ENTRY_KEY, stored, None)


class PerUser(Remembered):
    """One session per authenticated user.

    Args:
        lifetime: Seconds from creation to expiry.
        idle: Seconds without a request after which a session ends.
        comes_last: Whether clients that keep a header or a cookie have sessions of their own.
    """

    name: str = "user"
    kind: Kind = USER

    def __init__(self, *, lifetime: float, idle: int, comes_last: bool) -> None:
        super().__init__(lifetime=lifetime, idle=idle)
        self._comes_last: Final = comes_last

    def reaches(self, request: Request) -> bool:
        """Return whether the requests of a client will be in its user's session, so that it needs no other."""
        request.read_caller()  # which may fail: what `principal=` raises counts when its answer does
        if self._comes_last or request.caller is None or request.caller.error is not None:
            return False
        return request.is_own_page and request.user_or_warn() is not None

    def find(self, request: Request, earlier: Sequence[Credential]) -> Credential | NoCredential | None:
        """Return the session of the user, unless the client identifies another one."""
        if earlier or not self.may_use(request):
            return None
        if self._comes_last and SESSION_HEADER in request.headers.by_name:
            return None
        if request.user_or_warn() is not None:
            return Credential(self, kind=self.kind, creates=True)
        return None if request.principal is None else CLIENT

    def names(self, ring: KeyRing, request: Request, credential: Credential) -> list[str]:
        """Return the keyed hashes of the user, with the audience."""
        user = request.user_or_warn()
        assert user is not None
        return [ref_of(f"{self.kind}/{subject}/{request.runtime.audience}") for subject in ring.subjects(user)]


def place_of(runtime: Runtime, name: str, expires_at: int = 0) -> Namespace:
    """Return the namespace in which the store has the entry of a key."""
    return Namespace(name, expires_at, _MAX_BYTES, audience=runtime.audience)


async def end_idle(runtime: Runtime, claims: Claims) -> None:
    """End a session that was idle, if it was created: nothing sweeps it, and its data is to be purged."""
    if runtime.clock() < claims.expires_at:
        with suppress(StoreUnavailable):
            if await runtime.store.read(runtime.namespace_of(claims), STATE_KEY) is not None:
                await runtime.terminator.end(claims, "idle")

"""Which worker owns a bridged session: the one that its token names, until another one has taken it over.

A takeover writes a record in the session's own namespace, by compare-and-swap, so that of several workers one succeeds,
and none after the session has ended. Its epoch counts takeovers. A worker remembers what it has read, and reads again
only if the owner is gone or says that it does not own the session.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from .._errors import DataError, DataGone
from .._session.claims import Claims, RedactedRepr
from .._session.data import Namespace
from .._tokens.seal import Upstream
from ..stores._base import Store

KEY: Final = "\0owner"  # `session.data` has no such name
MAX_REMEMBERED: Final = 100_000
TAKING: Final = 10  # seconds that a worker has to take a session over
_ROOM: Final = 8192  # bytes for the record, beyond what the session may hold


class Ownership(RedactedRepr, msgspec.Struct, frozen=True, array_like=True):
    """Who owns a session."""

    epoch: int
    owner: str  # the name of a worker; empty if the token is from before workers had names
    server_id: str = ""  # of the transport session there; empty while it is being taken over
    taken_until: float = 0.0  # Unix seconds until which its owner may be about to take it over


_RECORD: Final = msgspec.msgpack.Decoder(Ownership)
NamespaceOf = Callable[[Claims], Namespace]


class Ownerships:
    """What this worker knows of the owners of sessions."""

    def __init__(
        self,
        store: Store,
        namespace_of: NamespaceOf,
        clock: Callable[[], float],
        name: str,
        is_held_since: Callable[[float], bool],
    ) -> None:
        """Args:
        store: Where the records are.
        namespace_of: Returns a session's place in the store.
        clock: Returns Unix seconds.
        name: That of this worker.
        is_held_since: Returns True if this worker's lease has not lapsed since a moment of `time.monotonic`.
        """
        self._store: Final = store
        self._namespace_of: Final = namespace_of
        self._clock: Final = clock
        self._name: Final = name
        self._is_held_since: Final = is_held_since
        self._known = OrderedDict[str, Ownership]()  # the oldest first
        self._owned = dict[str, float]()  # sessions of this worker, and when that was last known, in monotonic seconds

    def known(self, claims: Claims, upstream: Upstream) -> Ownership:
        """Return who owns a session, as far as this worker knows."""
        return self._known.get(claims.ref) or Ownership(0, upstream.owner, upstream.server_id)

    def _remember(self, ref: str, ownership: Ownership) -> Ownership:
        self._known[ref] = ownership
        self._known.move_to_end(ref)
        if len(self._known) > MAX_REMEMBERED:
            oldest, _ = self._known.popitem(last=False)
            self._owned.pop(oldest, None)
        if ownership.owner == self._name and ownership.server_id:
            self._owned[ref] = time.monotonic()
        else:
            self._owned.pop(ref, None)
        return ownership

    def begin(self, claims: Claims, server_id: str) -> None:
        """Note that this worker has begun a session."""
        self._remember(claims.ref, Ownership(0, self._name, server_id))

    def forget(self, ref: str) -> None:
        """Forget a session that has ended."""
        self._known.pop(ref, None)
        self._owned.pop(ref, None)

    async def owned(self, claims: Claims, upstream: Upstream) -> Ownership | None:
        """Return the ownership of a session if it is this worker's, or None.

        Raises:
            StoreUnavailable: This worker's lease has ended, so only the store knows.
        """
        ownership = self.known(claims, upstream)
        if ownership.owner != self._name:
            return None
        if not self.is_certain(claims.ref):
            ownership = await self.read(claims, upstream)
        return ownership if ownership.owner == self._name and ownership.server_id else None

    def is_certain(self, ref: str) -> bool:
        """Return True if no other worker can have taken over a session that this one has."""
        known_at = self._owned.get(ref)
        return known_at is not None and self._is_held_since(known_at)

    async def check(self, place: Namespace) -> None:
        """Check that no other worker has taken over the session whose data is about to be changed.

        A process that was stopped for longer than its lease goes on where it was, and must not write any more.

        Raises:
            DataGone: Another worker has.
            StoreUnavailable: That cannot be known now.
        """
        ownership = self._known.get(place.owner)
        if ownership is None or self.is_certain(place.owner):
            return
        if ownership.owner == self._name:
            value = await self._store.read(place, KEY)
            ownership = self._remember(place.owner, ownership if value is None else _RECORD.decode(value))
        if ownership.owner != self._name:
            raise DataGone("another worker has taken the session over, so this one cannot change its data")

    async def read(self, claims: Claims, upstream: Upstream) -> Ownership:
        """Return who owns a session, as the store has it."""
        value = await self._store.read(self._place(claims), KEY)
        if value is None:
            return self._remember(claims.ref, Ownership(0, upstream.owner, upstream.server_id))
        return self._remember(claims.ref, _RECORD.decode(value))

    async def claim(self, claims: Claims, old: Ownership) -> Ownership | None:
        """Begin to take a session over, before anything is replayed; None if another worker does, or it has ended."""
        taking = Ownership(old.epoch + 1, self._name, "", self._clock() + TAKING)
        return taking if await self._swap(claims, old, taking) else None

    async def commit(self, claims: Claims, taking: Ownership, server_id: str) -> Ownership | None:
        """Own a session whose transport session has been replaced; None if it has ended, or another was faster."""
        ownership = Ownership(taking.epoch, self._name, server_id)
        return self._remember(claims.ref, ownership) if await self._swap(claims, taking, ownership) else None

    async def give_back(self, claims: Claims, taking: Ownership, old: Ownership) -> None:
        """Leave a session to its old owner, after an attempt to take it over has failed."""
        await self._swap(claims, taking, msgspec.structs.replace(old, epoch=taking.epoch))

    def is_being_taken(self, ownership: Ownership) -> bool:
        """Return True if a worker may be about to take the session over."""
        return not ownership.server_id and self._clock() < ownership.taken_until

    async def _swap(self, claims: Claims, old: Ownership, new: Ownership) -> bool:
        place, value = self._place(claims), msgspec.msgpack.encode(new)
        stored = await self._store.read(place, KEY)
        if (stored is None) != (old.epoch == 0) or (stored is not None and _RECORD.decode(stored) != old):
            return False
        try:
            return await self._store.compare_and_swap(place, KEY, stored, value)
        except DataError:  # the session has ended
            return False

    def _place(self, claims: Claims) -> Namespace:
        place = self._namespace_of(claims)
        return msgspec.structs.replace(place, max_bytes=place.max_bytes + _ROOM, max_subject_bytes=None)

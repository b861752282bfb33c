"""Session data in a key-value store that a deployment runs already: whatever py-key-value has an adapter for.

Such a store gets, puts and deletes: none of that is atomic, and some answer with what was there a moment ago. So it
is trusted with `session.data` alone, one entry for each session, and another store keeps which sessions ended and which
there are. Within one process no change is lost; of changes that two processes make to one session at the same
moment, one may be. What is changed just as its session ends may lie there until its time is over, read by nobody.
Source: py-key-value, `AsyncKeyValue`, which FastMCP's stores are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, SupportsFloat, TypeVar

import anyio

from .._session.claims import Claims
from .._session.data import Namespace
from . import make
from .base import Ended, Reach, Record, Standing, Store, added, check_size, size_of

T = TypeVar("T")
COLLECTION: Final = "mcp_sessions"
GRACE: Final = 24 * 3600  # seconds that data outlives its session, so that `on_end` can read it
LOCKS: Final = 64  # sessions share them by chance; a session always has the same
_ENDING: Final = "ending"  # a name under which the other store keeps nothing

_Values = dict[str, tuple[str, float | None]]  # by name: its JSON, and when its time is over


class KeyValue(Protocol):
    """The part of a key-value store that is used here."""

    async def get(self, key: str, *, collection: str | None = None) -> dict[str, Any] | None:
        """An entry, or None."""
        ...

    async def put(
        self, key: str, value: Mapping[str, Any], *, collection: str | None = None, ttl: SupportsFloat | None = None
    ) -> None:
        """Keep an entry for so many seconds."""

    async def delete(self, key: str, *, collection: str | None = None) -> bool:
        """Keep no entry."""
        ...


class KeyValueStore:
    """A store whose data lies in a key-value store: `store=KeyValueStore(entries, beside="sqlite:sessions.db")`.

    What it cannot promise, and every other store does: of changes to one session's data that two processes make at the
    same moment, one may be lost, whatever their names, `update` and `increment` included. One process loses none.

    Args:
        entries: The key-value store, such as those of py-key-value. Who made it closes it.
        beside: What keeps which sessions ended and which there are, as the middleware's `store=`. Where there are
            several processes, one that all of them share.
        timeout: Seconds within which a `beside` that is given as text must answer.
        clock: Unix seconds. For tests.
    """

    def __init__(
        self,
        entries: KeyValue,
        *,
        beside: str | Store = "memory:",
        timeout: float = 0.25,  # seconds
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._entries = entries
        self._beside = make(beside, clock=clock, timeout=timeout)
        self._clock = clock
        self._locks = [anyio.Lock() for _ in range(LOCKS)]

    # --- data --------------------------------------------------------------------------------

    async def read(self, shelf: Namespace, key: str) -> bytes | None:
        """A value's JSON, or None."""
        value = (await self._load(shelf)).get(key)
        return None if value is None else value[0].encode()

    async def write(self, shelf: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None) -> None:
        """Keep a value, or None to keep none."""

        def change(values: _Values) -> None:
            values.pop(key, None)
            if value is not None:
                values[key] = (value.decode(), expires_at)

        await self._change(shelf, change)

    async def compare_and_swap(self, shelf: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace a value if it is still the old one."""

        def change(values: _Values) -> bool:
            found, ends = values.pop(key, (None, None))
            same = found == (None if old is None else old.decode())
            kept = (None if new is None else new.decode()) if same else found
            if kept is not None:
                values[key] = (kept, ends)
            return same

        return await self._change(shelf, change)

    async def add(self, shelf: Namespace, key: str, by: int) -> int:
        """Add to a value."""

        def change(values: _Values) -> int:
            found, ends = values.get(key, (None, None))
            total = added(None if found is None else found.encode(), by)
            values[key] = (str(total), ends)
            return total

        return await self._change(shelf, change)

    async def copy(self, shelf: Namespace, target: Namespace) -> None:
        """Put what lies on a shelf onto a new one."""
        values = await self._load(shelf)
        await self._change(target, lambda onto: onto.update(values))

    async def _change(self, shelf: Namespace, change: Callable[[_Values], T]) -> T:
        """Change what a session holds; nobody else in this process does meanwhile."""
        async with self._locks[hash(shelf.owner) % LOCKS]:
            await self._beside.write(shelf, _ENDING, None)  # which refuses where the session has ended
            values = await self._load(shelf)
            before = dict(values)
            outcome = change(values)
            if values != before:
                await self._keep(shelf, values)
            return outcome

    async def _load(self, shelf: Namespace) -> _Values:
        entry, now = await self._entries.get(shelf.owner, collection=COLLECTION), self._clock()
        values = {} if entry is None else entry["values"]
        return {name: (text, ends) for name, (text, ends) in values.items() if ends is None or now < ends}

    async def _keep(self, shelf: Namespace, values: _Values) -> None:
        check_size(shelf, sum(size_of(name, text.encode()) for name, (text, _) in values.items()))
        entry = {"values": {name: list(value) for name, value in values.items()}}
        ttl = shelf.until - self._clock() + GRACE
        await self._entries.put(shelf.owner, entry, collection=COLLECTION, ttl=ttl)

    # --- all else, which the other store does ------------------------------------------------

    @property
    def reach(self) -> Reach:
        """The other store's: who is refused a session depends on it."""
        return self._beside.reach

    async def open(self) -> None:
        await self._beside.open()

    async def close(self) -> None:
        await self._beside.close()

    async def status(self, claims: Claims) -> Standing:
        return await self._beside.status(claims)

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        return await self._beside.statuses(claims)

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        return await self._beside.revoke(ref, audience=audience, expires_at=expires_at, reason=reason, lease=lease)

    async def revoke_before(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        await self._beside.revoke_before(moment, audience=audience, subject=subject, until=until)

    async def register(self, record: Record) -> None:
        await self._beside.register(record)

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        return await self._beside.touch(claims, idle_timeout=idle_timeout)

    async def sessions(self, subject: str, *, audience: str) -> list[Record]:
        return await self._beside.sessions(subject, audience=audience)

    async def forks(self, root: str) -> list[Record]:
        return await self._beside.forks(root)

    async def find(self, ref: str) -> Record | None:
        return await self._beside.find(ref)

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        return await self._beside.claim_ended(audience=audience, idle_timeout=idle_timeout, lease=lease, limit=limit)

    async def purge(self, ref: str) -> None:
        """Forget a record and the session's data, which goes first: a record that is left is finished again."""
        await self._entries.delete(ref, collection=COLLECTION)
        await self._beside.purge(ref)

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        return await self._beside.elect(worker, audience=audience, seconds=seconds)

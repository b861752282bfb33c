"""Session data in a key-value store that a deployment runs already: whatever py-key-value has an adapter for.

Such a store gets, puts and deletes: none of that is atomic, and some answer with what was there a moment ago. So it is
trusted with `session.data` alone, one entry for each session; another store keeps revocations and records. What is
changed just as its session ends may stay until its time is over, read by no session.
Source: py-key-value, `AsyncKeyValue`, which FastMCP's stores are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, SupportsFloat, TypeVar

import anyio

from .._session.data import Namespace
from . import make
from ._base import Delegating, Store, added, check_size, size_of

T = TypeVar("T")
COLLECTION: Final = "mcp_sessions"
GRACE: Final = 24 * 3600  # seconds that data outlives its session, so that `on_end` can read it
LOCKS: Final = 64  # sessions share them by chance; a session always has the same
_ENDING: Final = "ending"  # a name under which the other store keeps nothing
_Values = dict[str, tuple[str, float | None]]  # by name: its JSON, and when its time is over


class KeyValue(Protocol):
    """The part of a key-value store that is used here; `ttl` is in seconds."""

    async def get(self, key: str, *, collection: str | None = None) -> dict[str, Any] | None: ...
    async def put(
        self, key: str, value: Mapping[str, Any], *, collection: str | None = None, ttl: SupportsFloat | None = None
    ) -> None: ...
    async def delete(self, key: str, *, collection: str | None = None) -> bool: ...


class KeyValueStore(Delegating):
    """A store that keeps data in a key-value store: `store=KeyValueStore(entries, store="sqlite:sessions.db")`.

    Unlike the other stores, it may lose a change when two processes change data of the same session at the same time,
    even under different names or by `update` and `increment`. Within one process no change is lost. It does not count
    the data of a principal.

    Args:
        entries: The key-value store, such as those of py-key-value. You close it.
        store: The store of revocations and records, as the middleware's `store=`; all processes must share it.
        timeout: Seconds within which `store` must answer if it is a URL.
        clock: Returns Unix seconds; for tests.
    """

    def __init__(
        self,
        entries: KeyValue,
        *,
        store: str | Store = "memory:",
        timeout: float = 0.25,  # seconds
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(make(store, clock=clock, timeout=timeout))
        self._entries = entries
        self._clock = clock
        self._locks = [anyio.Lock() for _ in range(LOCKS)]

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        value = (await self._load(namespace)).get(key)
        return None if value is None else value[0].encode()

    async def write(
        self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None
    ) -> None:
        def change(values: _Values) -> None:
            values.pop(key, None)
            if value is not None:
                values[key] = (value.decode(), expires_at)

        await self._change(namespace, change)

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        def change(values: _Values) -> bool:
            found, ends = values.pop(key, (None, None))
            same = found == (None if old is None else old.decode())
            kept = (None if new is None else new.decode()) if same else found
            if kept is not None:
                values[key] = (kept, ends)
            return same

        return await self._change(namespace, change)

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        def change(values: _Values) -> int:
            found, ends = values.get(key, (None, None))
            total = added(None if found is None else found.encode(), by)
            values[key] = (str(total), ends)
            return total

        return await self._change(namespace, change)

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        values = await self._load(namespace)
        await self._change(target, lambda onto: onto.update(values))

    async def purge(self, *refs: str) -> None:
        """Delete the data first: a record that is left is purged again."""
        for ref in refs:
            await self._entries.delete(ref, collection=COLLECTION)
        await self._store.purge(*refs)

    async def _change(self, namespace: Namespace, change: Callable[[_Values], T]) -> T:
        """Change what a session holds, one change at a time in this process."""
        async with self._locks[hash(namespace.owner) % LOCKS]:
            await self._store.write(namespace, _ENDING, None)  # which refuses where the session has ended
            values = await self._load(namespace)
            before = dict(values)
            outcome = change(values)
            if values != before:
                await self._save(namespace, values)
            return outcome

    async def _load(self, namespace: Namespace) -> _Values:
        entry, now = await self._entries.get(namespace.owner, collection=COLLECTION), self._clock()
        values = {} if entry is None else entry["values"]
        return {name: (text, ends) for name, (text, ends) in values.items() if ends is None or now < ends}

    async def _save(self, namespace: Namespace, values: _Values) -> None:
        check_size(namespace, sum(size_of(name, text.encode()) for name, (text, _) in values.items()))
        entry = {"values": {name: list(value) for name, value in values.items()}}
        ttl = namespace.until - self._clock() + GRACE
        await self._entries.put(namespace.owner, entry, collection=COLLECTION, ttl=ttl)

"""`FencedStore`: the data of sessions, which only the worker that owns a session may change."""

from __future__ import annotations

from typing import Final

from .._session.data import DataStore, Namespace
from .ownership import Ownerships


class FencedStore(DataStore):
    """The data of sessions in a store; before each change it is checked who owns the session."""

    def __init__(self, store: DataStore, owners: Ownerships) -> None:
        self._store: Final = store
        self._owners: Final = owners

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        """Return a value."""
        return await self._store.read(namespace, key)

    async def write(
        self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None
    ) -> None:
        """Keep a value."""
        await self._owners.check(namespace)
        await self._store.write(namespace, key, value, expires_at=expires_at)

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace a value by another if it is still the old one."""
        await self._owners.check(namespace)
        return await self._store.compare_and_swap(namespace, key, old, new)

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        """Add to a value."""
        await self._owners.check(namespace)
        return await self._store.add(namespace, key, by)

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        """Copy values into another namespace."""
        await self._store.copy(namespace, target)

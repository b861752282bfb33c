"""Where a program keeps its sessions from one connection, or one start, to the next.

In memory, in a file, or in the operating system's keyring. What is kept goes by server and identity and comes back for
the same server and identity alone. Entries past their time are dropped when they are looked at, and refused ones at
once.
"""

from __future__ import annotations

import os
from typing import Protocol

from anyio import to_thread

from . import shelves
from .jar_file import JarFile
from .jar_keyring import JarKeyring
from .metadata import Metadata
from .shelves import Edit, Place, Shelf


class Storage(Protocol):
    """Where a jar keeps its shelves."""

    blocks: bool
    """Whether `change` waits for a disk or another program, and so belongs into a thread of its own."""

    def change(self, place: Place, edit: Edit) -> Shelf:
        """Change one shelf as a whole, and tell what it holds then."""
        ...


class JarMemory:
    """Sessions in this process."""

    blocks = False

    def __init__(self) -> None:
        self._shelves: dict[Place, Shelf] = {}

    def change(self, place: Place, edit: Edit) -> Shelf:
        """Change one shelf, and tell what it holds then."""
        self._shelves[place] = edit(self._shelves.get(place, {}))
        return self._shelves[place]


class SessionJar:
    """Keeps sessions, so that they can be resumed.

    Args:
        path: The file that holds them, or None to hold them in memory for as long as the jar lives. The ids in it are
            credentials; only its owner can read it.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._storage: Storage = JarMemory() if path is None else JarFile(path)

    @classmethod
    def in_keyring(cls, service: str) -> SessionJar:
        """A jar in the operating system's keyring.

        Args:
            service: The name under which the keyring shows it, best the name of the program.

        Raises:
            ConfigurationError: The library `keyring` is not installed.
        """
        jar = cls()
        jar._storage = JarKeyring(service)
        return jar

    def __repr__(self) -> str:
        return f"<SessionJar, {type(self._storage).__name__}>"

    async def load(self, place: Place) -> Shelf:
        """What is held for a place, and drop what is past its time.

        Raises:
            JarUnreadable: The jar holds something else than sessions; the message says where that was kept.
            OSError: The file cannot be read or written.
        """
        return await self._change(place, shelves.without_expired)

    async def put(self, place: Place, name: str, metadata: Metadata) -> None:
        """Hold a session that is new. Raises as `load`."""
        await self._change(place, shelves.put(name, metadata))

    async def update(self, place: Place, name: str, metadata: Metadata) -> None:
        """Hold what is new of a session that is held. Raises as `load`."""
        await self._change(place, shelves.update(name, metadata))

    async def drop(self, place: Place, name: str, session_id: str) -> None:
        """Hold a session no longer. Raises as `load`."""
        await self._change(place, shelves.drop(name, session_id))

    async def _change(self, place: Place, edit: Edit) -> Shelf:
        if self._storage.blocks:
            return await to_thread.run_sync(self._storage.change, place, edit)
        return self._storage.change(place, edit)

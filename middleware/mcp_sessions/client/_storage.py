"""Where a program keeps its sessions between connections: in memory, in a file, or in another storage.

Sessions are kept by the URL of their server, so none is sent to another.
Source: the data-layer sessions draft ("MUST associate retained sessionIds with the issuing Server").
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final, Protocol

from anyio import to_thread

from .._errors import ConfigurationError
from .._files import SQLITE_ENDS, check_private, open_files, require_posix, was_exchanged
from ._session import ClientError, SessionMetadata

logger: Final = logging.getLogger("mcp_sessions")

LEEWAY: Final = timedelta(days=1)
"""How long past its hint a session is resumed: clocks differ, and a hint alone is not written when it moves."""

_TABLE: Final = """CREATE TABLE IF NOT EXISTS sessions
    (server TEXT, name TEXT, id TEXT, state TEXT, expires_at TEXT, PRIMARY KEY (server, name))"""


class SessionStorage(Protocol):
    """What `with_sessions` needs of a storage. What it keeps are credentials."""

    async def load(self, server: str) -> Mapping[str, SessionMetadata]:
        """Return the sessions of a server, which its URL identifies, by name."""
        ...

    async def save(self, server: str, name: str, session: SessionMetadata | None) -> None:
        """Keep a session under a name, or remove it where `session` is None."""
        ...


class MemoryStorage:
    """Keeps sessions while the program runs, from one connection to the next."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], SessionMetadata | None] = {}

    async def load(self, server: str) -> dict[str, SessionMetadata]:
        return {name: one for (place, name), one in self._sessions.items() if place == server and one is not None}

    async def save(self, server: str, name: str, session: SessionMetadata | None) -> None:
        self._sessions[server, name] = session


class FileStorage:
    """Keeps sessions in a file, an SQLite database, that several programs may use at once.

    Only its owner can read it. What cannot be read or written, or what others could change, raises `ClientError` or
    `OSError`.

    Args:
        path: The file. A missing folder is created.

    Raises:
        ConfigurationError: The system is Windows.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        require_posix("FileStorage", "use MemoryStorage() or a SessionStorage of your own")
        self._path = Path(path).expanduser()

    def __repr__(self) -> str:
        return f"<FileStorage {str(self._path)!r}>"

    async def load(self, server: str) -> dict[str, SessionMetadata]:
        return await to_thread.run_sync(self._load, server)

    async def save(self, server: str, name: str, session: SessionMetadata | None) -> None:
        await to_thread.run_sync(self._save, server, name, session)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        path = Path(os.path.abspath(self._path))  # noqa: PTH100  # `Path.resolve` would follow links
        _make_folder(path.parent)
        try:
            check_private(str(path), beside=SQLITE_ENDS, tightens=True)
        except ConfigurationError as error:
            raise ClientError(f"no sessions can be kept: {error}") from None
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(file, 0o600)  # also if it was there before; what SQLite puts next to it gets the same mode
        finally:
            os.close(file)
        before = open_files()
        try:
            with closing(sqlite3.connect(path, timeout=30)) as database, database:
                database.execute(_TABLE)
                if was_exchanged(str(path), before):
                    raise ClientError(f"{path} was exchanged for another file while it was opened; try again")
                yield database
        except sqlite3.DatabaseError as error:
            raise ClientError(f"{self._path} cannot be used to keep sessions: {error}") from None

    def _load(self, server: str) -> dict[str, SessionMetadata]:
        with self._opened() as database:
            rows = database.execute("SELECT name, id, state, expires_at FROM sessions WHERE server = ?", (server,))
            return {name: SessionMetadata(*metadata) for name, *metadata in rows}

    def _save(self, server: str, name: str, session: SessionMetadata | None) -> None:
        with self._opened() as database:
            if session is None:
                database.execute("DELETE FROM sessions WHERE server = ? AND name = ?", (server, name))
            else:
                row = (server, name, session.session_id, session.state, session.expires_at)
                database.execute("REPLACE INTO sessions VALUES (?, ?, ?, ?, ?)", row)


def _make_folder(folder: Path) -> None:
    """Create a folder and those above it for this user alone."""
    if not folder.exists():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


class StorageSync:
    """The sessions of one server in a storage, as far as they were read or written here.

    The storage is read when a connection is made. Where it cannot be written later, that is logged and calls go on.
    """

    def __init__(self, storage: SessionStorage | None, server: str) -> None:
        self.is_persistent: bool = storage is not None
        self.stored: dict[str, SessionMetadata] = {}
        self._storage = storage
        self._server = server

    async def load(self) -> None:
        if self._storage is not None:
            limit, kept = datetime.now(timezone.utc) - LEEWAY, await self._storage.load(self._server)
            self.stored = {name: one for name, one in kept.items() if one.expires is None or limit < one.expires}

    async def save(self, name: str | None, session: SessionMetadata | None) -> None:
        """Keep or remove a named session."""
        if self._storage is None or name is None:
            return
        if session is None:
            self.stored.pop(name, None)
        try:
            await self._storage.save(self._server, name, session)
        except Exception as error:  # noqa: BLE001  # a program's own storage may raise anything
            logger.error("cannot write the stored sessions, so this change is kept in memory only: %s", error)
        else:
            self.stored.update({} if session is None else {name: session})

"""Where a program keeps its sessions between connections: in memory, in a file, or in a storage of its own.

Sessions are kept by the URL of their server, so none is sent to another. A session that another program has put in the
place of ours is left alone.
Source: the data-layer sessions draft ("MUST associate retained sessionIds with the issuing Server").
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol

import msgspec
from anyio import to_thread

from .._session.claims import RedactedRepr
from ._session import ClientError, SessionMetadata

logger: Final = logging.getLogger("mcp_sessions")

LEEWAY: Final = timedelta(days=1)
"""How long past its hint a session is kept: clocks differ, and a hint alone is not written when it moves."""

WINDOWS: Final = os.name == "nt"

Sessions = dict[str, SessionMetadata]  # of one server, by the names that the program gave them


class SessionStorage(Protocol):
    """What `with_sessions` needs of a storage. What it keeps are credentials."""

    async def load(self, server: str) -> Mapping[str, SessionMetadata]:
        """Return the sessions of a server, which its URL identifies, by name."""
        ...

    async def save(self, server: str, name: str, session: SessionMetadata | None, replaces: str | None = None) -> None:
        """Keep a session under a name, or remove it where `session` is None.

        Where `replaces` is not None, this changes only a session with that id.
        """
        ...


class MemoryStorage:
    """Keeps sessions while the program runs, from one connection to the next."""

    def __init__(self) -> None:
        self._servers: dict[str, Sessions] = {}

    async def load(self, server: str) -> Sessions:
        return _current(self._servers.get(server, {}))

    async def save(self, server: str, name: str, session: SessionMetadata | None, replaces: str | None = None) -> None:
        self._servers[server] = _edited(self._servers.get(server, {}), name, session, replaces)


class _Content(RedactedRepr, msgspec.Struct):
    servers: dict[str, Sessions]


class FileStorage:
    """Keeps sessions in a file that several programs may use at once.

    A change is made under a lock that the programs share, and the file is replaced as a whole, so that a reader and a
    crash find the old one or the new one. Only its owner can read it.

    Args:
        path: The file. A missing folder is created.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(os.path.realpath(Path(path).expanduser()))

    def __repr__(self) -> str:
        return f"<FileStorage {str(self._path)!r}>"

    async def load(self, server: str) -> Sessions:
        """Return the sessions of a server. Raises `ClientError` where the file holds something else, or `OSError`."""
        return await to_thread.run_sync(self._change, server, _current)

    async def save(self, server: str, name: str, session: SessionMetadata | None, replaces: str | None = None) -> None:
        """Keep or remove a session. Raises as `load`."""
        edit = partial(_edited, name=name, session=session, replaces=replaces)
        await to_thread.run_sync(self._change, server, edit)

    def _change(self, server: str, edit: Callable[[Sessions], Sessions]) -> Sessions:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self._path.with_name(f"{self._path.name}.lock")):
            content = self._read()
            before = content.servers.get(server, {})
            after = edit(before)
            if after != before:
                content.servers[server] = after
                self._write(content)
            return after

    def _read(self) -> _Content:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Content)
        except FileNotFoundError:
            return _Content({})
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ClientError(f"{self._path} does not hold sessions; move it away or name another") from None

    def _write(self, content: _Content) -> None:
        # mkstemp makes files that only their owner can read, whatever the umask.
        handle, temporary = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(content)))
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self._path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _current(sessions: Sessions) -> Sessions:
    limit = datetime.now(timezone.utc) - LEEWAY
    return {name: one for name, one in sessions.items() if one.expires is None or limit < one.expires}


def _edited(sessions: Sessions, name: str, session: SessionMetadata | None, replaces: str | None) -> Sessions:
    if replaces is not None and (name not in sessions or sessions[name].session_id != replaces):
        return sessions
    others = {other: one for other, one in sessions.items() if other != name}
    return others if session is None else {**others, name: session}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file's lock, which the system releases when the process dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if WINDOWS:
            windows = import_module("msvcrt")
            windows.locking(handle, windows.LK_LOCK, 1)
        else:
            unix = import_module("fcntl")
            unix.flock(handle, unix.LOCK_EX)
        yield
    finally:
        os.close(handle)


class StorageSync:
    """The sessions of one server in a storage, as far as they were read or written here.

    The storage is read when a connection is made. Where it cannot be written later, that is logged and calls go on.
    """

    def __init__(self, storage: SessionStorage | None, server: str) -> None:
        self.is_persistent = storage is not None
        self.stored: Sessions = {}
        self._storage = storage
        self._server = server

    async def load(self) -> None:
        if self._storage is not None:
            self.stored = dict(await self._storage.load(self._server))

    async def save(self, name: str | None, session: SessionMetadata | None, replaces: str | None = None) -> None:
        """Keep or remove a named session, as `SessionStorage.save`."""
        if self._storage is None or name is None:
            return
        if session is not None and name not in self.stored:  # the write that should have kept it failed
            replaces = None
        try:
            await self._storage.save(self._server, name, session, replaces)
        except Exception as error:  # noqa: BLE001  # a program's own storage may raise anything
            logger.error("cannot write the stored sessions, so this change is kept in memory only: %s", error)
            if session is not None:
                return
        self.stored = _edited(self.stored, name, session, replaces)

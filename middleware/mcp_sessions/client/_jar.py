"""Where a program keeps its sessions between connections: in memory, in a file, or in the system's keyring.

Sessions are kept by server (its origin, path and query) and identity, so none is sent to another origin or tenant.
Source: the data-layer sessions draft ("MUST associate retained sessionIds with the issuing Server"); RFC 6454.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from importlib import import_module
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import msgspec
from anyio import to_thread

from .._errors import ConfigurationError
from .._session.claims import RedactedRepr
from ._session import HeldSession, JarUnreadable, Metadata
from ._transport import server_of, url_of

logger: Final = logging.getLogger("mcp_sessions")

LEEWAY: Final = timedelta(minutes=5)
"""How long past its hint a session is still tried: clocks differ, and a hint that only moved is not always written."""

VERSION: Final = 1  # of the file's format
WINDOWS: Final = os.name == "nt"

Sessions = dict[str, Metadata]
"""The sessions of one key, by the names that the program gave them."""
Edit = Callable[[Sessions], Sessions]


class JarKey(NamedTuple):
    """Whose sessions they are."""

    server: str  # origin, path and query, as `server_of` writes them
    identity: str  # whom the program speaks for, in its own words, or the user that the URL names


class Storage(Protocol):
    blocks: bool  # whether `change` waits for a disk or another program, and so runs in a thread

    def change(self, key: JarKey, edit: Edit) -> Sessions:
        """Replace the sessions of a key as a whole, and return the new ones."""
        ...


class SessionJar:
    """Stores sessions, so that they can be resumed.

    Args:
        path: The file to store them in, readable only by its owner, since session ids are credentials; or None for
            memory.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._storage: Storage = JarMemory() if path is None else JarFile(path)

    @classmethod
    def in_keyring(cls, service: str) -> SessionJar:
        """Return a jar in the operating system's keyring.

        Args:
            service: The name that the keyring shows, preferably that of the program.

        Raises:
            ConfigurationError: The library `keyring` is not installed.
        """
        jar = cls()
        jar._storage = JarKeyring(service)
        return jar

    def __repr__(self) -> str:
        return f"<SessionJar, {type(self._storage).__name__}>"

    async def load(self, key: JarKey) -> Sessions:
        """Return the sessions of a key, and drop those past their time.

        Raises:
            JarUnreadable: The jar holds something other than sessions, or cannot be used.
            OSError: The file cannot be read or written.
        """
        limit = datetime.now(timezone.utc) - LEEWAY
        return await self._change(
            key, lambda held: {n: one for n, one in held.items() if one.expires is None or limit < one.expires}
        )

    async def put(self, key: JarKey, name: str, metadata: Metadata) -> None:
        await self._change(key, lambda held: {**held, name: metadata})

    async def update(self, key: JarKey, name: str, metadata: Metadata) -> None:
        """Keep what is new of a session, unless another process has replaced it. Raises as `load`."""
        known = (name, metadata.session_id)
        await self._change(
            key, lambda held: {n: metadata if (n, one.session_id) == known else one for n, one in held.items()}
        )

    async def drop(self, key: JarKey, name: str, session_id: str) -> None:
        known = (name, session_id)
        await self._change(key, lambda held: {n: one for n, one in held.items() if (n, one.session_id) != known})

    async def _change(self, key: JarKey, edit: Edit) -> Sessions:
        if self._storage.blocks:
            return await to_thread.run_sync(self._storage.change, key, edit)
        return self._storage.change(key, edit)


# --- the three storages ---


class JarMemory:
    blocks = False

    def __init__(self) -> None:
        self._sessions: dict[JarKey, Sessions] = {}

    def change(self, key: JarKey, edit: Edit) -> Sessions:
        self._sessions[key] = edit(self._sessions.get(key, {}))
        return self._sessions[key]


class _Header(msgspec.Struct):  # of a file of any version
    version: int


class _Content(RedactedRepr, msgspec.Struct):  # of a file of this version
    servers: dict[str, dict[str, Sessions]]  # by server, identity and name
    version: int = VERSION


class JarFile:
    """Sessions in a file that several programs may use at once.

    A change is made under a lock that the programs share, and the file is replaced as a whole, so that a reader and a
    crash find the old one or the new one. Only its owner can read it. A file that is not a jar is moved aside, and a
    missing folder is made.
    """

    blocks = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(os.path.realpath(Path(path).expanduser()))

    def change(self, key: JarKey, edit: Edit) -> Sessions:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self._path.with_name(f"{self._path.name}.lock")):
            servers = self._read()
            before = servers.get(key.server, {}).get(key.identity, {})
            after = edit(before)
            if after != before:
                servers.setdefault(key.server, {})[key.identity] = after
                self._write(_Content(servers))
            return after

    def _read(self) -> dict[str, dict[str, Sessions]]:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            if msgspec.json.decode(raw, type=_Header).version > VERSION:
                raise JarUnreadable(f"{self._path} was written by a newer version of mcp-sessions")
            return msgspec.json.decode(raw, type=_Content).servers
        except (msgspec.DecodeError, UnicodeDecodeError):
            names = (self._path.with_name(f"{self._path.name}.corrupt-{number}") for number in count(1))
            kept = self._path.rename(next(name for name in names if not name.exists()))
        raise JarUnreadable(f"{self._path} is not a jar of sessions: moved to {kept}; the next jar starts empty")

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


class JarKeyring:
    """Sessions in the keyring, one entry for each key.

    A keyring has no locks, so programs that write one entry at the same moment overwrite each other: give each a
    service name of its own, or use a file.
    """

    blocks = True

    def __init__(self, service: str) -> None:
        try:
            self._keyring: Any = import_module("keyring")
            self._errors: Any = import_module("keyring.errors")
        except ImportError:
            raise ConfigurationError("SessionJar.in_keyring needs the library keyring: pip install keyring") from None
        self._service = service
        self._lock = Lock()

    def change(self, key: JarKey, edit: Edit) -> Sessions:
        entry = f"{key.server} {key.identity}".rstrip()
        try:
            with self._lock:
                before = self._read(entry)
                after = edit(before)
                if after != before:
                    self._keyring.set_password(self._service, entry, msgspec.json.encode(after).decode())
        except self._errors.KeyringError as error:
            raise JarUnreadable(f"the keyring cannot be used: {type(error).__name__}") from None
        return after

    def _read(self, entry: str) -> Sessions:
        raw = self._keyring.get_password(self._service, entry)
        if raw is None:
            return {}
        try:
            return msgspec.json.decode(raw, type=Sessions)
        except msgspec.DecodeError:
            kept = f"{entry} (corrupt)"
            self._keyring.set_password(self._service, kept, raw)
            self._keyring.delete_password(self._service, entry)
        raise JarUnreadable(f"the keyring's entry {entry!r} does not hold sessions; it was moved to {kept!r}")


# --- what is in the jar, and what is to be written ---


class JarSync:
    """The sessions of one user on one server, and their jar; its options are those of `with_sessions`.

    The jar is read when a connection is made, and written when a change would be missed after a crash. A jar that
    cannot be read stops the connection; one that cannot be written later is logged, since calls must not fail with it.
    """

    def __init__(self, jar: SessionJar | None, *, server: str | None, identity: str) -> None:
        self.is_persistent: bool = jar is not None
        self._jar = jar
        self._server = server
        self._identity = identity
        self._key: JarKey | None = None
        self.written: Sessions = {}

    async def load(self, transport: Any) -> None:
        """Read the jar. Raises as `SessionJar.load`.

        Raises:
            ConfigurationError: It is unknown, or unclear, which server the transport connects to.
        """
        if self._jar is None:
            return
        urls = [url for url in (self._server, url_of(transport)) if url is not None]
        servers = {server_of(url) for url in urls}
        if not servers:
            raise ConfigurationError(
                "a jar keeps sessions by the server's URL, and this transport hides it; set server="
            )
        if len(servers) > 1:
            raise ConfigurationError("server= names a different server from the transport's URL")
        users = (self._identity, *(unquote(urlsplit(url).username or "") for url in urls))
        key = JarKey(servers.pop(), next(filter(None, users), ""))
        if self._key not in {None, key}:
            raise ConfigurationError(
                "this transport connects to a different server than the last; use another with_sessions"
            )
        self._key = key
        self.written = await self._jar.load(key)

    def resume(self, held: HeldSession) -> None:
        if held.name is not None and not held.begun:
            held.metadata = self.written.get(held.name)

    async def save_new(self, held: HeldSession) -> None:
        if held.name is not None:
            self.written.pop(held.name, None)
        await self.save(held)

    async def update(self, held: HeldSession, metadata: Metadata) -> None:
        """Write what changed, unless it is the hint alone and hardly moved: servers move it with every call."""
        written = self.written.get(held.name or "")
        if written is None or written.state != metadata.state or _has_moved(written, metadata):
            await self.save(held)

    async def save(self, held: HeldSession) -> None:
        name, metadata = held.name, held.metadata
        if name is None or metadata is None or metadata == self.written.get(name):
            return
        change = SessionJar.update if name in self.written else SessionJar.put
        if await self._write(lambda jar, key: change(jar, key, name, metadata)):
            self.written[name] = metadata

    async def drop(self, held: HeldSession, session_id: str) -> None:
        if (name := held.name) is not None:
            await self._write(lambda jar, key: jar.drop(key, name, session_id))
            if name in self.written and self.written[name].session_id == session_id:
                del self.written[name]

    async def _write(self, change: Callable[[SessionJar, JarKey], Awaitable[None]]) -> bool:
        if self._jar is None or self._key is None:
            return False
        try:
            await change(self._jar, self._key)
        except (JarUnreadable, OSError) as error:
            logger.error("cannot write the session jar, so this change is kept in memory only: %s", error)
            return False
        return True


def _has_moved(before: Metadata, after: Metadata) -> bool:
    """Whether the hint moved by so much that the old one would mislead after a crash."""
    if before.expires is None or after.expires is None:
        return before.expires_at != after.expires_at
    return abs(after.expires - before.expires) > LEEWAY / 2

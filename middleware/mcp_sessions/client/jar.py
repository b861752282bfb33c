"""Where a program keeps its sessions from one connection, or one start, to the next.

In memory, in a file, or in the operating system's keyring. What is kept goes by server and identity and comes back for
the same server and identity alone. Entries past their time are dropped when they are looked at, and refused ones at
once.

A jar in a file that several programs may use at once.

A change is read, made and written under a lock that the programs share; the file is replaced as a whole, so that a
reader finds the old one or the new one, and a crash leaves one of the two. Only its owner can read it, since the ids in
it are credentials. A file that is no jar is moved aside and reported, never overwritten.

A jar in the operating system's keyring, by the library `keyring`.

One entry for each server and identity. Programs that write to one entry at the same moment are not kept apart, as a
keyring knows no locks: give each a service name of its own, or use a file.

What of a client's sessions is in its jar, and what the jar is told.

The jar is read when a connection is made, and written when something changed that would be missed after a crash. A jar
that fails to be read stops the connection from being made; one that fails to be written later is reported in the log,
since the calls under way must not fail with it. Without a jar nothing is kept.

What a jar holds and how it changes, apart from where it is kept.

A shelf is one user's sessions on one server, by the names that the program gave them. A server is its origin and path,
so a session is never sent to another origin. Every change is one pure function of a shelf, which a jar applies as a
whole.
Source: the data-layer sessions draft ("MUST associate retained sessionIds with the issuing Server"); RFC 6454.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from importlib import import_module
from itertools import count
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec
from anyio import to_thread

from ..errors import ConfigurationError
from .session import HeldSession, JarUnreadable, Metadata


class Storage(Protocol):
    """Where a jar keeps its shelves."""

    blocks: bool
    """Whether `change` waits for a disk or another program, and so belongs into a thread of its own."""

    def change(self, place: Place, edit: Edit) -> Namespace:
        """Change one shelf as a whole, and tell what it holds then."""
        ...


class JarMemory:
    """Sessions in this process."""

    blocks = False

    def __init__(self) -> None:
        self._shelves: dict[Place, Namespace] = {}

    def change(self, place: Place, edit: Edit) -> Namespace:
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

    async def load(self, place: Place) -> Namespace:
        """What is held for a place, and drop what is past its time.

        Raises:
            JarUnreadable: The jar holds something else than sessions; the message says where that was kept.
            OSError: The file cannot be read or written.
        """
        return await self._change(place, without_expired)

    async def put(self, place: Place, name: str, metadata: Metadata) -> None:
        """Hold a session that is new. Raises as `load`."""
        await self._change(place, put(name, metadata))

    async def update(self, place: Place, name: str, metadata: Metadata) -> None:
        """Hold what is new of a session that is held. Raises as `load`."""
        await self._change(place, update(name, metadata))

    async def drop(self, place: Place, name: str, session_id: str) -> None:
        """Hold a session no longer. Raises as `load`."""
        await self._change(place, drop(name, session_id))

    async def _change(self, place: Place, edit: Edit) -> Namespace:
        if self._storage.blocks:
            return await to_thread.run_sync(self._storage.change, place, edit)
        return self._storage.change(place, edit)


VERSION: Final = 1
WINDOWS: Final = os.name == "nt"


class _Header(msgspec.Struct):
    """What tells a jar of any version."""

    version: int


class _Content(msgspec.Struct):
    """A jar of this version: its sessions by server, identity and name."""

    servers: dict[str, dict[str, dict[str, Metadata]]]
    version: int = VERSION


class JarFile:
    """Sessions in a file.

    Args:
        path: Where. Its folder is made when it is not there.
    """

    blocks = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(os.path.realpath(Path(path).expanduser()))

    def change(self, place: Place, edit: Edit) -> Namespace:
        """Change one shelf, and tell what it holds then.

        Raises:
            JarUnreadable: The file is no jar.
            OSError: The file cannot be read or written.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self._path.with_name(f"{self._path.name}.lock")):
            servers = self._read()
            before = servers.get(place.server, {}).get(place.identity, {})
            after = edit(before)
            if after != before:
                servers[place.server] = {**servers.get(place.server, {}), place.identity: after}
                self._write(_Content(servers))
            return after

    def _read(self) -> dict[str, dict[str, Namespace]]:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            if msgspec.json.decode(raw, type=_Header).version > VERSION:
                raise JarUnreadable(f"{self._path} was written by a newer version of mcp-sessions")
            return msgspec.json.decode(raw, type=_Content).servers
        except (msgspec.DecodeError, UnicodeDecodeError):
            kept = self._set_aside()
        raise JarUnreadable(f"{self._path} is no jar of sessions: moved to {kept}, so that the next start begins anew")

    def _set_aside(self) -> Path:
        names = (self._path.with_name(f"{self._path.name}.corrupt-{number}") for number in count(1))
        return self._path.rename(next(name for name in names if not name.exists()))

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
    """Hold a file's lock, which the system gives back when the process dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(handle)
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    if WINDOWS:
        windows = import_module("msvcrt")
        windows.locking(handle, windows.LK_LOCK, 1)
    else:
        unix = import_module("fcntl")
        unix.flock(handle, unix.LOCK_EX)


class JarKeyring:
    """Sessions in the keyring.

    Args:
        service: The name under which the keyring shows them.

    Raises:
        ConfigurationError: The library is not installed.
    """

    blocks = True

    def __init__(self, service: str) -> None:
        self._keyring = _library()
        self._service = service
        self._lock = Lock()

    def change(self, place: Place, edit: Edit) -> Namespace:
        """Change one shelf, and tell what it holds then.

        Raises:
            JarUnreadable: The keyring cannot be used, or its entry is no shelf.
        """
        entry = f"{place.server} {place.identity}".rstrip()
        with self._lock:
            try:
                return self._change(entry, edit)
            except self._keyring.errors.KeyringError as error:
                raise JarUnreadable(f"the keyring cannot be used: {type(error).__name__}") from None

    def _change(self, entry: str, edit: Edit) -> Namespace:
        before = self._read(entry)
        after = edit(before)
        if after != before:
            self._keyring.set_password(self._service, entry, msgspec.json.encode(after).decode())
        return after

    def _read(self, entry: str) -> Namespace:
        raw = self._keyring.get_password(self._service, entry)
        if raw is None:
            return {}
        try:
            return msgspec.json.decode(raw, type=dict[str, Metadata])
        except msgspec.DecodeError:
            kept = f"{entry} (corrupt)"
            self._keyring.set_password(self._service, kept, raw)
            self._keyring.delete_password(self._service, entry)
        raise JarUnreadable(f"the keyring's entry {entry!r} is no shelf of sessions; it was moved to {kept!r}")


def _library() -> ModuleType:
    try:
        import keyring
        import keyring.errors
    except ImportError:
        raise ConfigurationError("SessionJar.in_keyring needs the library keyring: pip install keyring") from None
    return keyring


logger = logging.getLogger("mcp_sessions")


class Keeper:
    """One user's sessions on one server, in a jar.

    Args:
        jar: The jar, or None.
        server: The server's URL, or None where the transport shows it.
        identity: Whom the program speaks for.
    """

    def __init__(self, jar: SessionJar | None, *, server: str | None, identity: str) -> None:
        self._jar = jar
        self._server = server
        self._identity = identity
        self._place: Place | None = None
        self._written: Namespace = {}

    @property
    def names(self) -> set[str]:
        """The names under which the jar holds sessions, as far as is known here."""
        return set(self._written)

    def keeps(self, held: HeldSession) -> bool:
        """Whether a session outlives the connection."""
        return self._jar is not None and held.name is not None

    async def load(self, transport: Any) -> None:
        """Read the jar.

        Raises:
            ConfigurationError: It is not known, or not clear, which server the transport connects to.
            JarUnreadable: The jar holds something else than sessions.
            OSError: The jar's file cannot be read or written.
        """
        if self._jar is not None:
            place = Place(self._server_of(transport), self._identity)
            if self._place not in {None, place}:
                raise ConfigurationError(
                    "this transport connects to another server than the last; use another with_sessions"
                )
            self._place = place
            self._written = await self._jar.load(self._place)

    def _server_of(self, transport: Any) -> str:
        """Where the sessions belong: to the server that the transport connects to, and to no other."""
        servers = {server_of(url) for url in (self._server, url_of(transport)) if url is not None}
        if not servers:
            raise ConfigurationError(
                "a jar keeps sessions by the server's URL, and this transport hides it; set server="
            )
        if len(servers) > 1:
            raise ConfigurationError("server= names another server than the one that the transport connects to")
        return servers.pop()

    def resume(self, held: HeldSession) -> None:
        """Let a handle hold what the jar holds under its name, if it holds nothing yet."""
        kept = self._written.get(held.name) if held.name is not None else None
        if kept is not None and not held.begun:
            held.hold(kept)

    async def keep(self, held: HeldSession) -> None:
        """Write a session that is new."""
        if held.name is not None:
            self._written.pop(held.name, None)
        await self.write(held)

    async def update(self, held: HeldSession) -> None:
        """Write what changed, unless it is the hint alone and hardly moved: servers move it with every call."""
        written, metadata = self._written.get(held.name or ""), held.metadata
        assert metadata is not None
        if written is None or written.state != metadata.state or _moved(written, metadata):
            await self.write(held)

    async def write(self, held: HeldSession) -> None:
        """Write what is not written yet."""
        name, metadata = held.name, held.metadata
        if name is None or metadata is None or metadata == self._written.get(name):
            return
        if await self._tell("update" if name in self._written else "put", name, metadata):
            self._written[name] = metadata

    async def drop(self, held: HeldSession, session_id: str) -> None:
        """Take a session that has ended out of the jar."""
        if held.name is not None:
            await self._tell("drop", held.name, session_id)
            self._written.pop(held.name, None)

    async def _tell(self, what: str, *about: Any) -> bool:
        """Have the jar do something; whether it did."""
        if self._jar is None:
            return False
        try:
            await getattr(self._jar, what)(self._place, *about)
        except (JarUnreadable, OSError) as error:
            logger.error("the jar of sessions cannot be written, so this change is held in memory alone: %s", error)
            return False
        return True


def _moved(before: Metadata, after: Metadata) -> bool:
    """Whether the hint moved by so much that the old one would mislead after a crash."""
    if before.expires is None or after.expires is None:
        return before.expires_at != after.expires_at
    return abs(after.expires - before.expires) > LEEWAY / 2


Namespace = dict[str, Metadata]
Edit = Callable[[Namespace], Namespace]

LEEWAY: Final = timedelta(minutes=5)
"""How long past its hint a session is still tried: clocks differ, and a hint that only moved is not always written."""

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Place:
    """Whose sessions on which server.

    Args:
        server: Origin and path, as `server_of` writes them.
        identity: Whom the program speaks for, in its own words.
    """

    server: str
    identity: str


def server_of(url: str) -> str:
    """A server's origin and path, written in one way.

    Raises:
        ConfigurationError: It is no HTTP URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ConfigurationError(f"a jar keeps sessions by the server's URL, and {url!r} is no HTTP URL; set server=")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}{parts.path or '/'}"


def url_of(transport: Any) -> str | None:
    """The URL that a transport was made with, or None where it does not show."""
    shown = getattr(transport, "url", None)
    given = (*getattr(transport, "args", ()), *getattr(transport, "kwds", {}).values())
    return next((one for one in (shown, *given) if isinstance(one, str) and one.startswith(("http:", "https:"))), None)


def put(name: str, metadata: Metadata) -> Edit:
    """Hold a session that is new."""
    return lambda shelf: {**shelf, name: metadata}


def update(name: str, metadata: Metadata) -> Edit:
    """Hold what is new of a session, unless another process has put a different session in its place."""
    return lambda shelf: {**shelf, name: metadata} if _holds(shelf, name, metadata.session_id) else shelf


def drop(name: str, session_id: str) -> Edit:
    """Hold a session no longer, unless another process has put a different session in its place."""
    return lambda shelf: (
        {kept: shelf[kept] for kept in shelf if kept != name} if _holds(shelf, name, session_id) else shelf
    )


def without_expired(shelf: Namespace) -> Namespace:
    """The sessions that may still live."""
    limit = datetime.now(timezone.utc) - LEEWAY
    return {name: held for name, held in shelf.items() if held.expires is None or limit < held.expires}


def _holds(shelf: Namespace, name: str, session_id: str) -> bool:
    return name in shelf and shelf[name].session_id == session_id

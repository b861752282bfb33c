"""A jar in a file that several programs may use at once.

A change is read, made and written under a lock that the programs share; the file is replaced as a whole, so that a
reader finds the old one or the new one, and a crash leaves one of the two. Only its owner can read it, since the ids in
it are credentials. A file that is no jar is moved aside and reported, never overwritten.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from .errors import JarUnreadable
from .metadata import Metadata
from .shelves import Edit, Place, Shelf

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

    def change(self, place: Place, edit: Edit) -> Shelf:
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

    def _read(self) -> dict[str, dict[str, Shelf]]:
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

"""The workers that share a store: each has a name, a row in the store, and a socket at which the others reach it.

A worker begins to listen before its row can be found. The row ends by itself if it is not renewed, which proves that
its worker is gone. On one machine, so does a socket in the same private folder that refuses connections or is missing.
The folder is known by a random id, because two containers may share a store without seeing each other's sockets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

with suppress(ImportError):  # on Windows, where affinity is off
    import fcntl

from .._errors import ConfigurationError, StoreUnavailable
from .._session.claims import ref_of
from .._session.data import Namespace
from ..stores._base import Store

LEASE: Final = 30.0  # seconds for which a row lasts
RENEWAL: Final = 5.0  # seconds between two renewals
DAY: Final = 86_400
MAX_PATH: Final = 100  # bytes of a socket's path
_NAME: Final = 16  # bytes that the name of a socket takes at most
_BACKLOG: Final = 512
_VERSION: Final = 1  # of the frames
_MAX_ROW: Final = 4096
_log: Final = logging.getLogger("mcp_sessions")

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Row(msgspec.Struct, array_like=True):
    """What the store has of a worker."""

    directory: str  # the id of the folder with its socket
    address: tuple[str, int] | None  # at which workers on other machines reach it
    is_leaving: bool = False
    renewals: int = 0
    version: int = _VERSION


_ROW: Final = msgspec.msgpack.Decoder(Row)


class Workers:
    """This worker's name, socket and row, and the rows of the others."""

    def __init__(
        self,
        store: Store,
        audience: str,
        clock: Callable[[], float],
        *,
        address: str | None = None,
        ports: range = range(1),
    ) -> None:
        self.name: Final = secrets.token_urlsafe(8)
        self.folder: Final = _private_folder()
        self.directory: Final = _id_of(self.folder)
        self._held_since = self._held_until = 0.0  # monotonic seconds of the lease that no other worker has seen end
        self._store: Final = store
        self._audience: Final = audience
        self._clock: Final = clock
        self._address: Final = address
        self._ports: Final = ports
        self._row = Row(self.directory, None)
        self._servers: list[asyncio.Server] = []
        self._lock: int | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def start(self, connected: Connected) -> None:
        """Listen, and then let the others find this worker.

        Raises:
            ConfigurationError: It cannot listen; the message has the remedy.
        """
        try:
            await self._listen(connected)
        except BaseException:
            await self.stop()
            raise
        await self._renew()
        self._renewing = asyncio.get_running_loop().create_task(self._keep_renewing())

    async def _listen(self, connected: Connected) -> None:
        _sweep(self.folder)
        self._lock = _locked(self.folder, self.name)
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        own.setblocking(False)
        hidden = str(self.folder / f".{self.name}")
        own.bind(hidden)
        own.listen(_BACKLOG)
        self._servers.append(await asyncio.start_unix_server(connected, sock=own, backlog=_BACKLOG))
        os.rename(hidden, self.folder / self.name)  # noqa: PTH104
        if self._address is not None:
            server, port = await _listen(self._address, self._ports, connected)
            self._servers.append(server)
            self._row.address = (self._address, port)

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(RENEWAL)
            await self._renew()

    async def _renew(self) -> None:
        began = time.monotonic()
        self._row.renewals += 1
        try:
            await self._write(self._row)
        except StoreUnavailable as error:
            _log.warning("the row of this worker was not renewed: store unavailable (%s)", error.reason)
        else:
            if not began < self._held_until:
                self._held_since = time.monotonic()
            self._held_until = began + LEASE

    def is_held_since(self, moment: float) -> bool:
        """Return True if the lease has not lapsed since a moment, so that no other worker has taken sessions over."""
        return self._held_since <= moment and time.monotonic() < self._held_until

    async def leave(self) -> None:
        """Say in the store that this worker takes no more sessions, so that others take over those that it has."""
        self._row.is_leaving = True
        await self._renew()

    async def stop(self) -> None:
        """Stop listening, and remove the socket and the row."""
        if self._renewing is not None:
            self._renewing.cancel()
        for server in self._servers:
            server.close()
        for end in ("", ".lock"):
            with suppress(OSError):
                os.unlink(self.folder / f"{self.name}{end}")  # noqa: PTH108
        if self._lock is not None:
            os.close(self._lock)
        with suppress(StoreUnavailable):
            await self._write(None)

    async def _write(self, row: Row | None) -> None:
        now = self._clock()
        value = None if row is None else msgspec.msgpack.encode(row)
        await self._store.write(self._place_of(self.name), "", value, expires_at=now + LEASE)

    async def row_of(self, name: str) -> Row | None:
        """Return a worker's row, or None if the worker is gone; raise `StoreUnavailable` if nothing shows which."""
        value = await self._store.read(self._place_of(name), "")
        return None if value is None else _ROW.decode(value)

    def _place_of(self, name: str) -> Namespace:
        owner = ref_of(f"worker/{name}/{self._audience}")
        return Namespace(owner, int(self._clock()) + DAY, _MAX_ROW, audience=self._audience)

    def socket_of(self, name: str) -> str:
        """Return where the socket of a worker of this machine is, if it is one."""
        return str(self.folder / name)


def _private_folder() -> Path:
    """Return the folder for sockets of this user's workers.

    Raises:
        ConfigurationError: Others could put sockets there.
    """
    name = f"mcp-sessions-{os.geteuid()}"
    folder = Path(tempfile.gettempdir()) / name
    if len(os.fsencode(folder)) + _NAME > MAX_PATH:
        folder = Path("/tmp") / name  # noqa: S108
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
        raise ConfigurationError(
            f"{folder} must be a folder of this process's user with mode 0700, since workers reach each other by "
            "sockets in it; remove it, or set TMPDIR to another folder for all workers"
        )
    return folder


def _id_of(folder: Path) -> str:
    """Return the random id of a folder, which its first worker writes."""
    file, own = folder / "id", folder / f".{secrets.token_hex(8)}"
    if not file.exists():
        own.write_text(secrets.token_urlsafe(12), "ascii")
        with suppress(FileExistsError):
            os.link(own, file)
        own.unlink()
    return file.read_text("ascii")


def _locked(folder: Path, name: str) -> int:
    """Return a descriptor that holds the lock of a worker until its process ends."""
    own, file = folder / f".{name}.lock", folder / f"{name}.lock"
    descriptor = os.open(own, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.rename(own, file)  # noqa: PTH104
    return descriptor


def _sweep(folder: Path) -> None:
    """Remove the sockets of workers whose locks show that they are gone."""
    for file in folder.glob("[!.]*.lock"):
        with suppress(OSError):
            descriptor = os.open(file, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.with_suffix("").unlink(missing_ok=True)
                file.unlink()
            finally:
                os.close(descriptor)


async def _listen(address: str, ports: range, connected: Connected) -> tuple[asyncio.Server, int]:
    reason = "no port is free"
    for port in ports:
        try:
            server = await asyncio.start_server(connected, address, port, backlog=_BACKLOG)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            continue
        return server, server.sockets[0].getsockname()[1]
    raise ConfigurationError(
        f"Affinity(address={address!r}) cannot be used on this machine ({reason}): name an address "
        "of it at which other workers reach it, such as the pod's IP, and enough free ports"
    )

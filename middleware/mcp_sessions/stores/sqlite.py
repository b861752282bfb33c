"""A store in a file: for all processes of one machine, and through restarts.

What is said to be kept is on the disk. Reads and changes have a thread each, so that no request waits
for another's lock, and no call blocks the event loop. The file must lie on a local disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from os import PathLike
from sqlite3 import Connection
from typing import Final, Literal, TypeVar, get_args

from ..data import Shelf
from ..errors import ConfigurationError
from ..tokens import Claims
from . import sqlite_data as data
from . import sqlite_steps as steps
from .base import Ended, Reach, Record, Standing
from .lane import Lane
from .sqlite_file import Job, Setting, SQLiteFile
from .sqlite_place import checked

T = TypeVar("T")
Forgotten = Literal["refuse", "accept"]

_HOUR: Final = 3600  # seconds
_LEAST_BYTES: Final = 1 << 18


class SQLiteStore:
    """Sessions of one machine, in one file, with its log (`-wal`) and an index (`-shm`) beside it.

    A file that is made anew remembers nothing of what came before: a session that had been ended would work
    again. So sessions that were issued before it was made are refused (`Standing.LOST`), as if not found. That
    concerns you twice: **when you add this store to a deployment that has sessions, they end**, and when you
    delete the file, those end that it knew. `forgotten="accept"` is for who would rather let both in.

    The same holds for a file that is deleted or replaced while it is in use, which is noticed. A backup that is
    put back while nobody uses it is not: what was ended since then works again, so delete the file instead.
    Never delete the log or the index alone.

    The file and what is beside it can be read by its owner alone (mode 0600) where this made it. It does not
    shrink: the room of what is over is used again. In a process that forks, the child gets connections of its own.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        leeway: float = 60,  # seconds
        busy_timeout: float = 5,  # seconds
        max_bytes: int = 1 << 30,
        forgotten: Forgotten = "refuse",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Args:
            path: The file; its folder must exist. `~` is not expanded.
            leeway: Seconds for which what is kept outlives its token, for clocks that disagree.
            busy_timeout: Seconds to wait for a lock that another process holds.
            max_bytes: How large the file may grow. A full one refuses what is new, and evicts nothing.
            forgotten: What becomes of sessions that were issued before the file was made: `"refuse"` or `"accept"`.
            clock: Unix seconds; a test passes its own.

        Raises:
            ConfigurationError: An option is wrong, or the path cannot be one of a file; the message says the remedy.
        """
        if forgotten not in get_args(Forgotten):
            raise ConfigurationError(f"forgotten={forgotten!r} must be 'refuse' or 'accept'")
        if not leeway >= 0:
            raise ConfigurationError(f"leeway={leeway!r} must be a number of seconds, 0 or more")
        if not 0 < busy_timeout <= _HOUR:
            raise ConfigurationError(f"busy_timeout={busy_timeout!r} must be a number of seconds, more than 0")
        if not max_bytes >= _LEAST_BYTES:
            raise ConfigurationError(f"max_bytes={max_bytes!r} must be {_LEAST_BYTES} or more")
        self._fenced = forgotten == "refuse"
        self._leeway = leeway
        self._path = checked(path)
        setting = Setting(
            path=self._path,
            clock=clock,
            busy_timeout=busy_timeout,
            max_bytes=max_bytes,
            sweep=partial(_sweep, leeway),
        )
        self._reads = Lane("mcp-sessions-sqlite-reads", lambda: closing(SQLiteFile(setting)))
        self._changes = Lane("mcp-sessions-sqlite-changes", lambda: closing(SQLiteFile(setting)))

    @property
    def reach(self) -> Reach:
        """Every process that opens the same file."""
        return Reach.MACHINE

    async def open(self) -> None:
        """Open the file, make it where there is none, and delete what is over.

        Raises:
            ConfigurationError: The file is not one that we may write; the message says the remedy.
            StoreUnavailable: It cannot be opened now.
        """
        await self._changes.run(SQLiteFile.open)
        await self._reads.run(SQLiteFile.open)
        while await self._change(partial(_sweep, self._leeway)):
            """In small steps, between which other calls have their turn."""

    async def close(self) -> None:
        """Close the file, after what was asked of it so far. A later call would open it again."""
        for lane in (self._reads, self._changes):
            try:
                await lane.run(SQLiteFile.close)
            finally:
                lane.stop()

    async def _read(self, job: Job[T]) -> T:
        return await self._reads.run(lambda file: file.read(job))

    async def _change(self, job: Job[T]) -> T:
        asked_at = time.monotonic()
        return await self._changes.run(lambda file: file.change(job, asked_at=asked_at))

    # --- standing and revocation -------------------------------------------------------------

    async def standing(self, claims: Claims) -> Standing:
        """Whether the session was ended, or cannot be vouched for."""
        return await self._read(lambda file, _: steps.standing(file, claims, fenced=self._fenced))

    async def standings(self, claims: Sequence[Claims]) -> list[Standing]:
        """As `standing`, for many."""
        return await self._read(lambda file, _: [steps.standing(file, one, fenced=self._fenced) for one in claims])

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:  # noqa: ARG002  # a record knows it
        """Keep a revocation until its token has expired."""
        return await self._change(
            lambda file, now: steps.revoke(file, ref, expires_at=expires_at, reason=reason, lease_until=now + lease)
        )

    async def revoke_before(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        """Keep a cut-off until the last session that it concerns has expired."""
        cut = partial(steps.revoke_before, audience=audience, subject=subject or steps.EVERYBODY, until=until)
        await self._change(lambda file, _: cut(file, moment))

    # --- records -----------------------------------------------------------------------------

    async def record(self, record: Record) -> None:
        """Note a session; one that is known already, or was revoked, stays as it is."""
        await self._change(lambda file, _: steps.record(file, record))

    async def seen(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        """Whether the session lives, and if so, that it was used now."""
        look = partial(steps.seen, claims=claims, idle_timeout=idle_timeout, fenced=self._fenced)
        standing, due = await self._read(lambda file, now: look(file, now=now))
        return await self._change(partial(_note, look, claims.ref)) if due else standing

    async def sessions(self, subject: str, *, audience: str) -> list[Record]:
        """The records of a principal's sessions that have not ended, oldest first."""
        return await self._read(lambda file, now: steps.sessions(file, subject, audience, now))

    async def forks(self, root: str) -> list[Record]:
        """The records of a lineage's forks that have not ended, oldest first."""
        return await self._read(lambda file, now: steps.forks(file, root, now))

    async def find(self, ref: str) -> Record | None:
        """The record of a session that has not ended."""
        return await self._read(lambda file, now: steps.find(file, ref, now))

    async def take_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        """Records of sessions that ended and whose `on_end` is the caller's to run."""
        take = partial(steps.take_ended, audience=audience, idle_timeout=idle_timeout, lease=lease, limit=limit)
        return await self._change(lambda file, now: take(file, now=now))

    async def finish(self, ref: str) -> None:
        """Forget a record and the session's data."""
        await self._change(lambda file, _: steps.finish(file, ref))

    async def lead(self, worker: str, *, audience: str, seconds: float) -> bool:
        """Whether this worker leads."""
        lead = partial(steps.lead, audience=audience)
        return await self._change(lambda file, now: lead(file, worker, until=now + seconds, now=now))

    # --- data --------------------------------------------------------------------------------

    async def read(self, shelf: Shelf, key: str) -> bytes | None:
        """A value's JSON, or None."""
        return await self._read(lambda file, now: data.read(file, shelf.owner, key, now)[0])

    async def write(self, shelf: Shelf, key: str, value: bytes | None, *, expires_at: float | None = None) -> None:
        """Keep a value, or None to keep none."""
        item = (value, expires_at)
        await self._change(lambda file, now: data.write(file, shelf, key, item, leeway=self._leeway, now=now))

    async def swap(self, shelf: Shelf, key: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace a value if it is still the old one."""
        return await self._change(lambda file, now: data.swap(file, shelf, key, old, new, leeway=self._leeway, now=now))

    async def add(self, shelf: Shelf, key: str, by: int) -> int:
        """Add to a value."""
        return await self._change(lambda file, now: data.add(file, shelf, key, by, leeway=self._leeway, now=now))

    async def copy(self, shelf: Shelf, target: Shelf) -> None:
        """Put what lies on a shelf onto a new one."""
        await self._change(lambda file, now: data.copy(file, shelf, target, leeway=self._leeway, now=now))

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path}>"


def _note(look: Callable[..., tuple[Standing, bool]], ref: str, file: Connection, now: float) -> Standing:
    """Look again, since the session may have ended in between, and note that it was used."""
    standing, _ = look(file, now=now)
    if standing is Standing.LIVE:
        steps.note(file, ref, now)
    return standing


def _sweep(leeway: float, file: Connection, now: float) -> bool:
    return data.sweep(file, now - leeway)

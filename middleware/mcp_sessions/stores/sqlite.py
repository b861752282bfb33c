"""A store in a file: for all processes of one machine, and through restarts.

Whatever a method returned from is on the disk. Reads and changes have a connection and a thread each, so that no
request waits for another's lock, and no call blocks the event loop; a session that lived a moment ago and has not
ended since, in any process, is known without either. The file must lie on a local disk.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar, get_args

from .._session.claims import Claims
from .._session.data import Namespace
from ..errors import ConfigurationError
from .base import FIRST, LIVE, Ended, Forgotten, Position, Reach, Record, Standing
from .sqlite_file import Job, Setting, SQLiteFile, checked_path
from .sqlite_shared import KnownSessions, SharedFile
from .sqlite_tables import Transaction, sweep
from .sqlite_threads import ChangeThread, WorkerThread

T = TypeVar("T")
_HOUR: Final = 3600  # seconds
_LEAST_BYTES: Final = 1 << 18


class SQLiteStore:
    """Sessions of one machine, in one file, with its log (`-wal`), an index (`-shm`) and `-shared` beside it.

    A file that is made anew remembers nothing of what came before: a session that had been ended would work again. So
    sessions that were issued before it was made are refused (`Standing.LOST`), as if not found. That concerns you
    twice: **when you add this store to a deployment that has sessions, they end**, and when you delete the file, those
    end that it knew. `forgotten="accept"` lets both in.

    A file that is deleted or replaced while it is in use is noticed, and the same holds. A backup that is put back
    while no process uses it is not: what was ended since then works again, so delete the file instead, and never the
    log or the index alone. The file and what is beside it can be read by its owner alone (mode 0600) where this made
    it. It does not shrink: the room of what is over is used again. A forked process gets connections of its own.
    """

    reach: Final = Reach.MACHINE

    def __init__(
        self,
        path: str | os.PathLike[str],
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
            max_bytes: How large the file may grow. A full one refuses what is new, and evicts nothing; the last
                sixteenth is for what makes room.
            forgotten: What becomes of sessions that were issued before the file was made: `"refuse"` or `"accept"`.
            clock: Unix seconds; a test passes its own.

        Raises:
            ConfigurationError: An option is wrong, or the path cannot be one of a file; the message says the remedy.
        """
        for is_right, rule in (
            (forgotten in get_args(Forgotten), f"forgotten={forgotten!r} must be 'refuse' or 'accept'"),
            (leeway >= 0, f"leeway={leeway!r} must be a number of seconds, 0 or more"),
            (0 < busy_timeout <= _HOUR, f"busy_timeout={busy_timeout!r} must be a number of seconds, more than 0"),
            (max_bytes >= _LEAST_BYTES, f"max_bytes={max_bytes!r} must be {_LEAST_BYTES} or more"),
        ):
            if not is_right:
                raise ConfigurationError(rule)
        self._path = checked_path(path)
        self._clock = clock
        self._shared = SharedFile(self._path, max_bytes)
        self._known = KnownSessions(self._shared)
        self._transaction = partial(
            Transaction, leeway=leeway, vouches_always=forgotten == "accept", move=self._shared.move
        )

        def sweep_over(connection: sqlite3.Connection, now: float, rows: int) -> bool:
            return sweep(connection, now - leeway, rows)

        setting = Setting(self._path, clock, busy_timeout, max_bytes, self._shared, sweep_over)
        self._reads = WorkerThread("mcp-sessions-sqlite-reads", setting)
        self._changes = ChangeThread("mcp-sessions-sqlite-changes", setting)

    async def open(self) -> None:
        """Open the file, make it where there is none, and delete what is over, in small steps."""
        await self._changes.run(SQLiteFile.open)
        await self._reads.run(SQLiteFile.open)
        while await self._changes.run(SQLiteFile.sweep):
            """Other calls have their turn."""

    async def close(self) -> None:
        try:
            await self._reads.close()
        finally:
            await self._changes.close()

    # --- revocations ----------------------------------------------------------------------------

    def knows_live(self, claims: Claims, *, is_use: bool = False) -> bool:
        """Whether a session is known to live without a question; and where `is_use`, also that this need be noted."""
        until = self._known.find(claims)
        return until is not None and (not is_use or self._clock() < until)

    async def admit(self, claims: Claims) -> None:
        """Nothing is to be noted: a file that was replaced is met by the second."""

    async def status(self, claims: Claims) -> Standing:
        return (await self.statuses((claims,)))[0]

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        if all(self.knows_live(one) for one in claims):
            return [LIVE] * len(claims)
        stamps = [self._known.stamp(one) for one in claims]
        found = await self._read(lambda now: now.statuses(claims))
        for one, stamp, standing in zip(claims, stamps, found, strict=True):
            if standing is LIVE:
                self._known.keep(one, stamp)
        return found

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        return await self._change(
            lambda now: now.revoke(ref, audience=audience, expires_at=expires_at, reason=reason, lease=lease)
        )

    async def revoke_before(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        await self._change(lambda now: now.revoke_before(moment, audience=audience, subject=subject, until=until))

    # --- records --------------------------------------------------------------------------------

    async def register(self, record: Record) -> None:
        await self._change(lambda now: now.register(record))

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        """Look first, since a use must rarely be noted, and a change waits for others."""
        if self.knows_live(claims, is_use=True):
            return LIVE
        stamp = self._known.stamp(claims)
        standing, due_at = await self._read(lambda now: now.look(claims, idle_timeout=idle_timeout))
        if self._clock() >= due_at:
            return await self._change(lambda now: now.touch(claims, idle_timeout=idle_timeout))
        if standing is LIVE:
            self._known.keep(claims, stamp, due_at)
        return standing

    async def sessions(
        self, subject: str, *, audience: str, after: Position = FIRST, limit: int | None = None, cut_off: bool = False
    ) -> list[Record]:
        return await self._read(
            lambda now: now.sessions(subject, audience=audience, after=after, limit=limit, cut_off=cut_off)
        )

    async def forks(self, root: str, *, after: Position = FIRST, limit: int | None = None) -> list[Record]:
        return await self._read(lambda now: now.forks(root, after=after, limit=limit))

    async def find(self, ref: str) -> Record | None:
        return await self._read(lambda now: now.find(ref))

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        return await self._change(
            lambda now: now.claim_ended(audience=audience, idle_timeout=idle_timeout, lease=lease, limit=limit),
            frees=True,
        )

    async def purge(self, ref: str) -> None:
        await self._change(lambda now: now.purge(ref), frees=True)

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        return await self._change(lambda now: now.elect(worker, audience=audience, seconds=seconds), frees=True)

    # --- data -----------------------------------------------------------------------------------

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        return await self._read(lambda now: now.read(namespace, key))

    async def write(
        self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None
    ) -> None:
        await self._change(lambda now: now.write(namespace, key, value, expires_at=expires_at))

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        return await self._change(lambda now: now.compare_and_swap(namespace, key, old, new))

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        return await self._change(lambda now: now.add(namespace, key, by))

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        await self._change(lambda now: now.copy(namespace, target))

    async def _read(self, step: Callable[[Transaction], T]) -> T:
        job = self._job(step)
        return await self._reads.run(lambda file: file.read(job))

    async def _change(self, step: Callable[[Transaction], T], *, frees: bool = False) -> T:
        return await self._changes.change(self._job(step), frees=frees)

    def _job(self, step: Callable[[Transaction], T]) -> Job[T]:
        return lambda connection, now: step(self._transaction(connection, now))

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path}>"

"""A store in a file: for all processes of one machine, and through restarts.

Whatever a method returned from is on the disk. Reads and changes have a connection and a thread each, so that no
request waits for another's lock, and no call blocks the event loop. The file must lie on a local disk.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from os import PathLike
from sqlite3 import Connection
from threading import Lock
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar, get_args

import anyio
from anyio.lowlevel import current_token

from .._session.claims import Claims
from .._session.data import Namespace
from ..errors import ConfigurationError
from .base import Ended, Reach, Record, Standing
from .sqlite_file import Setting, SQLiteFile, checked_path
from .sqlite_tables import Transaction, sweep

P = ParamSpec("P")
T = TypeVar("T")
Forgotten = Literal["refuse", "accept"]

_HOUR: Final = 3600  # seconds
_LEAST_BYTES: Final = 1 << 18


class WorkerThread:
    """A file and the thread that alone touches it, reached from any event loop; started when it is needed.

    A caller that gives up waiting is free at once: a call that has not begun is dropped, one that has runs to its end.
    """

    def __init__(self, name: str, setting: Setting) -> None:
        self._name = name
        self._setting = setting
        self._lock = Lock()
        self._running: tuple[ThreadPoolExecutor, SQLiteFile] | None = None
        _workers.add(self)

    async def run(self, work: Callable[[SQLiteFile], T]) -> T:
        """Return what `work` returns, or raise what it raises, when it is its turn."""
        done, call_soon = anyio.Event(), _call_soon()

        def wake(_future: object) -> None:
            with suppress(RuntimeError):  # that event loop has ended, and with it the caller
                call_soon(done.set)

        with self._lock:
            if self._running is None:
                executor = ThreadPoolExecutor(1, thread_name_prefix=self._name)
                self._running = (executor, SQLiteFile(self._setting))
            executor, file = self._running
            future = executor.submit(work, file)
        future.add_done_callback(wake)
        try:
            await done.wait()
            return future.result()
        finally:
            future.cancel()
            del future  # an error's traceback holds this frame, which would hold the error

    async def close(self) -> None:
        """Close the file and let the thread end, after the calls so far. A later call starts another."""
        if self._running is None:
            return
        try:
            await self.run(SQLiteFile.close)
        finally:
            with self._lock:
                running, self._running = self._running, None
            if running is not None:  # else another task has closed it meanwhile
                running[0].shutdown(wait=False)

    def after_fork(self) -> None:
        """Start afresh in the new process: neither threads nor connections survive a fork."""
        if self._running is not None:
            self._running[1].leave_behind()
        self._lock, self._running = Lock(), None


def _call_soon() -> Callable[[Callable[[], object]], object]:
    """Return how another thread has a function called on the running event loop."""
    loop: Any = current_token().native_token
    call: Callable[[Callable[[], object]], object] = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    return call


_workers: Final[weakref.WeakSet[WorkerThread]] = weakref.WeakSet()


def _after_fork() -> None:
    for worker in tuple(_workers):
        worker.after_fork()


with suppress(AttributeError):  # Windows has no forks
    os.register_at_fork(after_in_child=_after_fork)


class SQLiteStore:
    """Sessions of one machine, in one file, with its log (`-wal`) and an index (`-shm`) beside it.

    A file that is made anew remembers nothing of what came before: a session that had been ended would work
    again. So sessions that were issued before it was made are refused (`Standing.LOST`), as if not found. That
    concerns you twice: **when you add this store to a deployment that has sessions, they end**, and when you
    delete the file, those end that it knew. `forgotten="accept"` lets both in.

    The same holds for a file that is deleted or replaced while it is in use, which is noticed. A backup that is
    put back while no process uses it is not: what was ended since then works again, so delete the file instead.
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
        self._leeway = leeway
        self._vouches_always = forgotten == "accept"
        self._path = checked_path(path)
        setting = Setting(
            path=self._path,
            clock=clock,
            busy_timeout=busy_timeout,
            max_bytes=max_bytes,
            sweep=lambda connection, now: sweep(connection, now - leeway),
        )
        self._reads = WorkerThread("mcp-sessions-sqlite-reads", setting)
        self._changes = WorkerThread("mcp-sessions-sqlite-changes", setting)

    @property
    def reach(self) -> Reach:
        """Every process that opens the same file."""
        return Reach.MACHINE

    async def open(self) -> None:
        """Open the file, make it where there is none, and delete what is over, in small steps."""
        await self._changes.run(SQLiteFile.open)
        await self._reads.run(SQLiteFile.open)
        while await self._changes.run(SQLiteFile.sweep):
            """Other calls have their turn."""

    async def close(self) -> None:
        """Close the file, after what was asked of it so far. A later call would open it again."""
        try:
            await self._reads.close()
        finally:
            await self._changes.close()

    async def _read(self, step: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        job = self._job(step, *args, **kwargs)
        return await self._reads.run(lambda file: file.read(job))

    async def _change(self, step: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        job, asked_at = self._job(step, *args, **kwargs), time.monotonic()
        return await self._changes.run(lambda file: file.change(job, asked_at=asked_at))

    def _job(
        self, step: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[Connection, float], T]:
        begin = partial(Transaction, leeway=self._leeway, vouches_always=self._vouches_always)
        return lambda connection, now: step(begin(connection, now), *args, **kwargs)

    async def status(self, claims: Claims) -> Standing:
        return await self._read(Transaction.status, claims)

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        return await self._read(Transaction.statuses, claims)

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:  # noqa: ARG002  # a record knows it
        return await self._change(Transaction.revoke, ref, expires_at=expires_at, reason=reason, lease=lease)

    async def revoke_before(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        await self._change(Transaction.revoke_before, moment, audience=audience, subject=subject, until=until)

    async def register(self, record: Record) -> None:
        await self._change(Transaction.register, record)

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        standing, is_due = await self._read(Transaction.look, claims, idle_timeout)
        return await self._change(Transaction.touch, claims, idle_timeout) if is_due else standing

    async def sessions(self, subject: str, *, audience: str) -> list[Record]:
        which = "subject = :subject AND audience = :audience"
        return await self._read(Transaction.records, which, {"subject": subject, "audience": audience})

    async def forks(self, root: str) -> list[Record]:
        return await self._read(Transaction.records, "root = :root", {"root": root})

    async def find(self, ref: str) -> Record | None:
        found = await self._read(Transaction.records, "ref = :ref", {"ref": ref})
        return found[0] if found else None

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        return await self._change(
            Transaction.claim_ended, audience=audience, idle_timeout=idle_timeout, lease=lease, limit=limit
        )

    async def purge(self, ref: str) -> None:
        await self._change(Transaction.purge, ref)

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        return await self._change(Transaction.elect, worker, audience=audience, seconds=seconds)

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        value, _ = await self._read(Transaction.item, namespace.owner, key)
        return value

    async def write(
        self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None
    ) -> None:
        await self._change(Transaction.write, namespace, key, value, expires_at)

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        return await self._change(Transaction.compare_and_swap, namespace, key, old, new)

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        return await self._change(Transaction.add, namespace, key, by)

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        await self._change(Transaction.copy, namespace, target)

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path}>"

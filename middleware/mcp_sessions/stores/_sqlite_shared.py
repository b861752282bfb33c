"""What the processes that use a SQLite file share beside it: counters, a turn to write, and room for a full disk.

The first page of `PATH-shared` lies in the memory of every process. It counts what ends sessions, so that a process
knows without a question whether a session that lived a moment ago still does. Whoever changes the database holds the
file's lock, in a queue: SQLite alone lets them poll. What follows the page is given up when the disk is full.
Sources: flock(2), fcntl(2); sequence counters ("seqlocks"), which are odd while a change is under way.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from mmap import mmap
from threading import RLock
from typing import Final
from zlib import crc32

from .._session.claims import Claims

PAGE: Final = 4096  # bytes
SPARE: Final = 4 << 20  # bytes at the most
SHARE: Final = 16  # of the disk and of the database's size, one part is spare
KNOWN: Final = 16_384  # sessions
_SLOTS: Final = PAGE // 8
_ALL: Final = 0  # the counter of what concerns all sessions; each of the others is shared by those of some names
_LOOK: Final = 0.01  # seconds for which the file is taken to lie where it lay
_NEVER: Final = -math.inf
_monotonic: Final = time.monotonic


def _slot(name: str | None) -> int:
    return _ALL if name is None else crc32(name.encode()) % (_SLOTS - 1) + 1


def _inode(place: str | int) -> tuple[int, int] | None:
    try:
        found = os.stat(place)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class SharedFile:
    """The file as one store of one process sees it."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self.path: Final = f"{path}-shared"
        self._max_spare = min(SPARE, max_bytes // SHARE)
        self._file = -1
        self._inode: tuple[int, int] | None = None
        self._good_until = _NEVER
        self._counters = memoryview(bytes(PAGE)).cast("Q")
        self._moving: set[int] = set()
        self._lock = RLock()  # held for as long as the file is locked, which must not be closed meanwhile

    def open(self) -> None:
        """Map the file, which is made where there is none; no counter that a dead process left odd stays so."""
        with self._lock:
            if self.is_in_place():
                return
            self.close()
            self._file = self._opened()
            with self.turn():
                size = os.fstat(self._file).st_size
                if size < PAGE:  # written, and not only made longer, so that the disk has room for it
                    first = time.time_ns() & ~1  # so that no count comes again that another file had
                    os.pwrite(self._file, first.to_bytes(8, "little") + bytes(PAGE - 8), 0)
                self._counters = memoryview(mmap(self._file, PAGE)).cast("Q")
                for slot, count in enumerate(self._counters):  # count on where a process was killed in its turn
                    self._counters[slot] = count + (count & 1)
                self.move(None)  # what was changed while another file lay here was not counted in this one
            self._inode = _inode(self._file)
            self.fill_spare()

    def _opened(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            # Whoever maps one that was deleted looks again before this one is used.
            time.sleep(2 * _LOOK)
            return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)

    def close(self) -> None:
        with self._lock:
            self._good_until = _NEVER
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    __del__ = close

    def leave_behind(self) -> None:
        """Open it anew in a forked process, which must not hold the lock of the one that it was forked from."""
        self._lock = RLock()
        self._moving.clear()
        self.close()

    def is_in_place(self) -> bool:
        """Whether the file is open, and lay in its place within the last hundredth of a second."""
        now = time.monotonic()
        if now < self._good_until:
            return True
        if self._file < 0 or _inode(self.path) != self._inode:
            return False
        self._good_until = now + _LOOK
        return True

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until no other store writes, first come, first served; what moved has settled at the end."""
        with self._lock:
            # The second lock is for fairness: without it who has just released the first one gets it again.
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1)
            try:
                yield
            finally:
                self._settle()
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def move(self, name: str | None) -> None:
        """Count a change that ends sessions, by a session's `ref`, a subject, or None for all, before its commit.

        Until the turn ends the counter is odd, and every process asks the database. A process that is killed before
        that leaves it odd.
        """
        slot = _slot(name)
        self._moving.add(slot)
        self._counters[slot] |= 1

    def _settle(self) -> None:
        while self._moving:
            self._counters[self._moving.pop()] += 1

    def stamp(self, one: int, other: int) -> int | None:
        """Return a number that changes when one of the counters does, or None while one moves."""
        counters = self._counters
        if not self.is_in_place():
            return None
        counts = (counters[_ALL], counters[one], counters[other])
        return None if any(count & 1 for count in counts) else sum(counts)

    def is_at(self, stamp: int, one: int, other: int) -> bool:
        """Whether none of the counters has changed since their stamp was taken."""
        if _monotonic() >= self._good_until and not self.is_in_place():
            return False
        counters = self._counters
        return counters[0] + counters[one] + counters[other] == stamp  # each only grows

    def spare(self) -> int:
        """Return how many bytes are to be kept for when the disk is full."""
        disk = os.fstatvfs(self._file)
        return min(self._max_spare, disk.f_blocks * disk.f_frsize // SHARE) // PAGE * PAGE

    def fill_spare(self) -> bool:
        """Take the spare room, and return whether it is there; else a part of it that leaves as much for the log."""
        spare, there, disk = self.spare(), os.fstat(self._file).st_size - PAGE, os.fstatvfs(self._file)
        room = there + disk.f_bavail * disk.f_frsize
        part = next((part for part in (spare, spare // 2, spare // 4) if there >= part or room >= 2 * part), 0)
        if there < part:
            with suppress(OSError, AttributeError):  # macOS has no such call
                os.posix_fallocate(self._file, PAGE, part)
        return part == spare

    def give_spare(self) -> None:
        """Leave the spare room to the database: what frees room in it needs some first."""
        os.ftruncate(self._file, PAGE)


Stamp = tuple[int, int, int]  # a number, and the two counters that it was taken of


class KnownSessions:
    """Sessions that live for as long as the counters stand still; at most `KNOWN`, and forgotten together."""

    def __init__(self, shared: SharedFile) -> None:
        self._shared = shared
        self._entries: dict[str, tuple[Claims, Stamp, float]] = {}

    def stamp(self, claims: Claims) -> Stamp | None:
        """Return what to take before the database is asked about a session, or None: its answer is then not kept."""
        one, other = _slot(claims.ref), _slot(claims.subject)
        stamp = self._shared.stamp(one, other)
        return None if stamp is None else (stamp, one, other)

    def keep(self, claims: Claims, stamp: Stamp | None, until: float = _NEVER) -> None:
        """Keep that a session lives; and until when a use of it need not be noted, where it is recorded."""
        if stamp is not None:
            if len(self._entries) >= KNOWN:
                self._entries.clear()
            self._entries[claims.ref] = (claims, stamp, until)

    def find(self, claims: Claims) -> float | None:
        """Return until when a use of the session need not be noted, or None where it is not known to live."""
        entry = self._entries.get(claims.ref)
        if entry is None:
            return None
        known, stamp, until = entry
        is_same = known is claims or known == claims
        return until if is_same and self._shared.is_at(*stamp) else None

"""A store in this process's memory: for one worker, and for tests.

Everything is bounded, and nothing is ever evicted to make room: a forgotten revocation is a deleted session that works
again. What expires lies in heaps or in buckets, since a scan of everything would stop the event loop.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Final

import msgspec
from anyio.lowlevel import cancel_shielded_checkpoint

from .._errors import StoreFull
from .._refusals import refusal
from .._session.claims import Claims
from .._session.data import Namespace
from . import _base as base
from ._base import FIRST, Ended, Facts, Position, Record, SessionStatus, StoreScope, StoreUsage
from ._memory_data import Deadlines, SessionDataTable

_LOOKS: Final = 20  # at records, between which others have their turn
_MINUTE: Final = 60  # seconds between two times of dropping what has expired
_BUCKET: Final = 12  # bits of the seconds of expiry: revocations of 68 minutes are forgotten together


class _Revocations:
    """Revoked sessions, in a bucket for each span of expiry, and cutoffs by audience and principal.

    So a look-up is two hashes, and forgetting needs no scan (which stops the loop for 55 ms at a million entries).
    """

    def __init__(self, max_entries: int, full: Callable[[], StoreFull]) -> None:
        self._max_entries = max_entries
        self._full = full
        self._refs: dict[int, dict[str, None]] = {}
        self._count = 0
        self._cutoffs: dict[str, float] = {}  # by audience and principal
        self._cutoff_deadlines = Deadlines()

    def __len__(self) -> int:
        return self._count + len(self._cutoffs)

    def __contains__(self, session: tuple[str, int]) -> bool:
        ref, expires_at = session
        return ref in self._refs.get(expires_at >> _BUCKET, ())

    def cutoff_time(self, audience: str, subject: str | None) -> float:
        if not self._cutoffs:
            return 0
        return max(self._cutoffs.get(f"{one or ''} {audience}", 0) for one in (None, subject))

    def add(self, ref: str, expires_at: int) -> None:
        self._check_room()
        self._refs.setdefault(expires_at >> _BUCKET, {})[ref] = None
        self._count += 1

    def add_cutoff(self, cutoff_time: float, audience: str, subject: str | None, expires_at: float) -> None:
        place = f"{subject or ''} {audience}"
        if place not in self._cutoffs:
            self._check_room()
        self._cutoffs[place] = max(cutoff_time, self._cutoffs.get(place, 0))
        self._cutoff_deadlines.prolong(place, expires_at)

    def drop_expired(self, expired_before: float) -> None:
        for bucket in [bucket for bucket in self._refs if bucket < int(expired_before) >> _BUCKET]:
            self._count -= len(self._refs.pop(bucket))
        while (place := self._cutoff_deadlines.first_due(expired_before)) is not None:
            del self._cutoffs[place]
            self._cutoff_deadlines.remove(place)

    def _check_room(self) -> None:
        if len(self) >= self._max_entries:
            raise self._full()


class _Entry(msgspec.Struct, gc=False):
    """A recorded session as plain values, which the garbage collector passes over; once it has ended, also why."""

    ref: str
    subject: str | None
    created_at: float
    expires_at: int
    seen_at: float
    trace: str | None
    audience: str
    principal_hashes: str | None
    reason: str | None = None

    @property
    def record(self) -> Record:
        return Record(*(getattr(self, name) for name in Record.__slots__))


class MemoryStore:
    """Sessions of one process, in memory. They are lost when the process ends, so its keys should not outlive it.

    Args:
        max_entries: The maximum number of revocations at once; further ones are refused.
        max_sessions: The maximum number of recorded sessions at once; further ones are refused. A tenth is reserved for
            sessions with a principal.
        max_data_bytes: The maximum size of the data of all sessions, counting 200 bytes of overhead per value.
        leeway: Seconds to keep entries after their token expires, for clocks that disagree.
        clock: Returns Unix seconds; for tests.
    """

    scope: Final = StoreScope.PROCESS
    location: Final = "memory"

    def __init__(
        self,
        *,
        max_entries: int = 1_000_000,
        max_sessions: int = 100_000,
        max_data_bytes: int = 64 << 20,
        leeway: float = 60,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_sessions = max_sessions
        self._leeway = leeway
        self._clock = clock
        self._revoked = _Revocations(max_entries, self._full)
        self._entries: dict[str, _Entry] = {}
        self._listed: dict[tuple[str, str | None], list[Position]] = {}  # by audience; and by audience and principal
        # By audience: when a session was seen last, and when it expires or, once it has ended, its lease runs out.
        self._seen: defaultdict[str, Deadlines] = defaultdict(Deadlines)
        self._deadlines: defaultdict[str, Deadlines] = defaultdict(Deadlines)
        self._data = SessionDataTable(max_data_bytes, self._full)
        self._anonymous = 0  # records of sessions without a principal
        self._expired_before = 0.0
        self._usage_log = base.UsageLog()

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    def __len__(self) -> int:
        return len(self._revoked)

    def _facts(self, claims: Claims) -> Facts:
        entry = self._entries.get(claims.ref)
        ended = (claims.ref, claims.expires_at) in self._revoked or (entry is not None and entry.reason is not None)
        cutoff_time = self._revoked.cutoff_time(claims.audience, claims.subject)
        return Facts(ended, cutoff_time, 0, registered=False, seen_at=None if entry is None else entry.seen_at)

    def status_nowait(self, claims: Claims) -> SessionStatus:
        """Return the same as `status`, for which nothing here has to be awaited."""
        return base.status_of(claims.issued_at, self._facts(claims))

    async def status(self, claims: Claims) -> SessionStatus:
        return self.status_nowait(claims)

    async def statuses(self, claims: Sequence[Claims]) -> list[SessionStatus]:
        return [self.status_nowait(one) for one in claims]

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> SessionStatus:
        facts, now = self._facts(claims), self._clock()
        status = base.status_with_idle(claims.issued_at, facts, now=now, idle_timeout=idle_timeout)
        entry = self._entries.get(claims.ref)
        if status is base.LIVE and entry is not None and base.is_touch_due(entry.seen_at, now, idle_timeout):
            entry.seen_at = max(entry.seen_at, now)
            self._seen[entry.audience].put(entry.ref, entry.seen_at)
        return status

    async def revoke(self, record: Record, *, reason: str, lease: float | None) -> bool:
        now = self._drop_expired()
        entry = self._entries.get(record.ref)
        if (record.ref, record.expires_at) in self._revoked or (entry is not None and entry.reason is not None):
            return False
        self._revoked.add(record.ref, record.expires_at)
        if entry is not None:
            self._end(entry, reason, now + (lease or 0))
        if lease is None:
            await self.purge(record.ref)
        return True

    async def revoke_before(self, cutoff_time: float, *, audience: str, subject: str | None, expires_at: int) -> None:
        self._drop_expired()
        self._revoked.add_cutoff(cutoff_time, audience, subject, expires_at)

    async def register_at_epoch(self, claims: Claims) -> None:
        """Do nothing: what this process loses, it loses whole."""

    async def register(self, record: Record, *, max_sessions: int | None = None) -> None:
        if record.ref in self._entries or (record.ref, record.expires_at) in self._revoked:
            return
        lists = self._lists(record)
        cutoff_time = self._revoked.cutoff_time(record.audience, record.subject)
        if max_sessions is not None and len(lists[1]) - bisect_left(lists[1], (cutoff_time, "")) >= max_sessions:
            raise refusal("sessions_full")
        is_crowded = record.subject is None and self._anonymous >= self._max_sessions - self._max_sessions // 10
        if is_crowded or len(self._entries) >= self._max_sessions:
            raise self._full()
        self._entries[record.ref] = _Entry(*astuple(record))
        self._anonymous += record.subject is None
        self._seen[record.audience].put(record.ref, record.seen_at)
        self._deadlines[record.audience].put(record.ref, record.expires_at)
        for listed in lists:
            insort(listed, record.position)

    async def get(self, ref: str) -> Record | None:
        return self._get(ref)

    def _get(self, ref: str, *, with_cut_off: bool = False) -> Record | None:
        entry = self._entries.get(ref)
        if entry is None or entry.reason is not None or entry.expires_at <= self._clock():
            return None
        is_live = with_cut_off or entry.created_at >= self._revoked.cutoff_time(entry.audience, entry.subject)
        return entry.record if is_live else None

    async def list_sessions(
        self,
        *,
        audience: str,
        subject: str | None = None,
        after: Position = FIRST,
        limit: int,
        with_cut_off: bool = False,
    ) -> list[Record]:
        found: list[Record] = []
        if not with_cut_off:
            after = max(after, (self._revoked.cutoff_time(audience, subject), ""))
        while True:
            listed = self._listed.get((audience, subject), [])
            start, size = bisect_right(listed, after), min(limit - len(found), _LOOKS)
            page = listed[start : start + size]
            found += [record for _, ref in page if (record := self._get(ref, with_cut_off=with_cut_off)) is not None]
            if len(page) < size or len(found) == limit:
                return found
            after = page[-1]
            await cancel_shielded_checkpoint()

    async def count(self, *, audience: str) -> int:
        listed = self._listed.get((audience, None), [])
        return len(listed) - bisect_left(listed, (self._revoked.cutoff_time(audience, None), ""))

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        now = self._drop_expired()
        seen, deadlines = self._seen[audience], self._deadlines[audience]
        idle_since = base.idle_since(now, idle_timeout)
        claimed: dict[str, Ended] = {}
        while len(claimed) < limit and (ref := deadlines.first_due(now) or seen.first_due(idle_since)) is not None:
            entry = self._entries[ref]
            if ref in claimed:  # for no time at all
                break
            reason = entry.reason or ("expired" if entry.expires_at <= now else "idle")
            if entry.reason is None and (ref, entry.expires_at) not in self._revoked:
                self._revoked.add(ref, entry.expires_at)  # an idle one must not come back
            self._end(entry, reason, now + lease)
            claimed[ref] = Ended(entry.record, reason)
            if len(claimed) % _LOOKS == 0:  # each is a step of its own
                await cancel_shielded_checkpoint()
        return list(claimed.values())

    async def purge(self, *refs: str) -> None:
        for n, ref in enumerate(refs, 1):
            if n % _LOOKS == 0:
                await cancel_shielded_checkpoint()
            self._data.drop(ref)
            if (entry := self._entries.pop(ref, None)) is not None:
                self._anonymous -= entry.subject is None
                self._seen[entry.audience].remove(ref)
                self._deadlines[entry.audience].remove(ref)
                if entry.reason is None:
                    self._unlist(entry.record)

    def _full(self) -> StoreFull:
        if self._usage_log.is_due():
            of_each = [len(listed) for (_, of), listed in self._listed.items() if of]
            data = self._data
            self._usage_log.log(StoreUsage(len(self._entries), max(of_each, default=0), data.bytes, data.max_of_one))
        return StoreFull()

    def _end(self, entry: _Entry, reason: str, lease_until: float) -> None:
        if entry.reason is None:
            self._unlist(entry.record)
        entry.reason = reason
        self._seen[entry.audience].remove(entry.ref)
        self._deadlines[entry.audience].put(entry.ref, lease_until)

    def _lists(self, record: Record) -> list[list[Position]]:
        places = ((record.audience, None), (record.audience, record.subject or ""))
        return [self._listed.setdefault(place, []) for place in places]

    def _unlist(self, record: Record) -> None:
        for listed in self._lists(record):
            del listed[bisect_left(listed, record.position)]
        if not listed:
            del self._listed[record.audience, record.subject or ""]

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        return self._data.read(namespace.owner, key, self._clock())

    async def write(
        self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None
    ) -> None:
        now = self._check_changeable(namespace)
        kept = value if expires_at is None or now < expires_at else None
        self._data.replace(namespace, key, kept, now)
        if kept is not None:
            self._data.set_end(namespace.owner, key, expires_at)

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        now = self._check_changeable(namespace)
        if self._data.read(namespace.owner, key, now) != old:
            return False
        self._data.replace(namespace, key, new, now)
        return True

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        now = self._check_changeable(namespace)
        total = base.checked_add(self._data.read(namespace.owner, key, now), by)
        self._data.replace(namespace, key, b"%d" % total, now)
        return total

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        now = self._check_changeable(target)
        for key, value, expires_at in self._data.items(namespace.owner, now):
            self._data.replace(target, key, value, now)
            self._data.set_end(target.owner, key, expires_at)

    def _check_changeable(self, namespace: Namespace) -> float:
        now, entry = self._drop_expired(), self._entries.get(namespace.owner)
        has_ended = (namespace.owner, namespace.expires_at) in self._revoked
        has_ended = has_ended or (entry is not None and entry.reason is not None)
        base.check_changeable(namespace, now, self._leeway, has_ended=has_ended)
        return now

    def _drop_expired(self) -> float:
        """Drop what has expired, once a minute and some at a time, and return the time."""
        now = self._clock()
        expired_before = (now - self._leeway) // _MINUTE * _MINUTE
        if expired_before != self._expired_before:
            self._revoked.drop_expired(expired_before)
            # An expired session's `on_end` may still read its data.
            if self._data.drop_expired(expired_before, is_needed=self._entries.get):
                self._expired_before = expired_before
        return now

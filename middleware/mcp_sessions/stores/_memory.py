"""A store in this process's memory: for one worker, and for tests.

Everything is bounded, and nothing is ever evicted to make room: a forgotten revocation is a deleted session that works
again. What has expired is removed some at a time, since a scan of everything would stop the event loop.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from .._errors import StoreFull
from .._refusals import refusal
from .._session.claims import Claims
from .._session.data import Namespace
from .._session.functions import check_clock
from .._session.keywords import known_keywords
from . import _base as base
from ._base import FIRST, STATE_KEY, Ended, Facts, Found, Position, Record, SessionStatus, StoreScope
from ._clocks import MachineClock
from ._memory_data import SessionData, Timeline
from ._minute_log import MinuteLog

SLICE: Final = 250  # expired entries of a kind that one call removes
_PAUSE: Final = 1  # seconds until the next call that removes some
_RECHECK_AFTER: Final = 60  # seconds, if expired data is still needed


class _Audience:
    """What belongs to one audience."""

    def __init__(self, max_data_bytes: int, full: Callable[[str], StoreFull]) -> None:
        self.ended = Timeline()  # sessions that were revoked by name, and cut-offs, until they may be forgotten
        self.cutoffs: dict[str, float] = {}  # by subject, after a blank that no session's name has
        self.records: dict[str, Record] = {}
        self.reasons: dict[str, str] = {}  # why recorded sessions ended
        # When the recorded sessions began that have not ended: of all, and by principal ('' for none).
        self.created = Timeline()
        self.created_of: dict[str, Timeline] = {}
        self.seen = Timeline()  # when recorded sessions were used last
        self.due = Timeline()  # when recorded sessions expire or, once they have ended, their leases run out
        self.data = SessionData(max_data_bytes, full)

    def has_ended(self, ref: str) -> bool:
        return ref in self.ended or ref in self.reasons

    def cutoff_time(self, *subjects: str | None) -> float:
        return max(self.cutoffs.get(f" {subject or ''}", 0) for subject in (None, *subjects))

    def unlist(self, record: Record) -> None:
        subject = record.subject or ""
        self.created.discard(record.ref)
        self.created_of[subject].discard(record.ref)
        if not self.created_of[subject]:
            del self.created_of[subject]

    def end(self, record: Record, reason: str, lease_until: float) -> None:
        if record.ref not in self.reasons:
            self.unlist(record)
        self.reasons[record.ref] = reason
        self.seen.discard(record.ref)
        self.due[record.ref] = lease_until

    def purge(self, ref: str) -> None:
        self.data.drop(ref)
        record = self.records.pop(ref, None)
        if record is not None:
            self.seen.discard(ref)
            self.due.discard(ref)
            if self.reasons.pop(ref, None) is None:
                self.unlist(record)

    def sweep(self, expired_before: float) -> bool:
        """Remove some of what has expired, and return whether there may be more."""
        ended = self.ended.until(expired_before, SLICE)
        for name in ended:
            self.ended.discard(name)
            self.cutoffs.pop(name, None)
        owners = self.data.deadlines.until(expired_before, SLICE)
        for owner in owners:
            if owner in self.records:  # its `on_end` may still read the data
                self.data.deadlines[owner] = expired_before + _RECHECK_AFTER
            else:
                self.data.drop(owner)
        return SLICE in {len(ended), len(owners)}


class MemoryStore:
    """Sessions of one process, in memory. They are lost when the process ends, so its keys should not outlive it.

    If middlewares with different audiences share one, each audience has as much room as the arguments say.

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

    @known_keywords
    def __init__(
        self,
        *,
        max_entries: int = 1_000_000,
        max_sessions: int = 100_000,
        max_data_bytes: int = 64 << 20,
        leeway: float = 60,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_entries = max_entries
        self._max_sessions = max_sessions
        self._leeway = leeway
        self._clock = check_clock(clock)
        self._store_clock = MachineClock(clock, self.location)
        self._audiences: defaultdict[str, _Audience] = defaultdict(partial(_Audience, max_data_bytes, self._full))
        self._swept_at = -math.inf
        self._log = MinuteLog()

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def look_up(
        self, *claims: Claims, state: bool = False, touch: bool = False, idle_timeout: int | None = None
    ) -> list[Found]:
        found = []
        for one in claims:
            status = self._touch(one, idle_timeout) if touch else base.status_of(one.issued_at, self._facts(one))
            data = self._audiences[one.audience].data
            found.append(Found(status, data.find(one.ref, STATE_KEY, self._store_clock())[0] if state else None))
        return found

    def _facts(self, claims: Claims) -> Facts:
        held = self._audiences[claims.audience]
        record = held.records.get(claims.ref)
        seen_at = None if record is None else record.seen_at
        cutoff_time = held.cutoff_time(*claims.owners)
        return Facts(held.has_ended(claims.ref), cutoff_time, 0, registered=False, seen_at=seen_at)

    def _touch(self, claims: Claims, idle_timeout: int | None) -> SessionStatus:
        facts, now, held = self._facts(claims), self._clock(), self._audiences[claims.audience]
        status = base.status_with_idle(claims.issued_at, facts, now=now, idle_timeout=idle_timeout)
        if status is base.LIVE and base.is_touch_due(held.records[claims.ref].seen_at, now, idle_timeout):
            held.records[claims.ref] = replace(held.records[claims.ref], seen_at=now)
            held.seen[claims.ref] = now
        return status

    async def revoke(self, record: Record, *, reason: str, lease: float | None) -> bool:
        now, held = self._sweep(), self._audiences[record.audience]
        if held.has_ended(record.ref):
            return False
        self._check_room(held)
        held.ended[record.ref] = record.expires_at
        if (known := held.records.get(record.ref)) is not None:
            held.end(known, reason, now + (lease or 0))
        if lease is None:
            held.purge(record.ref)
        return True

    async def revoke_before(self, cutoff_time: float, *, audience: str, subject: str | None, expires_at: int) -> None:
        self._sweep()
        held, name = self._audiences[audience], f" {subject or ''}"
        if name not in held.cutoffs:
            self._check_room(held)
        held.cutoffs[name] = max(cutoff_time, held.cutoffs.get(name, 0))
        held.ended[name] = max(expires_at, held.ended.get(name, 0))

    async def register_at_epoch(self, claims: Claims) -> None:
        """Do nothing: what this process loses, it loses whole."""

    async def register(self, record: Record, *, max_sessions: int | None = None) -> None:
        held, subject = self._audiences[record.audience], record.subject or ""
        if record.ref in held.records or record.ref in held.ended:
            return
        alike, since = held.created_of.get(subject, Timeline()), held.cutoff_time(subject)
        if max_sessions is not None and alike.count_since(since) >= max_sessions:
            raise refusal("sessions_full")
        is_crowded = not subject and len(alike) >= self._max_sessions - self._max_sessions // 10
        if is_crowded or len(held.records) >= self._max_sessions:
            raise self._full(f"max_sessions={self._max_sessions}")
        held.records[record.ref] = record
        held.seen[record.ref] = record.seen_at
        held.due[record.ref] = record.expires_at
        held.created[record.ref] = alike[record.ref] = record.created_at
        held.created_of[subject] = alike

    async def get(self, ref: str) -> Record | None:
        found = (self._get(held, ref) for held in self._audiences.values())
        return next((record for record in found if record is not None), None)

    def _get(self, held: _Audience, ref: str, *, with_cut_off: bool = False) -> Record | None:
        record = held.records.get(ref)
        if record is None or ref in held.reasons or record.expires_at <= self._clock():
            return None
        is_live = with_cut_off or record.created_at >= held.cutoff_time(record.subject)
        return record if is_live else None

    async def list_sessions(
        self,
        *,
        audience: str,
        subject: str | None = None,
        after: Position = FIRST,
        limit: int,
        with_cut_off: bool = False,
    ) -> list[Record]:
        held = self._audiences[audience]
        if not with_cut_off:
            after = max(after, (held.cutoff_time(subject), ""))
        created = held.created if subject is None else held.created_of.get(subject, Timeline())
        found = (self._get(held, ref, with_cut_off=with_cut_off) for ref in created.after(after))
        return list(islice((record for record in found if record is not None), limit))

    async def count(self, *, audience: str) -> int:
        held = self._audiences[audience]
        return held.created.count_since(held.cutoff_time())

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        now, held = self._sweep(), self._audiences[audience]
        refs = held.due.until(now, limit)
        refs += [ref for ref in held.seen.until(base.idle_since(now, idle_timeout), limit) if ref not in refs]
        claimed = []
        for ref in refs[:limit]:
            record = held.records[ref]
            reason = held.reasons.get(ref) or ("expired" if record.expires_at <= now else "idle")
            if not held.has_ended(ref):  # an idle one must not come back
                self._check_room(held)
                held.ended[ref] = record.expires_at
            held.end(record, reason, now + lease)
            claimed.append(Ended(record, reason))
        return claimed

    async def purge(self, *refs: str) -> None:
        for held in self._audiences.values():
            for ref in refs:
                held.purge(ref)

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        return self._audiences[namespace.audience].data.find(namespace.owner, key, self._store_clock())[0]

    async def write(
        self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None
    ) -> None:
        data, now = self._changeable(namespace)
        data.put(namespace, {key: (value, math.inf if expires_at is None else expires_at)}, now)

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        data, now = self._changeable(namespace)
        value, ends = data.find(namespace.owner, key, now)
        if value == old:
            data.put(namespace, {key: (new, ends)}, now)
        return value == old

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        data, now = self._changeable(namespace)
        value, ends = data.find(namespace.owner, key, now)
        total = base.checked_add(value, by)
        data.put(namespace, {key: (b"%d" % total, ends)}, now)
        return total

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        data, now = self._changeable(target)
        values = self._audiences[namespace.audience].data.values(namespace.owner).items()
        data.put(target, {key: (value, ends) for key, (value, ends) in values if now < ends}, now)

    def _changeable(self, namespace: Namespace) -> tuple[SessionData, float]:
        """Return the data that a namespace is part of, and the time; raise `DataGone` if its session has ended."""
        now, held = self._sweep(), self._audiences[namespace.audience]
        base.check_changeable(namespace, self._clock(), self._leeway, has_ended=held.has_ended(namespace.owner))
        return held.data, now

    def _check_room(self, held: _Audience) -> None:
        if len(held.ended) >= self._max_entries:
            raise self._full(f"max_entries={self._max_entries}")

    def _full(self, limit: str) -> StoreFull:
        if self._log.is_due(limit):
            base.logger.error(
                "the session store is full: it is a MemoryStore with %s; end sessions, or use a larger store", limit
            )
        return StoreFull()

    def _sweep(self) -> float:
        """Remove some of what has expired, and return the time by which that is decided."""
        now = self._store_clock()
        if not self._swept_at <= now < self._swept_at + _PAUSE:
            are_more = [held.sweep(now - self._leeway) for held in self._audiences.values()]
            self._swept_at = -math.inf if any(are_more) else now
        return now

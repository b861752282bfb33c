"""A store in this process's memory: for one worker, and for tests.

Everything is bounded, and nothing is ever evicted to make room: a forgotten revocation is a deleted session that works
again. What expires lies in heaps, since a scan of everything would stop the event loop. Each audience has as much room.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from .._errors import StoreFull
from .._refusals import refusal
from .._session.claims import Claims
from .._session.data import Namespace
from .._session.functions import check_clock
from .._session.keywords import known_keywords
from . import _base as base
from ._base import ANONYMOUS, FIRST, VALUE_COST, Ended, Facts, Position, Record, SessionStatus, StoreScope, StoreUsage
from ._clocks import MachineClock
from ._minute_log import MinuteLog
from ._stepwise import StepwiseLookUp

_DROPPED: Final = 250  # expired entries that one call drops
_RECHECK_AFTER: Final = 60  # seconds, where expired data is still needed
_SLACK: Final = 1000  # outdated entries of a heap that are not worth a compaction


class _Deadlines(dict[str, float]):
    """Names, each with the moment at which to look at it, in Unix seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[float, str]] = []  # with outdated entries

    def __setitem__(self, name: str, moment: float) -> None:
        super().__setitem__(name, moment)
        heappush(self._heap, (moment, name))
        if len(self._heap) > 2 * len(self) + _SLACK:
            self._heap = [(moment, name) for name, moment in self.items()]
            heapify(self._heap)

    def first_due(self, now: float) -> str | None:
        """Return the name whose moment came first, or None where none has come. It stays until it is moved."""
        while self._heap and self._heap[0][0] <= now:
            moment, name = self._heap[0]
            if self.get(name) == moment:
                return name
            heappop(self._heap)
        return None

    def pop_due(self, now: float) -> Iterator[str]:
        """Remove some of the names whose moment has come."""
        for _ in range(_DROPPED):
            if (name := self.first_due(now)) is None:
                break
            del self[name]
            yield name


_Items = dict[str, tuple[bytes, float]]
"""Values by their names, each with when it is over: Unix seconds, or infinity."""


@dataclass(slots=True)
class _Values:
    subject: str | None
    items: _Items = field(default_factory=dict)
    cost: int = 0
    first_end: float = math.inf  # before which none is over


class _SessionData:
    """The data of an audience's sessions. Expired values are not read, and are dropped before anything is measured.

    A quarter of the room is kept from sessions without a principal, who have one account together.
    """

    def __init__(self, max_bytes: int, full: Callable[[], StoreFull]) -> None:
        self._full = full
        self._max_bytes = max_bytes
        self.bytes = 0
        self.of_subjects: Counter[str | None] = Counter()
        self.deadlines = _Deadlines()
        self._values: dict[str, _Values] = {}

    def items(self, owner: str) -> _Items:
        return values.items if (values := self._values.get(owner)) else {}

    def find(self, owner: str, key: str, now: float) -> tuple[bytes | None, float]:
        """Return a value and when it is over."""
        value, ends = self.items(owner).get(key, (None, math.inf))
        return (value, ends) if now < ends else (None, math.inf)

    def put(self, namespace: Namespace, new: Mapping[str, tuple[bytes | None, float]], now: float) -> None:
        """Keep values, and remove those that are None."""
        values = self._values.get(namespace.owner) or _Values(namespace.subject)
        items, changed, is_over = values.items, dict(new), values.first_end <= now
        if is_over:
            changed = {key: (None, ends) for key, (_, ends) in items.items() if ends <= now} | changed
        old = {key: items[key] for key in changed if key in items}
        kept = {key: (value, ends) for key, (value, ends) in changed.items() if value is not None and now < ends}
        more = _cost(kept) - _cost(old)
        if kept:
            number = len(items) - len(old) + len(kept)
            base.check_size(namespace, values.cost + more - number * VALUE_COST)
            self._check_room(namespace, values.subject, more)
        for key in old:
            del items[key]
        items.update(kept)
        ends_of = (items if is_over else kept).values()
        values.first_end = min([math.inf if is_over else values.first_end, *(ends for _, ends in ends_of)])
        self._account(values, more)
        if items:
            self._values[namespace.owner] = values
            self.deadlines[namespace.owner] = max(namespace.expires_at, self.deadlines.get(namespace.owner, 0))
        else:
            self.drop(namespace.owner)

    def drop(self, owner: str) -> None:
        if (values := self._values.pop(owner, None)) is not None:
            self._account(values, -values.cost)
            self.deadlines.pop(owner, None)

    def _check_room(self, namespace: Namespace, subject: str | None, more: int) -> None:
        if subject is not None:
            of_all = self.of_subjects[subject]
            base.check_principal(namespace, of_all, more)
            if subject == ANONYMOUS and of_all + more > self._max_bytes // 4 * 3:
                raise self._full()
        if self.bytes + more > self._max_bytes:
            raise self._full()

    def _account(self, values: _Values, more: int) -> None:
        values.cost += more
        self.bytes += more
        self.of_subjects[values.subject] += more
        if not self.of_subjects[values.subject]:
            del self.of_subjects[values.subject]


class MemoryStore(StepwiseLookUp):
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
        # By audience: sessions that ended by their names, and the places of cutoffs.
        self._revoked: defaultdict[str, _Deadlines] = defaultdict(_Deadlines)
        self._cutoffs: dict[str, float] = {}  # by principal and audience, with a blank that no session's name has
        self._entries: dict[str, Record] = {}
        self._reasons: dict[str, str] = {}  # why recorded sessions ended
        self._listed: dict[tuple[str, str | None], list[Position]] = {}  # by audience; and by audience and principal
        # By audience: when a session was seen last, and when it expires or, once it has ended, its lease runs out.
        self._seen: defaultdict[str, _Deadlines] = defaultdict(_Deadlines)
        self._deadlines: defaultdict[str, _Deadlines] = defaultdict(_Deadlines)
        self._data: defaultdict[str, _SessionData] = defaultdict(partial(_SessionData, max_data_bytes, self._full))
        self._recorded: Counter[tuple[str, bool]] = Counter()  # by audience, and by whether there is a principal
        self._log = MinuteLog()

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    def _has_ended(self, ref: str, audience: str) -> bool:
        return ref in self._revoked[audience] or ref in self._reasons

    def _cutoff_time(self, audience: str, *subjects: str | None) -> float:
        return max(self._cutoffs.get(f"{one or ''} {audience}", 0) for one in (None, *subjects))

    def _facts(self, claims: Claims) -> Facts:
        entry, cutoff_time = self._entries.get(claims.ref), self._cutoff_time(claims.audience, *claims.owners)
        seen_at = None if entry is None else entry.seen_at
        return Facts(self._has_ended(claims.ref, claims.audience), cutoff_time, 0, registered=False, seen_at=seen_at)

    async def statuses(self, claims: Sequence[Claims]) -> list[SessionStatus]:
        return [base.status_of(one.issued_at, self._facts(one)) for one in claims]

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> SessionStatus:
        facts, now, entry = self._facts(claims), self._clock(), self._entries.get(claims.ref)
        status = base.status_with_idle(claims.issued_at, facts, now=now, idle_timeout=idle_timeout)
        if status is base.LIVE and entry is not None and base.is_touch_due(entry.seen_at, now, idle_timeout):
            self._entries[entry.ref] = replace(entry, seen_at=now)
            self._seen[entry.audience][entry.ref] = now
        return status

    async def revoke(self, record: Record, *, reason: str, lease: float | None) -> bool:
        now, audience = self._drop_expired(), record.audience
        if self._has_ended(record.ref, audience):
            return False
        self._check_room(audience)
        self._revoked[audience][record.ref] = record.expires_at
        if (entry := self._entries.get(record.ref)) is not None:
            self._end(entry, reason, now + (lease or 0))
        if lease is None:
            await self.purge(record.ref)
        return True

    async def revoke_before(self, cutoff_time: float, *, audience: str, subject: str | None, expires_at: int) -> None:
        self._drop_expired()
        place = f"{subject or ''} {audience}"
        if place not in self._cutoffs:
            self._check_room(audience)
        self._cutoffs[place] = max(cutoff_time, self._cutoffs.get(place, 0))
        self._revoked[audience][place] = max(expires_at, self._revoked[audience].get(place, 0))

    async def register_at_epoch(self, claims: Claims) -> None:
        """Do nothing: what this process loses, it loses whole."""

    async def register(self, record: Record, *, max_sessions: int | None = None) -> None:
        audience, is_anonymous = record.audience, record.subject is None
        if record.ref in self._entries or record.ref in self._revoked[audience]:
            return
        lists = self._lists(record)
        cutoff_time = self._cutoff_time(record.audience, record.subject)
        if max_sessions is not None and len(lists[1]) - bisect_left(lists[1], (cutoff_time, "")) >= max_sessions:
            raise refusal("sessions_full")
        anonymous, own = self._recorded[audience, True], self._recorded[audience, False]
        is_crowded = is_anonymous and anonymous >= self._max_sessions - self._max_sessions // 10
        if is_crowded or anonymous + own >= self._max_sessions:
            raise self._full()
        self._entries[record.ref] = record
        self._recorded[audience, is_anonymous] += 1
        self._seen[audience][record.ref] = record.seen_at
        self._deadlines[audience][record.ref] = record.expires_at
        for listed in lists:
            insort(listed, record.position)

    async def get(self, ref: str) -> Record | None:
        return self._get(ref)

    def _get(self, ref: str, *, with_cut_off: bool = False) -> Record | None:
        entry = self._entries.get(ref)
        if entry is None or ref in self._reasons or entry.expires_at <= self._clock():
            return None
        is_live = with_cut_off or entry.created_at >= self._cutoff_time(entry.audience, entry.subject)
        return entry if is_live else None

    async def list_sessions(
        self,
        *,
        audience: str,
        subject: str | None = None,
        after: Position = FIRST,
        limit: int,
        with_cut_off: bool = False,
    ) -> list[Record]:
        listed = self._listed.get((audience, subject), [])
        if not with_cut_off:
            after = max(after, (self._cutoff_time(audience, subject), ""))
        places = (listed[n] for n in range(bisect_right(listed, after), len(listed)))
        found = (self._get(ref, with_cut_off=with_cut_off) for _, ref in places)
        return list(islice((record for record in found if record is not None), limit))

    async def count(self, *, audience: str) -> int:
        listed = self._listed.get((audience, None), [])
        return len(listed) - bisect_left(listed, (self._cutoff_time(audience, None), ""))

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        now = self._drop_expired()
        seen, deadlines = self._seen[audience], self._deadlines[audience]
        idle_since = base.idle_since(now, idle_timeout)
        claimed: dict[str, Ended] = {}
        while len(claimed) < limit and (ref := deadlines.first_due(now) or seen.first_due(idle_since)) is not None:
            if ref in claimed:  # for no time at all
                break
            entry = self._entries[ref]
            reason = self._reasons.get(ref) or ("expired" if entry.expires_at <= now else "idle")
            if not self._has_ended(ref, audience):  # an idle one must not come back
                self._check_room(audience)
                self._revoked[audience][ref] = entry.expires_at
            self._end(entry, reason, now + lease)
            claimed[ref] = Ended(entry, reason)
        return list(claimed.values())

    async def purge(self, *refs: str) -> None:
        for ref in refs:
            for data in self._data.values():
                data.drop(ref)
            if (entry := self._entries.pop(ref, None)) is not None:
                self._recorded[entry.audience, entry.subject is None] -= 1
                self._seen[entry.audience].pop(ref, None)
                self._deadlines[entry.audience].pop(ref)
                if self._reasons.pop(ref, None) is None:
                    self._unlist(entry)

    def _check_room(self, audience: str) -> None:
        if len(self._revoked[audience]) >= self._max_entries:
            raise self._full()

    def _full(self) -> StoreFull:
        if self._log.is_due("full"):
            sessions = max((len(listed) for (_, of), listed in self._listed.items() if of), default=0)
            each = [item for data in self._data.values() for item in data.of_subjects.items()]
            data = sum(amount for _, amount in each), max((amount for of, amount in each if of is not None), default=0)
            base.log_full(StoreUsage(len(self._entries), sessions, *data))
        return StoreFull()

    def _end(self, entry: Record, reason: str, lease_until: float) -> None:
        if entry.ref not in self._reasons:
            self._unlist(entry)
        self._reasons[entry.ref] = reason
        self._seen[entry.audience].pop(entry.ref, None)
        self._deadlines[entry.audience][entry.ref] = lease_until

    def _lists(self, record: Record) -> list[list[Position]]:
        return [self._listed.setdefault((record.audience, of), []) for of in (None, record.subject or "")]

    def _unlist(self, record: Record) -> None:
        for listed in self._lists(record):
            del listed[bisect_left(listed, record.position)]
        if not listed:
            del self._listed[record.audience, record.subject or ""]

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        return self._data[namespace.audience].find(namespace.owner, key, self._store_clock())[0]

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
        items = self._data[namespace.audience].items(namespace.owner).items()
        data.put(target, {key: (value, ends) for key, (value, ends) in items if now < ends}, now)

    def _changeable(self, namespace: Namespace) -> tuple[_SessionData, float]:
        """Return the data that a namespace is part of, and the time; raise `DataGone` where its session has ended."""
        now, has_ended = self._drop_expired(), self._has_ended(namespace.owner, namespace.audience)
        base.check_changeable(namespace, self._clock(), self._leeway, has_ended=has_ended)
        return self._data[namespace.audience], now

    def _drop_expired(self) -> float:
        """Drop some of what has expired, and return the time by which that is decided."""
        now = self._store_clock()
        expired_before = now - self._leeway
        for revoked in self._revoked.values():
            for name in revoked.pop_due(expired_before):
                self._cutoffs.pop(name, None)
        for data in self._data.values():
            for owner in data.deadlines.pop_due(expired_before):
                if owner in self._entries:  # its `on_end` may still read the data
                    data.deadlines[owner] = expired_before + _RECHECK_AFTER
                else:
                    data.drop(owner)
        return now


def _cost(items: _Items) -> int:
    return sum(base.entry_size(key, value) + VALUE_COST for key, (value, _) in items.items())

"""A store in this process's memory: for one worker, and for tests.

Everything is bounded, and nothing is ever evicted to make room: a forgotten revocation is a deleted session that works
again. What has an end is found without a look at everything else, since a scan of all would stop the event loop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec
from anyio.lowlevel import cancel_shielded_checkpoint

from .._errors import StoreFull
from .._refusals import refusal
from .._session.claims import Claims
from .._session.data import Namespace
from . import _base as base
from ._base import FIRST, LIVE, Ended, Filling, FullLog, Position, Reach, Record, Standing
from ._memory_data import MINUTE, DataOfAll, ExpiryIndex, SortedNames

_LOOKS: Final = 20  # at records, between which others have their turn
_SPAN: Final = 12  # so many bits of the seconds of expiry: revocations of 68 minutes are forgotten together
_DIGITS: Final = 15  # of a session's beginning in a list, in milliseconds
_SEP: Final = "\x1f"
_END: Final = "~"  # comes after all names of a list


class _Revoked:
    """Revocations of sessions one by one, together for each span of expiry, and of all issued before a moment.

    So a look-up is two hashes, and forgetting needs no scan (which stops the loop for 55 ms at a million entries).
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._refs: dict[int, dict[str, None]] = {}  # the garbage collector walks a set
        self._count = 0
        self._cut_offs: dict[str, float] = {}  # by audience and subject
        self._cut_off_ends = ExpiryIndex()  # when they may go

    def __len__(self) -> int:
        return self._count + len(self._cut_offs)

    def has(self, ref: str, expires_at: int) -> bool:
        return ref in self._refs.get(expires_at >> _SPAN, ())

    def status(self, claims: Claims) -> Standing:
        refs = self._refs.get(claims.expires_at >> _SPAN)
        if refs is not None and claims.ref in refs:
            return Standing.ENDED
        if self._cut_offs and claims.issued_at < self.moment_of(claims.subject, claims.audience):
            return Standing.ENDED
        return LIVE

    def moment_of(self, subject: str | None, audience: str) -> float:
        return max(self._cut_offs.get(f"{one or ''} {audience}", 0) for one in (None, subject))

    def add(self, ref: str, expires_at: int) -> None:
        self._check_room()
        self._refs.setdefault(expires_at >> _SPAN, {})[ref] = None
        self._count += 1

    def cut_off(self, moment: float, *, audience: str, subject: str | None, until: int) -> None:
        key = f"{subject or ''} {audience}"
        if key not in self._cut_offs:
            self._check_room()
        self._cut_offs[key] = max(moment, self._cut_offs.get(key, 0))
        self._cut_off_ends.put(key, max(until, self._cut_off_ends.moment(key)))

    def forget(self, over: float) -> None:
        for span in [span for span in self._refs if span < int(over) >> _SPAN]:
            self._count -= len(self._refs.pop(span))
        while (key := self._cut_off_ends.expired(over)) is not None:
            del self._cut_offs[key]
            self._cut_off_ends.remove(key)

    def _check_room(self) -> None:
        if len(self) >= self._max_entries:
            raise StoreFull


class _Kept(msgspec.Struct, gc=False):
    """A record as plain values, which the garbage collector passes over."""

    ref: str
    subject: str | None
    created_at: float
    expires_at: int
    seen_at: float
    trace: str | None
    audience: str
    parts: str | None
    reason: str | None = None
    lease_until: float = 0.0

    @classmethod
    def of(cls, one: Record) -> _Kept:
        times = (one.created_at, one.expires_at, one.seen_at)
        return cls(one.ref, one.subject, *times, one.trace, one.audience, one.parts)

    def current(self) -> Record:
        times = (self.created_at, self.expires_at, int(self.seen_at))
        return Record(self.ref, self.subject, *times, self.trace, self.audience, self.parts)

    def look(self, now: float, idle_timeout: int | None) -> tuple[str | None, float]:
        """Return why its `on_end` may be claimed now, or None, and when to look next."""
        if self.reason is not None:
            return (self.reason if self.lease_until <= now else None), self.lease_until
        ends, idles = self.expires_at, base.idle_at(self.seen_at, idle_timeout)
        return "expired" if ends <= now else "idle" if idles <= now else None, min(ends, idles)


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

    reach: Final = Reach.PROCESS
    where: Final = "memory"

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
        self._revoked = _Revoked(max_entries)
        self._records: dict[str, _Kept] = {}
        self._listed = SortedNames()  # what has not ended, by audience, principal and beginning
        self._looks: dict[str, ExpiryIndex] = {}  # by audience: when to look at its records
        self._idle_timeout: int | None = 0  # as long as it is not known, a record is looked at soon
        self._data = DataOfAll(max_data_bytes)
        self._anonymous = 0  # records of sessions without a principal
        self._tidied = 0.0
        self._full_log = FullLog()

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    def __len__(self) -> int:
        return len(self._revoked)

    async def status(self, claims: Claims) -> Standing:
        return self.status_now(claims)

    @property
    def status_now(self) -> Callable[[Claims], Standing]:
        """What returns the same as `status`, for which nothing here has to be awaited."""
        return self._revoked.status

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        return [await self.status(one) for one in claims]

    async def admit(self, claims: Claims) -> None:
        """Nothing is to be noted: what this process loses, it loses whole."""

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:  # noqa: ARG002  # a record knows it
        now = self._tidy()
        if self._is_ended(ref, expires_at):
            return False
        self._revoked.add(ref, expires_at)
        if (kept := self._records.get(ref)) is not None:
            self._lease(kept, reason, until=now + lease)
        return True

    async def revoke_before(self, moment: float, *, audience: str, subject: str | None, until: int) -> None:
        self._tidy()
        self._revoked.cut_off(moment, audience=audience, subject=subject, until=until)

    async def register(self, record: Record, *, of_subject: int | None = None) -> None:
        if record.ref in self._records or self._revoked.has(record.ref, record.expires_at):
            return
        since = self._revoked.moment_of(record.subject, record.audience)
        listing = _listing(record)
        if of_subject is not None and self._listed.count(_name(listing, (since, "")), listing + _END) >= of_subject:
            raise refusal("sessions_full")
        most_anonymous = self._max_sessions - self._max_sessions // 10
        is_crowded = record.subject is None and self._anonymous >= most_anonymous
        if is_crowded or len(self._records) >= self._max_sessions:
            await self._report_full()
            raise StoreFull
        self._records[record.ref] = _Kept.of(record)
        self._anonymous += record.subject is None
        look = min(record.expires_at, base.idle_at(record.seen_at, self._idle_timeout))
        self._looks.setdefault(record.audience, ExpiryIndex()).put(record.ref, look)
        self._listed.add(_name(listing, record.position))

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        kept, now = self._records.get(claims.ref), self._clock()
        if self._revoked.status(claims) is not LIVE or (kept is not None and kept.reason is not None):
            return Standing.ENDED
        standing = base.standing_in_use(LIVE, None if kept is None else kept.seen_at, now, idle_timeout)
        if kept is not None and standing is LIVE and base.is_touch_due(kept.seen_at, now, idle_timeout):
            kept.seen_at = max(kept.seen_at, now)
        return standing

    async def sessions(
        self, subject: str, *, audience: str, after: Position = FIRST, limit: int | None = None, cut_off: bool = False
    ) -> list[Record]:
        alive_after = (0 if cut_off else self._revoked.moment_of(subject, audience), "")
        listing = f"{audience}{_SEP}{subject}{_SEP}"
        first = _name(listing, max(after, alive_after))
        return await self._page(first, listing + _END, limit, cut_off)

    async def _report_full(self) -> None:
        if self._full_log.is_due(self._clock()):
            of_each = Counter[str]()
            for block in self._listed:
                of_each.update(listing for name in block if (listing := name.rpartition(_SEP)[0])[-1] != _SEP)
                await cancel_shielded_checkpoint()
            most = max(of_each.values(), default=0)
            self._full_log.log(Filling(len(self._records), most, self._data.bytes, self._data.most))

    async def roster(self, *, audience: str, cursor: str = "", limit: int) -> tuple[list[Record], str]:
        listing = f"{audience}{_SEP}"
        found = await self._page(cursor or listing, listing + _END, limit)
        if len(found) < limit:
            return found, ""
        return found, _name(_listing(found[-1]), found[-1].position)

    async def count(self, *, audience: str) -> int | None:
        if self._revoked.moment_of(None, audience):  # those on the list that it ended are not counted apart
            return None
        return self._listed.count(f"{audience}{_SEP}", f"{audience}{_SEP}{_END}")

    async def find(self, ref: str) -> Record | None:
        return self._found(ref)

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        now, looks = self._tidy(), self._looks.get(audience, ExpiryIndex())
        self._idle_timeout = idle_timeout
        taken: dict[str, Ended] = {}
        looked = 0
        while len(taken) < limit and (ref := looks.expired(now)) is not None and ref not in taken:
            looked += 1
            if looked % _LOOKS == 0:  # each look is a step of its own
                await cancel_shielded_checkpoint()
                continue
            kept = self._records[ref]
            reason, next_look = kept.look(now, idle_timeout)
            if reason is None:
                looks.put(ref, next_look)
                continue
            if kept.reason is None and not self._revoked.has(ref, kept.expires_at):
                self._revoked.add(ref, kept.expires_at)  # an idle one must not come back
            self._lease(kept, reason, until=now + lease)
            taken[ref] = Ended(kept.current(), reason)
        return list(taken.values())

    async def purge(self, *refs: str) -> None:
        for n, ref in enumerate(refs, 1):
            if n % _LOOKS == 0:
                await cancel_shielded_checkpoint()
            self._data.drop(ref)
            if (kept := self._records.pop(ref, None)) is not None:
                self._anonymous -= kept.subject is None
                self._looks[kept.audience].remove(ref)
                if kept.reason is None:
                    self._unlist(kept)

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:  # noqa: ARG002  # there is one worker
        return True

    def _found(self, ref: str, cut_off: bool = False) -> Record | None:
        kept = self._records.get(ref)
        if kept is None or kept.reason is not None or kept.expires_at <= self._clock():
            return None
        is_over = not cut_off and kept.created_at < self._revoked.moment_of(kept.subject, kept.audience)
        return None if is_over else kept.current()

    async def _page(self, name: str, end: str, limit: int | None, cut_off: bool = False) -> list[Record]:
        """Return the first records that live from after a name to before an end."""
        found: list[Record] = []
        while True:
            at_once = _LOOKS if limit is None else min(limit - len(found), _LOOKS)
            page = list(islice(self._listed.after(name, end), at_once))
            refs = [name.rpartition(_SEP)[2][_DIGITS:] for name in page]
            found += [record for ref in refs if (record := self._found(ref, cut_off)) is not None]
            if len(page) < at_once or len(found) == limit:
                return found
            await cancel_shielded_checkpoint()
            name = page[-1]

    def _unlist(self, kept: _Kept) -> None:
        self._listed.remove(_name(_listing(kept), (kept.created_at, kept.ref)))

    def _lease(self, kept: _Kept, reason: str, *, until: float) -> None:
        if kept.reason is None:
            self._unlist(kept)
        kept.reason, kept.lease_until = reason, until
        self._looks[kept.audience].put(kept.ref, until)

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
        total = base.added(self._data.read(namespace.owner, key, now), by)
        self._data.replace(namespace, key, b"%d" % total, now)
        return total

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        now = self._check_changeable(target)
        for key, value, expires_at in self._data.items(namespace.owner, now):
            self._data.replace(target, key, value, now)
            self._data.set_end(target.owner, key, expires_at)

    def _check_changeable(self, namespace: Namespace) -> float:
        now = self._tidy()
        has_ended = self._is_ended(namespace.owner, namespace.until)
        base.check_changeable(namespace, now, self._leeway, has_ended=has_ended)
        return now

    def _is_ended(self, ref: str, expires_at: int) -> bool:
        kept = self._records.get(ref)
        return self._revoked.has(ref, expires_at) or (kept is not None and kept.reason is not None)

    def _tidy(self) -> float:
        """Forget what is over, once a minute and some at a time, and return the time."""
        now = self._clock()
        over = (now - self._leeway) // MINUTE * MINUTE
        if over != self._tidied:
            self._revoked.forget(over)
            if self._data.forget(over, keep=self._records.get):  # an expired session's `on_end` may read it yet
                self._tidied = over
        return now


def _listing(one: Record | _Kept) -> str:
    return f"{one.audience}{_SEP}{one.subject or ''}{_SEP}"


def _name(listing: str, position: Position) -> str:
    """Return a session's name in a list, which is sorted as text."""
    created_at, ref = position
    return f"{listing}{round(created_at * 1000):0{_DIGITS}}{ref}"

"""Names by the moment at which they come due, for stores in memory.

What has an end is found page by page, without a look at everything else that is kept.

Session data in this process's memory, with an end for each value and a limit for them all.

Whether a session may still change its data is not judged here. What is over counts for nothing: it is
not read, and it is dropped before anything is measured.

What has ended, in this process's memory: sessions one by one, and all that were issued before a moment.

Revocations lie in one set per span of expiry, so that a look-up is two hashes and forgetting is dropping a whole set
(a scan of a dict of a million entries would stop the loop for 55 ms). Nothing is evicted to make room: a forgotten
revocation is a deleted session that works again.

A store in this process's memory: for one worker, and for tests.

What has ended is kept by `memory_endings`, data by `memory_data`, and records are kept here. What has an end lies in a
`Calendar`, since a scan of all would stop the loop. Everything is bounded, and nothing is ever evicted to make room.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from .._session.claims import Claims
from .._session.data import Namespace
from ..errors import DataGone, StoreFull
from .base import LIVE, Ended, Reach, Record, Standing, added, check_size, idle_at, is_due_again, size_of

_PAGE: Final = 60  # seconds that share one page


class Calendar:
    """Names, each entered for one moment."""

    __slots__ = ("_pages",)

    def __init__(self) -> None:
        self._pages: dict[int, set[str]] = {}

    def put(self, name: str, moment: float) -> None:
        """Enter a name, which must not stand at another moment."""
        self._pages.setdefault(int(moment // _PAGE), set()).add(name)

    def strike(self, name: str, moment: float) -> None:
        """Remove a name from the moment for which it was entered."""
        page = int(moment // _PAGE)
        names = self._pages[page]
        names.remove(name)
        if not names:
            del self._pages[page]

    def due(self, now: float) -> Iterator[str]:
        """The names on pages that have begun: all that are due, and some that will be within the minute.

        Names may be entered and struck in between; what is entered meanwhile may or may not come.
        """
        for page in sorted(page for page in self._pages if page <= now // _PAGE):
            yield from tuple(self._pages.get(page, ()))


VALUE_COST: Final = 200  # bytes that keeping a value takes besides its name and itself


class _Values(msgspec.Struct):
    """One session's data."""

    until: int
    items: dict[str, bytes] = msgspec.field(default_factory=dict)
    ends: dict[str, float] = msgspec.field(default_factory=dict)  # of those values that end before the session
    size: int = 0


class MemoryData:
    """The data of all sessions.

    Args:
        max_bytes: Bytes that it may take, with `VALUE_COST` for the keeping of each value.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._data: dict[str, _Values] = {}
        self._ends = Calendar()

    def __len__(self) -> int:
        """How many sessions have data."""
        return len(self._data)

    def read(self, owner: str, key: str, now: float) -> bytes | None:
        """A value, or None where there is none or its time is over."""
        values = self._data.get(owner)
        if values is None or key not in values.items:
            return None
        return values.items[key] if key not in values.ends or now < values.ends[key] else None

    def items(self, owner: str, now: float) -> list[tuple[str, bytes, float | None]]:
        """Every value that is there, by its name, with its end."""
        values = self._data.get(owner, _Values(0))
        there = ((key, value, values.ends.get(key)) for key, value in values.items.items())
        return [(key, value, end) for key, value, end in there if end is None or now < end]

    def replace(self, shelf: Namespace, key: str, value: bytes | None, now: float) -> None:
        """Keep another value, or none, and the time that the old one had.

        Raises:
            DataTooLarge: The session's data would exceed its limit.
            StoreFull: The data of all sessions would exceed the limit.
        """
        values = self._without_what_is_over(shelf, now)
        old = values.items.get(key)
        kept = -size_of(key, old) if old is not None else 0
        if value is None:
            values.ends.pop(key, None)
            values.items.pop(key, None)
            self._resize(values, kept, count=-int(old is not None))
        else:
            more = kept + size_of(key, value)
            count = int(old is None)
            check_size(shelf, values.size + more)
            if self._bytes + more + count * VALUE_COST > self._max_bytes:
                raise StoreFull
            values.items[key] = value
            self._resize(values, more, count=count)
        self._shelve(shelf.owner, values)

    def end(self, owner: str, key: str, expires_at: float | None) -> None:
        """Say when a value's time is over; None for as long as the session."""
        ends = self._data[owner].ends
        if expires_at is None:
            ends.pop(key, None)
        else:
            ends[key] = expires_at

    def drop(self, owner: str) -> None:
        """Forget a session's data."""
        values = self._data.pop(owner, None)
        if values is not None:
            self._bytes -= values.size + len(values.items) * VALUE_COST
            self._ends.strike(owner, values.until)

    def drop_over(self, moment: float, *, keep: Callable[[str], object]) -> None:
        """Forget the data of sessions that ended by themselves before a moment, but those that are to be kept."""
        for owner in self._ends.due(moment):
            if self._data[owner].until <= moment and not keep(owner):
                self.drop(owner)

    def _without_what_is_over(self, shelf: Namespace, now: float) -> _Values:
        values = self._data.get(shelf.owner) or _Values(shelf.until)
        for key in [key for key, end in values.ends.items() if not now < end]:
            del values.ends[key]
            self._resize(values, -size_of(key, values.items.pop(key)), count=-1)
        return values

    def _resize(self, values: _Values, more: int, *, count: int) -> None:
        values.size += more
        self._bytes += more + count * VALUE_COST

    def _shelve(self, owner: str, values: _Values) -> None:
        if not values.items:
            self.drop(owner)
        elif owner not in self._data:
            self._data[owner] = values
            self._ends.put(owner, values.until)


_SPAN: Final = 3600  # seconds of expiry that share one set of revocations


class MemoryEndings:
    """Revocations and cut-offs.

    Args:
        max_entries: How many of them may be alive at once; the next one is refused.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._revoked: dict[int, set[str]] = {}
        self._revocations = 0
        self._cut_offs: dict[str, tuple[int, int]] = {}  # by `_whose`: the moment, and when it may go
        self._cut_off_ends = Calendar()

    def __len__(self) -> int:
        """How many are kept."""
        return self._revocations + len(self._cut_offs)

    def cover(self, claims: Claims) -> bool:
        """Whether a session is among what has ended."""
        if claims.ref in self._revoked.get(claims.expires_at // _SPAN, ()):
            return True
        return bool(self._cut_offs) and self.is_cut_off(claims, claims.issued_at)

    def has(self, ref: str, expires_at: int) -> bool:
        """Whether a session was revoked by itself."""
        return ref in self._revoked.get(expires_at // _SPAN, ())

    def is_cut_off(self, one: Claims | Record, issued_at: int) -> bool:
        """Whether a session was issued before a moment that ended it, of its principal's or of everybody's."""
        cut_offs = [self._cut_offs.get(_whose(one.audience, subject)) for subject in (None, one.subject)]
        return any(cut_off is not None and issued_at < cut_off[0] for cut_off in cut_offs)

    def add(self, ref: str, expires_at: int) -> None:
        """Keep a revocation, which must not be there.

        Raises:
            StoreFull: There is no room for it.
        """
        self._check_room()
        self._revoked.setdefault(expires_at // _SPAN, set()).add(ref)
        self._revocations += 1

    def cut(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        """Keep a cut-off; of several for one subject the latest moment counts, for the longest time.

        Raises:
            StoreFull: There is no room for it.
        """
        whose = _whose(audience, subject)
        before = self._cut_offs.get(whose)
        if before is None:
            self._check_room()
        else:
            moment, until = max(before[0], moment), max(before[1], until)
            self._cut_off_ends.strike(whose, before[1])
        self._cut_offs[whose] = (moment, until)
        self._cut_off_ends.put(whose, until)

    def forget(self, over: float) -> None:
        """Drop what concerns only sessions that have expired by a moment: revocations a whole span at a time."""
        for span in [span for span in self._revoked if span < over // _SPAN]:
            self._revocations -= len(self._revoked.pop(span))
        for whose in self._cut_off_ends.due(over):
            until = self._cut_offs[whose][1]
            if until <= over:
                del self._cut_offs[whose]
                self._cut_off_ends.strike(whose, until)

    def _check_room(self) -> None:
        if len(self) >= self._max_entries:
            raise StoreFull


def _whose(audience: str, subject: str | None) -> str:
    """Whose sessions a cut-off ends: a principal's or, where the keyed hash is left out, everybody's."""
    return f"{subject or ''} {audience}"


_MINUTE: Final = 60  # seconds between two times of forgetting
_List = tuple[str, ...]  # what is listed, and of whom


class _Kept(msgspec.Struct):
    """A record, and what becomes of it."""

    record: Record
    seen: float
    due: float  # when to look at it again: its place in the calendar
    reason: str | None = None
    lease_until: float = 0.0

    def ending(self, now: float, idle_timeout: int | None) -> str | None:
        """Why its `on_end` is somebody's to run now, or None where it is nobody's."""
        if self.reason is not None:
            return self.reason if self.lease_until <= now else None
        if self.record.expires_at <= now:
            return "expired"
        return "idle" if idle_at(self.seen, idle_timeout) <= now else None

    def next_due(self, idle_timeout: int | None) -> float:
        """The first moment at which `ending` could tell a reason."""
        if self.reason is not None:
            return self.lease_until
        return min(self.record.expires_at, idle_at(self.seen, idle_timeout))


class MemoryStore:
    """Sessions of one process. It forgets all when the process ends, so the keys should end with it too.

    Args:
        max_entries: How many revocations and cut-offs may be alive at once; the next one is refused.
        max_sessions: How many sessions may be recorded at once; the next one is refused.
        max_data_bytes: Bytes that the data of all sessions may take, with 200 for the keeping of each value.
        leeway: Seconds for which what is kept outlives its token, for clocks that disagree.
        clock: Unix seconds; a test passes its own.
    """

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
        self._endings = MemoryEndings(max_entries)
        self._records: dict[str, _Kept] = {}
        self._refs: dict[_List, dict[str, None]] = {}
        self._due: dict[str, Calendar] = {}  # by audience
        self._data = MemoryData(max_data_bytes)
        self._tidied = 0.0

    @property
    def reach(self) -> Reach:
        """Nobody else sees what is stored here."""
        return Reach.PROCESS

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """Nothing is held open."""

    # --- standing and revocation -------------------------------------------------------------

    async def status(self, claims: Claims) -> Standing:
        """Whether the session was ended in this process."""
        return Standing.ENDED if self._endings.cover(claims) else LIVE

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        """As `standing`, for many."""
        return [await self.status(one) for one in claims]

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:  # noqa: ARG002  # a record knows it
        """Remember a revocation until its token has expired.

        Raises:
            StoreFull: `max_entries` revocations and cut-offs are alive.
        """
        now = self._tidy()
        kept = self._records.get(ref)
        if self._endings.has(ref, expires_at) or (kept is not None and kept.reason is not None):
            return False
        self._endings.add(ref, expires_at)
        if kept is not None:
            self._lease(kept, reason, until=now + lease)
        return True

    async def revoke_before(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        """Remember a cut-off until the last session that it concerns has expired.

        Raises:
            StoreFull: `max_entries` revocations and cut-offs are alive.
        """
        self._tidy()
        self._endings.cut(moment, audience=audience, subject=subject, until=until)

    def __len__(self) -> int:
        """How many revocations and cut-offs are kept."""
        return len(self._endings)

    # --- records -----------------------------------------------------------------------------

    async def register(self, record: Record) -> None:
        """Note a session; one that is known already, or was revoked, stays as it is.

        Raises:
            StoreFull: `max_sessions` sessions are recorded.
        """
        if record.ref in self._records or self._endings.has(record.ref, record.expires_at):
            return
        if len(self._records) >= self._max_sessions:
            raise StoreFull
        self._records[record.ref] = _Kept(record, seen=record.seen_at, due=record.seen_at)
        self._due.setdefault(record.audience, Calendar()).put(record.ref, record.seen_at)
        for of in _lists(record):
            self._refs.setdefault(of, {})[record.ref] = None

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        """Whether the session lives, and if so, that it was used now."""
        kept, standing = self._records.get(claims.ref), await self.status(claims)
        if standing is not LIVE:
            return standing
        if kept is None:
            return Standing.LOST
        if kept.reason is not None:
            return Standing.ENDED
        now = self._clock()
        if now < idle_at(kept.seen, idle_timeout):
            if is_due_again(kept.seen, now, idle_timeout):
                kept.seen = max(kept.seen, now)
            return LIVE
        return Standing.IDLE

    async def sessions(self, subject: str, *, audience: str) -> list[Record]:
        """The records of a principal's sessions that have not ended, oldest first."""
        return self._live_records(("subject", audience, subject))

    async def forks(self, root: str) -> list[Record]:
        """The records of a lineage's forks that have not ended, oldest first."""
        return self._live_records(("root", root))

    async def find(self, ref: str) -> Record | None:
        """The record of a session that has not ended."""
        return self._live_record(ref)

    def _live_records(self, of: _List) -> list[Record]:
        found = [self._live_record(ref) for ref in self._refs.get(of, ())]
        return sorted((record for record in found if record is not None), key=lambda record: record.created_at)

    def _live_record(self, ref: str) -> Record | None:
        kept = self._records.get(ref)
        if kept is None or kept.reason is not None or kept.record.expires_at <= self._clock():
            return None
        if self._endings.is_cut_off(kept.record, kept.record.created_at):
            return None
        return replace(kept.record, seen_at=int(kept.seen))

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        """Records of sessions that ended and whose `on_end` is the caller's to run.

        A session is looked at again when it could have ended by the `idle_timeout` of the last look, so
        that timeout must stay the same for as long as the process lives.

        Raises:
            StoreFull: `max_entries` revocations and cut-offs are alive, so no more can be ended.
        """
        now = self._tidy()
        taken: list[Ended] = []
        for ref in self._due[audience].due(now) if audience in self._due else ():
            if len(taken) >= limit:
                break
            kept = self._records[ref]
            reason = kept.ending(now, idle_timeout)
            if reason is None:
                self._look_again(kept, kept.next_due(idle_timeout))
            else:
                self._take(kept, reason, until=now + lease)
                taken.append(Ended(replace(kept.record, seen_at=int(kept.seen)), reason))
        return taken

    def _take(self, kept: _Kept, reason: str, *, until: float) -> None:
        """Lease a session, and end it where it had not been ended: an idle one must not come back."""
        record = kept.record
        if kept.reason is None and not self._endings.has(record.ref, record.expires_at):
            self._endings.add(record.ref, record.expires_at)
        self._lease(kept, reason, until=until)

    def _lease(self, kept: _Kept, reason: str, *, until: float) -> None:
        kept.reason, kept.lease_until = reason, until
        self._look_again(kept, until)

    def _look_again(self, kept: _Kept, due: float) -> None:
        calendar = self._due[kept.record.audience]
        calendar.strike(kept.record.ref, kept.due)
        kept.due = due
        calendar.put(kept.record.ref, due)

    async def purge(self, ref: str) -> None:
        """Forget a record and the session's data."""
        self._data.drop(ref)
        kept = self._records.pop(ref, None)
        if kept is None:
            return
        self._due[kept.record.audience].strike(ref, kept.due)
        for of in _lists(kept.record):
            del self._refs[of][ref]
            if not self._refs[of]:
                del self._refs[of]

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:  # noqa: ARG002  # there is no other worker
        """Always: there is one worker."""
        return True

    # --- data --------------------------------------------------------------------------------

    async def read(self, shelf: Namespace, key: str) -> bytes | None:
        """A value's JSON, or None."""
        return self._data.read(shelf.owner, key, self._clock())

    async def write(self, shelf: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None) -> None:
        """Keep a value, or None to keep none.

        Raises:
            DataGone: The session has ended.
            DataTooLarge: The session's data would exceed its limit.
            StoreFull: The data of all sessions would exceed `max_data_bytes`.
        """
        now = self._changing(shelf)
        kept = value if expires_at is None or now < expires_at else None
        self._data.replace(shelf, key, kept, now)
        if kept is not None:
            self._data.end(shelf.owner, key, expires_at)

    async def compare_and_swap(self, shelf: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace a value if it is still the old one.

        Raises:
            DataGone: The session has ended.
            DataTooLarge: The session's data would exceed its limit.
            StoreFull: The data of all sessions would exceed `max_data_bytes`.
        """
        now = self._changing(shelf)
        if self._data.read(shelf.owner, key, now) != old:
            return False
        self._data.replace(shelf, key, new, now)
        return True

    async def add(self, shelf: Namespace, key: str, by: int) -> int:
        """Add to a value.

        Raises:
            DataGone: The session has ended.
            DataNotInteger: The value or the sum is no integer of 64 bits.
            DataTooLarge: The session's data would exceed its limit.
            StoreFull: The data of all sessions would exceed `max_data_bytes`.
        """
        now = self._changing(shelf)
        total = added(self._data.read(shelf.owner, key, now), by)
        self._data.replace(shelf, key, b"%d" % total, now)
        return total

    async def copy(self, shelf: Namespace, target: Namespace) -> None:
        """Put what lies on a shelf onto a new one.

        Raises:
            DataGone: The session that the new one is for has ended.
            DataTooLarge: The new shelf has less room than its data takes.
            StoreFull: The data of all sessions would exceed `max_data_bytes`.
        """
        now = self._changing(target)
        for key, value, expires_at in self._data.items(shelf.owner, now):
            self._data.replace(target, key, value, now)
            self._data.end(target.owner, key, expires_at)

    def _changing(self, shelf: Namespace) -> float:
        """The time, or a refusal: the session has ended."""
        now = self._tidy()
        kept = self._records.get(shelf.owner)
        ended = self._endings.has(shelf.owner, shelf.until) or (kept is not None and kept.reason is not None)
        if ended or shelf.until + self._leeway <= now:
            raise DataGone("the session has ended; its data can no longer be changed")
        return now

    # --- forgetting --------------------------------------------------------------------------

    def _tidy(self) -> float:
        """Forget what is over, once a minute at most; the time."""
        now = self._clock()
        over = (now - self._leeway) // _MINUTE * _MINUTE
        if over != self._tidied:
            self._tidied = over
            self._forget(over)
        return now

    def _forget(self, over: float) -> None:
        self._endings.forget(over)
        self._data.drop_over(over, keep=self._records.get)  # an expired session's `on_end` may read it yet


def _lists(record: Record) -> list[_List]:
    """Where a session is listed."""
    lists = (("subject", record.audience, record.subject), ("root", record.root))
    return [(*by, of) for *by, of in lists if of is not None]

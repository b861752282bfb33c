"""Recorded sessions in Redis: each in a hash of its own, listed by principal and by deadline.

The lists lie in other slots than the records and are hints: an entry is written before its record and goes
after it, and whoever reads one looks at the record. A deadline is when to look next; where the session turns
out to live, the look is put off, so using a session never writes to the list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ..errors import StoreUnavailable
from ..tokens import Claims
from .base import Ended, Record, Standing, grain
from .redis_base import KEPT, RedisBase
from .redis_scripts import CLAIM, DUE, FIELDS, FINISH, LEAD, LIST, PUT_OFF, RECORD, SEEN, Step, Word

_PAGES: Final = 4  # of the list of deadlines that one `take_ended` looks at
_SEEN: Final = {b"live": Standing.LIVE, b"ended": Standing.ENDED, b"idle": Standing.IDLE, b"lost": Standing.LOST}


class RedisRecords(RedisBase):
    """The part of a store that knows which sessions there are."""

    # Seconds without use after which a new session is first looked at: at once, until somebody says what idle means.
    _first_look: float = 0.0

    async def record(self, record: Record) -> None:
        """Note a session at its creation: first its deadline and its principal's list, then itself."""
        now = await self._ready()
        ttl = self._ttl(record.expires_at, now, recorded=True)
        look = min(record.expires_at, record.seen_at + self._first_look)
        hints = [Step(("ZADD", self._keys.due(record.audience), "NX", repr(look), record.ref))]
        args: tuple[Word, ...] = (repr(now - KEPT), ttl, record.expires_at, record.ref)
        hints += [LIST(key, args=args) for key in self._lists(record.audience, record.subject, record.root)]
        await self._link.run(*hints, again=True)
        said = (record.subject or "", record.root or "", record.trace or "")
        args = (ttl, record.created_at, record.expires_at, record.seen_at, record.audience, *said)
        await self._link.run(RECORD(*self._keys.fate(record.ref), args=args), again=True)

    async def seen(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        """As `standing`, and LOST without a record, IDLE where it was unused for too long; one round trip."""
        now = await self._ready()
        step = SEEN(*self._keys.fate(claims.ref), args=(repr(now), *self._idle(idle_timeout)))
        values, (seen,) = await self._read(self._cuts(claims), step)
        standing = _SEEN[seen]
        if standing is Standing.ENDED:
            return standing
        vouched = self._vouched(claims, claims.issued_at, values)
        return standing if vouched is Standing.LIVE else vouched

    async def sessions(self, subject: str, *, audience: str) -> list[Record]:
        """The recorded sessions of a principal that have neither ended nor expired, oldest first."""
        return await self._listed(self._keys.sessions(audience, subject))

    async def forks(self, root: str) -> list[Record]:
        """The recorded forks of a lineage that have neither ended nor expired, oldest first."""
        return await self._listed(self._keys.forks(root))

    async def find(self, ref: str) -> Record | None:
        """The record of a session that has neither ended nor expired, or None."""
        await self._ready()
        return next(iter(await self._living([ref])), None)

    async def take_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        """Recorded sessions that ended and whose `on_end` nobody is running: each goes to one taker."""
        taken: list[Ended] = []
        due, left = self._keys.due(audience), 0
        try:
            for _ in range(_PAGES):
                now = await self._ready()
                looked = await self._look(
                    due, now=now, idle_timeout=idle_timeout, lease=lease, skip=left, count=limit - len(taken)
                )
                taken += [_ended(ref, claim) for ref, _, claim in looked if claim[0] == b"taken"]
                left += await self._put_off(due, looked, now)
                if not looked or len(taken) == limit:
                    break
        except StoreUnavailable:
            if not taken:  # what was taken must reach who runs its `on_end`
                raise
        return taken

    async def finish(self, ref: str) -> None:
        """Forget an ended session's record and its data: its `on_end` has run. The revocation stays."""
        await self._ready()
        (of,) = await self._link.run(FINISH(*self._keys.shelf(ref)), again=True)
        audience, subject, root = (word.decode() for word in of)
        lists = [self._keys.due(audience), *self._lists(audience, subject, root)]
        await self._link.run(*(Step(("ZREM", key, ref)) for key in lists), again=True)

    async def lead(self, worker: str, *, audience: str, seconds: float) -> bool:
        """Whether this worker is the one that sweeps, for so many seconds from now on."""
        now = await self._ready()
        args = (worker, repr(now + seconds), repr(now), max(1, math.ceil(seconds * 1000)))
        (leads,) = await self._link.run(LEAD(self._keys.sweeper(audience), args=args), again=True, at_leisure=True)
        return bool(leads)

    def _idle(self, idle_timeout: int | None) -> tuple[Word, Word]:
        """What scripts are told of idleness: after how many seconds, and by how many `seen_at` may lag."""
        lag = grain(idle_timeout)
        self._first_look = math.inf if idle_timeout is None else idle_timeout + lag
        return "" if idle_timeout is None else idle_timeout, lag

    def _lists(self, audience: str, subject: str | None, root: str | None) -> list[str]:
        """Where a session is listed."""
        lists = [self._keys.sessions(audience, subject)] if subject else []
        return [*lists, self._keys.forks(root)] if root else lists

    async def _listed(self, key: str) -> list[Record]:
        """The sessions on a list that have not ended, oldest first."""
        await self._ready()
        (refs,) = await self._link.run(Step(("ZRANGE", key, 0, -1)), again=True)
        living = await self._living([ref.decode() for ref in refs])
        return sorted(living, key=lambda record: (record.created_at, record.ref))

    async def _fetch(self, refs: Sequence[str]) -> list[tuple[Record, bool]]:
        """The records that there are of some sessions, and whether each has ended."""
        found = await self._link.run(*(Step(("HMGET", self._keys.session(ref), *FIELDS)) for ref in refs), again=True)
        return [
            (_record(ref, *kept), ended is not None)
            for ref, (*kept, ended) in zip(refs, found, strict=True)
            if kept[0] is not None
        ]

    async def _living(self, refs: Sequence[str]) -> list[Record]:
        """The records that there are of sessions that have not ended."""
        fetched = await self._fetch(refs)
        values, _ = await self._read([cut for record, _ in fetched for cut in self._cuts(record)])
        now = self._clock()
        return [
            record
            for record, has_ended in fetched
            if not has_ended
            and now < record.expires_at
            and self._vouched(record, record.created_at, values) is Standing.LIVE
        ]

    async def _look(
        self, due: str, *, now: float, idle_timeout: int | None, lease: float, skip: int, count: int
    ) -> list[tuple[bytes, bytes, list[bytes]]]:
        """Look at sessions whose deadline is over: their refs, the deadlines, and what became of a claim to each."""
        (flat,) = await self._link.run(DUE(due, args=(repr(now), skip, count)), again=True, at_leisure=True)
        refs, scores = flat[::2], flat[1::2]
        args = (repr(now), *self._idle(idle_timeout), repr(float(lease)), repr(float(self._leeway)))
        steps = [CLAIM(*self._keys.fate(ref.decode()), args=args) for ref in refs]
        # Not again: a claim that was made would look like another's.
        claims = await self._link.run(*steps, again=False, at_leisure=True)
        return list(zip(refs, scores, claims, strict=True))

    async def _put_off(self, due: str, looked: Sequence[tuple[bytes, bytes, list[bytes]]], now: float) -> int:
        """Say when to look next. Returns how many entries stay as they are: their records may be on the way."""
        moves: list[Word] = []
        for ref, score, claim in looked:
            if claim[0] != b"gone":
                moves += (ref, score, claim[1])
            elif not now < float(score) + self._leeway:
                moves += (ref, score, b"")
        await self._link.run(PUT_OFF(due, args=tuple(moves)), again=True, at_leisure=True)
        return len(looked) - len(moves) // 3


def _record(ref: str, *fields: bytes) -> Record:
    created, expires, seen, subject, root, trace, audience = fields
    return Record(
        ref=ref,
        subject=subject.decode() if subject else None,
        created_at=int(created),
        expires_at=int(expires),
        seen_at=int(float(seen)),
        root=root.decode() if root else None,
        trace=trace.decode() if trace else None,
        audience=audience.decode(),
    )


def _ended(ref: bytes, claim: Sequence[bytes]) -> Ended:
    return Ended(_record(ref.decode(), *claim[3:]), reason=claim[2].decode())

"""The records of sessions in Redis: who has which, and which of them have ended.

A record is a hash of its own, listed by principal, by lineage and by deadline: when to look at it next. Where the
session turns out to live, the look is postponed, so using a session never writes to that list. What spans slots is
written first where it is looked for and then where it counts, so that a crash in between leaves a hint without a fact,
never a fact that is not found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from .._session.claims import Claims
from ..errors import StoreUnavailable
from . import redis_scripts as scripts
from .base import LIVE, Ended, Record, Standing, resolution
from .redis_base import KEPT, RedisBase
from .redis_scripts import Command, Word

_PAGES: Final = 4  # of the list of deadlines that one `claim_ended` looks at
_STATUS: Final = {b"live": Standing.LIVE, b"ended": Standing.ENDED, b"idle": Standing.IDLE, b"lost": Standing.LOST}


class RedisRecords(RedisBase):
    """The part of a store that records sessions."""

    async def register(self, record: Record) -> None:
        now = await self._ready()
        ttl = self._ttl(record.expires_at, now, recorded=True)
        look = min(record.expires_at, record.seen_at + self._first_look)
        hints: list[Command] = [("ZADD", self._keys.due(record.audience), "NX", repr(look), record.ref)]
        args: tuple[Word, ...] = (repr(now - KEPT), ttl, record.expires_at, record.ref)
        hints += [scripts.LIST(key, args=args) for key in self._lists(record.audience, record.subject, record.root)]
        await self._run(*hints)
        fields = (record.audience, record.subject or "", record.root or "", record.trace or "")
        args = (ttl, record.created_at, record.expires_at, record.seen_at, *fields)
        await self._connection.change(
            scripts.REGISTER(*self._keys.session_keys(record.ref), args=args), idempotent=True
        )

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        now = await self._ready()
        command = scripts.TOUCH(*self._keys.session_keys(claims.ref), args=(repr(now), *self._idle(idle_timeout)))
        values, (found,) = await self._read(self._cut_offs(claims), command)
        standing = _STATUS[found]
        if standing is Standing.ENDED:
            return standing
        (vouched,) = await self._standings([claims], values)
        return standing if vouched is LIVE else vouched

    async def sessions(self, subject: str, *, audience: str) -> list[Record]:
        return await self._listed(self._keys.sessions(audience, subject))

    async def forks(self, root: str) -> list[Record]:
        return await self._listed(self._keys.forks(root))

    async def find(self, ref: str) -> Record | None:
        await self._ready()
        return next(iter(await self._live_records([ref])), None)

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        taken: list[Ended] = []
        due, left = self._keys.due(audience), 0
        try:
            for _ in range(_PAGES):
                now = await self._ready()
                (flat,) = await self._run(scripts.DUE(due, args=(repr(now), left, limit - len(taken))))
                refs, scores = flat[::2], flat[1::2]
                args = (repr(now), *self._idle(idle_timeout), repr(float(lease)), repr(float(self._leeway)))
                commands = [scripts.CLAIM(*self._keys.session_keys(ref.decode()), args=args) for ref in refs]
                # Not idempotent: a claim that was made would look like another's.
                # One text each: the driver takes longer to read ten words than Redis to find them.
                claims = [claim.split(b"\0", 9) for claim in await self._run(*commands, idempotent=False)]
                taken += [
                    Ended(_record(ref.decode(), *claim[2:9]), reason=claim[9].decode())
                    for ref, claim in zip(refs, claims, strict=True)
                    if claim[0] == b"taken"
                ]
                left += await self._postpone(due, list(zip(refs, scores, claims, strict=True)), now)
                if not refs or len(taken) == limit:
                    break
        except StoreUnavailable:
            if not taken:  # what was taken must reach the caller, who runs its `on_end`
                raise
        return taken

    async def purge(self, ref: str) -> None:
        await self._ready()
        await self._purging.take(("", ""), ref, self._purge)

    async def _purge(self, refs: Sequence[str]) -> int:
        found = await self._run(*(scripts.PURGE(*self._keys.data_keys(ref)) for ref in refs))
        lists: dict[str, list[str]] = {}
        for ref, of in zip(refs, found, strict=True):
            audience, subject, root = of.decode().split("\0")
            for key in (self._keys.due(audience), *self._lists(audience, subject, root)):
                lists.setdefault(key, []).append(ref)
        await self._run(*(("ZREM", key, *of_key) for key, of_key in lists.items()))
        return 1

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        now = await self._ready()
        args = (worker, repr(now + seconds), repr(now), max(1, math.ceil(seconds * 1000)))
        (leads,) = await self._run(scripts.ELECT(self._keys.sweeper(audience), args=args))
        return bool(leads)

    def _idle(self, idle_timeout: int | None) -> tuple[Word, Word]:
        """Return after how many seconds a session is idle, and by how many `seen_at` may lag."""
        lag = resolution(idle_timeout)
        self._first_look = math.inf if idle_timeout is None else idle_timeout + lag
        return "" if idle_timeout is None else idle_timeout, lag

    def _lists(self, audience: str, subject: str | None, root: str | None) -> list[str]:
        lists = [self._keys.sessions(audience, subject)] if subject else []
        return [*lists, self._keys.forks(root)] if root else lists

    async def _listed(self, key: str) -> list[Record]:
        await self._ready()
        (refs,) = await self._run(("ZRANGE", key, 0, -1))
        records = await self._live_records([ref.decode() for ref in refs])
        return sorted(records, key=lambda record: (record.created_at, record.ref))

    async def _live_records(self, refs: Sequence[str]) -> list[Record]:
        found = await self._run(*(("HMGET", self._keys.session_keys(ref)[1], *scripts.FIELDS) for ref in refs))
        records = [
            _record(ref, *fields)
            for ref, (*fields, ended) in zip(refs, found, strict=True)
            if fields[0] is not None and ended is None
        ]
        values, _ = await self._read([cut_off for record in records for cut_off in self._cut_offs(record)])
        now = self._clock()
        live = [one for one in records if now < one.expires_at]
        return [one for one, found in zip(live, await self._standings(live, values), strict=True) if found is LIVE]

    async def _postpone(self, due: str, looked: Sequence[tuple[bytes, bytes, list[bytes]]], now: float) -> int:
        """Set when to look next. Returns how many entries stay as they are: their records may be on the way."""
        moves: list[Word] = []
        for ref, score, claim in looked:
            if claim[0] != b"gone":
                moves += (ref, score, claim[1])
            elif not now < float(score) + self._leeway:
                moves += (ref, score, b"")
        await self._run(scripts.POSTPONE(due, args=tuple(moves)))
        return len(looked) - len(moves) // 3


def _record(ref: str, *fields: bytes) -> Record:
    created, expires, seen, *texts, audience = fields
    subject, root, trace = (text.decode() if text else None for text in texts)
    return Record(ref, subject, int(created), int(expires), int(float(seen)), root, trace, audience.decode())

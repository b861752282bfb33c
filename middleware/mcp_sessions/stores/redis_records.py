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
from .base import FIRST, LIVE, Ended, Position, Record, Standing, resolution
from .redis_base import KEPT, RedisBase
from .redis_scripts import Command, Word

_PAGE: Final = 500  # records that are read together
_DIGITS: Final = 11  # of a session's beginning in a list, which is sorted as text
_PAGES: Final = 4  # of the list of deadlines that one `claim_ended` looks at
_STATUS: Final = {b"live": Standing.LIVE, b"ended": Standing.ENDED, b"idle": Standing.IDLE, b"lost": Standing.LOST}


class RedisRecords(RedisBase):
    """The part of a store that records sessions."""

    async def register(self, record: Record) -> None:
        now = await self._ready()
        ttl = self._ttl(record.expires_at, now, recorded=True)
        look = min(record.expires_at, record.seen_at + self._first_look)
        hints: list[Command] = [("ZADD", self._keys.due(record.audience), "NX", repr(look), record.ref)]
        args: tuple[Word, ...] = (repr(now - KEPT), ttl, record.expires_at, _member(*record.position))
        lists = self._lists(record.audience, record.subject, record.root)
        hints += [scripts.LIST(*keys, args=args) for keys in lists]
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

    async def sessions(
        self, subject: str, *, audience: str, after: Position = FIRST, limit: int | None = None, cut_off: bool = False
    ) -> list[Record]:
        return await self._listed(self._keys.sessions(audience, subject), after, limit, cut_off)

    async def forks(self, root: str, *, after: Position = FIRST, limit: int | None = None) -> list[Record]:
        return await self._listed(self._keys.forks(root), after, limit)

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
            audience, subject, root, begun = of.decode().split("\0")
            if not begun:  # it was not recorded
                continue
            lists.setdefault(self._keys.due(audience), []).append(ref)
            for keys in self._lists(audience, subject, root):
                for key in keys:
                    lists.setdefault(key, []).append(_member(int(begun), ref))
        await self._run(*(("ZREM", key, *members) for key, members in lists.items()))
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

    def _lists(self, audience: str, subject: str | None, root: str | None) -> list[tuple[str, str]]:
        lists = [self._keys.sessions(audience, subject)] if subject else []
        return [*lists, self._keys.forks(root)] if root else lists

    async def _listed(
        self, keys: tuple[str, str], after: Position, limit: int | None, cut_off: bool = False
    ) -> list[Record]:
        await self._ready()
        found: list[Record] = []
        begin, most = "-" if after == FIRST else f"({_member(*after)}", _PAGE if limit is None else limit
        while True:
            count = min(most, _PAGE)
            (members,) = await self._run(("ZRANGEBYLEX", keys[1], begin, "+", "LIMIT", 0, count))
            found += await self._live_records([member[_DIGITS:].decode() for member in members], cut_off)
            if len(members) < count or (limit is not None and len(found) >= limit):
                return found[:limit]
            begin = f"({members[-1].decode()}"

    async def _live_records(self, refs: Sequence[str], cut_off: bool = False) -> list[Record]:
        found = await self._run(*(("HMGET", self._keys.session_keys(ref)[1], *scripts.FIELDS) for ref in refs))
        records = [
            _record(ref, *fields)
            for ref, (*fields, ended) in zip(refs, found, strict=True)
            if fields[0] is not None and ended is None
        ]
        values, _ = await self._read([key for record in records for key in self._cut_offs(record)])
        now, accepted = self._clock(), {LIVE, Standing.ENDED} if cut_off else {LIVE}
        live = [one for one in records if now < one.expires_at]
        return [one for one, found in zip(live, await self._standings(live, values), strict=True) if found in accepted]

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


def _member(created_at: int, ref: str) -> str:
    return f"{created_at:0{_DIGITS}}{ref}"


def _record(ref: str, *fields: bytes) -> Record:
    created, expires, seen, *texts, audience = fields
    subject, root, trace = (text.decode() if text else None for text in texts)
    return Record(ref, subject, int(created), int(expires), int(float(seen)), root, trace, audience.decode())

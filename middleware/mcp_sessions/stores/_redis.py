"""A store in Redis or Valkey: for many machines that reach one server, Sentinels or one cluster.

Nothing is kept for a live session, unless it is recorded or has data. Records are listed by principal and
by when to look at them next. What spans slots is written first where it is looked for and then where it counts, so that
a crash in between leaves a hint without a fact, never a fact that is not found.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, get_args

from .._errors import ConfigurationError, StoreUnavailable
from .._refusals import refusal
from .._session.claims import Claims
from . import _redis_scripts as scripts
from ._base import FIRST, LIVE, Ended, Forgotten, Position, Reach, Record, Standing, resolution
from ._redis_clients import DENIED, TRIO, connect, split_options
from ._redis_connection import RedisConnection, Values, or_unavailable
from ._redis_data import DISCOUNT, KEPT, RedisData
from ._redis_durability import SYNC_PATIENCE, Durability, Epoch, Promise
from ._redis_scripts import DIGITS, Command, Keys, Word, member, record_of

_MAX_UNSURE: Final = 10_000  # revocations of which one worker remembers that their outcome is unknown
_PAGE: Final = 500  # records that are read together
_PAGES: Final = 4  # of the list of deadlines that one `claim_ended` looks at


class RedisStore(RedisData):
    """Revocations, records and data in Redis or Valkey, version 7 or newer.

    With `noeviction` and an append-only file, acknowledged changes survive `kill -9` and a power failure, given
    `appendfsync always`, or `everysec` with `durability="wait"`; `everysec` alone may lose the last seconds. Without
    the file, the store detects a restart and refuses all earlier sessions. A failover may lose the last changes,
    unless `replicas=` is set. Two things go undetected: a cluster node that is emptied while it runs and does not hold
    the epoch, and workers whose clocks disagree by more than a second.

    Args:
        url_or_client: `redis://`, `rediss://` (TLS), `unix://`, `redis+cluster://`, `rediss+cluster://`,
            `redis+sentinel://HOST:26379,HOST:26379/NAME/0` or `rediss+sentinel://`, or an unused `redis.asyncio`
            client, whose retries are turned off and which you close yourself. `durability` and `replicas` may also
            be query parameters; arguments override them.
        prefix: The prefix of all keys. Give each deployment that shares a Redis its own.
        leeway: Seconds for which a revocation outlives its token, for clocks that disagree.
        clock: Returns Unix seconds; for tests.
        durability: What to do about a server that may lose acknowledged changes: log a warning (`"warn"`, the
            default), refuse to start (`"refuse"`), wait until each change is on disk (`"wait"`, by WAITAOF), or nothing
            (`"ignore"`).
        replicas: The number of replicas that must confirm each change before it is acknowledged (WAIT).
        forgotten: What to do with sessions issued before Redis lost its data: `"refuse"` them, or `"accept"` them,
            including those that had ended.
        timeout: Seconds, at least 1, after which the driver gives up a round trip; `store_timeout` ends calls sooner.
        connections: The number of commands that may run at once; further ones wait.

    Raises:
        ConfigurationError: The driver is missing, or an option cannot be used; the message names the remedy.
    """

    reach: Final = Reach.NETWORK

    def __init__(
        self,
        url_or_client: Any,
        *,
        prefix: str = "mcp-sessions:",
        leeway: float = 60,
        clock: Callable[[], float] = time.time,
        durability: Durability | None = None,
        replicas: int | None = None,
        forgotten: Forgotten = "refuse",
        timeout: float = 0.25,
        connections: int = 50,
    ) -> None:
        url_or_client, given = split_options(url_or_client, ("durability", "replicas"))
        durability = durability or given.get("durability") or "warn"
        copies = given.get("replicas", 0) if replicas is None else replicas
        for is_right, remedy in (
            (prefix and not {*"{}"} & {*prefix}, "prefix= must be text without braces"),
            (durability in get_args(Durability), "durability= must be one of 'warn', 'refuse', 'wait', 'ignore'"),
            (str(copies).isdecimal(), "replicas= must be a number of replicas, such as 1"),
            (forgotten in get_args(Forgotten), "forgotten= must be one of 'refuse', 'accept'"),
            (timeout > 0, "timeout= must be a number of seconds above 0, such as 0.25"),
            (connections >= 1, "connections= must be at least 1"),
        ):
            if not is_right:
                raise ConfigurationError(remedy)
        promise = Promise(durability, int(copies), max(timeout, SYNC_PATIENCE))
        # Seconds that a change may take longer than a question, and where the store is, for the log.
        self.patience: float = promise.patience if durability == "wait" or promise.replicas else 0.0
        keys = Keys(prefix)
        self._epoch = Epoch(keys, promise)
        client = connect(url_or_client, self._epoch, timeout=timeout + self.patience, connections=connections)
        self.where: str = client.where
        connection = RedisConnection(client, promise, timeout=timeout, connections=connections)
        super().__init__(connection, keys, leeway=leeway, clock=clock)
        self._vouches_always = forgotten == "accept"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened = False
        self._advancing = asyncio.Lock()
        self._unsure: dict[str, int] = {}  # the marks of revocations whose outcome is unknown, by what they revoke
        self._first_look = 0.0  # seconds without use after which a new session is; 0 until an idle timeout is known

    async def open(self) -> None:
        self._stay_on_loop()
        if self._opened:
            return
        try:
            await self._connection.greet()
        except StoreUnavailable as error:
            if error.reason == "store_forbidden":
                raise ConfigurationError(DENIED) from None
            raise
        await self._advance()
        self._opened = True

    async def close(self) -> None:
        await self._connection.close()

    def _stay_on_loop(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigurationError(TRIO) from None
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise ConfigurationError("store= is a Redis store of another event loop; create one for each loop")

    async def _ready(self) -> float:
        """Open at first use, and return the time."""
        self._stay_on_loop()
        if not self._opened:
            await or_unavailable(self.open)
        return self._clock()

    async def _advance(self) -> None:
        async with self._advancing:  # many requests may notice at once
            await self._epoch.advance(self._connection.run, self._clock())

    async def _read(self, keys: Sequence[str], *commands: Command) -> tuple[Values, list[Any]]:
        """Return the values of keys and the epoch, and what commands return, in one round trip unless it moves."""
        await self._ready()
        keys = (self._keys.since, *keys)
        values, results = await self._connection.read(keys, *commands)
        if values[self._keys.since] is None or not self._epoch.is_current:
            await or_unavailable(self._advance)
            values, results = await self._connection.read(keys, *commands)
        return values, results

    # --- revocations --------------------------------------------------------------------------------

    async def admit(self, claims: Claims) -> None:
        values, _ = await self._read(())
        since = values[self._keys.since]
        if since is not None and not float(since) < claims.issued_at:  # its date does not say on which side it is
            ttl = self._ttl(claims.expires_at, self._clock())
            await self._connection.run(("SET", self._keys.admitted(claims.ref), since, "EX", ttl))

    async def status(self, claims: Claims) -> Standing:
        return (await self.statuses([claims]))[0]

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        ended = [self._keys.session_keys(one.ref)[0] for one in claims]
        values, _ = await self._read([*ended, *(cut_off for one in claims for cut_off in self._cut_offs(one))])
        live = [one for key, one in zip(ended, claims, strict=True) if values[key] is None]
        found = iter(await self._standings(live, values))
        return [Standing.ENDED if values[key] is not None else next(found) for key in ended]

    def _cut_offs(self, one: Claims | Record) -> list[str]:
        return [self._keys.ended_before(one.audience, subject) for subject in (None, one.subject)]

    async def _standings(self, ones: Sequence[Claims] | Sequence[Record], values: Values) -> list[Standing]:
        """Return the status of sessions that were not revoked by name, given the epoch and their cut-offs."""
        since = values[self._keys.since]
        found = []
        for one in ones:
            issued_at = one.created_at if isinstance(one, Record) else one.issued_at
            cut_offs = [values[key] for key in self._cut_offs(one)]
            known = self._vouches_always or (since is not None and float(since) < issued_at)
            is_live = all(cut_off is None or float(cut_off) <= issued_at for cut_off in cut_offs)
            found.append((LIVE if known else Standing.LOST) if is_live else Standing.ENDED)
        lost = [place for place, standing in enumerate(found) if standing is Standing.LOST]
        if lost and since is not None:
            names = [self._keys.admitted(ones[place].ref) for place in lost]
            admitted, _ = await self._connection.read(names)
            for place, name in zip(lost, names, strict=True):
                found[place] = LIVE if admitted[name] == since else Standing.LOST
        return found

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        now = await self._ready()
        due, until = self._keys.due(audience), repr(now + lease)
        # First the deadline, where there is one: should this worker die right after, another looks in time. It
        # moves even to later, so that a sweeper who looked before does not postpone it to the session's own end.
        await self._connection.run(("ZADD", due, "XX", until, ref))
        # The mark of a call without an answer is remembered: it may have been the first, and is asked again.
        mark = self._unsure.pop(ref, None) or secrets.randbelow(1 << 53) + 1  # Redis keeps numbers in the fewest bytes
        args = (mark, self._ttl(expires_at, now), reason, until)
        try:
            ended, leased = await self._connection.change(scripts.REVOKE(*self._keys.session_keys(ref), args=args))
        except BaseException:
            while len(self._unsure) >= _MAX_UNSURE:
                self._unsure.pop(next(iter(self._unsure)))
            self._unsure[ref] = mark
            raise
        if leased and not ended:  # another's lease goes on as it was
            await self._connection.run(scripts.POSTPONE(due, args=(ref, until, leased)))
        return bool(ended)

    async def revoke_before(self, moment: float, *, audience: str, subject: str | None, until: int) -> None:
        args = (repr(moment), self._ttl(until, await self._ready()))
        await self._connection.change(scripts.REVOKE_BEFORE(self._keys.ended_before(audience, subject), args=args))

    # --- records ------------------------------------------------------------------------------------

    async def register(self, record: Record, *, of_subject: int | None = None) -> None:
        ttl = self._ttl(record.expires_at, now := await self._ready(), recorded=True)
        look = min(record.expires_at, record.seen_at + self._first_look)
        entry: tuple[Word, ...] = (repr(now - KEPT), ttl, record.expires_at, member(*record.position))
        listing = scripts.listing(self._keys, record, entry, of_subject)
        due = ("ZADD", self._keys.due(record.audience), "NX", repr(look), record.ref)
        listed = await self._connection.run(*listing, due)
        if listing and not listed[0]:
            await self._connection.run(*scripts.unlistings(self._keys, record))
            raise refusal("sessions_full")
        texts = (text or "" for text in (record.subject, record.trace, record.parts))
        times = (repr(record.created_at), record.expires_at, repr(record.seen_at))
        args: tuple[Word, ...] = (ttl, *times, record.audience, *texts)
        await self._connection.change(scripts.REGISTER(*self._keys.session_keys(record.ref), args=args))

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        now = await self._ready()
        command = scripts.TOUCH(*self._keys.session_keys(claims.ref), args=(repr(now), *self._idle(idle_timeout)))
        values, (found,) = await self._read(self._cut_offs(claims), command)
        if found == b"ended":
            return Standing.ENDED
        (vouched,) = await self._standings([claims], values)
        return Standing(found.decode()) if vouched is LIVE else vouched

    def _idle(self, idle_timeout: int | None) -> tuple[Word, Word]:
        """Return after how many seconds a session is idle, and by how many `seen_at` may lag."""
        lag = resolution(idle_timeout)
        self._first_look = math.inf if idle_timeout is None else idle_timeout + lag
        return "" if idle_timeout is None else idle_timeout, lag

    async def roster(self, *, audience: str, cursor: str = "", limit: int) -> tuple[list[Record], str]:
        await self._ready()
        page: Command = ("ZSCAN", self._keys.due(audience), cursor or "0", "COUNT", limit)
        ((following, found),) = await self._connection.run(page)
        return await self._live_records([ref.decode() for ref, _ in found]), str(following or "")

    async def count(self, *, audience: str) -> int | None:
        of_all = self._keys.ended_before(audience, None)  # leaves those on the list that it ended
        values, (count,) = await self._read([of_all], ("ZCARD", self._keys.due(audience)))
        return int(count) if values[of_all] is None else None

    async def find(self, ref: str) -> Record | None:
        await self._ready()
        return next(iter(await self._live_records([ref])), None)

    async def sessions(
        self, subject: str, *, audience: str, after: Position = FIRST, limit: int | None = None, cut_off: bool = False
    ) -> list[Record]:
        # What began before its subject was cut off, or before what Redis may have lost, need not be read.
        names = [self._keys.ended_before(audience, one) for one in (None, subject)]
        values, _ = await self._read(names)
        moments = [] if cut_off else [float(values[name] or 0) for name in names]
        since = 0 if self._vouches_always else float(values[self._keys.since] or 0)
        first = max(after, (max(since - self._leeway, *moments, 0), ""))  # as clocks may differ
        return await self._listed(self._keys.sessions(audience, subject), first, limit, cut_off)

    async def _listed(self, lists: tuple[str, str], after: Position, limit: int | None, cut_off: bool) -> list[Record]:
        await self._ready()
        found: list[Record] = []
        begin, count = "-" if after == FIRST else f"({member(*after)}", min(_PAGE if limit is None else limit, _PAGE)
        while True:
            (members,) = await self._connection.run(("ZRANGEBYLEX", lists[1], begin, "+", "LIMIT", 0, count))
            found += await self._live_records([each[DIGITS:].decode() for each in members], cut_off)
            if len(members) < count or (limit is not None and len(found) >= limit):
                return found[:limit]
            begin = f"({members[-1].decode()}"

    async def _live_records(self, refs: Sequence[str], cut_off: bool = False) -> list[Record]:
        keys = [self._keys.session_keys(ref)[1:] for ref in refs]
        # One text each: the driver takes longer to read ten words than Redis to find them.
        found = await self._connection.each(scripts.RECORDS, keys, idempotent=True)
        records = [record_of(ref, *text.split(b"\0", 6)) for ref, text in zip(refs, found, strict=True) if text]
        values, _ = await self._read([key for record in records for key in self._cut_offs(record)])
        now, accepted = self._clock(), {LIVE, Standing.ENDED} if cut_off else {LIVE}
        live = [one for one in records if now < one.expires_at]
        return [one for one, found in zip(live, await self._standings(live, values), strict=True) if found in accepted]

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        taken: list[Ended] = []
        due, left = self._keys.due(audience), 0
        try:
            for _ in range(_PAGES):
                now = await self._ready()
                (flat,) = await self._connection.run(scripts.DUE(due, args=(repr(now), left, limit - len(taken))))
                refs = flat[::2]
                args = (repr(now), *self._idle(idle_timeout), repr(float(lease)), repr(float(self._leeway)))
                keys = [self._keys.session_keys(ref.decode()) for ref in refs]
                # Not idempotent: a claim that was made would look like another's.
                texts = await self._connection.each(scripts.CLAIM, keys, *args, idempotent=False)
                looked = [(*of, text.split(b"\0", 9)) for *of, text in zip(refs, flat[1::2], texts, strict=True)]
                ours = [(ref, claim) for ref, _, claim in looked if claim[0] == b"taken"]
                taken += [Ended(record_of(ref.decode(), *claim[2:9]), claim[9].decode()) for ref, claim in ours]
                left += await self._postpone(due, looked, now)
                if not refs or len(taken) == limit:
                    break
        except StoreUnavailable:
            if not taken:  # what was taken must reach the caller, who runs its `on_end`
                raise
        return taken

    async def _postpone(self, due: str, looked: Sequence[tuple[bytes, bytes, list[bytes]]], now: float) -> int:
        """Set when to look next. Returns how many entries stay as they are: their records may be on the way."""
        moves: list[Word] = []
        for ref, score, claim in looked:
            if claim[0] != b"gone":
                moves += (ref, score, claim[1])
            elif not now < float(score) + self._leeway:
                moves += (ref, score, b"")
        await self._connection.run(scripts.POSTPONE(due, args=tuple(moves)))
        return len(looked) - len(moves) // 3

    async def purge(self, *refs: str) -> None:
        await self._ready()
        found = await self._connection.each(
            scripts.PURGE, [self._keys.data_keys(ref)[1:] for ref in refs], idempotent=True
        )
        lists: dict[str, list[str]] = {}
        now, discounts = repr(self._clock()), list[Command]()
        for ref, of in zip(refs, found, strict=True):
            audience, subject, begun, account = of.decode().split("\0")
            if account:
                discounts.append(DISCOUNT(*self._keys.account(account), args=(now, ref)))
            if begun:  # it was recorded
                lists.setdefault(self._keys.due(audience), []).append(ref)
                for key in self._keys.sessions(audience, subject or None):
                    lists.setdefault(key, []).append(member(float(begun), ref))
        await self._connection.run(*(("ZREM", key, *members) for key, members in lists.items()), *discounts)

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        now = await self._ready()
        args = (worker, repr(now + seconds), repr(now), max(1, math.ceil(seconds * 1000)))
        (leads,) = await self._connection.run(scripts.ELECT(self._keys.sweeper(audience), args=args))
        return bool(leads)

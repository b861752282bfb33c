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
from ._base import (
    FIRST,
    Ended,
    Facts,
    Forgotten,
    Position,
    Record,
    SessionStatus,
    StoreScope,
    idle_since,
    resolution,
    split_options,
    status_of,
    status_with_idle,
)
from ._freshness import checked_freshness
from ._redis_clients import DENIED, TRIO, connect
from ._redis_connection import RedisConnection, Values, or_unavailable
from ._redis_data import DISCOUNT, KEPT, RedisData
from ._redis_durability import Durability, DurabilityPolicy, Epoch
from ._redis_scripts import DIGITS, Command, Keys, Word, member, record_of

_MAX_UNSURE: Final = 10_000  # revocations of which one worker remembers that their outcome is unknown
_PAGE: Final = 500  # records that are read together
_PAGES: Final = 4  # of the list of deadlines that one `claim_ended` looks at
_TICK: Final = 1e-6  # seconds, by which a session must be younger than the epoch


class RedisStore(RedisData):
    """Revocations, records and data in Redis or Valkey, version 7 or newer.

    With `noeviction` and an append-only file, acknowledged changes survive `kill -9`, and with `appendfsync always` a
    power failure; `everysec` may lose the last seconds. Without the file, the store detects a restart and refuses all
    earlier sessions. A failover may lose the last changes. Two things go undetected: a cluster node that is emptied
    while it runs and does not hold the epoch, and workers whose clocks disagree by more than a second.

    Args:
        url_or_client: `redis://`, `rediss://` (TLS), `unix://`, `redis+cluster://`, `rediss+cluster://`,
            `redis+sentinel://HOST:26379,HOST:26379/NAME/0` or `rediss+sentinel://`, or an unused `redis.asyncio`
            client, whose retries are turned off and which you close yourself. `durability` and `freshness` may
            also be query parameters; the arguments override them.
        prefix: The prefix of all keys. Give each deployment that shares a Redis its own.
        leeway: Seconds for which a revocation outlives its token, for clocks that disagree.
        clock: Returns Unix seconds; for tests.
        durability: What to do about a server that may lose acknowledged changes: log a warning (`"warn"`, the
            default), refuse to start (`"refuse"`), or nothing (`"ignore"`).
        forgotten: What to do with sessions issued before Redis lost its data: `"refuse"` them, or `"accept"` them,
            including those that had ended.
        timeout: Seconds, at least 1, after which the driver gives up a round trip; `store_timeout` ends calls sooner.
        connections: The number of commands that may run at once; further ones wait.
        freshness: Seconds, at most 5, for which a worker may rely on the last status of a session, so that requests
            need no round trip; a session that another worker ends is accepted for so long.

    Raises:
        ConfigurationError: The driver is missing, or an option cannot be used; the message names the remedy.
    """

    scope: Final = StoreScope.NETWORK

    def __init__(
        self,
        url_or_client: Any,
        *,
        prefix: str = "mcp-sessions:",
        leeway: float = 60,
        clock: Callable[[], float] = time.time,
        durability: Durability | None = None,
        forgotten: Forgotten = "refuse",
        timeout: float = 0.25,
        connections: int = 50,
        freshness: float = 0,
    ) -> None:
        url_or_client, given = split_options(url_or_client, ("durability", "freshness"))
        self.freshness: float = checked_freshness(freshness or given.get("freshness", 0))
        durability = durability or given.get("durability") or "warn"
        for valid, remedy in (
            (prefix and not {*"{}"} & {*prefix}, "prefix= must be text without braces"),
            (durability in get_args(Durability), "durability= must be one of 'warn', 'refuse', 'ignore'"),
            (forgotten in get_args(Forgotten), "forgotten= must be one of 'refuse', 'accept'"),
            (timeout > 0, "timeout= must be a number of seconds above 0, such as 0.25"),
            (connections >= 1, "connections= must be at least 1"),
        ):
            if not valid:
                raise ConfigurationError(remedy)
        keys = Keys(prefix)
        self._epoch = Epoch(keys, DurabilityPolicy(durability))
        client = connect(url_or_client, self._epoch, timeout=timeout, connections=connections)
        self.location: str = client.location  # for the log
        connection = RedisConnection(client, timeout=timeout, connections=connections)
        super().__init__(connection, keys, leeway=leeway, clock=clock)
        self._accept_older = forgotten == "accept"
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
            await self._connection.ping()
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
        keys = (self._keys.epoch, *keys)
        values, results = await self._connection.read(keys, *commands)
        if values[self._keys.epoch] is None or not self._epoch.is_current:
            await or_unavailable(self._advance)
            values, results = await self._connection.read(keys, *commands)
        return values, results

    # --- revocations --------------------------------------------------------------------------------

    async def register_at_epoch(self, claims: Claims) -> None:
        values, _ = await self._read(())
        epoch = values[self._keys.epoch]
        if epoch is not None and not float(epoch) + _TICK <= claims.issued_at:
            ttl = self._ttl(claims.expires_at, self._clock())
            await self._connection.run(("SET", self._keys.registered(claims.ref), epoch, "EX", ttl))

    async def status(self, claims: Claims) -> SessionStatus:
        return (await self.statuses([claims]))[0]

    async def statuses(self, claims: Sequence[Claims]) -> list[SessionStatus]:
        values, _ = await self._read([key for one in claims for key in self._keys_of_facts(one)])
        facts = (self._facts(one, values) for one in claims)
        accept = self._accept_older
        return [status_of(one.issued_at, found, accept_older=accept) for one, found in zip(claims, facts, strict=True)]

    def _keys_of_facts(self, one: Claims | Record) -> list[str]:
        cutoffs = [self._keys.cutoff(one.audience, subject) for subject in (None, one.subject)]
        return [self._keys.ended(one.ref), self._keys.registered(one.ref), *cutoffs]

    def _facts(self, one: Claims | Record, values: Values, seen: bytes = b"", reason: bytes = b"") -> Facts:
        ended, registered, *cutoffs = (values[key] for key in self._keys_of_facts(one))
        epoch = values[self._keys.epoch]
        return Facts(
            ended=ended is not None or bool(reason),
            cutoff_time=max(float(cutoff or 0) for cutoff in cutoffs),
            epoch=math.inf if epoch is None else float(epoch) + _TICK,
            registered=registered is not None and registered == epoch,
            seen_at=float(seen) if seen else None,
        )

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> SessionStatus:
        now = await self._ready()
        self._note_idle_timeout(idle_timeout)
        args = (repr(now), repr(now - resolution(idle_timeout)), repr(idle_since(now, idle_timeout)))
        touch = scripts.TOUCH(self._keys.data_keys(claims.ref)[1], args=args)
        values, (found,) = await self._read(self._keys_of_facts(claims), touch)
        facts, accept = self._facts(claims, values, *found), self._accept_older
        return status_with_idle(claims.issued_at, facts, now=now, idle_timeout=idle_timeout, accept_older=accept)

    async def revoke(self, record: Record, *, reason: str, lease: float | None) -> bool:
        now, ref = await self._ready(), record.ref
        due, until = self._keys.due(record.audience), repr(now + (lease or 0))
        # The mark of a call without an answer is remembered: it may have been the first, and is asked again.
        mark = self._unsure.pop(ref, None) or secrets.randbelow(1 << 53) + 1  # Redis keeps numbers in the fewest bytes
        args = (mark, self._ttl(record.expires_at, now), reason, until, "" if lease is not None else "purge")
        revoke = scripts.REVOKE(*self._keys.data_keys(ref), args=args)
        # First the deadline, where there is one: should this worker die right after, another looks in time. It
        # moves even to later, so that a sweeper who looked before does not postpone it to the session's own end.
        first: list[Command] = [("ZADD", due, "XX", until, ref)]
        try:
            _, (ended, leased, purged) = await self._connection.run_in_order(first, revoke)
        except BaseException:
            while len(self._unsure) >= _MAX_UNSURE:
                self._unsure.pop(next(iter(self._unsure)))
            self._unsure[ref] = mark
            raise
        if leased and not ended:  # another's lease goes on as it was
            await self._connection.run(scripts.POSTPONE(due, args=(ref, until, leased)))
        await self._remove_from_indexes((ref, purged))
        return bool(ended)

    async def revoke_before(self, cutoff_time: float, *, audience: str, subject: str | None, expires_at: int) -> None:
        args = (repr(cutoff_time), self._ttl(expires_at, await self._ready()))
        await self._connection.run(scripts.REVOKE_BEFORE(self._keys.cutoff(audience, subject), args=args))

    # --- records ------------------------------------------------------------------------------------

    async def register(self, record: Record, *, max_sessions: int | None = None) -> None:
        ttl = self._ttl(record.expires_at, now := await self._ready(), recorded=True)
        look = min(record.expires_at, record.seen_at + self._first_look)
        entry: tuple[Word, ...] = (repr(now - KEPT), ttl, record.expires_at, member(*record.position))
        listings = scripts.listings(self._keys, record, entry, max_sessions)
        due: Command = ("ZADD", self._keys.due(record.audience), "NX", repr(look), record.ref)
        times = (repr(record.created_at), record.expires_at, repr(record.seen_at))
        texts = (text or "" for text in (record.subject, record.trace, record.principal_hashes))
        args: tuple[Word, ...] = (ttl, *times, record.audience, *texts)
        keys = self._keys.data_keys(record.ref)
        first: list[Command] = [*listings, due, ("GET", self._keys.epoch)]
        (_, fits, _, epoch), made = await self._connection.run_in_order(first, scripts.REGISTER(*keys, args=args))
        if not made or not fits:
            found = await self._connection.each(scripts.PURGE, [keys[1:]], idempotent=True) if not fits else []
            removals = scripts.index_removals(
                self._keys, record.audience, record.subject, record.created_at, record.ref
            )
            await self._connection.run(*removals)
            assert len(found) <= 1
        if not fits:
            raise refusal("sessions_full")
        if epoch is None or not self._epoch.is_current or not float(epoch) + _TICK <= record.created_at:
            await self._register_by_name(record)

    async def _register_by_name(self, record: Record) -> None:
        """Note a session of about the time of a loss by its name."""
        values, _ = await self._read(())
        epoch = values[self._keys.epoch]
        if epoch is not None and not float(epoch) + _TICK <= record.created_at:
            ttl = self._ttl(record.expires_at, self._clock())
            await self._connection.run(("SET", self._keys.registered(record.ref), epoch, "EX", ttl))

    def _note_idle_timeout(self, idle_timeout: int | None) -> None:
        """Remember when to look at a new session first."""
        self._first_look = math.inf if idle_timeout is None else idle_timeout + resolution(idle_timeout)

    async def get(self, ref: str) -> Record | None:
        await self._ready()
        return next(iter(await self._live_records([ref])), None)

    async def count(self, *, audience: str) -> int:
        await self._ready()
        values, _ = await self._read([cutoff := self._keys.cutoff(audience, None)])
        begin = f"[{member(float(values[cutoff] or 0), '')}"
        (count,) = await self._connection.run(("ZLEXCOUNT", self._keys.listed(audience), begin, "+"))
        return int(count)

    async def list_sessions(
        self,
        *,
        audience: str,
        subject: str | None = None,
        after: Position = FIRST,
        limit: int,
        with_cut_off: bool = False,
    ) -> list[Record]:
        # What began before its subject was cut off, or before what Redis may have lost, need not be read.
        names = [self._keys.cutoff(audience, one) for one in (None, subject)]
        values, _ = await self._read(names)
        cutoffs = [] if with_cut_off else [float(values[name] or 0) for name in names]
        epoch = 0 if self._accept_older else float(values[self._keys.epoch] or 0)
        after = max(after, (max(epoch - self._leeway, *cutoffs, 0), ""))  # as clocks may differ
        begin, found = f"({member(*after)}", list[Record]()
        listed = self._keys.listed(audience, subject)
        while True:
            size = min(limit - len(found), _PAGE)
            (members,) = await self._connection.run(("ZRANGEBYLEX", listed, begin, "+", "LIMIT", 0, size))
            found += await self._live_records([each[DIGITS:].decode() for each in members], with_cut_off=with_cut_off)
            if len(members) < size or len(found) >= limit:
                return found
            begin = f"({members[-1].decode()}"

    async def _live_records(self, refs: Sequence[str], *, with_cut_off: bool = False) -> list[Record]:
        keys = [self._keys.data_keys(ref)[1:2] for ref in refs]
        # One text each: the driver takes longer to read ten words than Redis to find them.
        found = await self._connection.each(scripts.RECORDS, keys, idempotent=True)
        records = [record_of(ref, *text.split(b"\0", 6)) for ref, text in zip(refs, found, strict=True) if text]
        values, _ = await self._read([key for record in records for key in self._keys_of_facts(record)])
        now, live = self._clock(), list[Record]()
        for record in records:
            facts = self._facts(record, values)
            facts = facts._replace(cutoff_time=0) if with_cut_off else facts
            status = status_of(record.created_at, facts, accept_older=self._accept_older)
            if status is SessionStatus.LIVE and now < record.expires_at:
                live.append(record)
        return live

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        taken: list[Ended] = []
        due, left = self._keys.due(audience), 0
        self._note_idle_timeout(idle_timeout)
        idle = ("" if idle_timeout is None else idle_timeout, resolution(idle_timeout))
        try:
            for _ in range(_PAGES):
                now = await self._ready()
                latest = repr(now + self._first_look)
                (flat,) = await self._connection.run(
                    scripts.DUE(due, args=(repr(now), left, limit - len(taken), latest))
                )
                refs = flat[::2]
                args = (repr(now), *idle, repr(float(lease)), repr(float(self._leeway)))
                keys = [self._keys.data_keys(ref.decode())[:2] for ref in refs]
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
        keys = [self._keys.data_keys(ref)[1:] for ref in refs]
        found = await self._connection.each(scripts.PURGE, keys, idempotent=True)
        await self._remove_from_indexes(*zip(refs, found, strict=True))

    async def _remove_from_indexes(self, *purged: tuple[str, bytes]) -> None:
        """Take sessions from the lists and accounts that they were on, given what their purge returned."""
        now, commands = repr(self._clock()), list[Command]()
        for ref, text in purged:
            if not text:
                continue
            audience, subject, created_at, account = text.decode().split("\0")
            if account:
                commands.append(DISCOUNT(*self._keys.account(account), args=(now, ref)))
            if created_at:  # it was recorded
                commands += scripts.index_removals(self._keys, audience, subject or None, float(created_at), ref)
        await self._connection.run(*commands)

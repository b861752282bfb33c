"""A store in Redis or Valkey: for many machines that reach one server, Sentinels or one cluster.

Nothing is kept for a live session, unless it is recorded or has data. Each call is one script or command, so one round
trip; only a list needs two, since a script may only use keys that it is given.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, get_args

from .._errors import ConfigurationError, DataError, DataGone, DataNotInteger, DataTooLarge, StoreUnavailable
from .._refusals import refusal
from .._session.claims import Claims
from .._session.data import Namespace
from .._session.functions import check_clock
from .._session.keywords import known_keywords
from . import _base as base
from . import _redis_data as data
from . import _redis_scripts as scripts
from ._base import FIRST, Durability, Ended, Facts, Forgotten, Position, Record, SessionStatus, StoreScope, marked
from ._redis_client import connect
from ._redis_epoch import Epoch
from ._redis_scripts import TICK, Keys, Script, Word, index_range, member_of, record_of
from ._stepwise import StepwiseLookUp
from ._timeout import checked_freshness

DENIED: Final = "Redis refuses this user: check the user and the password in the store's URL, and its permissions"
TRIO: Final = "store='redis://...' runs on asyncio alone; serve with asyncio, or use 'sqlite:PATH'"
_KEPT: Final = 7 * 86_400  # seconds that a record and its data outlive the session, for an `on_end` that was not run
_PAGE: Final = 500  # records that are read together
_REFUSED: Final[dict[bytes, tuple[type[DataError], str]]] = {
    b"gone": (DataGone, "the session has ended"),
    b"large": (DataTooLarge, "the session's data would exceed its limit"),
    b"not-integer": (DataNotInteger, "the value or the sum is not a 64-bit integer"),
}


class RedisStore(StepwiseLookUp):
    """Revocations, records and data in Redis or Valkey, version 7 or newer.

    With `noeviction` and an append-only file, acknowledged changes survive `kill -9`, and with `appendfsync always` a
    power failure; `everysec` may lose the last seconds. Without the file, the store detects a restart and refuses all
    earlier sessions. A failover may lose the last changes.

    Args:
        url_or_client: `redis://`, `rediss://` (TLS), `unix://`, `redis+cluster://`, `rediss+cluster://`,
            `redis+sentinel://HOST:26379,HOST:26379/NAME/0` or `rediss+sentinel://`, or an unused `redis.asyncio`
            client, whose retries are turned off and which you close yourself. `durability` and `freshness` may
            also be query parameters; the arguments override them.
        prefix: The hash tag of all keys, which begin with it in braces. Give each deployment that shares a Redis its
            own; on a cluster, each is on one node.
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

    @known_keywords
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
        url_or_client, given = base.split_options(url_or_client, ("durability", "freshness"))
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
        self._keys = Keys(prefix)
        self._epoch = Epoch(self._keys, durability, check_clock(clock))
        self._client = connect(url_or_client, self._epoch, timeout=timeout, connections=connections)
        self.location: str = self._client.location
        self._leeway = leeway
        self._clock = clock
        self._server_clock = self._epoch.server_clock
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
            await self._client.run("GET", [self._keys.epoch])
        except StoreUnavailable as error:
            if error.reason == "store_forbidden":
                raise ConfigurationError(DENIED) from None
            raise
        await self._epoch.advance(self._client.run)
        self._opened = True

    async def close(self) -> None:
        await self._client.close()

    def _stay_on_loop(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigurationError(TRIO) from None
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise ConfigurationError("store= is a Redis store of another event loop; create one for each loop")

    async def _run(self, command: str | Script, keys: Sequence[str], *args: Word, idempotent: bool = True) -> Any:
        """Run a command or a script, opening the store at first use."""
        self._stay_on_loop()
        if not self._opened:
            await self.open()
        return await self._client.run(command, keys, *args, idempotent=idempotent)

    async def _run_in_epoch(self, command: str | Script, keys: Sequence[str], *args: Word) -> Any:
        """Run a command that first returns the epoch, once more if that had to be set or moved on."""
        found = await self._run(command, [self._keys.epoch, *keys], *args)
        if found[0] is None or not self._epoch.is_current:
            async with self._advancing:  # many requests may notice at once
                await self._epoch.advance(self._client.run)
            found = await self._run(command, [self._keys.epoch, *keys], *args)
        return found

    async def _ttl(self, until: float, *, recorded: bool = False) -> int:
        """Return the seconds until what belongs to a session may be forgotten: at least one, or Redis does at once."""
        return max(1, math.ceil(until + self._leeway - await self._store_time() + (_KEPT if recorded else 0)))

    async def _store_time(self, *, ask: bool = False) -> float:
        """Return the server's time, by which is ended and deleted what all workers share."""
        if not self._opened:
            await self.open()
        if ask and (found := await self._run(scripts.TIME, [self._keys.epoch])):
            self._server_clock.set(int(found[0]) + int(found[1]) / 1e6, self.location)
        return self._server_clock()

    async def _data_time(self) -> float:
        """Return when a value is over: neither this worker's clock nor the server's may end it early."""
        return min(self._clock(), await self._store_time())

    async def register_at_epoch(self, claims: Claims) -> None:
        keys, ttl = [self._keys("registered", claims.ref)], await self._ttl(claims.expires_at)
        await self._run_in_epoch(scripts.REGISTER_AT_EPOCH, keys, repr(claims.issued_at), ttl)

    async def status(self, claims: Claims) -> SessionStatus:
        return (await self.statuses([claims]))[0]

    async def statuses(self, claims: Sequence[Claims]) -> list[SessionStatus]:
        epoch, *values = await self._run_in_epoch("MGET", [key for one in claims for key in self._keys_of_facts(one)])
        facts = (self._facts(epoch, values[start : start + 4]) for start in range(0, len(values), 4))
        accept, asked = self._accept_older, zip(claims, facts, strict=True)
        return [base.status_of(one.issued_at, found, accept_older=accept) for one, found in asked]

    def _keys_of_facts(self, one: Claims) -> list[str]:
        keys = self._keys
        cutoffs = (keys.cutoff(one.audience), keys.cutoff(one.audience, one.subject))
        return [keys("ended", one.ref), keys("registered", one.ref), *cutoffs]

    @staticmethod
    def _facts(epoch: bytes | None, found: Sequence[bytes | None], seen: bytes | None = None) -> Facts:
        ended, registered, *cutoffs = found
        return Facts(
            ended=ended is not None,
            cutoff_time=max(float(cutoff or 0) for cutoff in cutoffs),
            epoch=math.inf if epoch is None else float(epoch) + TICK,
            registered=registered is not None and registered == epoch,
            seen_at=None if seen is None else float(seen),
        )

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> SessionStatus:
        now = await self._store_time()
        self._note_idle_timeout(idle_timeout)
        keys = [*self._keys_of_facts(claims), self._keys("session", claims.ref)]
        keys += [self._keys.cutoff(claims.audience, alias) for alias in claims.owners[1:]]
        times = (repr(now), repr(now - base.resolution(idle_timeout)), repr(base.idle_since(now, idle_timeout)))
        epoch, *found = await self._run_in_epoch(scripts.TOUCH, keys, *times)
        seen, ended = found[4:6]
        facts, accept = self._facts(epoch, [*found[:4], *found[6:]], seen), self._accept_older
        facts = facts._replace(ended=facts.ended or ended is not None)
        return base.status_with_idle(claims.issued_at, facts, now=now, idle_timeout=idle_timeout, accept_older=accept)

    async def revoke(self, record: Record, *, reason: str, lease: float | None) -> bool:
        keys, ref = self._keys, record.ref
        until = "" if lease is None else repr(await self._store_time() + lease)
        named = [keys("ended", ref), keys("session", ref), keys("due", record.audience), *keys.of_all_sessions]
        with marked(self._unsure, ref) as mark:
            args = (mark, await self._ttl(record.expires_at), reason, until, member_of(record), ref)
            return bool(await self._run(scripts.REVOKE, named, *args))

    async def revoke_before(self, cutoff_time: float, *, audience: str, subject: str | None, expires_at: int) -> None:
        args = (repr(cutoff_time), await self._ttl(expires_at))
        await self._run(scripts.REVOKE_BEFORE, [self._keys.cutoff(audience, subject)], *args)

    async def register(self, record: Record, *, max_sessions: int | None = None) -> None:
        keys, until, audience = self._keys, record.expires_at, record.audience
        named = [keys(kind, record.ref) for kind in ("registered", "ended", "session")]
        named += [keys.cutoff(audience, record.subject), keys("due", audience), keys.index, keys.principals]
        look = min(until, record.seen_at + self._first_look)
        fields: dict[str, Word | None] = {"e": until, "s": repr(record.seen_at), "t": record.trace}
        fields["p"] = record.principal_hashes
        words = [word for name, value in fields.items() if value is not None for word in (name, value)]
        ttl, recorded_ttl = await self._ttl(until), await self._ttl(until, recorded=True)
        args = (repr(record.created_at), ttl, recorded_ttl, member_of(record))
        of = (audience, "" if max_sessions is None else max_sessions, repr(look))
        _, fits = await self._run_in_epoch(scripts.REGISTER, named, *args, *of, *words)
        if not fits:
            raise refusal("sessions_full")

    def _note_idle_timeout(self, idle_timeout: int | None) -> None:
        """Remember when to look at a new session first."""
        self._first_look = math.inf if idle_timeout is None else idle_timeout + base.resolution(idle_timeout)

    async def get(self, ref: str) -> Record | None:
        name, audience = await self._run("HMGET", [self._keys("session", ref)], "m", "a")
        found = [] if name is None else await self._live_records([name], audience=audience.decode())
        return next(iter(found), None)

    async def count(self, *, audience: str) -> int:
        cutoff = await self._run("GET", [self._keys.cutoff(audience)])
        between = index_range(audience, None, (float(cutoff or 0), ""))
        return int(await self._run("ZLEXCOUNT", [self._keys.index], *between))

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
        epoch, *cutoffs = (float(value or 0) for value in await self._run_in_epoch("MGET", names))
        complete_since = 0 if self._accept_older else epoch - self._leeway  # clocks may differ
        begin = max(0, complete_since, *([] if with_cut_off else cutoffs))
        after, found = max(after, (begin, "")), list[Record]()
        while True:
            size = min(limit - len(found), _PAGE)
            between = index_range(audience, subject, after)
            members = await self._run("ZRANGEBYLEX", [self._keys.index], *between, "LIMIT", 0, size)
            found += await self._live_records(members, audience=audience, with_cut_off=with_cut_off)
            if len(members) < size or len(found) >= limit:
                return found
            after = scripts.listed(members[-1])[:2]

    async def _live_records(
        self, members: Sequence[bytes], *, audience: str, with_cut_off: bool = False
    ) -> list[Record]:
        """Return the records of live sessions, given what names them in a list."""
        keys, named = self._keys, [self._keys.cutoff(audience)]
        for _, ref, subject in map(scripts.listed, members):
            named += [keys("session", ref), keys("ended", ref), keys("registered", ref), keys.cutoff(audience, subject)]
        epoch, cutoff, *rows = await self._run_in_epoch(scripts.RECORDS, named)
        now, live = self._clock(), list[Record]()
        for *fields, reason, ended, registered, own_cutoff in rows:
            if fields[0] is None or reason is not None:
                continue
            record, facts = record_of(*fields), self._facts(epoch, (ended, registered, cutoff, own_cutoff))
            facts = facts._replace(cutoff_time=0) if with_cut_off else facts
            status = base.status_of(record.created_at, facts, accept_older=self._accept_older)
            if status is SessionStatus.LIVE and now < record.expires_at:
                live.append(record)
        return live

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        taken: list[Ended] = []
        keys, due = self._keys, self._keys("due", audience)
        self._note_idle_timeout(idle_timeout)
        idle = "" if idle_timeout is None else idle_timeout + base.resolution(idle_timeout)
        latest = await self._store_time(ask=True) + self._first_look
        try:
            while len(taken) < limit:
                now = self._server_clock()
                members = await self._run(scripts.DUE, [due], repr(now), limit - len(taken), repr(latest))
                if not members:
                    break
                latest = math.inf  # or what is looked at now for its deadline's sake would be looked at for ever
                refs = [scripts.listed(name)[1] for name in members]
                each = [key for ref in refs for key in (keys("session", ref), keys("ended", ref))]
                args = (repr(now), idle, repr(float(lease)), repr(float(self._leeway)), audience, *members)
                # Not idempotent: a claim that was made would look like another's.
                claim = self._run(scripts.CLAIM, [due, keys.index, keys.principals, *each], *args, idempotent=False)
                taken += [Ended(record_of(*fields), reason.decode()) for *fields, reason in await claim]
        except StoreUnavailable:
            if not taken:  # what was taken must reach the caller, who runs its `on_end`
                raise
        return taken

    async def purge(self, *refs: str) -> None:
        each = [self._keys("session", ref) for ref in refs]
        await self._run(scripts.PURGE, [*self._keys.of_all_sessions, *each], *refs)

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        value, ends = await self._run("HMGET", [self._keys("session", namespace.owner)], f":{key}", f"={key}")
        found: bytes | None = value if ends is None or await self._data_time() < float(ends) else None
        return found

    async def write(
        self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None
    ) -> None:
        ends = "" if expires_at is None else repr(float(expires_at))
        await self._change(data.WRITE, namespace, "", key, value or b"", ends)

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        (done, *_) = await self._change(data.COMPARE_AND_SWAP, namespace, key, old or b"", new or b"")
        return bool(done == b"done")

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        _, total = await self._change(data.ADD, namespace, key, by)
        return int(total)

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        fields = await self._run("HGETALL", [self._keys("session", namespace.owner)])
        now, named = await self._data_time(), [name[1:] for name in fields if name[:1] == b":"]
        values = [name for name in named if now < float(fields.get(b"=" + name, math.inf))]
        items = [word for name in values for word in (name, fields[b":" + name], fields.get(b"=" + name, b""))]
        await self._change(data.WRITE, target, "", *items)

    async def _change(self, script: Script, namespace: Namespace, *args: Word) -> list[Any]:
        """Change data, never twice: a first time may have succeeded, and be followed by another's change."""
        now, keys, until = self._clock(), self._keys, namespace.expires_at
        found: list[Any] = [b"gone"]
        if now < until + self._leeway:
            named = [keys("ended", namespace.owner), keys("session", namespace.owner), keys.usage, keys.sizes]
            times = (repr(await self._data_time()), await self._ttl(until), await self._ttl(until, recorded=True))
            limit = "" if namespace.max_subject_bytes is None else namespace.max_subject_bytes
            counted = ("", "") if namespace.account is None else (1, namespace.account)
            of = (namespace.owner, *times, namespace.max_bytes, *counted, limit)
            found = await self._run(script, named, *of, *args, idempotent=False)
        if found[0] == b"crowded":
            base.check_principal(namespace, found[1], found[2])
        if found[0] in _REFUSED:
            error, text = _REFUSED[found[0]]
            raise error(text)
        return found

    async def usage(self) -> base.StoreUsage:
        """Return what fills this store."""
        of = [self._keys.index, self._keys.principals, self._keys.usage]
        return base.StoreUsage(*await self._run(scripts.USAGE, of))

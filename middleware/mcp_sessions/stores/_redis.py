"""A store in Redis or Valkey: for many machines that reach one server, Sentinels or one cluster.

Nothing is kept for a live session, unless it is recorded or has data. Each call is one script or command, so one round
trip; only a list needs two, since a script may only use keys that it is given.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, get_args

import anyio

from .._errors import ConfigurationError, StoreUnavailable
from .._refusals import refusal
from .._session.claims import Claims
from .._session.data import Namespace
from .._session.functions import check_clock
from .._session.keywords import known_keywords
from . import _base as base
from . import _redis_data as data
from . import _redis_scripts as scripts
from ._base import (
    FIRST,
    Durability,
    Ended,
    Facts,
    Forgotten,
    Found,
    Position,
    Record,
    SessionStatus,
    StoreScope,
    logger,
)
from ._clocks import ServerClock
from ._redis_client import ONE_LOOP, StandaloneClient, connect, running_loop
from ._redis_durability import check_durability
from ._redis_faults import PERMANENT
from ._redis_scripts import TICK, Keys, Script, Word, index_range, member_of, record_of
from ._timeout import checked_freshness

LOST: Final = "Redis lost its data: sessions from before are refused, since some of them may have ended"
_OPEN_TIMEOUT: Final = 5.0  # seconds
_KEPT: Final = 7 * 86_400  # seconds that a record and its data outlive the session, for an `on_end` that was not run
_PAGE: Final = 500  # records that are read together


class RedisStore:
    """Revocations, records and data in Redis or Valkey, version 7 or newer.

    With `noeviction` and an append-only file, acknowledged changes survive `kill -9`, and with `appendfsync always` a
    power failure; `everysec` may lose the last seconds. If Redis comes back empty, all earlier sessions are refused. If
    it comes back with an old snapshot, sessions that were deleted since then work again. A failover may lose the last
    changes.

    Args:
        url_or_client: `redis://`, `rediss://` (TLS), `unix://`, `redis+cluster://`, `rediss+cluster://`,
            `redis+sentinel://HOST:26379,HOST:26379/NAME/0` or `rediss+sentinel://`, or a `redis.asyncio` client of
            one event loop, whose retries are turned off and which you close yourself. `durability` and `freshness` may
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
        connections: The number of calls of one process that may run at once; further ones wait.
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
        self.connections: Final = connections
        self._connect = partial(connect, url_or_client, timeout=timeout)
        self._has_url = isinstance(url_or_client, str)
        self.location: str = self._connect().location
        self._clients: dict[asyncio.AbstractEventLoop, StandaloneClient] = {}
        self._durability = durability
        self._logged: set[str] = set()  # problems of the server that are in the log already
        self._leeway = leeway
        self._clock = check_clock(clock)
        self._server_clock = ServerClock(clock)
        self._accept_older = forgotten == "accept"
        self._epoch: bytes | None = None  # as Redis had it last
        self._epoch_suffix = f"{secrets.randbelow(10**6):06}"  # or two workers could set the same epoch
        self._first_look = 0.0  # seconds without use after which a new session is; 0 until an idle timeout is known

    async def open(self) -> None:
        await self._opened()

    async def close(self) -> None:
        client = self._clients.pop(running_loop(), None)
        self._forget_closed_loops()
        if client is not None:
            await client.close()

    def _forget_closed_loops(self) -> None:
        self._clients = {loop: client for loop, client in self._clients.items() if not loop.is_closed()}

    @property
    def is_connecting(self) -> bool:
        """Whether the client of the running event loop is not connected yet."""
        client = self._clients.get(running_loop())
        return client is not None and client.opening is not None

    async def _opened(self) -> StandaloneClient:
        """Return the client of the running event loop, which connects at its first use."""
        loop = running_loop()
        client = self._clients.get(loop)
        if client is None:
            if self._clients and not self._has_url:
                raise ConfigurationError(ONE_LOOP)
            self._forget_closed_loops()
            client = self._clients[loop] = self._connect()
        if not client.is_open:
            client.opening = client.opening or asyncio.ensure_future(self._open(client))
            await asyncio.shield(client.opening)  # if this caller gives up, the next one finds it connected
        return client

    async def _open(self, client: StandaloneClient) -> None:
        try:
            with anyio.fail_after(_OPEN_TIMEOUT):
                await self._ask_time(client)
                await check_durability(client, self._keys.epoch, self._durability, self._logged)
                await self._run_in_epoch(client, scripts.LOOK_UP, [], *[""] * 5)
            client.is_open = True
        except TimeoutError:
            cause = f"connecting takes longer than {_OPEN_TIMEOUT:g} s; check its load and the network"
            raise StoreUnavailable("store_timeout", cause=cause) from None
        except StoreUnavailable as error:
            if error.reason in PERMANENT:
                raise ConfigurationError(f"store= is {self.location}: {error.cause}") from None
            raise
        finally:
            client.opening = None

    async def _ask_time(self, client: StandaloneClient) -> None:
        if found := await client.run(scripts.TIME, [self._keys.epoch]):
            self._server_clock.set(int(found[0]) + int(found[1]) / 1e6, self.location)

    async def _run(self, command: str | Script, keys: Sequence[str], *args: Word, repeatable: bool = True) -> Any:
        return await (await self._opened()).run(command, keys, *args, repeatable=repeatable)

    async def _run_in_epoch(self, client: StandaloneClient, script: Script, keys: Sequence[str], *args: Word) -> Any:
        """Run a script that first returns the epoch, which it sets to now if it is missing."""
        now = max(self._server_clock(), float(self._epoch or 0) + TICK)
        found = await client.run(script, [self._keys.epoch, *keys], f"{now:.6f}{self._epoch_suffix}", *args)
        if found[0] != self._epoch:
            if self._epoch is not None:
                logger.warning(LOST)
            self._epoch = found[0]
        return found

    def _ttl(self, until: float, *, recorded: bool = False) -> int:
        """Return for how many seconds Redis keeps what belongs to a session: at least one, or it deletes it at once."""
        return max(1, math.ceil(until + self._leeway - self._server_clock() + (_KEPT if recorded else 0)))

    def _data_time(self) -> float:
        """Return the time by which values expire: neither this worker's clock nor the server's may end one early."""
        return min(self._clock(), self._server_clock())

    async def register_at_epoch(self, claims: Claims) -> None:
        client, keys = await self._opened(), [self._keys("registered", claims.ref)]
        times = (repr(claims.issued_at), self._ttl(claims.expires_at))
        await self._run_in_epoch(client, scripts.REGISTER_AT_EPOCH, keys, *times)

    async def look_up(
        self, *claims: Claims, state: bool = False, touch: bool = False, idle_timeout: int | None = None
    ) -> list[Found]:
        client, keys, numbers = await self._opened(), list[str](), list[int]()
        for one in claims:
            cutoffs = [self._keys.cutoff(one.audience, owner) for owner in (None, *one.owners)]
            keys += [self._keys(kind, one.ref) for kind in ("ended", "registered", "session")]
            keys += [self._keys("due", one.audience), *cutoffs]
            numbers.append(len(cutoffs))
        times, now = [""] * 4, self._server_clock()
        if touch:
            self._note_idle_timeout(idle_timeout)
            since = base.idle_since(now, idle_timeout)
            times = [repr(time) for time in (now, now - base.resolution(idle_timeout), since, self._first_look)]
        asked = ("1" if state else "", *times, *numbers)
        epoch, *rows = await self._run_in_epoch(client, scripts.LOOK_UP, keys, *asked)
        status_of = partial(base.status_with_idle, now=now, idle_timeout=idle_timeout) if touch else base.status_of
        found = []
        for one, (ended, registered, seen, reason, value, ends, *cutoffs) in zip(claims, rows, strict=True):
            facts = self._facts(epoch, (ended or reason, registered, *cutoffs), seen)
            status = status_of(one.issued_at, facts, accept_older=self._accept_older)
            found.append(Found(status, self._unexpired(value, ends)))
        return found

    def _unexpired(self, value: bytes | None, ends: bytes | None) -> bytes | None:
        return value if ends is None or self._data_time() < float(ends) else None

    @staticmethod
    def _facts(epoch: bytes, found: Sequence[bytes | None], seen: bytes | None = None) -> Facts:
        ended, registered, *cutoffs = found
        return Facts(
            ended=ended is not None,
            cutoff_time=max(float(cutoff or 0) for cutoff in cutoffs),
            epoch=float(epoch) + TICK,
            registered=registered == epoch,
            seen_at=None if seen is None else float(seen),
        )

    async def revoke(self, record: Record, *, reason: str, lease: float | None) -> bool:
        client, keys, ref = await self._opened(), self._keys, record.ref
        key_names = [keys("ended", ref), keys("session", ref), keys("due", record.audience), *keys.of_all_sessions]
        mark = secrets.randbelow(1 << 53) + 1  # by which a call that is sent twice knows itself; in few bytes
        until = "" if lease is None else repr(self._server_clock() + lease)
        args = (mark, self._ttl(record.expires_at), reason, until, member_of(record), ref)
        return bool(await client.run(scripts.REVOKE, key_names, *args))

    async def revoke_before(self, cutoff_time: float, *, audience: str, subject: str | None, expires_at: int) -> None:
        client, key = await self._opened(), self._keys.cutoff(audience, subject)
        await client.run(scripts.REVOKE_BEFORE, [key], repr(cutoff_time), self._ttl(expires_at))

    async def register(self, record: Record, *, max_sessions: int | None = None) -> None:
        client, keys = await self._opened(), self._keys
        until, audience = record.expires_at, record.audience
        key_names = [keys(kind, record.ref) for kind in ("registered", "ended", "session")]
        key_names += [keys.cutoff(audience, record.subject), keys("due", audience), keys.index]
        due_at = min(until, record.seen_at + self._first_look)
        times = (repr(record.created_at), self._ttl(until), self._ttl(until, recorded=True))
        limits = (audience, "" if max_sessions is None else max_sessions, repr(due_at))
        fields = (("e", str(until)), ("s", repr(record.seen_at)), ("t", record.trace), ("p", record.principal_hashes))
        words = [word for name, value in fields if value is not None for word in (name, value)]
        args = (*times, member_of(record), *limits, *words)
        _, fits = await self._run_in_epoch(client, scripts.REGISTER, key_names, *args)
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
        names = [self._keys.epoch, *(self._keys.cutoff(audience, one) for one in (None, subject))]
        epoch, *cutoffs = (float(value or 0) for value in await self._run("MGET", names))
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
        keys, key_names = self._keys, [self._keys.cutoff(audience)]
        for _, ref, subject in map(scripts.listed, members):
            key_names += [keys(kind, ref) for kind in ("session", "ended", "registered")]
            key_names.append(keys.cutoff(audience, subject))
        epoch, cutoff, *rows = await self._run_in_epoch(await self._opened(), scripts.RECORDS, key_names)
        now, live = self._server_clock(), list[Record]()
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
        client, keys, due = await self._opened(), self._keys, self._keys("due", audience)
        self._note_idle_timeout(idle_timeout)
        await self._ask_time(client)
        idle = "" if idle_timeout is None else idle_timeout + base.resolution(idle_timeout)
        claimed, latest = list[Ended](), self._server_clock() + self._first_look
        try:
            while len(claimed) < limit:
                now = self._server_clock()
                members = await client.run(scripts.DUE, [due], repr(now), limit - len(claimed), repr(latest))
                if not members:
                    break
                latest = math.inf  # or a lease that is longer than the idle timeout would be looked at for ever
                refs = [scripts.listed(name)[1] for name in members]
                each = [keys(kind, ref) for ref in refs for kind in ("session", "ended")]
                args = (repr(now), idle, repr(float(lease)), repr(float(self._leeway)), audience, *members)
                # Not repeatable: a claim that was made would look like another worker's.
                rows = await client.run(scripts.CLAIM, [due, keys.index, *each], *args, repeatable=False)
                claimed += [Ended(record_of(*fields), reason.decode()) for *fields, reason in rows]
        except StoreUnavailable:
            if not claimed:  # what was claimed must reach the caller, who runs its `on_end`
                raise
        return claimed

    async def purge(self, *refs: str) -> None:
        each = [self._keys("session", ref) for ref in refs]
        await self._run(scripts.PURGE, [*self._keys.of_all_sessions, *each], *refs)

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        value, ends = await self._run("HMGET", [self._keys("session", namespace.owner)], f":{key}", f"={key}")
        return self._unexpired(value, ends)

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
        now, named = self._data_time(), [name[1:] for name in fields if name[:1] == b":"]
        values = [name for name in named if now < float(fields.get(b"=" + name, math.inf))]
        items = [word for name in values for word in (name, fields[b":" + name], fields.get(b"=" + name, b""))]
        await self._change(data.WRITE, target, "", *items)

    async def _change(self, script: Script, namespace: Namespace, *args: Word) -> list[Any]:
        """Change data, and never repeat that: the change may have been made, and another worker's may have followed."""
        client, keys = await self._opened(), self._keys
        owner, until = namespace.owner, namespace.expires_at
        found: list[Any] = [b"gone"]
        if self._clock() < until + self._leeway:
            key_names = [keys("ended", owner), keys("session", owner), keys.usage, keys.sizes]
            times = (repr(self._data_time()), self._ttl(until), self._ttl(until, recorded=True))
            limit = "" if namespace.max_subject_bytes is None else namespace.max_subject_bytes
            counted = ("", "") if namespace.account is None else (1, namespace.account)
            limits = (owner, *times, namespace.max_bytes, *counted, limit)
            found = await client.run(script, key_names, *limits, *args, repeatable=False)
        if found[0] == b"crowded":
            base.check_principal(namespace, found[1], found[2])
        if found[0] in data.REFUSED:
            error, text = data.REFUSED[found[0]]
            raise error(text)
        return found

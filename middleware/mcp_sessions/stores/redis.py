"""A store in Redis or Valkey: for many machines that reach one server, or one cluster.

A request costs one round trip, and nothing is kept for a live session, unless it is recorded. What one session holds
changes in one script within its hash slot. What spans slots is written first where it is looked for and then where it
counts, so that a crash in between leaves a hint without a fact, never a fact that is not found. No text here or below
it repeats a URL.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, get_args

from .._session.claims import Claims
from .._session.data import Namespace
from ..errors import ConfigurationError, DataError, DataGone, DataNotInteger, DataTooLarge, StoreUnavailable
from . import redis_scripts as scripts
from .base import FIRST, INT64, LIVE, Ended, Forgotten, Position, Reach, Record, Standing, resolution
from .redis_connection import FORBIDDEN, RedisConnection, connect
from .redis_epoch import Durability, Epoch
from .redis_scripts import Command, Keys, Script, Word

logger = logging.getLogger("mcp_sessions")
KEPT: Final = 7 * 86_400  # seconds that a record and its data outlive the session, for an `on_end` that was not run
TRIO: Final = "store='redis://...' runs on asyncio alone; serve with asyncio, or use 'sqlite:PATH'"
LOOPS: Final = "store= is a Redis store that another event loop uses; make one store for each loop"
USED: Final = "store= is a Redis client that was connected before; give the store one of its own"
DENIED: Final = "Redis refuses this user: look at the user and the password in the store's URL, and at its permissions"
PREFIX: Final = "prefix= begins the names of keys: some text without braces, such as 'mcp-sessions:'"
_PAGES: Final = 4  # of the list of deadlines that one `claim_ended` looks at
_STATUS: Final = {b"live": Standing.LIVE, b"ended": Standing.ENDED, b"idle": Standing.IDLE, b"lost": Standing.LOST}
_ERRORS: Final[Mapping[bytes, tuple[type[DataError], str]]] = {
    b"gone": (DataGone, "the session has ended"),
    b"large": (DataTooLarge, "the session's data would exceed its limit"),
    b"not-integer": (DataNotInteger, "the value or the sum is no integer of 64 bits"),
}


class RedisStore:
    """Revocations, records and data in Redis or Valkey, version 7 or newer.

    Guaranteed with `appendonly yes` and `noeviction`: what a method returned from survives `kill -9` of any
    process, and with `appendfsync always` a power failure. Without the append-only file a restart is noticed,
    and no session from before it is vouched for. Not guaranteed: the last moments before a fail-over to a
    replica, which copies with a delay (`WAIT` is not used: it would not prevent it either); that the loss
    is noticed where one node of a cluster is emptied at runtime that does not hold the epoch; and anything
    across clocks of workers that disagree by more than a second.

    Args:
        url_or_client: `redis://`, `rediss://` (TLS), `unix://` or `redis+cluster://`, or an unused `redis.asyncio`
            client; its retries, which could count an increment twice, are taken away, and who made it closes it.
        prefix: What the names of all keys begin with; deployments that share a Redis differ in it.
        leeway: Seconds for which a revocation outlives its token, for clocks that disagree.
        clock: Unix seconds; a test passes its own.
        durability: Of a server that may forget, `"warn"` logs it, `"refuse"` does not start, `"ignore"` says nothing.
        forgotten: What to do with sessions issued before Redis forgot: `"refuse"` calls them LOST, `"accept"` takes
            the risk that some of them had been ended.
        timeout: Seconds after which the driver gives up one round trip, 1 at least; the middleware's `store_timeout`
            ends its calls sooner. Status and data take one round trip; changes to records two or three.
        connections: How many commands may be under way at once; more of them wait.

    Raises:
        ConfigurationError: The driver is missing, or an option cannot be used; the message says the remedy.
    """

    reach: Final = Reach.NETWORK

    def __init__(
        self,
        url_or_client: Any,
        *,
        prefix: str = "mcp-sessions:",
        leeway: float = 60,
        clock: Callable[[], float] = time.time,
        durability: Durability = "warn",
        forgotten: Forgotten = "refuse",
        timeout: float = 0.25,
        connections: int = 50,
    ) -> None:
        _check(prefix=prefix, durability=durability, forgotten=forgotten, timeout=timeout, connections=connections)
        self._keys = Keys(prefix)
        self._leeway = leeway
        self._clock = clock
        self._vouches_always = forgotten == "accept"
        self._epoch = Epoch(self._keys, durability)
        client = connect(url_or_client, self._epoch, timeout=timeout, connections=connections)
        self._connection = RedisConnection(client, timeout=timeout, connections=connections)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened = False
        self._advancing = asyncio.Lock()
        self._first_look = 0.0  # seconds without use after which a new session is; 0 until an idle timeout is known

    async def open(self) -> None:
        """Connect, check whether Redis keeps what it is given, and set the epoch where there is none."""
        self._stay_on_loop()
        if self._opened:
            return
        try:
            await self._connection.greet()
        except StoreUnavailable as error:
            if error.reason == FORBIDDEN:
                raise ConfigurationError(DENIED) from None
            raise
        if self._epoch.never_connected:
            raise ConfigurationError(USED)
        await self._advance()
        self._opened = True

    async def close(self) -> None:
        await self._connection.close()

    async def status(self, claims: Claims) -> Standing:
        return (await self.statuses((claims,)))[0]

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        ended = [self._keys.session_keys(one.ref)[0] for one in claims]
        values, _ = await self._read([*ended, *(cut_off for one in claims for cut_off in self._cut_offs(one))])
        return [
            self._vouched(one, one.issued_at, values) if values[key] is None else Standing.ENDED
            for key, one in zip(ended, claims, strict=True)
        ]

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        now = await self._ready()
        until = repr(now + lease)
        due = self._keys.due(audience)
        # First the deadline, where there is one: should this worker die right after, another looks in time. It
        # moves even to later, so that a sweeper who looked before does not postpone it to the session's own end.
        await self._run(("ZADD", due, "XX", until, ref))
        mark = secrets.randbelow(1 << 53) + 1  # knows this call again; Redis keeps a number in the fewest bytes
        args = (mark, self._ttl(expires_at, now), reason, until)
        ((ended, leased),) = await self._run(scripts.REVOKE(*self._keys.session_keys(ref), args=args))
        if leased and not ended:  # another's lease goes on as it was
            await self._run(scripts.POSTPONE(due, args=(ref, until, leased)))
        return bool(ended)

    async def revoke_before(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        now = await self._ready()
        args = (moment, self._ttl(until, now))
        await self._run(scripts.REVOKE_BEFORE(self._keys.ended_before(audience, subject), args=args))

    # A record is a hash of its own, listed by principal, by lineage and by deadline: when to look at it next. Where the
    # session turns out to live, the look is postponed, so using a session never writes to that list.

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
        await self._run(scripts.REGISTER(*self._keys.session_keys(record.ref), args=args))

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        now = await self._ready()
        command = scripts.TOUCH(*self._keys.session_keys(claims.ref), args=(repr(now), *self._idle(idle_timeout)))
        values, (found,) = await self._read(self._cut_offs(claims), command)
        standing = _STATUS[found]
        if standing is Standing.ENDED:
            return standing
        vouched = self._vouched(claims, claims.issued_at, values)
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
                claims = await self._run(*commands, idempotent=False)
                taken += [
                    Ended(_record(ref.decode(), *claim[3:]), reason=claim[2].decode())
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
        (of,) = await self._run(scripts.PURGE(*self._keys.data_keys(ref)))
        audience, subject, root = (word.decode() for word in of)
        lists = [self._keys.due(audience), *self._lists(audience, subject, root)]
        await self._run(*(("ZREM", key, ref) for key in lists))

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

    async def _listed(self, key: str, after: Position, limit: int | None, cut_off: bool = False) -> list[Record]:
        await self._ready()
        (refs,) = await self._run(("ZRANGE", key, 0, -1))
        records = await self._live_records([ref.decode() for ref in refs], cut_off)
        return sorted((one for one in records if one.position > after), key=lambda one: one.position)[:limit]

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
        return [one for one in live if self._vouched(one, one.created_at, values) in accepted]

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

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        now = await self._ready()
        (value,) = await self._run(self._on_data(scripts.READ, namespace, key, now))
        found: bytes | None = value
        return found

    async def write(
        self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None
    ) -> None:
        ends = "" if expires_at is None else repr(float(expires_at))
        await self._change(scripts.WRITE, namespace, key, value or b"", ends)

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        done, *_ = await self._change(scripts.COMPARE_AND_SWAP, namespace, key, old or b"", new or b"")
        return bool(done == b"done")

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        if by not in INT64:
            raise DataNotInteger(_ERRORS[b"not-integer"][1])
        _, total = await self._change(scripts.ADD, namespace, key, by)
        return int(total)

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        now = await self._ready()
        (items,) = await self._run(self._on_data(scripts.ITEMS, namespace, "", now))
        await self._change(scripts.FILL, target, "", *items)

    async def _change(self, script: Script, namespace: Namespace, key: str, *args: Word) -> list[Any]:
        """Change data, never twice: a first time may have succeeded, and be followed by another's change."""
        now = await self._ready()
        if not now < namespace.until + self._leeway:
            raise DataGone(_ERRORS[b"gone"][1])
        (result,) = await self._run(self._on_data(script, namespace, key, now, *args), idempotent=False)
        found: list[Any] = result
        if found[0] in _ERRORS:
            error, text = _ERRORS[found[0]]
            raise error(text)
        return found

    def _on_data(self, script: Script, namespace: Namespace, key: str, now: float, *args: Word) -> Command:
        ttls = (self._ttl(namespace.until, now), self._ttl(namespace.until, now, recorded=True))
        return script(*self._keys.data_keys(namespace.owner), args=(repr(now), *ttls, namespace.max_bytes, key, *args))

    async def _ready(self) -> float:
        """Open at first use, and return the time."""
        self._stay_on_loop()
        if not self._opened:
            await _or_unavailable(self.open)
        return self._clock()

    def _stay_on_loop(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigurationError(TRIO) from None
        if self._loop is None:
            self._loop = loop
        if loop is not self._loop:
            raise ConfigurationError(LOOPS)

    async def _run(self, *commands: Command, idempotent: bool = True) -> list[Any]:
        return await self._connection.run(*commands, idempotent=idempotent)

    async def _read(self, keys: Sequence[str], *commands: Command) -> tuple[dict[str, bytes | None], list[Any]]:
        """Return the values of keys and the epoch, and what commands return, in one round trip unless it moves."""
        await self._ready()
        keys = (self._keys.since, *keys)
        values, results = await self._connection.read(keys, *commands)
        if values[self._keys.since] is None or not self._epoch.is_current:
            await _or_unavailable(self._advance)
            values, results = await self._connection.read(keys, *commands)
        return values, results

    async def _advance(self) -> None:
        async with self._advancing:  # many requests may notice at once
            await self._epoch.advance(self._connection.run, self._clock())

    def _cut_offs(self, one: Claims | Record) -> list[str]:
        return [self._keys.ended_before(one.audience, subject) for subject in (None, one.subject)]

    def _vouched(self, one: Claims | Record, issued_at: int, values: dict[str, bytes | None]) -> Standing:
        cut_offs = (values[key] for key in self._cut_offs(one))
        if not all(cut_off is None or int(cut_off) <= issued_at for cut_off in cut_offs):
            return Standing.ENDED
        since = values[self._keys.since]
        known = self._vouches_always or (since is not None and int(since) <= issued_at)
        return LIVE if known else Standing.LOST

    def _ttl(self, until: float, now: float, *, recorded: bool = False) -> int:
        """Return the seconds until what belongs to a session may be forgotten: at least one, or Redis does at once."""
        return max(1, math.ceil(until + self._leeway - now + (KEPT if recorded else 0)))


async def _or_unavailable(call: Callable[[], Awaitable[None]]) -> None:
    """Log a set-up that cannot be used, where requests meet it: only opening the store may raise it."""
    try:
        await call()
    except ConfigurationError as error:
        logger.error("the session store cannot be used: %s", error)
        raise StoreUnavailable("store_misconfigured") from None


def _check(*, prefix: str, durability: str, forgotten: str, timeout: float, connections: int) -> None:
    for is_right, remedy in (
        (prefix and not {"{", "}"}.intersection(prefix), PREFIX),
        (durability in get_args(Durability), "durability= is one of 'warn', 'refuse', 'ignore'"),
        (forgotten in get_args(Forgotten), "forgotten= is one of 'refuse', 'accept'"),
        (timeout > 0, "timeout= is a number of seconds above 0, such as 0.25"),
        (connections >= 1, "connections= is at least 1"),
    ):
        if not is_right:
            raise ConfigurationError(remedy)


def _record(ref: str, *fields: bytes) -> Record:
    created, expires, seen, *texts, audience = fields
    subject, root, trace = (text.decode() if text else None for text in texts)
    return Record(ref, subject, int(created), int(expires), int(float(seen)), root, trace, audience.decode())

"""What all parts of the Redis store share: its options, opening at first use, and reading past the fence.

What is wrong with a set-up is an error with the remedy where the store is opened, and a line in the log with
`StoreUnavailable` in the midst of requests. Nothing here knows what is kept.

Recorded sessions in Redis: each in a hash of its own, listed by principal and by deadline.

The lists lie in other slots than the records and are hints: an entry is written before its record and goes
after it, and whoever reads one looks at the record. A deadline is when to look next; where the session turns
out to live, the look is put off, so using a session never writes to the list.

Session data in Redis: one hash for the values as JSON, one for their times and the bytes that they take.

Each change is one script within the session's own slot. Values whose time is over are taken for missing, and
go when room is needed. Data of a recorded session stays for its `on_end` to read, until `finish`.

A store in Redis or Valkey: for many machines that reach one server, or one cluster.

A request costs one round trip, and nothing is kept for a session that merely lives, unless it is recorded. What
one session holds changes in one script. What spans sessions is written first where it is looked for and then where
it counts, so that a crash in between leaves a hint without a fact, never a fact that nobody finds.
That Redis may forget is noticed by the fence (`redis_fence.py`). No text here or below it repeats a URL.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from .._session.claims import Claims
from .._session.data import Namespace
from ..errors import ConfigurationError, DataError, DataGone, DataNotInteger, DataTooLarge, StoreUnavailable
from .base import Ended, Reach, Record, Standing, resolution
from .redis_connection import FORBIDDEN, Durability, Fence, Link, connect, logger
from .redis_scripts import (
    ADD,
    CLAIM,
    DUE,
    FIELDS,
    FILL,
    FINISH,
    ITEMS,
    LEAD,
    LIST,
    PUT_OFF,
    READ,
    RECORD,
    REVOKE,
    REVOKE_BEFORE,
    SEEN,
    SWAP,
    WRITE,
    Keys,
    Script,
    Step,
    Word,
)

Forgotten = Literal["refuse", "accept"]

KEPT: Final = 7 * 86_400
"""Seconds for which a record and its data outlive the session, for an `on_end` that nobody was there to run."""

TRIO: Final = "store='redis://...' runs on asyncio alone; serve with asyncio, or use 'sqlite:PATH'"
LOOPS: Final = "store= is a Redis store that another event loop uses; make one store for each loop"
USED: Final = "store= is a Redis client that was connected before; give the store one of its own"
DENIED: Final = "Redis refuses this user: look at the user and the password in the store's URL, and at its permissions"


class RedisBase:
    """A Redis, its clock and its fence. `RedisStore` describes the arguments."""

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
        self._fence = Fence(self._keys, durability)
        client = connect(url_or_client, self._fence.heard, timeout=timeout, connections=connections)
        self._link = Link(client, timeout=timeout, connections=connections)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened = False
        self._settling = asyncio.Lock()

    async def open(self) -> None:
        """Connect, look whether Redis keeps what it is given, and set the fence where there is none."""
        self._stay_on_loop()
        if self._opened:
            return
        try:
            await self._link.greet()
        except StoreUnavailable as error:
            if error.reason == FORBIDDEN:
                raise ConfigurationError(DENIED) from None
            raise
        if self._fence.met_nobody:
            raise ConfigurationError(USED)
        await self._settle()
        self._opened = True

    async def close(self) -> None:
        """Let go of all connections."""
        await self._link.close()

    async def _ready(self) -> float:
        """Open at first use. Returns the time."""
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

    async def _read(self, keys: Sequence[str], *steps: Step) -> tuple[dict[str, bytes | None], list[Any]]:
        """The values of keys and the fence, and what commands return, in one round trip unless the fence moves."""
        await self._ready()
        keys = (self._keys.since, *keys)
        values, results = await self._link.read(keys, *steps)
        if values[self._keys.since] is None or not self._fence.stands:
            await _or_unavailable(self._settle)
            values, results = await self._link.read(keys, *steps)
        return values, results

    async def _settle(self) -> None:
        async with self._settling:  # many requests may notice at once
            await self._fence.settle(self._link, self._clock())

    def _cuts(self, one: Claims | Record) -> list[str]:
        """The keys of the moments before which sessions of its principal, or of everybody, ended."""
        return [self._keys.ended_before(one.audience, subject) for subject in (None, one.subject)]

    def _vouched(self, one: Claims | Record, issued_at: int, values: dict[str, bytes | None]) -> Standing:
        """What those moments and the fence say of a session."""
        cuts = (values[key] for key in self._cuts(one))
        if not all(cut is None or int(cut) <= issued_at for cut in cuts):
            return Standing.ENDED
        since = values[self._keys.since]
        if self._vouches_always or (since is not None and int(since) <= issued_at):
            return Standing.LIVE
        return Standing.LOST

    def _ttl(self, until: float, now: float, *, recorded: bool = False) -> int:
        """Seconds until what belongs to a session may be forgotten that ends at `until`."""
        span = until + self._leeway - now + (KEPT if recorded else 0)
        return max(1, math.ceil(span))  # at least one: Redis deletes at once what has none left


async def _or_unavailable(call: Callable[[], Any]) -> None:
    """What is wrong with a set-up is told where the store is opened; in the midst of requests it is logged."""
    try:
        await call()
    except ConfigurationError as error:
        logger.error("the session store cannot be used: %s", error)
        raise StoreUnavailable("store_misconfigured") from None


def _check(*, prefix: str, durability: str, forgotten: str, timeout: float, connections: int) -> None:
    if not prefix or {"{", "}"}.intersection(prefix):
        raise ConfigurationError("prefix= begins the names of keys: some text without braces, such as 'mcp-sessions:'")
    for name, value, choices in (
        ("durability", durability, get_args(Durability)),
        ("forgotten", forgotten, get_args(Forgotten)),
    ):
        if value not in choices:
            raise ConfigurationError(f"{name}= is one of {', '.join(map(repr, choices))}")
    if not timeout > 0:
        raise ConfigurationError("timeout= is a number of seconds above 0, such as 0.25")
    if not connections >= 1:
        raise ConfigurationError("connections= is at least 1")


_PAGES: Final = 4  # of the list of deadlines that one `claim_ended` looks at
_SEEN: Final = {b"live": Standing.LIVE, b"ended": Standing.ENDED, b"idle": Standing.IDLE, b"lost": Standing.LOST}


class RedisRecords(RedisBase):
    """The part of a store that knows which sessions there are."""

    # Seconds without use after which a new session is first looked at: at once, until somebody says what idle means.
    _first_look: float = 0.0

    async def register(self, record: Record) -> None:
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

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
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

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
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

    async def purge(self, ref: str) -> None:
        """Forget an ended session's record and its data: its `on_end` has run. The revocation stays."""
        await self._ready()
        (of,) = await self._link.run(FINISH(*self._keys.shelf(ref)), again=True)
        audience, subject, root = (word.decode() for word in of)
        lists = [self._keys.due(audience), *self._lists(audience, subject, root)]
        await self._link.run(*(Step(("ZREM", key, ref)) for key in lists), again=True)

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        """Whether this worker is the one that sweeps, for so many seconds from now on."""
        now = await self._ready()
        args = (worker, repr(now + seconds), repr(now), max(1, math.ceil(seconds * 1000)))
        (leads,) = await self._link.run(LEAD(self._keys.sweeper(audience), args=args), again=True, at_leisure=True)
        return bool(leads)

    def _idle(self, idle_timeout: int | None) -> tuple[Word, Word]:
        """What scripts are told of idleness: after how many seconds, and by how many `seen_at` may lag."""
        lag = resolution(idle_timeout)
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


INT64: Final = 1 << 63

_ERRORS: Final[Mapping[bytes, tuple[type[DataError], str]]] = MappingProxyType(
    {
        b"gone": (DataGone, "the session has ended"),
        b"large": (DataTooLarge, "the session's data would exceed its limit"),
        b"not-integer": (DataNotInteger, "the value or the sum is no integer of 64 bits"),
    }
)


class RedisData(RedisBase):
    """The part of a store that holds data."""

    async def read(self, shelf: Namespace, key: str) -> bytes | None:
        """A value's JSON, or None where there is none or its time is over."""
        now = await self._ready()
        (value,) = await self._link.run(self._step(READ, shelf, key, now), again=True)
        found: bytes | None = value
        return found

    async def write(self, shelf: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None) -> None:
        """Keep a value, or None to keep none."""
        ends = "" if expires_at is None else repr(float(expires_at))
        await self._change(WRITE, shelf, key, value or b"", ends)

    async def compare_and_swap(self, shelf: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace a value by another if it is still the old one; its time stays as it was."""
        done, *_ = await self._change(SWAP, shelf, key, old or b"", new or b"")
        return bool(done == b"done")

    async def add(self, shelf: Namespace, key: str, by: int) -> int:
        """Add to a value, which is 0 where there is none; its time stays as it was."""
        if not -INT64 <= by < INT64:
            raise DataNotInteger(_ERRORS[b"not-integer"][1])
        _, total = await self._change(ADD, shelf, key, by)
        return int(total)

    async def copy(self, shelf: Namespace, target: Namespace) -> None:
        """Put what lies on a shelf onto a new one: what one script reads, another writes."""
        now = await self._ready()
        (items,) = await self._link.run(self._step(ITEMS, shelf, "", now), again=True)
        await self._change(FILL, target, "", *items)

    async def _change(self, script: Script, shelf: Namespace, key: str, *args: Word) -> list[Any]:
        """What became of a change. It is never tried twice: it may have been made, and be followed by another's."""
        now = await self._ready()
        if not now < shelf.until + self._leeway:
            raise DataGone(_ERRORS[b"gone"][1])
        (result,) = await self._link.run(self._step(script, shelf, key, now, *args), again=False)
        found: list[Any] = result
        if found[0] in _ERRORS:
            error, text = _ERRORS[found[0]]
            raise error(text)
        return found

    def _step(self, script: Script, shelf: Namespace, key: str, now: float, *args: Word) -> Step:
        times = (self._ttl(shelf.until, now), self._ttl(shelf.until, now, recorded=True))
        return script(*self._keys.shelf(shelf.owner), args=(repr(now), *times, shelf.max_bytes, key, *args))


class RedisStore(RedisRecords, RedisData):
    """Revocations, records and data in Redis or Valkey, version 7 or newer.

    Guaranteed with `appendonly yes` and `noeviction`: what a method returned from survives `kill -9` of any
    process, and with `appendfsync always` a power failure. Without the append-only file a restart is noticed,
    and no session from before it is vouched for. Not guaranteed: the last moments before a fail-over to a
    replica, which copies with a delay (`WAIT` is not used: it would not prevent it either); that the loss
    is noticed where one node of a cluster is emptied at runtime that does not hold the fence; and anything
    across clocks of workers that disagree by more than a second.

    Args:
        url_or_client: `redis://`, `rediss://` (TLS), `unix://` or `redis+cluster://`, or a `redis.asyncio` client that
            was not used before. The store takes such a client's retries away, which could count an increment
            twice; who made it closes it.
        prefix: What the names of all keys begin with; deployments that share a Redis differ in it.
        leeway: Seconds for which a revocation outlives its token, for clocks that disagree.
        clock: Unix seconds; a test passes its own.
        durability: What to do about a server that may forget: `"warn"` logs it, `"refuse"` does not start, `"ignore"`
            says nothing.
        forgotten: What to do with sessions issued before Redis forgot: `"refuse"` calls them LOST, `"accept"` takes
            the risk that some of them had been ended.
        timeout: Seconds for each round trip. Standing and data take one; changes to records two or three.
        connections: How many commands may be under way at once; more of them wait.

    Raises:
        ConfigurationError: The driver is missing, or an option cannot be used; the message says the remedy.
    """

    @property
    def reach(self) -> Reach:
        """All machines that reach the server."""
        return Reach.NETWORK

    async def status(self, claims: Claims) -> Standing:
        """Whether an authentic session was ended, in one round trip."""
        (standing,) = await self.statuses((claims,))
        return standing

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        """As `standing`, for many sessions in one round trip, in their order."""
        ended = [self._keys.ended(one.ref) for one in claims]
        values, _ = await self._read([*ended, *(cut for one in claims for cut in self._cuts(one))])
        return [
            self._vouched(one, one.issued_at, values) if values[key] is None else Standing.ENDED
            for key, one in zip(ended, claims, strict=True)
        ]

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        """Make every request that begins after this returns see the session as ended."""
        now = await self._ready()
        until = repr(now + lease)
        due = self._keys.due(audience)
        # First the deadline, where there is one: should this worker die right after, somebody looks in time. It
        # moves even to later, so that a sweeper who looked before does not put it off to the session's own end.
        await self._link.run(Step(("ZADD", due, "XX", until, ref)), again=True)
        mark = secrets.randbelow(1 << 53) + 1  # knows this call again; Redis keeps a number in the fewest bytes
        args = (mark, self._ttl(expires_at, now), reason, until)
        ((ended, leased),) = await self._link.run(REVOKE(*self._keys.fate(ref), args=args), again=True)
        if leased and not ended:  # somebody else's lease goes on as it was
            await self._link.run(PUT_OFF(due, args=(ref, until, leased)), again=True)
        return bool(ended)

    async def revoke_before(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        """End all sessions issued before a moment, of one principal or of everybody."""
        now = await self._ready()
        args = (moment, self._ttl(until, now))
        await self._link.run(REVOKE_BEFORE(self._keys.ended_before(audience, subject), args=args), again=True)

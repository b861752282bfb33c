"""A store in Redis or Valkey: for many machines that reach one server, Sentinels or one cluster.

Nothing is kept for a live session, unless it is recorded or has data. What one session holds changes in one script
within its hash slot.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .._session.claims import Claims
from .._session.data import Namespace
from ..errors import DataError, DataGone, DataNotInteger, DataTooLarge
from . import redis_scripts as scripts
from .base import INT64, Standing
from .redis_records import RedisRecords
from .redis_scripts import Command, Script, Word

_ERRORS: Final[Mapping[bytes, tuple[type[DataError], str]]] = {
    b"gone": (DataGone, "the session has ended"),
    b"large": (DataTooLarge, "the session's data would exceed its limit"),
    b"not-integer": (DataNotInteger, "the value or the sum is no integer of 64 bits"),
}
_MAX_UNSURE: Final = 10_000  # revocations of which one worker remembers that their outcome is unknown


class RedisStore(RedisRecords):
    """Revocations, records and data in Redis or Valkey, version 7 or newer.

    Guaranteed with `appendonly yes`, `appendfsync always` and `noeviction`: what a method returned from survives
    `kill -9` of any process, and a power failure. With `appendfsync everysec` that holds with `durability="wait"`
    alone: otherwise a crash may take the last seconds with it, more of them the slower the disk. Without the
    append-only file a restart is noticed, and no session from before it is vouched for. After a fail-over to a
    replica the last moments may be missing, unless `replicas=` has each change wait for it. Not guaranteed: that the
    loss is noticed where one node of a cluster is emptied at runtime that does not hold the epoch; and anything
    across clocks of workers that disagree by more than a second.

    Args:
        url_or_client: `redis://`, `rediss://` (TLS), `unix://`, `redis+cluster://`, `rediss+cluster://`,
            `redis+sentinel://HOST:26379,HOST:26379/NAME/0` or `rediss+sentinel://`, or an unused `redis.asyncio`
            client; its retries, which could count an increment twice, are taken away, and who made it closes it.
            A URL may have `durability` and `replicas` as query parameters, which an argument overrides.
        prefix: What the names of all keys begin with; deployments that share a Redis differ in it.
        leeway: Seconds for which a revocation outlives its token, for clocks that disagree.
        clock: Unix seconds; a test passes its own.
        durability: Of a server that may lose what it acknowledged, `"warn"` (default) logs it, `"refuse"` does not
            start, `"wait"` has each change confirmed by the server's disk (WAITAOF) and refuses a server that cannot,
            `"ignore"` says nothing.
        replicas: How many replicas must have each change before it is acknowledged (WAIT).
        forgotten: What to do with sessions issued before Redis forgot: `"refuse"` calls them LOST, `"accept"` takes
            the risk that some of them had been ended.
        timeout: Seconds after which the driver gives up one round trip, 1 at least; the middleware's `store_timeout`
            ends its calls sooner. Status and data take one round trip; changes to records two or three.
        connections: How many commands may be under way at once; more of them wait.

    Raises:
        ConfigurationError: The driver is missing, or an option cannot be used; the message says the remedy.
    """

    async def status(self, claims: Claims) -> Standing:
        return (await self.statuses((claims,)))[0]

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        ended = [self._keys.session_keys(one.ref)[0] for one in claims]
        values, _ = await self._read([*ended, *(cut_off for one in claims for cut_off in self._cut_offs(one))])
        live = [one for key, one in zip(ended, claims, strict=True) if values[key] is None]
        found = iter(await self._standings(live, values))
        return [Standing.ENDED if values[key] is not None else next(found) for key in ended]

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        now = await self._ready()
        until = repr(now + lease)
        due = self._keys.due(audience)
        # First the deadline, where there is one: should this worker die right after, another looks in time. It
        # moves even to later, so that a sweeper who looked before does not postpone it to the session's own end.
        await self._run(("ZADD", due, "XX", until, ref))
        ended, leased = await self._revoke(ref, self._ttl(expires_at, now), reason, until)
        if leased and not ended:  # another's lease goes on as it was
            await self._run(scripts.POSTPONE(due, args=(ref, until, leased)))
        return bool(ended)

    async def _revoke(self, ref: str, ttl: int, reason: str, until: str) -> tuple[int, bytes]:
        """Revoke, and remember the mark of a call without an answer: it may have been the first, and is asked again."""
        # Knows this call again; Redis keeps a number in the fewest bytes.
        mark = self._unsure.pop(ref, None) or secrets.randbelow(1 << 53) + 1
        command = scripts.REVOKE(*self._keys.session_keys(ref), args=(mark, ttl, reason, until))
        try:
            ended, leased = await self._connection.change(command, idempotent=True)
        except BaseException:
            while len(self._unsure) >= _MAX_UNSURE:
                self._unsure.pop(next(iter(self._unsure)))
            self._unsure[ref] = mark
            raise
        return ended, leased

    async def revoke_before(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        now = await self._ready()
        args = (moment, self._ttl(until, now))
        command = scripts.REVOKE_BEFORE(self._keys.ended_before(audience, subject), args=args)
        await self._connection.change(command, idempotent=True)

    # --- data -----

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
        command = self._on_data(script, namespace, key, now, *args)
        found: list[Any] = await self._connection.change(command, idempotent=False)
        if found[0] in _ERRORS:
            error, text = _ERRORS[found[0]]
            raise error(text)
        return found

    def _on_data(self, script: Script, namespace: Namespace, key: str, now: float, *args: Word) -> Command:
        ttls = (self._ttl(namespace.until, now), self._ttl(namespace.until, now, recorded=True))
        return script(*self._keys.data_keys(namespace.owner), args=(repr(now), *ttls, namespace.max_bytes, key, *args))

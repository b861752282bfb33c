"""A store in Redis or Valkey: for many machines that reach one server, or one cluster.

A request costs one round trip, and nothing is kept for a session that merely lives, unless it is recorded. What
one session holds changes in one script. What spans sessions is written first where it is looked for and then where
it counts, so that a crash in between leaves a hint without a fact, never a fact that nobody finds.
That Redis may forget is noticed by the fence (`redis_fence.py`). No text here or below it repeats a URL.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from ..tokens import Claims
from .base import Reach, Standing
from .redis_data import RedisData
from .redis_records import RedisRecords
from .redis_scripts import PUT_OFF, REVOKE, REVOKE_BEFORE, Step


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

    async def standing(self, claims: Claims) -> Standing:
        """Whether an authentic session was ended, in one round trip."""
        (standing,) = await self.standings((claims,))
        return standing

    async def standings(self, claims: Sequence[Claims]) -> list[Standing]:
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

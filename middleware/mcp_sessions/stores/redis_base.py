"""What every part of the Redis store needs: its options, its connection, and whether a session is vouched for.

A request costs one round trip. No text here repeats a URL.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, get_args

from .._session.claims import Claims
from ..errors import ConfigurationError, StoreUnavailable
from .base import LIVE, Forgotten, Reach, Record, Standing
from .redis_clients import connect, split_options
from .redis_connection import FORBIDDEN, RedisConnection
from .redis_durability import Durability, Promise
from .redis_epoch import Epoch
from .redis_scripts import Command, Keys
from .turns import Turns

logger = logging.getLogger("mcp_sessions")
KEPT: Final = 7 * 86_400  # seconds that a record and its data outlive the session, for an `on_end` that was not run
SYNC_PATIENCE: Final = 3.0  # seconds, at least, for a disk that syncs once a second
TRIO: Final = "store='redis://...' runs on asyncio alone; serve with asyncio, or use 'sqlite:PATH'"
LOOPS: Final = "store= is a Redis store that another event loop uses; make one store for each loop"
USED: Final = "store= is a Redis client that was connected before; give the store one of its own"
DENIED: Final = "Redis refuses this user: look at the user and the password in the store's URL, and at its permissions"
PREFIX: Final = "prefix= begins the names of keys: some text without braces, such as 'mcp-sessions:'"
OPTIONS: Final = ("durability", "replicas")
"""What may stand in a URL as well."""


class RedisBase:
    """A connection to Redis, and the moment since which nothing was forgotten."""

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
        _check(prefix=prefix, forgotten=forgotten, timeout=timeout, connections=connections)
        given: dict[str, str] = {}
        if isinstance(url_or_client, str):
            url_or_client, given = split_options(url_or_client, OPTIONS)
        promise = _promise(durability or given.get("durability"), given.get("replicas", 0), replicas, timeout)
        self.patience = promise.patience if promise.durability == "wait" or promise.replicas else 0.0
        """Seconds that a change may take longer than a question."""
        self._keys = Keys(prefix)
        self._leeway = leeway
        self._clock = clock
        self._vouches_always = forgotten == "accept"
        self._epoch = Epoch(self._keys, promise)
        client = connect(url_or_client, self._epoch, timeout=timeout + self.patience, connections=connections)
        self.where: str = client.where
        """Where it is, for the log."""
        self._connection = RedisConnection(client, promise, timeout=timeout, connections=connections)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened = False
        self._advancing = asyncio.Lock()
        self._purging = Turns()  # many sessions end in the same moment
        self._unsure: dict[str, int] = {}  # the marks of revocations whose outcome is unknown, by what they revoke
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

    # --- vouched for -------------------------------------------------------------------------

    async def admit(self, claims: Claims) -> None:
        """Note the name of a session that begins within the epoch's own second: its date does not say on which side."""
        values, _ = await self._read(())
        since = values[self._keys.since]
        if since is not None and not _is_after(claims.issued_at, since):
            ttl = self._ttl(claims.expires_at, self._clock())
            await self._run(("SET", self._keys.admitted(claims.ref), since, "EX", ttl))

    def _cut_offs(self, one: Claims | Record) -> list[str]:
        return [self._keys.ended_before(one.audience, subject) for subject in (None, one.subject)]

    async def _standings(
        self, ones: Sequence[Claims] | Sequence[Record], values: dict[str, bytes | None]
    ) -> list[Standing]:
        """Return the status of sessions that were not revoked by name, given the epoch and their cut-offs."""
        since = values[self._keys.since]
        found = [self._vouched(one, since, values) for one in ones]
        lost = [place for place, standing in enumerate(found) if standing is Standing.LOST]
        if lost and since is not None:
            names = [self._keys.admitted(ones[place].ref) for place in lost]
            admitted, _ = await self._connection.read(names)
            for place, name in zip(lost, names, strict=True):
                found[place] = LIVE if admitted[name] == since else Standing.LOST
        return found

    def _vouched(self, one: Claims | Record, since: bytes | None, values: dict[str, bytes | None]) -> Standing:
        issued_at = one.created_at if isinstance(one, Record) else one.issued_at
        cut_offs = (values[key] for key in self._cut_offs(one))
        if not all(cut_off is None or int(cut_off) <= issued_at for cut_off in cut_offs):
            return Standing.ENDED
        known = self._vouches_always or (since is not None and _is_after(issued_at, since))
        return LIVE if known else Standing.LOST

    def _ttl(self, until: float, now: float, *, recorded: bool = False) -> int:
        """Return the seconds until what belongs to a session may be forgotten: at least one, or Redis does at once."""
        return max(1, math.ceil(until + self._leeway - now + (KEPT if recorded else 0)))


def _is_after(issued_at: int, since: bytes) -> bool:
    return float(since) < issued_at


async def _or_unavailable(call: Callable[[], Awaitable[None]]) -> None:
    """Log a set-up that cannot be used, where requests meet it: only opening the store may raise it."""
    try:
        await call()
    except ConfigurationError as error:
        logger.error("the session store cannot be used: %s", error)
        raise StoreUnavailable("store_misconfigured", cause=str(error)) from None


def _promise(durability: Any, in_url: int | str, replicas: int | None, timeout: float) -> Promise:
    durability = durability or "warn"
    copies = in_url if replicas is None else replicas
    for is_right, remedy in (
        (durability in get_args(Durability), "durability= is one of 'warn', 'refuse', 'wait', 'ignore'"),
        (str(copies).isdecimal(), "replicas= is how many replicas must have each change, such as 1"),
    ):
        if not is_right:
            raise ConfigurationError(remedy)
    return Promise(durability, int(copies), max(timeout, SYNC_PATIENCE))


def _check(*, prefix: str, forgotten: str, timeout: float, connections: int) -> None:
    for is_right, remedy in (
        (prefix and not {"{", "}"}.intersection(prefix), PREFIX),
        (forgotten in get_args(Forgotten), "forgotten= is one of 'refuse', 'accept'"),
        (timeout > 0, "timeout= is a number of seconds above 0, such as 0.25"),
        (connections >= 1, "connections= is at least 1"),
    ):
        if not is_right:
            raise ConfigurationError(remedy)

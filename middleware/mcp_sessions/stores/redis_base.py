"""What all parts of the Redis store share: its options, opening at first use, and reading past the fence.

What is wrong with a set-up is an error with the remedy where the store is opened, and a line in the log with
`StoreUnavailable` in the midst of requests. Nothing here knows what is kept.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, get_args

from ..errors import ConfigurationError, StoreUnavailable
from ..tokens import Claims
from .base import Record, Standing
from .redis_clients import connect
from .redis_durability import Durability, logger
from .redis_fence import Fence
from .redis_keys import Keys
from .redis_link import FORBIDDEN, Link
from .redis_scripts import Step

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

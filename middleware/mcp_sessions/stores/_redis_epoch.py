"""What a Redis server keeps of what it is given, and since when it has forgotten nothing.

A revocation that Redis forgets is a deleted session that works again. So each new connection asks the server how it
keeps data, and the moment since which it is complete lies in Redis itself.
Sources: Redis, "INFO", "Redis persistence", "Key eviction", "ACL".
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from .._errors import ConfigurationError
from ._base import Durability, logger
from ._clocks import ServerClock
from ._redis_scripts import EPOCH, TICK, Keys

FORGETS: Final = (
    "Redis has no append-only file, so a restart loses all revocations, and sessions from before it are refused; "
    "set 'appendonly yes' and 'appendfsync always'"
)
EVICTS: Final = (
    "Redis may evict revocations, records and data of live sessions when its memory is full (maxmemory-policy is not "
    "noeviction), after which deleted sessions work again; set 'maxmemory-policy noeviction', or use a separate Redis "
    "for sessions"
)
LATE: Final = (
    "Redis syncs its append-only file after it has answered (appendfsync is not always), so a crash with a slow disk, "
    "or a power failure, may lose deletes acknowledged in the last seconds; set 'appendfsync always'"
)
UNSURE: Final = (
    "this Redis user may not read how often the append-only file is synced; allow it with 'ACL SETUSER %s "
    "+config|get', or make sure that 'appendfsync always' is set"
)
UNKNOWN: Final = (
    "this Redis user may not read INFO, so it is unknown whether Redis is durable, and whether a restart lost data; "
    "allow it with 'ACL SETUSER %s +info +config|get'"
)
LOST: Final = "Redis lost its data, or may have: sessions from before are refused, since some of them may have ended"


class ServerInfo(NamedTuple):
    """One run of one server."""

    run: str  # a name that no other run has
    keeps: bool  # whether it keeps an append-only file
    evicts: bool  # whether it may evict keys to make room
    is_replica: bool
    is_loading: bool  # whether it is still reading its files

    @classmethod
    def parse(cls, text: str) -> ServerInfo | None:
        """Read the text of INFO; None where a part is missing."""
        values = dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
        names = ("run_id", "aof_enabled", "maxmemory_policy", "maxmemory", "role", "loading")
        if not values.keys() >= {*names}:
            return None
        run, keeps, policy, memory, role, loading = (values[name] for name in names)
        # What cannot be full has nothing to evict.
        return cls(run, keeps != "0", policy != "noeviction" and memory != "0", role != "master", loading != "0")


async def reply(connection: Any, *words: str) -> list[str] | None:
    """Return what a command returns over a new connection, or None where the server does not know or allow it."""
    from redis.exceptions import ResponseError

    await connection.send_command(*words)
    try:
        found = await connection.read_response()
    except ResponseError:
        return None
    parts = found if isinstance(found, list) else [found]
    return [part if isinstance(part, str) else part.decode("utf-8", "replace") for part in parts]


class Epoch:
    """Since when Redis has forgotten nothing, as one worker knows it.

    What empties Redis takes that moment away; it is then set to now, and sessions issued before are unknown. A server
    that was restarted without an append-only file may have brought back an old copy of it along with old revocations:
    the run of each server, which is kept with it, shows that, and it moves on, never back.

    Workers' clocks differ, so a session from about that moment could be of either side of it: one that was registered
    after the loss is known by name. No two epochs have the same text.
    """

    def __init__(self, keys: Keys, durability: Durability, clock: Callable[[], float]) -> None:
        self._keys = keys
        self._durability = durability
        self._clock = clock
        self.server_clock = ServerClock(clock)
        self._runs: dict[str, str] = {}  # of each server that was checked
        self._new: dict[str, ServerInfo] = {}  # runs that were not yet
        self._problems: dict[str, list[str]] = {}  # of the servers that were met last
        self._logged: set[str] = set()
        self._since = 0.0  # the moment when it was last set or moved here

    @property
    def is_current(self) -> bool:
        return not self._new and not (self._durability == "refuse" and any(self._problems.values()))

    async def on_connect(self, connection: Any, location: str, *, is_node: bool) -> None:
        """Look at a new connection's server before it is used; a node of a cluster keeps its name over restarts.

        Raises:
            BusyLoadingError: It is reading its files; what it reports meanwhile is not true yet.
            ReadOnlyError: It is a replica, which would answer from the past; a cluster's only gives the layout.
        """
        from redis.exceptions import BusyLoadingError, ReadOnlyError

        text = await reply(connection, "INFO", "server", "persistence", "memory", "replication")
        info = None if text is None else ServerInfo.parse(text[0])
        if info is not None and info.is_loading:
            raise BusyLoadingError("Redis is loading the dataset in memory")
        if info is not None and info.is_replica:
            if is_node:
                return
            raise ReadOnlyError
        (server,) = (await reply(connection, "CLUSTER", "MYID") or [""]) if is_node else [""]
        if time := await reply(connection, "TIME"):
            self.server_clock.set(float(f"{time[0]}.{time[1]:0>6}"), location)
        if info is None or self._runs.get(server) != info.run or self._problems[server]:
            self._problems[server] = await self._problems_of(info, connection)
        if info is not None and self._runs.get(server) != info.run:
            self._new[server] = info
        if self._durability == "warn":
            for problem in self._problems[server]:
                if problem not in self._logged:
                    self._logged.add(problem)
                    logger.warning(problem)

    async def _problems_of(self, info: ServerInfo | None, connection: Any) -> list[str]:
        """Return why a run of a server may lose a change that it acknowledged, in sentences with the remedy."""
        user = getattr(connection, "username", None) or "default"
        if info is None:
            return [UNKNOWN % user]
        fsync = ["", "always"]
        if info.keeps and self._durability != "ignore":
            fsync = await reply(connection, "CONFIG", "GET", "appendfsync") or []
        sentences = {
            FORGETS: not info.keeps,
            EVICTS: info.evicts,
            UNSURE % user: not fsync,
            LATE: bool(fsync) and fsync[1] != "always",
        }
        return [text for text, is_so in sentences.items() if is_so]

    async def advance(self, run: Callable[..., Awaitable[Any]]) -> None:
        """Set the moment where it is missing, and move it on where a run began that may have forgotten.

        Raises:
            ConfigurationError: A server may forget, and the options ask to refuse that; or no server was looked at.
            StoreUnavailable: Redis did not answer.
        """
        if not self._problems:
            raise ConfigurationError(
                "store= is a Redis client that was connected before; give the store one of its own"
            )
        problems = dict.fromkeys(text for texts in self._problems.values() for text in texts)
        if problems and self._durability == "refuse":
            raise ConfigurationError("; ".join(problems))
        new = dict(self._new)
        runs = [word for server, info in new.items() for word in (server, info.run, int(info.keeps))]
        # A moment in Redis before the one that is remembered means that an old copy came back. A clock may step back.
        moment = max(self._clock(), self._since + TICK)
        args = (f"{moment:.6f}{secrets.randbelow(10**6):06}", repr(self._since), *runs)
        since, is_lost = await run(EPOCH, [self._keys.epoch, self._keys.servers], *args)
        if is_lost or (self._since and float(since) > self._since):
            logger.warning(LOST)
        self._since = float(since)
        self._runs.update({server: info.run for server, info in new.items()})
        self._new = dict(self._new.items() - new.items())  # less what connected meanwhile

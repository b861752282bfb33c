"""What a Redis server keeps of what it is given, and since when it has forgotten nothing.

A revocation that Redis forgets is a deleted session that works again. So each new connection asks the server how it
keeps data, and the moment since which it is complete lies in Redis itself.
Sources: Redis, "INFO", "Redis persistence", "Key eviction", "ACL".
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from .._errors import ConfigurationError
from ._redis_scripts import EPOCH, Keys, Word

logger: Final = logging.getLogger("mcp_sessions")
_TICK: Final = 1e-6  # seconds, by which an epoch that follows another at once is later

Durability = Literal["warn", "refuse", "ignore"]
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


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """One run of one server."""

    run: str  # a name that no other run has
    keeps: bool  # whether it keeps an append-only file
    evicts: bool  # whether it may evict keys to make room
    is_replica: bool  # whether it only copies another server
    is_loading: bool  # whether it is still reading its files, and does not know yet what it keeps

    @classmethod
    def parse(cls, text: str) -> ServerInfo | None:
        """Read the text of INFO; None where a part is missing."""
        values = dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
        try:
            return cls(
                run=values["run_id"],
                keeps=values["aof_enabled"] != "0",
                # What cannot be full has nothing to evict.
                evicts=values["maxmemory_policy"] != "noeviction" and values["maxmemory"] != "0",
                is_replica=values["role"] != "master",
                is_loading=values["loading"] != "0",
            )
        except KeyError:
            return None


async def ask(connection: Any) -> ServerInfo | None:
    """Return what the server at the other end of a new connection says of itself, or None if it does not.

    Raises:
        BusyLoadingError: It is reading its files; what it says of them is not true yet.
    """
    from redis.exceptions import BusyLoadingError

    text = await _reply(connection, "INFO", "server", "persistence", "memory", "replication")
    info = None if text is None else ServerInfo.parse(_decoded(text))
    if info is not None and info.is_loading:
        raise BusyLoadingError("Redis is loading the dataset in memory")
    return info


async def _reply(connection: Any, *words: Any) -> Any:
    """Return what a command returns, or None where the server does not know or allow it."""
    from redis.exceptions import ResponseError

    await connection.send_command(*words)
    try:
        return await connection.read_response()
    except ResponseError:
        return None


def _user(connection: Any) -> str:
    return getattr(connection, "username", None) or "default"


def _decoded(text: bytes | str) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


class DurabilityPolicy:
    """What becomes of a server that may lose a change that it acknowledged."""

    def __init__(self, durability: Durability) -> None:
        self.durability = durability

    async def problems_of(self, info: ServerInfo, connection: Any) -> list[str]:
        """Return what is wrong with a run of a server, in sentences with the remedy."""
        wrong = [text for text, is_so in ((FORGETS, not info.keeps), (EVICTS, info.evicts)) if is_so]
        if not info.keeps or self.durability == "ignore":
            return wrong
        reply = await _reply(connection, "CONFIG", "GET", "appendfsync")
        if not reply:
            return [*wrong, UNSURE % _user(connection)]
        return wrong if _decoded(reply[1]) == "always" else [*wrong, LATE]


class Epoch:
    """Since when Redis has forgotten nothing, as one worker knows it.

    What empties Redis takes that moment away, it is then set to now, and sessions issued before are not vouched for. A
    server that was restarted without an append-only file may have brought back an old copy of it along with old
    revocations: the run of each server, which lies beside it, tells, and it moves on, never back.

    Workers' clocks differ, so a session from about that moment could be of either side of it: it is vouched for by name
    where it was registered after the loss. No two epochs have the same text.
    """

    def __init__(self, keys: Keys, policy: DurabilityPolicy) -> None:
        self._keys = keys
        self._policy = policy
        self._runs: dict[str, str] = {}  # of each server that was looked into
        self._new: dict[str, ServerInfo] = {}  # runs that were not yet
        self._wrong: dict[str, list[str]] = {}  # with the servers that were met last
        self._logged: set[str] = set()
        self._since = 0.0  # the moment when it was last set or moved here

    @property
    def is_current(self) -> bool:
        return not self._new and not (self._policy.durability == "refuse" and any(self._wrong.values()))

    async def on_connect(self, server: str, info: ServerInfo | None, connection: Any) -> None:
        """Note a new connection to a server, by a name that a restart does not change."""
        if info is None:
            self._wrong[server] = [UNKNOWN % _user(connection)]
        elif self._runs.get(server) != info.run or self._wrong[server]:
            self._wrong[server] = await self._policy.problems_of(info, connection)
            self._new[server] = info
        for text in self._wrong[server] if self._policy.durability == "warn" else ():
            if text not in self._logged:
                self._logged.add(text)
                logger.warning(text)

    async def advance(self, run: Callable[..., Awaitable[list[Any]]], now: float) -> None:
        """Set the moment where it is missing, and move it on where a run began that may have forgotten.

        Raises:
            ConfigurationError: A server may forget, and the options ask to refuse that; or none was asked.
            StoreUnavailable: Redis did not answer.
        """
        if not self._wrong:
            raise ConfigurationError(
                "store= is a Redis client that was connected before; give the store one of its own"
            )
        wrong = dict.fromkeys(text for texts in self._wrong.values() for text in texts)
        if wrong and self._policy.durability == "refuse":
            raise ConfigurationError("; ".join(wrong))
        new = dict(self._new)
        runs = [word for server, info in new.items() for word in (server, info.run, int(info.keeps))]
        # A moment in Redis before the one that is remembered means that an old copy came back.
        moment = max(now, self._since + _TICK)
        args: tuple[Word, ...] = (f"{moment:.6f}{secrets.randbelow(10**6):06}", repr(self._since), *runs)
        command = EPOCH(self._keys.epoch, self._keys.servers, args=args)
        (since,) = await run(command)
        if self._since and float(since) > self._since:
            logger.warning("Redis lost its data, or may have: sessions from before are refused")
        self._since = float(since)
        self._runs.update({server: info.run for server, info in new.items()})
        self._new = dict(self._new.items() - new.items())  # less what connected meanwhile

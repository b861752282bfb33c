"""What a Redis server says of how it keeps what it is given, and how a change is confirmed.

The append-only file, its sync, evictions and replicas decide whether an acknowledged delete can work again. INFO tells
most of it, CONFIG how often the file is synced, and WAITAOF and WAIT make the server wait before it confirms.
Sources: Redis, "INFO", "Redis persistence", "Key eviction", "WAITAOF" (Redis 7.2), "WAIT", "ACL".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ..errors import ConfigurationError
from .redis_scripts import Command

Durability = Literal["warn", "refuse", "wait", "ignore"]
RIGHTS: Final = (
    "~mcp-sessions:* +ping +info +config|get +select +mget +hmget +get +set +del +exists +ttl +expire +hget +hset "
    "+hsetnx +hdel +hexists +hgetall +hincrby +zadd +zrem +zscore +zrangebyscore +zrangebylex +eval +evalsha"
)
"""What a Redis user needs."""
WAITING_RIGHTS: Final = "+wait +waitaof"
"""What it needs for `durability="wait"` or `replicas=`; a server without WAITAOF does not know that name."""
CLUSTER_RIGHTS: Final = "+cluster|slots +cluster|shards +cluster|myid +command +asking"
"""What it needs in a cluster."""

FORGETS: Final = (
    "Redis keeps no append-only file, so a restart loses what was revoked and every session issued before it is then "
    "refused; set 'appendonly yes' and 'appendfsync always'"
)
EVICTS: Final = (
    "Redis may evict revocations, records and data of live sessions when its memory is full (maxmemory-policy is not "
    "noeviction), and a deleted session would work again; set 'maxmemory-policy noeviction', or give sessions a Redis "
    "of their own"
)
LATE: Final = (
    "Redis syncs its append-only file after it has answered (appendfsync is not always), so a crash with a slow disk, "
    "or a power failure, may lose acknowledged deletes of the last seconds; set 'appendfsync always', or have each "
    "change confirmed with durability='wait' (Redis 7.2 or newer, Valkey)"
)
UNSURE: Final = (
    "Redis does not let this user read how often it syncs its append-only file; allow it with 'ACL SETUSER %s "
    "+config|get', or make sure of 'appendfsync always'"
)
UNKNOWN: Final = (
    "Redis does not let this user read INFO, so it cannot be known whether it keeps what it is given, nor whether it "
    "was restarted without it; allow it with 'ACL SETUSER %s +info +config|get'"
)
NO_WAITAOF: Final = (
    "durability='wait' needs WAITAOF (Redis 7.2 or newer, or Valkey, and 'ACL SETUSER %s +waitaof'), or "
    "'appendfsync always'"
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

    said = await _reply(connection, "INFO", "server", "persistence", "memory", "replication")
    info = None if said is None else ServerInfo.parse(_text(said))
    if info is not None and info.is_loading:
        raise BusyLoadingError("Redis is loading the dataset in memory")
    return info


@dataclass
class Promise:
    """What a store promises of a change that it acknowledged, as far as its servers can keep it.

    Args:
        durability: What becomes of a server that may lose it.
        replicas: How many replicas must have each change.
        patience: Seconds that the server may take to confirm one.
    """

    durability: Durability
    replicas: int
    patience: float
    _syncs: dict[str, bool] = field(default_factory=dict)  # whether a server syncs before it answers

    @property
    def is_strict(self) -> bool:
        """Whether a server that does not keep it is refused."""
        return self.durability in {"refuse", "wait"}

    @property
    def confirmations(self) -> tuple[Command, ...]:
        """The commands that follow a change on its connection, and return only when it is safe."""
        patience = max(1, int(self.patience * 1000))
        waits = self.durability == "wait" and not all(self._syncs.values())
        local: tuple[Command, ...] = (("WAITAOF", 1, 0, patience),) if waits else ()
        return (*local, ("WAIT", self.replicas, patience)) if self.replicas else local

    def is_kept(self, confirmations: Sequence[Any]) -> bool:
        """Return whether what the server answered to `confirmations` says that the changes before them are safe."""
        return all(
            found[0] >= 1 if isinstance(found, list) else found >= self.replicas  # of WAITAOF, and of WAIT
            for found in confirmations
        )

    async def look(self, server: str, info: ServerInfo, connection: Any) -> list[str]:
        """Return what is wrong with a run of a server, in sentences with the remedy."""
        user = _user(connection)
        wrong = [text for text, is_so in ((FORGETS, not info.keeps), (EVICTS, info.evicts)) if is_so]
        syncs = await _sync(connection) if info.keeps and self.durability != "ignore" else ""
        self._syncs[server] = syncs == "always"
        if self.durability == "wait":
            waits = syncs == "always" or await _reply(connection, "WAITAOF", 0, 0, 0) is not None
            return wrong if waits else [*wrong, NO_WAITAOF % user]
        if syncs is None:
            wrong.append(UNSURE % user)
        elif syncs not in {"", "always"}:
            wrong.append(LATE)
        return wrong

    def refuse(self, wrong: Sequence[str]) -> None:
        """Raise `ConfigurationError` for what is wrong, where that is asked for."""
        if wrong and self.is_strict:
            raise ConfigurationError("; ".join(dict.fromkeys(wrong)))


def unknown(connection: Any) -> str:
    """Return the warning of a server that does not say anything of itself."""
    return UNKNOWN % _user(connection)


async def _sync(connection: Any) -> str | None:
    said = await _reply(connection, "CONFIG", "GET", "appendfsync")
    return _text(said[1]) if said else None


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


def _text(said: bytes | str) -> str:
    return said if isinstance(said, str) else said.decode("utf-8", "replace")

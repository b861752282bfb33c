"""What a Redis server says of itself, and whether it keeps what it is given.

A revocation that Redis forgets is a deleted session that works again. So each server is asked at each new
connection (a restart drops them all) which run it is, and whether it keeps an append-only file and never
evicts. The store then judges by a fence, the moment since which nothing was forgotten. Nothing here talks
to Redis but `ask`, over the connection that it is given.
Source: Redis, "INFO", "Redis persistence", "Key eviction".
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..errors import ConfigurationError

logger = logging.getLogger("mcp_sessions")

Durability = Literal["warn", "refuse", "ignore"]

_SECTIONS: Final = ("server", "persistence", "memory", "replication")

FORGETS: Final = (
    "Redis keeps no append-only file, so a restart loses what was revoked and every session issued before it is then "
    "refused; set 'appendonly yes' (and 'appendfsync always' against power failures)"
)
EVICTS: Final = (
    "Redis may evict revocations when its memory is full (maxmemory-policy is not noeviction), and a deleted session "
    "would work again; set 'maxmemory-policy noeviction', or give sessions a Redis of their own"
)
UNKNOWN: Final = (
    "Redis does not let this user read INFO, so it cannot be known whether it keeps what it is given, nor whether it "
    "was restarted; allow it with '+info', or make sure of 'appendonly yes' and 'maxmemory-policy noeviction'"
)


@dataclass(frozen=True, slots=True)
class Facts:
    """One run of one server.

    Args:
        run: What no other run is called.
        keeps: Whether it keeps an append-only file.
        evicts: Whether it may evict keys to make room.
        replica: Whether it only copies another server.
    """

    run: str
    keeps: bool
    evicts: bool
    replica: bool


def facts(info: str) -> Facts | None:
    """What the text of INFO says, or None where the server did not say it all."""
    told = dict(line.split(":", 1) for line in info.split("\r\n") if ":" in line)
    try:
        return Facts(
            run=told["run_id"],
            keeps=told["aof_enabled"] != "0",
            # What cannot be full has nothing to evict.
            evicts=told["maxmemory_policy"] != "noeviction" and told["maxmemory"] != "0",
            replica=told["role"] != "master",
        )
    except KeyError:
        return None


async def ask(connection: Any) -> Facts | None:
    """What the server at the other end of a new connection says of itself, or None where it must not say."""
    from redis.exceptions import ResponseError

    await connection.send_command("INFO", *_SECTIONS)
    try:
        info = await connection.read_response()
    except ResponseError:
        return None
    return facts(info if isinstance(info, str) else info.decode("utf-8", "replace"))


async def node_id(connection: Any) -> str:
    """What a cluster calls the node at the other end, the same after a restart."""
    await connection.send_command("CLUSTER", "MYID")
    name = await connection.read_response()
    return name if isinstance(name, str) else str(name, "ascii")


def judge(found: Facts | None, durability: Durability) -> None:
    """Say what is wrong with a server, or refuse it.

    Raises:
        ConfigurationError: Something is, and was told to be refused; the message says the remedy.
    """
    if durability == "ignore":
        return
    if found is None:
        logger.info(UNKNOWN)
        return
    wrong = [text for text, is_so in ((FORGETS, not found.keeps), (EVICTS, found.evicts)) if is_so]
    if wrong and durability == "refuse":
        raise ConfigurationError("; ".join(wrong))
    for text in wrong:
        logger.warning(text)

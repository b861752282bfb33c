"""Since when Redis has forgotten nothing, and whether a server keeps what it is given.

A revocation that Redis forgets is a deleted session that works again. So the moment since which nothing was forgotten
lies in Redis itself: what empties Redis takes it away, it is then set to now, and sessions issued before are not
vouched for. A server that was restarted without an append-only file may have brought back an old copy of it along with
old revocations: the run of each server, which lies beside it, tells, and it moves on, never back.
Source: Redis, "INFO", "Redis persistence", "Key eviction".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..errors import ConfigurationError
from .redis_scripts import EPOCH, Keys, Word

logger = logging.getLogger("mcp_sessions")
Durability = Literal["warn", "refuse", "ignore"]
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
class ServerInfo:
    """One run of one server."""

    run: str  # a name that no other run has
    keeps: bool  # whether it keeps an append-only file
    evicts: bool  # whether it may evict keys to make room
    is_replica: bool  # whether it only copies another server

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
            )
        except KeyError:
            return None


async def ask(connection: Any) -> ServerInfo | None:
    """Return what the server at the other end of a new connection says of itself, or None if it does not."""
    from redis.exceptions import ResponseError

    await connection.send_command("INFO", "server", "persistence", "memory", "replication")
    try:
        info = await connection.read_response()
    except ResponseError:
        return None
    return ServerInfo.parse(info if isinstance(info, str) else info.decode("utf-8", "replace"))


class Epoch:
    """Since when Redis has forgotten nothing, as one worker knows it."""

    def __init__(self, keys: Keys, durability: Durability) -> None:
        self._keys = keys
        self._durability = durability
        self._runs: dict[str, str] = {}  # of each server that was looked into
        self._new: dict[str, ServerInfo] = {}  # runs that were not yet
        self._silent = False  # whether a server does not let this user read INFO
        self._since = 0  # the moment when it was last set or moved here

    @property
    def never_connected(self) -> bool:
        return not (self._silent or self._runs or self._new)

    @property
    def is_current(self) -> bool:
        return not self._new

    def on_connect(self, server: str, info: ServerInfo | None) -> None:
        """Note a new connection to a server, by a name that a restart does not change."""
        if info is not None:
            if self._runs.get(server) != info.run:
                self._new[server] = info
        else:
            if not self._silent and self._durability != "ignore":
                logger.info(UNKNOWN)
            self._silent = True

    async def advance(self, run: Callable[..., Awaitable[list[Any]]], now: float) -> None:
        """Set the moment where it is missing, and move it on where a run began that may have forgotten.

        Raises:
            ConfigurationError: A server may forget, and the options ask to refuse that.
            StoreUnavailable: Redis did not answer.
        """
        new = dict(self._new)
        runs: list[Word] = []
        for server, info in new.items():
            self._judge(info)
            runs += (server, info.run, int(info.keeps))
        # What was forgotten at runtime includes what happened in this very second. Who meets an empty Redis at first
        # lost nothing, and sessions that begin within the same second are to live. A moment in Redis before the one
        # that is remembered means that an old copy came back.
        lost = int(now) + 1
        first = lost if self._since else int(now)
        command = EPOCH(self._keys.since, self._keys.servers, args=(first, lost, self._since, *runs))
        (since,) = await run(command, idempotent=True)
        self._since = int(since)
        self._runs.update({server: info.run for server, info in new.items()})
        self._new = dict(self._new.items() - new.items())  # less what connected meanwhile

    def _judge(self, info: ServerInfo) -> None:
        wrong = [text for text, is_so in ((FORGETS, not info.keeps), (EVICTS, info.evicts)) if is_so]
        if wrong and self._durability == "refuse":
            raise ConfigurationError("; ".join(wrong))
        for text in wrong if self._durability == "warn" else ():
            logger.warning(text)

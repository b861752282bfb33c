"""Since when Redis has forgotten nothing.

A revocation that Redis forgets is a deleted session that works again. So the moment since which nothing was forgotten
lies in Redis itself: what empties Redis takes it away, it is then set to now, and sessions issued before are not
vouched for. A server that was restarted without an append-only file may have brought back an old copy of it along with
old revocations: the run of each server, which lies beside it, tells, and it moves on, never back.

Tokens are dated to the second, so a session of the epoch's own second could be of either side of it: such a session is
vouched for by name where it was admitted after the loss. No two epochs have the same text.
Source: Redis, "INFO".
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

from .redis_durability import Promise, ServerInfo, unknown
from .redis_scripts import EPOCH, Keys, Word

_log: Final = logging.getLogger("mcp_sessions")
_TICK: Final = 1e-6  # seconds, by which an epoch that follows another at once is later


class Epoch:
    """Since when Redis has forgotten nothing, as one worker knows it."""

    def __init__(self, keys: Keys, promise: Promise) -> None:
        self._keys = keys
        self._promise = promise
        self._runs: dict[str, str] = {}  # of each server that was looked into
        self._new: dict[str, ServerInfo] = {}  # runs that were not yet
        self._wrong: dict[str, list[str]] = {}  # with the servers that were met last
        self._said: set[str] = set()  # what was logged
        self._since = 0.0  # the moment when it was last set or moved here

    @property
    def never_connected(self) -> bool:
        return not self._wrong

    @property
    def is_current(self) -> bool:
        return not self._new and not (self._promise.is_strict and any(self._wrong.values()))

    async def on_connect(self, server: str, info: ServerInfo | None, connection: Any) -> None:
        """Note a new connection to a server, by a name that a restart does not change."""
        if info is None:
            self._wrong[server] = [unknown(connection)]
        elif self._runs.get(server) != info.run or self._wrong[server]:
            self._wrong[server] = await self._promise.look(server, info, connection)
            self._new[server] = info
        for text in self._wrong[server] if self._promise.durability == "warn" else ():
            if text not in self._said:
                self._said.add(text)
                _log.warning(text)

    async def advance(self, run: Callable[..., Awaitable[list[Any]]], now: float) -> None:
        """Set the moment where it is missing, and move it on where a run began that may have forgotten.

        Raises:
            ConfigurationError: A server may forget, and the options ask to refuse that.
            StoreUnavailable: Redis did not answer.
        """
        self._promise.refuse([text for texts in self._wrong.values() for text in texts])
        new = dict(self._new)
        runs: list[Word] = []
        for server, info in new.items():
            runs += (server, info.run, int(info.keeps))
        # A moment in Redis before the one that is remembered means that an old copy came back.
        moment = max(now, self._since + _TICK)
        args = (f"{moment:.6f}{secrets.randbelow(10**6):06}", repr(self._since), *runs)
        command = EPOCH(self._keys.since, self._keys.servers, self._keys.since_second, args=args)
        (since,) = await run(command, idempotent=True)
        self._since = float(since)
        self._runs.update({server: info.run for server, info in new.items()})
        self._new = dict(self._new.items() - new.items())  # less what connected meanwhile

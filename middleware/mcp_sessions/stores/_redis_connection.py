"""How commands get to Redis and back.

What goes wrong becomes `StoreUnavailable` with a reason from one table and a cause in plain words for the log; a
driver's own text, which may quote an address or a password, goes nowhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from .._errors import ConfigurationError, StoreFull, StoreUnavailable
from ._redis_clients import StandaloneClient, retrieve
from ._redis_scripts import Command, Script, Word, with_source

logger: Final = logging.getLogger("mcp_sessions")
Values = dict[str, bytes | None]
_AGAIN: Final = 0.1  # seconds after which what is under way is cancelled once more
_GOODBYE: Final = 5.0  # seconds for closing connections
# After these, connections that are still open likely lead nowhere, or to a server that became a replica.
STALE: Final = {"store_unreachable", "store_timeout", "store_readonly"}
# By the driver's names, so that this table needs no driver; the most special class of an error counts.
_REASONS: Final = {
    **dict.fromkeys(("ConnectionError", "OSError", "RedisClusterException"), "store_unreachable"),
    **dict.fromkeys(("AuthenticationError", "AuthenticationWrongNumberOfArgsError"), "store_forbidden"),
    **dict.fromkeys(("AuthorizationError", "NoPermissionError"), "store_forbidden"),
    **dict.fromkeys(("ClusterDownError", "SlotNotCoveredError"), "store_cluster_down"),
    "TimeoutError": "store_timeout",
    "BusyLoadingError": "store_loading",
    "ReadOnlyError": "store_readonly",
    "OutOfMemoryError": "store_out_of_memory",
}
# For these the driver has no class.
_CODES: Final = {"MISCONF": "store_cannot_save", "NOAUTH": "store_forbidden", "NOREPLICAS": "store_no_replicas"}
_CAUSES: Final = {
    "store_timeout": "no answer in time",
    "store_readonly": "this server is a replica",
    "store_forbidden": "it refuses this user: check the user and the password in the URL, and its permissions",
    "store_out_of_memory": "its memory is full (maxmemory)",
    "store_cluster_down": "the cluster does not serve all slots",
    "store_loading": "it is reading its files, after a restart",
    "store_cannot_save": "it cannot write to its disk (MISCONF)",
    "store_no_replicas": "it has fewer replicas than it needs to accept changes (min-replicas-to-write)",
}


def reason_of(error: BaseException) -> str:
    """Return why a call failed, as a reason for logs and spans."""
    if type(error).__name__ == "RedisClusterException" and type(error.__cause__).__name__ == "TimeoutError":
        return "store_timeout"  # no node of the cluster answered when it was asked for the layout
    names = (cls.__name__ for cls in type(error).__mro__)
    known = next((_REASONS[name] for name in names if name in _REASONS), "store_error")
    return _CODES.get(str(error).split(" ", 1)[0], known)


def cause_of(error: BaseException, reason: str) -> str:
    """Return why a call failed in plain words, without anything that was given."""
    deeper: BaseException | None = error
    while deeper is not None:
        if isinstance(deeper, ssl.SSLCertVerificationError):
            return f"TLS: {deeper.verify_message}"
        if isinstance(deeper, ssl.SSLError):
            return "TLS: the server does not speak it, or not correctly"
        if "invalid database" in str(deeper).lower() or "db index" in str(deeper).lower():
            return "it has no database with this number"
        if isinstance(deeper, OSError) and deeper.errno:
            return os.strerror(deeper.errno) if deeper.errno > 0 else "its host name is unknown"
        deeper = deeper.__cause__ or deeper.__context__
    return _CAUSES.get(reason, type(error).__name__)


async def or_unavailable(call: Callable[[], Awaitable[None]]) -> None:
    """Log a set-up that cannot be used, where requests meet it: only opening the store may raise it."""
    try:
        await call()
    except ConfigurationError as error:
        logger.error("the session store cannot be used: %s", error)
        raise StoreUnavailable("store_misconfigured", cause=str(error)) from None


class RedisConnection:
    """Commands to a client, each call in a task of its own.

    So a caller that gives up (a timeout, a client that hung up) cancels the driver once and leaves its clean-up in
    peace. Only what is idempotent is tried again, and only when a connection turns out to be dead.
    """

    def __init__(self, client: StandaloneClient, *, timeout: float, connections: int) -> None:
        self._client = client
        self._suspicious_after = timeout / 2  # who gives up so late has not merely hung up
        self._free = asyncio.Semaphore(connections)  # how many commands may be under way at once
        self._tasks: set[asyncio.Task[Any]] = set()

    async def ping(self) -> None:
        await self._detached(self._client.ping, idempotent=True)

    async def run(self, *commands: Command, idempotent: bool = True) -> list[Any]:
        """Return what commands return, in their order and in one round trip; on a cluster they run side by side.

        `StoreUnavailable` means that one of them failed, and that it is unknown which were done.
        """
        results: list[Any] = []
        if commands:
            results = await self._detached(lambda: self._run(commands), idempotent=idempotent)
        return results

    async def run_in_order(self, first: Sequence[Command], then: Command) -> tuple[list[Any], Any]:
        """Return what commands return, and one that takes effect after them: in one round trip but on a cluster."""

        async def work() -> list[Any]:
            if self._client.keeps_order:
                return await self._run((*first, then))
            return [*await self._run(first), *await self._run((then,))]

        *results, last = await self._detached(work, idempotent=True)
        return results, last

    async def read(self, keys: Sequence[str], *commands: Command) -> tuple[Values, list[Any]]:
        """Return the values of keys, and what idempotent commands return, in one round trip."""
        groups = self._client.groups(list(dict.fromkeys(keys)))
        results = await self.run(*(("MGET", *group) for group in groups), *commands)
        values: Values = {}
        for group, found in zip(groups, results, strict=False):
            values.update(zip(group, found, strict=True))
        return values, results[len(groups) :]

    async def each(self, script: Script, keys: Sequence[Sequence[str]], *args: Word, idempotent: bool) -> list[bytes]:
        """Return what a script finds for the keys of each session, as few calls as the server allows."""
        size = self._client.sessions_at_once
        pages = [list(chain(*keys[start : start + size])) for start in range(0, len(keys), size)]
        found = await self.run(*(script(*page, args=args) for page in pages), idempotent=idempotent)
        return list(chain(*found))

    def scan(self, pattern: str) -> AsyncIterator[bytes]:
        """Yield the keys that match a pattern, on every server."""
        return self._client.scan(pattern)

    async def close(self) -> None:
        """Close all connections, when what is under way has been cancelled."""
        while self._tasks:  # more than once, since a cancellation that meets a connection's making can be lost in it
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_AGAIN)
        with suppress(Exception):  # a server that is gone cannot say goodbye
            await asyncio.wait_for(self._client.close(), _GOODBYE)

    async def _detached(self, work: Callable[[], Awaitable[Any]], *, idempotent: bool) -> Any:
        clock = asyncio.get_running_loop().time
        began, task = clock(), self._start(self._attempt(work, idempotent=idempotent))
        try:
            await asyncio.wait({task})
        finally:
            if task.cancel() and clock() - began >= self._suspicious_after:
                _ = self._start(self._client.drop_idle())
        error = StoreUnavailable("store_closed", cause="the store was closed") if task.cancelled() else task.exception()
        if error is None:
            return task.result()
        if isinstance(error, StoreUnavailable):
            raise error
        reason = reason_of(error)
        is_full = reason == "store_out_of_memory"
        raise (StoreFull if is_full else StoreUnavailable)(reason, cause=cause_of(error, reason)) from None

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(retrieve)
        return task

    async def _attempt(self, work: Callable[[], Awaitable[Any]], *, idempotent: bool) -> Any:
        await self._client.ready()
        async with self._free:
            try:
                return await work()
            except Exception as error:
                reason = reason_of(error)
                if reason in STALE:
                    await self._client.drop_idle()
                if not (idempotent and reason == "store_unreachable"):
                    raise
            await self._client.ready()
            return await work()

    async def _run(self, commands: Sequence[Command]) -> list[Any]:
        if len(commands) != 1:
            results = await self._client.pipeline(commands)
        else:
            try:
                results = [await self._client.execute(*commands[0])]
            except Exception as error:  # noqa: BLE001  # raised again, all but one
                results = [error]
        for place, result in enumerate(results):
            if _is_unknown_script(result):
                results[place] = await self._client.execute(*with_source(commands[place]))
            else:
                _raise(result)
        return results


def _is_unknown_script(result: object) -> bool:
    """Whether the server did not know a script's digest, and did not run it."""
    return type(result).__name__ == "NoScriptError"


def _raise(result: object) -> None:
    if isinstance(result, Exception):
        raise result

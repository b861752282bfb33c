"""How a command gets to Redis and back in time, and what is said when it does not.

Each call runs in a task of its own, so that a caller who gives up (a deadline, a client that hung up) cancels
the driver once and leaves its clean-up in peace. What goes wrong becomes `StoreUnavailable` with a reason from
one table. Only what may be done twice is tried again, and only when a connection turns out to be dead: the
driver's own retries are off, since they stall for seconds and would repeat an increment.
No text of a driver's error leaves here: it may quote an address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from ..errors import StoreFull, StoreUnavailable
from .countdown import STEPS
from .redis_scripts import Step

T = TypeVar("T")

AGAIN: Final = 0.1  # seconds after which what is under way is cancelled once more
OPENING: Final = 5.0  # seconds for connecting at start, and for learning a cluster's layout
LEISURE: Final = 1.0  # seconds for each round trip that no request waits for, unless requests are given more
UNREACHABLE: Final = "store_unreachable"
TIMEOUT: Final = "store_timeout"
READONLY: Final = "store_readonly"
FORBIDDEN: Final = "store_forbidden"
FULL: Final = "store_out_of_memory"
STALE: Final = frozenset({UNREACHABLE, TIMEOUT, READONLY})
"""After these, connections that are still open likely lead nowhere, or to a server that became a replica."""

# By the driver's names, so that this table needs no driver; the most special class of an error counts.
REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "TimeoutError": TIMEOUT,
        "ConnectionError": UNREACHABLE,
        "OSError": UNREACHABLE,
        "RedisClusterException": UNREACHABLE,
        "BusyLoadingError": "store_loading",
        "ReadOnlyError": READONLY,
        "OutOfMemoryError": FULL,
        "AuthenticationError": FORBIDDEN,
        "AuthorizationError": FORBIDDEN,
        "AuthenticationWrongNumberOfArgsError": FORBIDDEN,
        "NoPermissionError": FORBIDDEN,
        "ClusterDownError": "store_cluster_down",
        "SlotNotCoveredError": "store_cluster_down",
    }
)
# Errors for which the driver has no class.
CODES: Final[Mapping[str, str]] = MappingProxyType({"MISCONF": "store_cannot_save", "NOAUTH": FORBIDDEN})


def reason_of(error: BaseException) -> str:
    """Why a call failed, in a word."""
    code = str(error).split(" ", 1)[0]
    names = (cls.__name__ for cls in type(error).__mro__)
    return CODES.get(code) or next((REASONS[name] for name in names if name in REASONS), "store_error")


class Client(Protocol):
    """The few ways in which a single server and a cluster are not spoken to alike."""

    async def ready(self) -> None:
        """Learn what has to be known before the first command."""

    async def greet(self) -> None:
        """Connect to every server that answers for keys."""

    async def one(self, *words: Any) -> Any:
        """What a command returns."""
        ...

    async def several(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """What commands return, in their order; errors stand among the results."""
        ...

    def groups(self, keys: Sequence[str]) -> list[list[str]]:
        """Keys, in groups that one command may read."""
        ...

    async def drop_idle(self) -> None:
        """Close connections that nobody is using: what is wrong with one is likely wrong with all."""

    async def close(self) -> None:
        """Close all connections."""


class Link:
    """Commands to a client, each within its time.

    Args:
        client: A single server or a cluster.
        timeout: Seconds for each call.
        connections: How many commands may be under way at once.
    """

    def __init__(self, client: Client, *, timeout: float, connections: int) -> None:
        self._client = client
        self._timeout = timeout
        self._free = asyncio.Semaphore(connections)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def greet(self) -> None:
        """Connect."""
        await self._bounded(self._client.greet, again=True, seconds=OPENING)

    async def run(self, *steps: Step, again: bool, at_leisure: bool = False) -> list[Any]:
        """What commands return, in their order and in one round trip.

        Args:
            steps: The commands. On a cluster they run side by side, else one after the other.
            again: Whether doing them twice is the same as doing them once.
            at_leisure: Whether no request waits for them.

        Raises:
            StoreUnavailable: One of them failed, and nobody knows which were done.
        """
        seconds = max(self._timeout, LEISURE) if at_leisure else self._timeout
        return await self._bounded(lambda: self._run(steps), again=again, seconds=seconds)

    async def read(self, keys: Sequence[str], *steps: Step) -> tuple[dict[str, bytes | None], list[Any]]:
        """The values of keys, and what commands that may be done twice return, in one round trip."""
        groups = self._client.groups(list(dict.fromkeys(keys)))
        results = await self.run(*(Step(("MGET", *group)) for group in groups), *steps, again=True)
        values: dict[str, bytes | None] = {}
        for group, found in zip(groups, results, strict=False):
            values.update(zip(group, found, strict=True))
        return values, results[len(groups) :]

    async def close(self) -> None:
        """Close all connections, when what is under way has been cancelled."""
        while self._tasks:  # more than once, since a cancellation that meets a connection's making can be lost in it
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=AGAIN)
        with suppress(Exception):  # a server that is gone cannot say goodbye
            await asyncio.wait_for(self._client.close(), OPENING)

    async def _bounded(self, work: Callable[[], Awaitable[T]], *, again: bool, seconds: float) -> T:
        task = self._start(self._tried(work, again=again))
        try:
            for _ in range(STEPS):  # as a `Countdown` counts
                await asyncio.wait({task}, timeout=seconds / STEPS)
                if task.done():
                    break
        finally:
            gave_up = task.cancel()  # which is False where it is done
        if gave_up:
            _ = self._start(self._client.drop_idle())
            raise StoreUnavailable(TIMEOUT)
        error = task.exception()
        if error is None:
            result: T = task.result()
            return result
        reason = reason_of(error)
        raise (StoreFull if reason == FULL else StoreUnavailable)(reason) from None

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settled)
        return task

    def _settled(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # which was told to who waited for it, if anybody still did

    async def _tried(self, work: Callable[[], Awaitable[T]], *, again: bool) -> T:
        await self._client.ready()
        async with self._free:
            try:
                return await work()
            except Exception as error:
                reason = reason_of(error)
                if reason in STALE:
                    await self._client.drop_idle()
                if not (again and reason == UNREACHABLE):
                    raise
            await self._client.ready()
            return await work()

    async def _run(self, steps: Sequence[Step]) -> list[Any]:
        if len(steps) == 1:
            return [await self._one(steps[0])]
        results = await self._client.several([step.words for step in steps])
        return [await self._despite(result, step) for result, step in zip(results, steps, strict=True)]

    async def _one(self, step: Step) -> Any:
        try:
            return await self._client.one(*step.words)
        except Exception as error:  # noqa: BLE001  # raised again, all but one
            return await self._despite(error, step)

    async def _despite(self, result: Any, step: Step) -> Any:
        """A result; a script that the server does not know, which it did not run, is sent in full."""
        if not isinstance(result, Exception):
            return result
        if type(result).__name__ != "NoScriptError":
            raise result
        return await self._client.one(*step.in_full())

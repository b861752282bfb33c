"""How commands get to Redis and back, on one server or a cluster.

Here alone redis-py is used. Its own retries are off, since they stall for seconds and would repeat an increment. What
goes wrong becomes `StoreUnavailable` with a reason from one table; a driver's text, which may quote an address, stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ..errors import ConfigurationError, StoreFull, StoreUnavailable
from .redis_epoch import Epoch, ask
from .redis_scripts import Command, in_full

CLUSTER: Final = "redis+cluster://"
INSTALL: Final = "store='redis://...' needs a driver: pip install \"mcp-sessions[redis]\""
NOT_A_URL: Final = (
    "store= is no Redis URL that can be read; it looks like 'redis://USER:PASSWORD@HOST:6379/0', 'rediss://...', "
    "'unix:///PATH' or 'redis+cluster://HOST:6379'"
)
REPLICAS: Final = "store= is a RedisCluster that reads from replicas, which may not know of a delete"
_ABREAST: Final = 16  # commands to a cluster that are under way at once for one call
_AGAIN: Final = 0.1  # seconds after which what is under way is cancelled once more
_GOODBYE: Final = 5.0  # seconds for closing connections
_PATIENCE: Final = 1.0  # seconds, unless requests are given more, after which the driver itself gives up
UNREACHABLE: Final = "store_unreachable"
TIMEOUT: Final = "store_timeout"
READONLY: Final = "store_readonly"
FORBIDDEN: Final = "store_forbidden"
FULL: Final = "store_out_of_memory"
STALE: Final = frozenset({UNREACHABLE, TIMEOUT, READONLY})
"""After these, connections that are still open likely lead nowhere, or to a server that became a replica."""

# By the driver's names, so that this table needs no driver; the most special class of an error counts.
_REASONS: Final = {
    **dict.fromkeys(("ConnectionError", "OSError", "RedisClusterException"), UNREACHABLE),
    **dict.fromkeys(("AuthenticationError", "AuthenticationWrongNumberOfArgsError"), FORBIDDEN),
    **dict.fromkeys(("AuthorizationError", "NoPermissionError"), FORBIDDEN),
    **dict.fromkeys(("ClusterDownError", "SlotNotCoveredError"), "store_cluster_down"),
    "TimeoutError": TIMEOUT,
    "BusyLoadingError": "store_loading",
    "ReadOnlyError": READONLY,
    "OutOfMemoryError": FULL,
}
_CODES: Final = {"MISCONF": "store_cannot_save", "NOAUTH": FORBIDDEN}  # for these the driver has no class


def reason_of(error: BaseException) -> str:
    """Return why a call failed, as a reason for logs and spans."""
    if type(error).__name__ == "RedisClusterException" and type(error.__cause__).__name__ == "TimeoutError":
        return TIMEOUT  # no node of the cluster answered when it was asked for the layout
    names = (cls.__name__ for cls in type(error).__mro__)
    known = next((_REASONS[name] for name in names if name in _REASONS), "store_error")
    return _CODES.get(str(error).split(" ", 1)[0], known)


def connect(url: Any, epoch: Epoch, *, timeout: float, connections: int) -> Single:
    """Return a client for a URL, or around a `redis.asyncio.Redis` or `RedisCluster`, not yet connected.

    Raises:
        ConfigurationError: The driver is missing, or the URL or the client cannot be used.
    """
    try:
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise ConfigurationError(INSTALL) from None
    options = {
        "socket_timeout": max(timeout, _PATIENCE),
        "socket_connect_timeout": max(timeout, _PATIENCE),
        "retry": Retry(NoBackoff(), 0),
        "max_connections": connections * _ABREAST,
        "protocol": 2,  # what every server speaks, with the fewest words at the beginning
    }
    clustered = url.startswith(CLUSTER) if isinstance(url, str) else hasattr(url, "nodes_manager")
    try:
        return (Cluster if clustered else Single)(url, epoch, options)
    except ConfigurationError:
        raise
    except (ValueError, TypeError, AttributeError):  # their texts may quote the URL
        raise ConfigurationError(NOT_A_URL) from None


class Single:
    """One server."""

    def __init__(self, url: Any, epoch: Epoch, options: Mapping[str, Any]) -> None:
        self._epoch = epoch
        self._own = isinstance(url, str)
        self._redis: Any = self._from_url(url, options) if self._own else url
        self._configure(options["retry"])

    def _from_url(self, url: str, options: Mapping[str, Any]) -> Any:
        from redis.asyncio import Redis

        return Redis.from_url(url, **options)

    def _configure(self, retry: Any) -> None:
        self._redis.set_retry(retry)
        self._introduce(self._redis.connection_pool.connection_kwargs)

    def _introduce(self, kwargs: dict[str, Any]) -> None:
        if kwargs.get("decode_responses"):
            raise ConfigurationError("store= is a Redis that decodes responses; leave decode_responses=True away")
        kwargs["redis_connect_func"] = self._connected

    async def _connected(self, connection: Any) -> None:
        from redis.exceptions import ReadOnlyError

        await connection.on_connect()
        info = await ask(connection)
        if info is not None and info.is_replica:  # it would answer, from the past
            raise ReadOnlyError
        self._epoch.on_connect("", info)

    async def ready(self) -> None:
        """Learn what has to be known before the first command: nothing."""

    async def greet(self) -> None:
        """Connect to every server that answers for keys."""
        await self._redis.ping()

    async def one(self, *words: Any) -> Any:
        return await self._redis.execute_command(*words)

    async def several(self, commands: Sequence[Command]) -> list[Any]:
        """Return what commands return that are sent at once; errors stand among the results."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for words in commands:
                pipe.execute_command(*words)
            results: list[Any] = await pipe.execute(raise_on_error=False)
        return results

    def groups(self, keys: Sequence[str]) -> list[list[str]]:
        """Return keys in groups that one command may read."""
        return [list(keys)]

    async def drop_idle(self) -> None:
        """Close connections that no call uses: what is wrong with one is likely wrong with all."""
        with suppress(Exception):
            await self._redis.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Close all connections, unless the client is the caller's own."""
        if self._own:
            await self._redis.aclose()


class Cluster(Single):
    """A cluster."""

    def _from_url(self, url: str, options: Mapping[str, Any]) -> Any:
        from redis.asyncio import RedisCluster

        return RedisCluster.from_url("redis://" + url.removeprefix(CLUSTER), **options)

    def _configure(self, retry: Any) -> None:
        # By two names, of older and of newer drivers.
        if self._redis.read_from_replicas or getattr(self._redis, "load_balancing_strategy", None) is not None:
            raise ConfigurationError(REPLICAS)
        for name, value in (("retry", retry), ("cluster_error_retry_attempts", 0)):
            with suppress(AttributeError):  # newer drivers go by the one, older ones by the other
                setattr(self._redis, name, value)
        nodes = self._redis.nodes_manager
        for place in (nodes, *nodes.startup_nodes.values()):
            self._introduce(place.connection_kwargs)
        self._first = dict(nodes.startup_nodes)
        self._joined = False
        self._joining: asyncio.Task[None] | None = None

    async def _connected(self, connection: Any) -> None:
        await connection.on_connect()
        info = await ask(connection)
        if info is None or not info.is_replica:  # replicas are asked for the layout alone
            await connection.send_command("CLUSTER", "MYID")
            name = await connection.read_response()
            self._epoch.on_connect(name if isinstance(name, str) else str(name, "ascii"), info)

    async def ready(self) -> None:
        """Learn the layout. A caller that gives up leaves it to go on for the next."""
        if self._joined:
            return
        if self._joining is None:
            self._joining = asyncio.get_running_loop().create_task(self._join())
            self._joining.add_done_callback(_retrieve)
        await asyncio.shield(self._joining)

    async def _join(self) -> None:
        # Where all nodes have moved, and with drivers that forget a node that failed, the first address still counts.
        nodes = self._redis.nodes_manager.startup_nodes
        nodes.update({name: node for name, node in self._first.items() if name not in nodes})
        try:
            await self._redis.initialize()
            self._joined = True
        finally:
            self._joining = None

    async def greet(self) -> None:
        await self._redis.ping(target_nodes=self._redis.PRIMARIES)

    async def several(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands side by side. Each alone follows slots that move; a pipeline does not."""
        results: list[Any] = []
        for start in range(0, len(commands), _ABREAST):
            some = (self._redis.execute_command(*words) for words in commands[start : start + _ABREAST])
            results += await asyncio.gather(*some, return_exceptions=True)
        return results

    def groups(self, keys: Sequence[str]) -> list[list[str]]:
        groups: dict[str, list[str]] = {}  # by their hash tags, in the order of the first of each
        for key in keys:
            groups.setdefault(key[key.index("{") : key.index("}")], []).append(key)
        return list(groups.values())

    async def drop_idle(self) -> None:
        """Close connections that no call uses, and look at the layout again."""
        self._joined = False
        for node in self._redis.get_nodes():
            with suppress(Exception):
                await getattr(node, "disconnect_free_connections", node.disconnect)()  # older drivers know all or none

    async def close(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
        await super().close()


def _retrieve(task: asyncio.Task[Any]) -> object:
    return task.cancelled() or task.exception()  # which its caller has, if it still waits


class RedisConnection:
    """Commands to a client, each call in a task of its own.

    So a caller that gives up (a timeout, a client that hung up) cancels the driver once and leaves its clean-up in
    peace. Only what is idempotent is tried again, and only when a connection turns out to be dead.
    """

    def __init__(self, client: Single, *, timeout: float, connections: int) -> None:
        self._client = client
        self._suspicious_after = timeout / 2  # who gives up so late has not merely hung up
        self._free = asyncio.Semaphore(connections)  # how many commands may be under way at once
        self._tasks: set[asyncio.Task[Any]] = set()

    async def greet(self) -> None:
        await self._detached(self._client.greet, idempotent=True)

    async def run(self, *commands: Command, idempotent: bool) -> list[Any]:
        """Return what commands return, in their order and in one round trip; on a cluster they run side by side.

        `StoreUnavailable` means that one of them failed, and that it is unknown which were done.
        """
        results: list[Any] = await self._detached(lambda: self._run(commands), idempotent=idempotent)
        return results

    async def read(self, keys: Sequence[str], *commands: Command) -> tuple[dict[str, bytes | None], list[Any]]:
        """Return the values of keys, and what idempotent commands return, in one round trip."""
        groups = self._client.groups(list(dict.fromkeys(keys)))
        results = await self.run(*(("MGET", *group) for group in groups), *commands, idempotent=True)
        values: dict[str, bytes | None] = {}
        for group, found in zip(groups, results, strict=False):
            values.update(zip(group, found, strict=True))
        return values, results[len(groups) :]

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
        error = task.exception()
        if error is None:
            return task.result()
        reason = reason_of(error)
        raise (StoreFull if reason == FULL else StoreUnavailable)(reason) from None

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_retrieve)
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
                if not (idempotent and reason == UNREACHABLE):
                    raise
            await self._client.ready()
            return await work()

    async def _run(self, commands: Sequence[Command]) -> list[Any]:
        if len(commands) != 1:
            results = await self._client.several(commands)
        else:
            try:
                results = [await self._client.one(*commands[0])]
            except Exception as error:  # noqa: BLE001  # raised again, all but one
                results = [error]
        return [await self._recover(result, command) for result, command in zip(results, commands, strict=True)]

    async def _recover(self, result: Any, command: Command) -> Any:
        """Return a result; a script that the server does not know, which it did not run, is sent in full."""
        if type(result).__name__ == "NoScriptError":
            return await self._client.one(*in_full(command))
        if isinstance(result, Exception):
            raise result
        return result

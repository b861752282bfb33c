"""The driver, set up for one server and for a cluster: the few ways in which they are not spoken to alike.

Here alone redis-py is used. Its own retries are off, its waits end some time after those of `redis_link`, which counts
better, and each new connection is asked which server it leads to before anything else is said on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ..errors import ConfigurationError
from .redis_durability import Facts, ask, node_id
from .redis_link import LEISURE

Heard = Callable[[str, "Facts | None"], None]

CLUSTER: Final = "redis+cluster://"
INSTALL: Final = "store='redis://...' needs a driver: pip install \"mcp-sessions[redis]\""
NOT_A_URL: Final = (
    "store= is no Redis URL that can be read; it looks like 'redis://USER:PASSWORD@HOST:6379/0', 'rediss://...', "
    "'unix:///PATH' or 'redis+cluster://HOST:6379'"
)
_ABREAST: Final = 16  # commands to a cluster that are under way at once for one call


def connect(url: Any, heard: Heard, *, timeout: float, connections: int) -> Single | Cluster:
    """A client for a URL, or around a client of redis-py. Nothing is connected to yet.

    Args:
        url: Where Redis is, or a `redis.asyncio.Redis` or `RedisCluster`.
        heard: Is told of each new connection: the server's name, and what it says of itself.
        timeout: Seconds for each wait.
        connections: How many there may be, to each server.

    Raises:
        ConfigurationError: The driver is missing, or the URL or the client cannot be used.
    """
    try:
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise ConfigurationError(INSTALL) from None
    options = {
        "socket_timeout": max(timeout, LEISURE),
        "socket_connect_timeout": max(timeout, LEISURE),
        "retry": Retry(NoBackoff(), 0),
        "max_connections": connections * _ABREAST,
        "protocol": 2,  # what every server speaks, with the fewest words at the beginning
    }
    clustered = url.startswith(CLUSTER) if isinstance(url, str) else hasattr(url, "nodes_manager")
    try:
        return (Cluster if clustered else Single)(url, heard, options)
    except ConfigurationError:
        raise
    except (ValueError, TypeError, AttributeError):  # their texts may quote the URL
        raise ConfigurationError(NOT_A_URL) from None


class Single:
    """One server."""

    def __init__(self, url: Any, heard: Heard, options: Mapping[str, Any]) -> None:
        from redis.asyncio import Redis

        self._heard = heard
        self._own = isinstance(url, str)
        self._redis: Any = Redis.from_url(url, **options) if self._own else url
        self._redis.set_retry(options["retry"])
        _introduce(self._redis.connection_pool.connection_kwargs, self._connected)

    async def _connected(self, connection: Any) -> None:
        from redis.exceptions import ReadOnlyError

        await connection.on_connect()
        found = await ask(connection)
        if found is not None and found.replica:  # it would answer, from the past
            raise ReadOnlyError
        self._heard("", found)

    async def ready(self) -> None:
        """Nothing has to be learnt."""

    async def greet(self) -> None:
        """Connect."""
        await self._redis.ping()

    async def one(self, *words: Any) -> Any:
        """What a command returns."""
        return await self._redis.execute_command(*words)

    async def several(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """What commands return that are sent at once and run one after the other."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for words in commands:
                pipe.execute_command(*words)
            results: list[Any] = await pipe.execute(raise_on_error=False)
        return results

    def groups(self, keys: Sequence[str]) -> list[list[str]]:
        """One command may read all."""
        return [list(keys)]

    async def drop_idle(self) -> None:
        """Close what nobody is using."""
        with suppress(Exception):
            await self._redis.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Close all connections, unless the client is somebody else's."""
        if self._own:
            await self._redis.aclose()


class Cluster:
    """A cluster."""

    def __init__(self, url: Any, heard: Heard, options: Mapping[str, Any]) -> None:
        from redis.asyncio import RedisCluster

        self._heard = heard
        self._own = isinstance(url, str)
        self._redis: Any = url
        if self._own:
            self._redis = RedisCluster.from_url("redis://" + url.removeprefix(CLUSTER), **options)
        # By two names, of older and of newer drivers.
        if self._redis.read_from_replicas or getattr(self._redis, "load_balancing_strategy", None) is not None:
            raise ConfigurationError(
                "store= is a RedisCluster that reads from replicas, which may not know of a delete"
            )
        for name, value in (("retry", options["retry"]), ("cluster_error_retry_attempts", 0)):
            with suppress(AttributeError):  # newer drivers go by the one, older ones by the other
                setattr(self._redis, name, value)
        nodes = self._redis.nodes_manager
        for place in (nodes, *nodes.startup_nodes.values()):
            _introduce(place.connection_kwargs, self._connected)
        self._first = dict(nodes.startup_nodes)
        self._joined = False
        self._joining: asyncio.Task[None] | None = None

    async def _connected(self, connection: Any) -> None:
        await connection.on_connect()
        found = await ask(connection)
        if found is None or not found.replica:  # replicas are asked for the layout alone
            self._heard(await node_id(connection), found)

    async def ready(self) -> None:
        """Learn the layout. Callers who cannot wait leave it to go on for the next."""
        if self._joined:
            return
        if self._joining is None:
            self._joining = asyncio.get_running_loop().create_task(self._join())
            self._joining.add_done_callback(lambda task: task.cancelled() or task.exception())
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
        """Connect to every server that answers for keys."""
        await self._redis.ping(target_nodes=self._redis.PRIMARIES)

    async def one(self, *words: Any) -> Any:
        """What a command returns."""
        return await self._redis.execute_command(*words)

    async def several(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """What commands return that run side by side. Each alone follows slots that move; a pipeline does not."""
        results: list[Any] = []
        for start in range(0, len(commands), _ABREAST):
            some = (self._redis.execute_command(*words) for words in commands[start : start + _ABREAST])
            results += await asyncio.gather(*some, return_exceptions=True)
        return results

    def groups(self, keys: Sequence[str]) -> list[list[str]]:
        """By their hash tags, in the order of the first of each."""
        groups: dict[str, list[str]] = {}
        for key in keys:
            groups.setdefault(key[key.index("{") : key.index("}")], []).append(key)
        return list(groups.values())

    async def drop_idle(self) -> None:
        """Close what nobody is using, and look at the layout again."""
        self._joined = False
        for node in self._redis.get_nodes():
            with suppress(Exception):
                await getattr(node, "disconnect_free_connections", node.disconnect)()  # older drivers know all or none

    async def close(self) -> None:
        """Close all connections, unless the client is somebody else's."""
        if self._joining is not None:
            self._joining.cancel()
        if self._own:
            await self._redis.aclose()


def _introduce(kwargs: dict[str, Any], connected: Any) -> None:
    if kwargs.get("decode_responses"):
        raise ConfigurationError("store= is a Redis that decodes responses; leave decode_responses=True away")
    kwargs["redis_connect_func"] = connected

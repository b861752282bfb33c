"""One client for every way in which Redis is run: one server, Sentinel, a cluster; each also with TLS.

Each new connection is asked which server it leads to, so that a replica, a server that is still loading and one that
was restarted without its data are known before the first answer is believed. redis-py's own retries are off, since
they stall for seconds and would repeat an increment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from .._errors import ConfigurationError
from ._redis_durability import Epoch, ask
from ._redis_scripts import Command

INSTALL: Final = "store='redis://...' needs a driver: pip install \"redis>=5.2\""
NOT_A_URL: Final = (
    "store= is not a valid Redis URL, which looks like 'redis://USER:PASSWORD@HOST:6379/0', 'rediss://...', "
    "'unix:///PATH', 'redis+cluster://HOST:6379' or 'redis+sentinel://HOST:26379,HOST:26379/NAME/0'"
)
TRIO: Final = "store='redis://...' runs on asyncio alone; serve with asyncio, or use 'sqlite:PATH'"
DENIED: Final = "Redis refuses this user: check the user and the password in the store's URL, and its permissions"
ABREAST: Final = 16  # commands to a cluster that are under way at once for one call
_PATIENCE: Final = 1.0  # seconds, unless requests are given more, after which the driver itself gives up


def connect(url: Any, epoch: Epoch, *, timeout: float, connections: int) -> StandaloneClient:
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
        "max_connections": connections * ABREAST,
        "protocol": 2,  # what every server speaks, with the fewest words at the beginning
    }
    scheme = url.partition("://")[0] if isinstance(url, str) else ""
    is_cluster = scheme.endswith("+cluster") or hasattr(url, "nodes_manager")
    kind = ClusterClient if is_cluster else SentinelClient if scheme.endswith("+sentinel") else StandaloneClient
    try:
        return kind(url, epoch, options)
    except ConfigurationError:
        raise
    except (ValueError, TypeError, AttributeError):  # their texts may quote the URL
        raise ConfigurationError(NOT_A_URL) from None


class StandaloneClient:
    """One server."""

    sessions_at_once: Final = 50  # that one script may look at
    keeps_order: Final = True  # whether commands that are sent together take effect one after the other

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
        kwargs = self._redis.connection_pool.connection_kwargs
        self._set_connect_hook(kwargs)
        place = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
        self.location: str = f"Redis at {place}, database {kwargs.get('db', 0)}"  # for the log, without what opens it

    def _set_connect_hook(self, kwargs: dict[str, Any]) -> None:
        if kwargs.get("decode_responses"):
            raise ConfigurationError("store= is a Redis that decodes responses; remove decode_responses=True")
        kwargs["redis_connect_func"] = self._connected

    async def _connected(self, connection: Any) -> None:
        from redis.exceptions import ReadOnlyError

        await connection.on_connect()
        info = await ask(connection)
        if info is not None and info.is_replica:  # it would answer, from the past
            raise ReadOnlyError
        await self._epoch.on_connect("", info, connection)

    async def ready(self) -> None:
        """Learn what has to be known before the first command: nothing."""

    async def ping(self) -> None:
        """Connect to every server that answers for keys."""
        await self._redis.ping()

    async def execute(self, *words: Any) -> Any:
        return await self._redis.execute_command(*words)

    async def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Return what commands return that are sent at once; errors stand among the results."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for words in commands:
                pipe.execute_command(*words)
            results: list[Any] = await pipe.execute(raise_on_error=False)
        return results

    def groups(self, keys: Sequence[str]) -> list[list[str]]:
        """Return keys in groups that one command may read."""
        return [list(keys)]

    def scan(self, pattern: str) -> AsyncIterator[bytes]:
        """Yield the keys that match a pattern, on every server."""
        found: AsyncIterator[bytes] = self._redis.scan_iter(match=pattern, count=1000)
        return found

    async def drop_idle(self) -> None:
        """Close connections that no call uses: what is wrong with one is likely wrong with all."""
        with suppress(Exception):
            await self._redis.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Close all connections, unless the client is the caller's own."""
        if self._own:
            await self._redis.aclose()


class SentinelClient(StandaloneClient):
    """The server that Sentinels name, asked anew for each connection: after a failover another one."""

    def _from_url(self, url: str, options: Mapping[str, Any]) -> Any:
        from redis.asyncio.connection import parse_url
        from redis.asyncio.sentinel import Sentinel

        scheme, _, rest = url.partition("+sentinel://")
        parts = urlsplit(f"{scheme}://{rest}")
        name, _, number = parts.path.lstrip("/").partition("/")
        database = int(number or 0)
        users, _, hosts = parts.netloc.rpartition("@")
        addresses = [(at.hostname, at.port or 26379) for at in (urlsplit(f"//{host}") for host in hosts.split(","))]
        if not name or not all(host for host, _ in addresses):
            raise ValueError
        given: Any = parse_url(f"{scheme}://{users}@sentinel/{database}?{parts.query}")
        kwargs: dict[str, Any] = {**options, **given, "ssl": scheme == "rediss"}
        for fixed in ("host", "port", "connection_class"):
            kwargs.pop(fixed, None)
        own = {part: kwargs.pop(f"sentinel_{part}", None) for part in ("username", "password")}
        of_sentinels = {key: value for key, value in kwargs.items() if key.startswith(("socket_", "ssl"))} | own
        self._place = f"Redis '{name}' of the Sentinels {hosts}, database {database}"
        self._sentinels: Any = Sentinel(addresses, sentinel_kwargs=of_sentinels)  # type: ignore[no-untyped-call]
        return self._sentinels.master_for(name, **kwargs)

    def _configure(self, retry: Any) -> None:
        super()._configure(retry)
        self.location: str = self._place

    async def close(self) -> None:
        await super().close()
        for sentinel in self._sentinels.sentinels:
            await sentinel.aclose()


class ClusterClient(StandaloneClient):
    """A cluster, which has each session in a slot of its own."""

    sessions_at_once: Final = 1  # type: ignore[misc]  # of one slot
    keeps_order: Final = False  # type: ignore[misc]

    def _from_url(self, url: str, options: Mapping[str, Any]) -> Any:
        from redis.asyncio import RedisCluster

        return RedisCluster.from_url(url.replace("+cluster", "", 1), **options)

    def _configure(self, retry: Any) -> None:
        # Both by two names, of older and of newer drivers.
        if self._redis.read_from_replicas or getattr(self._redis, "load_balancing_strategy", None) is not None:
            raise ConfigurationError(
                "store= is a RedisCluster that reads from replicas, which may not know of a delete"
            )
        for name, value in (("retry", retry), ("cluster_error_retry_attempts", 0)):
            with suppress(AttributeError):
                setattr(self._redis, name, value)
        nodes = self._redis.nodes_manager
        for place in (nodes, *nodes.startup_nodes.values()):
            self._set_connect_hook(place.connection_kwargs)
        self._first = dict(nodes.startup_nodes)
        self.location = f"the Redis cluster of {', '.join(self._first)}"
        self._topology_loaded = False
        self._joining: asyncio.Task[None] | None = None

    async def _connected(self, connection: Any) -> None:
        await connection.on_connect()
        info = await ask(connection)
        if info is None or not info.is_replica:  # replicas are asked for the layout alone
            await connection.send_command("CLUSTER", "MYID")
            name = await connection.read_response()
            await self._epoch.on_connect(name if isinstance(name, str) else str(name, "ascii"), info, connection)

    async def ready(self) -> None:
        """Learn the layout. A caller that gives up leaves it to go on for the next."""
        if self._topology_loaded:
            return
        if self._joining is None:
            self._joining = asyncio.get_running_loop().create_task(self._join())
            self._joining.add_done_callback(retrieve)
        await asyncio.shield(self._joining)

    async def _join(self) -> None:
        # Where all nodes have moved, and with drivers that forget a node that failed, the first address still counts.
        nodes = self._redis.nodes_manager.startup_nodes
        nodes.update({name: node for name, node in self._first.items() if name not in nodes})
        try:
            await self._redis.initialize()
            self._topology_loaded = True
        finally:
            self._joining = None

    async def ping(self) -> None:
        await self._redis.ping(target_nodes=self._redis.PRIMARIES)

    async def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands side by side. Each alone follows slots that move; a pipeline does not."""
        results: list[Any] = []
        for start in range(0, len(commands), ABREAST):
            some = (self._redis.execute_command(*words) for words in commands[start : start + ABREAST])
            results += await asyncio.gather(*some, return_exceptions=True)
        return results

    def groups(self, keys: Sequence[str]) -> list[list[str]]:
        groups: dict[str, list[str]] = {}  # by their hash tags, in the order of the first of each
        for key in keys:
            groups.setdefault(key[key.index("{") : key.index("}")], []).append(key)
        return list(groups.values())

    async def drop_idle(self) -> None:
        """Close connections that no call uses, and look at the layout again."""
        self._topology_loaded = False
        for node in self._redis.get_nodes():
            with suppress(Exception):
                await getattr(node, "disconnect_free_connections", node.disconnect)()  # older drivers know all or none

    async def close(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
        await super().close()


def retrieve(task: asyncio.Task[Any]) -> object:
    """Take a task's error, which its caller has, if it still waits."""
    return task.cancelled() or task.exception()

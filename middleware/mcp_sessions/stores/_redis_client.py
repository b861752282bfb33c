"""Commands to Redis however it runs: one server, Sentinels, a cluster; each also with TLS.

The retries of redis-py's clients are off, since they would repeat an increment. Its `Retry` repeats what is repeatable.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from .._errors import ConfigurationError, StoreUnavailable
from ._place import check_place
from ._redis_faults import fault_of
from ._redis_scripts import Script, Word

INSTALL: Final = "store='redis://...' needs a driver: pip install \"redis>=5.2\""
NOT_A_URL: Final = (
    "store= is not a valid Redis URL, which looks like 'redis://USER:PASSWORD@HOST:6379/0', 'rediss://...', "
    "'unix:///PATH', 'redis+cluster://HOST:6379' or 'redis+sentinel://HOST:26379,HOST:26379/NAME/0'; a database is a "
    "number, and a cluster has only one; in a password, write ':', '/' and '@' as %3A, %2F and %40"
)
UNKNOWN_PARAMETER: Final = (
    "store= is a Redis URL with a query parameter that neither this store nor its driver knows; correct or remove it"
)
NO_UNIX_SOCKETS: Final = "store='unix://...': this system has no Unix sockets; use 'redis://HOST:PORT'"
TRIO: Final = "store='redis://...' runs on asyncio alone; serve with asyncio, or use 'sqlite:PATH'"
ONE_LOOP: Final = (
    "store= is a Redis client that another event loop uses; give the store a URL, or a client for each loop"
)
_DRIVER_TIMEOUT: Final = 1.0  # seconds, unless requests are given more, after which the driver itself gives up
_CLOSE_TIMEOUT: Final = 5.0  # seconds


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop, which must be asyncio's."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(TRIO) from None


def connect(url: Any, *, timeout: float) -> StandaloneClient:
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
        "socket_timeout": max(timeout, _DRIVER_TIMEOUT),
        "socket_connect_timeout": max(timeout, _DRIVER_TIMEOUT),
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # what every server speaks, with the fewest words at the beginning
    }
    scheme = url.partition("://")[0] if isinstance(url, str) else ""
    is_cluster = scheme.endswith("+cluster") or hasattr(url, "nodes_manager")
    kind = ClusterClient if is_cluster else SentinelClient if scheme.endswith("+sentinel") else StandaloneClient
    try:
        if isinstance(url, str) and _has_stray_password(url):
            raise ValueError  # noqa: TRY301
        return kind(url, options, timeout=timeout)
    except ConfigurationError:
        raise
    except (ValueError, TypeError, AttributeError) as error:  # their texts may quote the URL
        is_unknown = isinstance(error, TypeError) and isinstance(url, str)
        raise ConfigurationError(UNKNOWN_PARAMETER if is_unknown else NOT_A_URL) from None


class StandaloneClient:
    """A client of one server, on one event loop.

    A caller may give up at any time, which closes the connection that it waits for.
    """

    def __init__(self, url: Any, options: Mapping[str, Any], *, timeout: float) -> None:
        from redis import exceptions
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._own = isinstance(url, str)
        self._redis: Any = self._from_url(url, options) if self._own else url
        self.location: str = self._configure(options["retry"])  # for the log, without what opens it
        # After these, open connections likely lead nowhere, or to a server that became a replica.
        faults: Any = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError, OSError)
        faults += (exceptions.RedisClusterException,)
        self._once, self._twice = (Retry(NoBackoff(), again, faults) for again in (0, 1))
        self._suspicious_after = timeout / 2  # seconds; a caller that gives up so late has not merely hung up
        self._is_stale = False  # True if open connections likely lead nowhere
        self._is_closed = False
        self.is_open = False  # True once the store has looked at the server
        self.opening: asyncio.Task[None] | None = None

    def _from_url(self, url: str, options: Mapping[str, Any]) -> Any:
        from redis.asyncio import Redis

        if url.startswith("unix:") and not hasattr(socket, "AF_UNIX"):  # as on Windows
            raise ConfigurationError(NO_UNIX_SOCKETS)
        _check_database(url)
        return Redis.from_url(url, **options)

    def _configure(self, retry: Any) -> str:
        self._redis.set_retry(retry)
        kwargs = self._redis.connection_pool.connection_kwargs
        _check_bytes(kwargs)
        if self._own:  # an unknown parameter would else fail with the first connection
            self._redis.connection_pool.connection_class(**kwargs)
        path, host, port = kwargs.get("path"), kwargs.get("host", "localhost"), kwargs.get("port", 6379)
        check_place([path or host], [port], kwargs.get("db", 0), is_file=bool(path))
        return f"Redis at {path or f'{host}:{port}'}, database {kwargs.get('db', 0)}"

    async def run(
        self, command: str | Script, keys: Sequence[str], *args: Word, repeatable: bool = True, **node: Any
    ) -> Any:
        """Return what a command or a script returns; what is repeatable is sent once more if a connection breaks.

        Raises:
            StoreUnavailable: It is unknown whether it was run.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        retry = self._twice if repeatable else self._once
        try:
            return await retry.call_with_retry(partial(self._send, command, keys, args, node), self._distrust)
        except asyncio.CancelledError:
            self._is_stale = self._is_stale or clock() - began >= self._suspicious_after
            raise
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  # whatever the driver raises
            raise fault_of(error).error() from None

    async def _distrust(self, _error: Exception) -> None:
        self._is_stale = True

    async def _send(
        self, command: str | Script, keys: Sequence[str], args: tuple[Word, ...], node: Mapping[str, Any]
    ) -> Any:
        from redis.exceptions import NoScriptError

        if self._is_closed:
            raise StoreUnavailable("store_closed", cause="the store was closed")
        if self._is_stale:
            self._is_stale = False
            await self._drop_connections()
        execute = self._redis.execute_command
        if isinstance(command, str):
            return await execute(command, *keys, *args, **node)
        try:
            return await execute("EVALSHA", command.digest, len(keys), *keys, *args)
        except NoScriptError:  # it was not run
            return await execute("EVAL", command.source, len(keys), *keys, *args)

    def node_of(self, key: str) -> dict[str, Any]:  # noqa: ARG002
        """Return what `run` needs for a command without keys that the server of a key shall answer."""
        return {}

    async def _drop_connections(self) -> None:
        """Close connections that no call uses: what is wrong with one is likely wrong with all."""
        with suppress(Exception):
            await self._redis.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Close all connections, also those that calls wait for, unless the client is the caller's own."""
        self._is_closed = True
        if self._own:
            with suppress(Exception):  # a server that does not answer cannot close them
                await asyncio.wait_for(self._disconnect(), _CLOSE_TIMEOUT)

    async def _disconnect(self) -> None:
        await self._redis.aclose()


class SentinelClient(StandaloneClient):
    """A client of the server that Sentinels name; they are asked for each new connection, as a failover changes it."""

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
        check_place([host for host, _ in addresses], [port for _, port in addresses], name)
        shown = ", ".join(f"{host}:{port}" for host, port in addresses)
        self._place = f"Redis '{name}' of the Sentinels {shown}, database {database}"
        self._sentinels: Any = Sentinel(addresses, sentinel_kwargs=of_sentinels)  # type: ignore[no-untyped-call]
        return self._sentinels.master_for(name, **kwargs)

    def _configure(self, retry: Any) -> str:
        super()._configure(retry)
        return self._place

    async def _disconnect(self) -> None:
        await super()._disconnect()
        for sentinel in self._sentinels.sentinels:
            await sentinel.aclose()


class ClusterClient(StandaloneClient):
    """A cluster, one node of which holds all keys of a deployment."""

    def _from_url(self, url: str, options: Mapping[str, Any]) -> Any:
        from redis.asyncio import RedisCluster

        address = url.replace("+cluster", "", 1)
        if _check_database(address):
            raise ValueError
        return RedisCluster.from_url(address, **options)

    def _configure(self, retry: Any) -> str:
        # Both by two names, of older and of newer drivers.
        if self._redis.read_from_replicas or getattr(self._redis, "load_balancing_strategy", None) is not None:
            raise ConfigurationError(
                "store= is a RedisCluster that reads from replicas, which may not know of a delete"
            )
        for name, value in (("retry", retry), ("cluster_error_retry_attempts", 0)):
            with suppress(AttributeError):
                setattr(self._redis, name, value)
        nodes = self._redis.nodes_manager
        _check_bytes(nodes.connection_kwargs)
        self._first = dict(nodes.startup_nodes)
        check_place([one.host for one in self._first.values()], [one.port for one in self._first.values()], 0)
        return f"the Redis cluster of {', '.join(self._first)}"

    def node_of(self, key: str) -> dict[str, Any]:
        return {"target_nodes": self._redis.get_node_from_key(key)}

    async def _drop_connections(self) -> None:
        """Close all connections, and ask the known nodes and the first address for the layout again."""
        with suppress(Exception):
            await self._redis.aclose()
        # All nodes may have moved, and some versions of the driver forget a node that failed.
        nodes = self._redis.nodes_manager.startup_nodes
        nodes.update({name: node for name, node in self._first.items() if name not in nodes})


def _check_bytes(kwargs: Mapping[str, Any]) -> None:
    if kwargs.get("decode_responses"):
        raise ConfigurationError("store= is a Redis that decodes responses; remove decode_responses=True")


def _has_stray_password(url: str) -> bool:
    """Return True if a password holds "/", "?" or "#" as it is: a part of it would be taken for the host and logged."""
    parts = urlsplit(url)
    is_cut = "@" in parts.path or any("@" in one and "=" not in one for one in parts.query.split("&"))
    return parts.scheme != "unix" and (is_cut or parts.fragment != "")


def _check_database(url: str) -> int:
    """Return the database of a URL; redis-py takes what is not a number for 0."""
    parts = urlsplit(url)
    return 0 if parts.scheme == "unix" else int(parts.path.strip("/") or 0)

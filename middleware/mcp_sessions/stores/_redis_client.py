"""Commands to Redis however it is run: one server, Sentinel, a cluster; each also with TLS.

redis-py's own retries are off, since they stall for seconds and would repeat an increment. What goes wrong becomes
`StoreUnavailable` with a reason from one table and a cause in plain words for the log; a driver's own text, which may
quote an address or a password, goes nowhere.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from .._errors import ConfigurationError, StoreFull, StoreUnavailable
from ._place import check_place
from ._redis_epoch import Epoch
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
_DRIVER_TIMEOUT: Final = 1.0  # seconds, unless requests are given more, after which the driver itself gives up
_GOODBYE: Final = 5.0  # seconds for closing connections
# After these, connections that are still open likely lead nowhere, or to a server that became a replica.
_STALE: Final = {"store_unreachable", "store_timeout", "store_readonly"}
_UNREACHABLE: Final = ("store_unreachable", None)
_WHO: Final = "it refuses this user: check the user and the password in the URL, and its permissions"
_CLUSTER_DOWN: Final = ("store_cluster_down", "the cluster does not serve all slots")
# Reasons and causes by the driver's names, so that this table needs no driver; the most special class of an error
# counts. Those in capitals are codes of Redis for which the driver has no class.
_FAULTS: Final[Mapping[str, tuple[str, str | None]]] = {
    **dict.fromkeys(("ConnectionError", "OSError", "RedisClusterException"), _UNREACHABLE),
    **dict.fromkeys(
        ("AuthenticationError", "AuthenticationWrongNumberOfArgsError", "NOAUTH"), ("store_forbidden", _WHO)
    ),
    **dict.fromkeys(("AuthorizationError", "NoPermissionError"), ("store_forbidden", _WHO)),
    **dict.fromkeys(("ClusterDownError", "SlotNotCoveredError"), _CLUSTER_DOWN),
    "TimeoutError": ("store_timeout", "no answer in time"),
    "BusyLoadingError": ("store_loading", "it is reading its files, after a restart"),
    "MovedError": ("store_error", "this is a cluster: use redis+cluster:// or rediss+cluster:// in the URL"),
    "BUSY": ("store_error", "it runs a script that does not end (BUSY); stop that with SCRIPT KILL"),
    "ReadOnlyError": ("store_readonly", "this server is a replica"),
    "OutOfMemoryError": ("store_out_of_memory", "its memory is full (maxmemory)"),
    "MISCONF": ("store_cannot_save", "it cannot write to its disk (MISCONF)"),
    "NOREPLICAS": (
        "store_no_replicas",
        "it has fewer replicas than it needs to accept changes (min-replicas-to-write)",
    ),
}


def fault_of(error: BaseException) -> tuple[str, str]:
    """Return why a call failed, as a reason for logs and spans and in plain words, without anything that was given."""
    names = [str(error).split(" ", 1)[0], *(cls.__name__ for cls in type(error).__mro__)]
    if type(error).__name__ == "RedisClusterException" and type(error.__cause__).__name__ == "TimeoutError":
        names = ["TimeoutError"]  # no node of the cluster answered when it was asked for the layout
    reason, cause = next((_FAULTS[name] for name in names if name in _FAULTS), ("store_error", None))
    return reason, _deeper_cause(error) or cause or type(error).__name__


def _deeper_cause(error: BaseException) -> str | None:
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
    return None


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
        return kind(url, epoch, options, timeout=timeout, connections=connections)
    except ConfigurationError:
        raise
    except (ValueError, TypeError, AttributeError) as error:  # their texts may quote the URL
        is_unknown = isinstance(error, TypeError) and isinstance(url, str)
        raise ConfigurationError(UNKNOWN_PARAMETER if is_unknown else NOT_A_URL) from None


class StandaloneClient:
    """One server.

    A caller may give up at any time, which closes the connection that it waits for. Only what is idempotent is tried
    again, once, and only when a connection turns out to be dead.
    """

    def __init__(self, url: Any, epoch: Epoch, options: Mapping[str, Any], *, timeout: float, connections: int) -> None:
        self._epoch = epoch
        self._own = isinstance(url, str)
        self._redis: Any = self._from_url(url, options) if self._own else url
        self.location: str = self._configure(options["retry"])  # for the log, without what opens it
        self._suspicious_after = timeout / 2  # seconds; who gives up so late has not merely hung up
        self._free = asyncio.Semaphore(connections)
        self._is_stale = False  # whether open connections likely lead nowhere
        self._is_closed = False

    def _from_url(self, url: str, options: Mapping[str, Any]) -> Any:
        from redis.asyncio import Redis

        if url.startswith("unix:") and not hasattr(socket, "AF_UNIX"):  # as on Windows
            raise ConfigurationError(NO_UNIX_SOCKETS)
        _check_database(url)
        return Redis.from_url(url, **options)

    def _configure(self, retry: Any) -> str:
        self._redis.set_retry(retry)
        kwargs = self._redis.connection_pool.connection_kwargs
        self._set_connect_hook(kwargs)
        if self._own:  # an unknown parameter would else fail with the first connection
            self._redis.connection_pool.connection_class(**kwargs)
        path, host, port = kwargs.get("path"), kwargs.get("host", "localhost"), kwargs.get("port", 6379)
        check_place([path or host], [port], kwargs.get("db", 0), is_file=bool(path))
        return f"Redis at {path or f'{host}:{port}'}, database {kwargs.get('db', 0)}"

    def _set_connect_hook(self, kwargs: dict[str, Any], *, is_node: bool = False) -> None:
        if kwargs.get("decode_responses"):
            raise ConfigurationError("store= is a Redis that decodes responses; remove decode_responses=True")

        async def connected(connection: Any) -> None:
            await connection.on_connect()
            await self._epoch.on_connect(connection, self.location, is_node=is_node)

        kwargs["redis_connect_func"] = connected

    async def run(self, command: str | Script, keys: Sequence[str], *args: Word, idempotent: bool = True) -> Any:
        """Return what a command or a script returns for its keys.

        `StoreUnavailable` means that it is unknown whether it was run.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with self._free:
                try:
                    return await self._attempt(command, keys, args)
                except Exception as error:
                    if not idempotent or fault_of(error)[0] != "store_unreachable":
                        raise
                return await self._attempt(command, keys, args)
        except asyncio.CancelledError:
            self._is_stale = self._is_stale or clock() - began >= self._suspicious_after
            raise
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  # whatever the driver raises
            reason, cause = fault_of(error)
            is_full = reason == "store_out_of_memory"
            raise (StoreFull if is_full else StoreUnavailable)(reason, cause=cause) from None

    async def _attempt(self, command: str | Script, keys: Sequence[str], args: tuple[Word, ...]) -> Any:
        from redis.exceptions import NoScriptError

        if self._is_closed:
            raise StoreUnavailable("store_closed", cause="the store was closed")
        if self._is_stale:
            self._is_stale = False
            await self._drop_connections()
        execute = self._redis.execute_command
        try:
            if isinstance(command, str):
                return await execute(command, *keys, *args)
            try:
                return await execute("EVALSHA", command.digest, len(keys), *keys, *args)
            except NoScriptError:  # it was not run
                return await execute("EVAL", command.source, len(keys), *keys, *args)
        except Exception as error:
            self._is_stale = fault_of(error)[0] in _STALE
            raise

    async def _drop_connections(self) -> None:
        """Close connections that no call uses: what is wrong with one is likely wrong with all."""
        with suppress(Exception):
            await self._redis.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Close all connections, also those that calls wait for, unless the client is the caller's own."""
        self._is_closed = True
        if self._own:
            with suppress(Exception):  # a server that is gone cannot say goodbye
                await asyncio.wait_for(self._disconnect(), _GOODBYE)

    async def _disconnect(self) -> None:
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
        for place in (nodes, *nodes.startup_nodes.values()):
            self._set_connect_hook(place.connection_kwargs, is_node=True)
        self._first = dict(nodes.startup_nodes)
        check_place([one.host for one in self._first.values()], [one.port for one in self._first.values()], 0)
        return f"the Redis cluster of {', '.join(self._first)}"

    async def _drop_connections(self) -> None:
        """Close all connections, and ask for the layout anew: of the nodes, and at the first address."""
        with suppress(Exception):
            await self._redis.aclose()
        # Where all nodes have moved, and with drivers that forget a node that failed, the first address still counts.
        nodes = self._redis.nodes_manager.startup_nodes
        nodes.update({name: node for name, node in self._first.items() if name not in nodes})


def _has_stray_password(url: str) -> bool:
    """Return True if a password holds "/", "?" or "#" as it is: a part of it would be taken for the host and logged."""
    parts = urlsplit(url)
    is_cut = "@" in parts.path or any("@" in one and "=" not in one for one in parts.query.split("&"))
    return parts.scheme != "unix" and (is_cut or parts.fragment != "")


def _check_database(url: str) -> int:
    """Return the database of a URL; redis-py takes what is not a number for 0."""
    parts = urlsplit(url)
    return 0 if parts.scheme == "unix" else int(parts.path.strip("/") or 0)

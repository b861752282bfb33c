"""The driver, set up for one server and for a cluster: the few ways in which they are not spoken to alike.

Here alone redis-py is used. Its own retries are off, its waits end some time after those of `redis_link`, which counts
better, and each new connection is asked which server it leads to before anything else is said on it.

What a Redis server says of itself, and whether it keeps what it is given.

A revocation that Redis forgets is a deleted session that works again. So each server is asked at each new
connection (a restart drops them all) which run it is, and whether it keeps an append-only file and never
evicts. The store then judges by a fence, the moment since which nothing was forgotten. Nothing here talks
to Redis but `ask`, over the connection that it is given.
Source: Redis, "INFO", "Redis persistence", "Key eviction".

The moment since which Redis has forgotten nothing, and how it moves.

The moment lies in Redis itself, so what empties Redis takes it away: it is then set to now, and sessions that
were issued before are not vouched for. A server that was restarted without an append-only file may have brought
back an old copy of it along with an old list of revocations: there the run of each server, which lies beside it,
tells, and the moment moves. It never moves back.

How a command gets to Redis and back in time, and what is said when it does not.

Each call runs in a task of its own, so that a caller who gives up (a deadline, a client that hung up) cancels
the driver once and leaves its clean-up in peace. What goes wrong becomes `StoreUnavailable` with a reason from
one table. Only what may be done twice is tried again, and only when a connection turns out to be dead: the
driver's own retries are off, since they stall for seconds and would repeat an increment.
No text of a driver's error leaves here: it may quote an address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, TypeVar

from ..errors import ConfigurationError, StoreFull, StoreUnavailable
from .redis_scripts import FENCE, Keys, Step, Word
from .timeout import STEPS

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


class Fence:
    """What one worker knows of the fence.

    Args:
        keys: The names of keys.
        durability: What to do about a server that may forget.
    """

    def __init__(self, keys: Keys, durability: Durability) -> None:
        self._keys = keys
        self._durability = durability
        self._met: dict[str, str] = {}  # the run of each server that was looked into
        self._news: dict[str, Facts] = {}  # runs that were not yet
        self._silent = False  # whether a server would not say
        self._since = 0  # where it stood when it was last set or moved here

    @property
    def met_nobody(self) -> bool:
        """Whether no connection was made that would have been noticed here."""
        return not (self._silent or self._met or self._news)

    @property
    def stands(self) -> bool:
        """Whether what was read from Redis can be judged by the fence that was read with it."""
        return not self._news

    def heard(self, server: str, facts: Facts | None) -> None:
        """A connection was made.

        Args:
            server: Its name, the same after a restart.
            facts: What it says of itself, or None where it does not.
        """
        if facts is None:
            if not self._silent:
                judge(None, self._durability)
            self._silent = True
        elif self._met.get(server) != facts.run:
            self._news[server] = facts

    async def settle(self, link: Link, now: float) -> None:
        """Set the moment where it is missing, move it where a run began that may have forgotten.

        Raises:
            ConfigurationError: A server may forget, and was told to be refused then.
            StoreUnavailable: Redis did not answer.
        """
        news = dict(self._news)
        runs: list[Word] = []
        for server, facts in news.items():
            judge(facts, self._durability)
            runs += (server, facts.run, int(facts.keeps))
        # What was forgotten at runtime includes what happened in this very second. Who meets an empty Redis at first
        # lost nothing, and sessions that begin within the same second are to live. Where the fence stands before the
        # place that is remembered, an old copy came back.
        lost = int(now) + 1
        first = lost if self._since else int(now)
        step = FENCE(self._keys.since, self._keys.servers, args=(first, lost, self._since, *runs))
        (since,) = await link.run(step, again=True)
        self._since = int(since)
        self._met.update({server: facts.run for server, facts in news.items()})
        self._news = dict(self._news.items() - news.items())  # less what was heard meanwhile


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

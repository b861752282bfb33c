"""Faults of a Redis under living workers: what each deployment keeps through which.

Workers delete sessions and count without a pause while a server restarts, loads, syncs slowly, evicts, fills up, fails
over or moves its slots. Then it is looked whether what was acknowledged still holds, and whether live sessions live.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import anyio
import redis_servers
from redis_servers import HOST, Server, serving

from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions._session.data import Namespace
from mcp_sessions.errors import ConfigurationError, StoreUnavailable
from mcp_sessions.stores import make
from mcp_sessions.stores.base import Record, Standing, Store

WORKERS: Final = 2
TASKS: Final = 2  # of each worker
ON_DISK: Final[dict[str, Any]] = {"appendonly": "yes", "appendfsync": "always"}
EACH_SECOND: Final[dict[str, Any]] = {"appendonly": "yes", "appendfsync": "everysec"}
SLOW_DISK: Final = """
#include <sys/syscall.h>
#include <unistd.h>
int fdatasync(int file) { usleep(%d); return syscall(SYS_fdatasync, file); }
"""


def claims(name: str, issued_at: int) -> Claims:
    """A session."""
    return Claims(kind="session", kid="", jti=name, issued_at=issued_at, expires_at=issued_at + 3600)


@dataclass
class Traffic:
    """Living workers on a store, and what they were acknowledged.

    Args:
        url: The store.
    """

    url: str
    issued_at: int = 0
    deleted: list[Claims] = field(default_factory=list)
    counted: int = 0
    uncertain: int = 0
    _numbers: Any = field(default_factory=count)
    _stores: list[Store] = field(default_factory=list)
    _stopping: bool = False

    @asynccontextmanager
    async def running(self, *, pause: float = 0.0) -> AsyncIterator[None]:
        """Work until the block ends."""
        self._stores = [make(self.url, clock=time.time, timeout=0.25) for _ in range(WORKERS)]
        for store in self._stores:
            await store.open()
        self.issued_at = int(time.time()) + 1
        async with anyio.create_task_group() as tasks:
            for store in self._stores * TASKS:
                tasks.start_soon(self._work, store, pause)
            yield
            self._stopping = True

    @property
    def live(self) -> list[Claims]:
        """Sessions that nobody deletes."""
        return [claims(f"live-{number}", self.issued_at) for number in range(20)]

    async def _work(self, store: Store, pause: float) -> None:
        shelf = Namespace("ses_counted", self.issued_at + 3600, 1 << 16)
        while not self._stopping:
            one = claims(f"{next(self._numbers)}", self.issued_at)
            try:
                await store.revoke(one.ref, audience=AUDIENCE, expires_at=one.expires_at, reason="deleted", lease=60)
                self.deleted.append(one)
                self.uncertain += 1
                await store.add(shelf, "n", 1)
                self.counted, self.uncertain = self.counted + 1, self.uncertain - 1
            except StoreUnavailable:
                await asyncio.sleep(0.02)
            await asyncio.sleep(pause)

    async def look(self, *, pause: float = 0.0) -> dict[str, int]:
        """Return what came of it all, as the workers and a fresh one see it."""
        fresh = make(self.url, clock=time.time, timeout=5)
        ended = await patiently(lambda: fresh.statuses(self.deleted))
        live = await patiently(lambda: self._stores[0].statuses(self.live))
        shelf = Namespace("ses_counted", self.issued_at + 3600, 1 << 16)
        kept = int(await patiently(lambda: fresh.read(shelf, "n")) or 0)
        for store in (fresh, *self._stores):
            await store.close()
        return {
            "deleted": len(ended),
            "deletes lost": sum(standing is Standing.LIVE for standing in ended),
            "counted": self.counted,
            "counts lost or doubled": max(self.counted - kept, kept - self.counted - self.uncertain, 0),
            "live sessions ended": sum(standing is not Standing.LIVE for standing in live),
        }


async def patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until the store answers."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            assert time.monotonic() < deadline, "the store did not come back"
            await asyncio.sleep(0.1)


@contextmanager
def slow_disk(seconds: float) -> Iterator[Path]:
    """A library with which each sync of a file takes so long."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "slow.so"
        source = SLOW_DISK % int(seconds * 1e6)
        command = ["cc", "-shared", "-fPIC", "-include", "unistd.h", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=source.encode(), check=True, capture_output=True)
        yield library


# --- faults --------------------------------------------------------------------------------------


async def restart(options: dict[str, Any], *, times: int = 3, query: str = "") -> dict[str, int]:
    """The server is killed and comes back, and takes a while to read its files."""
    loading: dict[str, Any] = {"key_load_delay": 200, "loading_process_events_interval_bytes": 1024}
    with serving(**options, **loading) as server:
        traffic = Traffic(server.url + query)
        async with traffic.running():
            for _ in range(times):
                await asyncio.sleep(0.4)
                server.kill9()
                await asyncio.to_thread(server.restart)
                await asyncio.sleep(0.2)
        return await traffic.look()


async def slow_sync(options: dict[str, Any], *, seconds: float, query: str = "") -> dict[str, int]:
    """The server is killed while its disk is slow."""
    with slow_disk(seconds) as library, serving(preload=library, **options) as server:
        traffic = Traffic(server.url + query)
        async with traffic.running(pause=0.005):
            await asyncio.sleep(4)
            server.kill9()
            await asyncio.to_thread(server.restart)
        return await traffic.look()


async def evicting(*, query: str = "") -> dict[str, int]:
    """The server evicts what lives to make room."""
    with serving(**ON_DISK, maxmemory="3mb", maxmemory_policy="allkeys-random") as server:
        traffic = Traffic(server.url + query)
        try:
            async with traffic.running():
                await asyncio.sleep(0.5)
                for number in range(40):
                    server.command("SET", f"filling-{number}", b"x" * 100_000)
        except ConfigurationError:
            return {"refused at start": 1}
        return await traffic.look()


async def full() -> dict[str, int]:
    """Records fill the server; when their sessions have expired, it recovers by itself."""
    with serving(**ON_DISK) as server:
        now, limit = time.time(), 1200
        offset = 0.0
        store = make(server.url, clock=lambda: now + offset, timeout=5)
        await store.open()
        for number in range(limit):
            await store.register(Record(f"ses_{number}", None, int(now), int(now) + 60, int(now)))
        used = int(server.command("INFO", "memory").split(b"used_memory:")[1].split()[0])
        server.command("CONFIG", "SET", "maxmemory", used - 200_000)
        refused = 0
        try:
            await store.register(Record("ses_more", None, int(now), int(now) + 60, int(now)))
        except StoreUnavailable:
            refused = 1
        offset, swept = 1000.0, 0
        while await store.elect("worker", audience=AUDIENCE, seconds=5):
            batch = await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=100)
            await asyncio.gather(*(store.purge(ended.record.ref) for ended in batch))
            swept += len(batch)
            if not batch:
                break
        later = int(now) + 1000
        await patiently(lambda: store.register(Record("ses_more", None, later, later + 60, later)))
        await store.close()
        return {"refused while full": refused, "swept": swept, "works again": 1}


async def fail_over(*, lagging: bool, query: str = "") -> dict[str, int]:
    """The primary is killed, and its replica takes over; one that lags has not heard of the last changes."""
    with ExitStack() as stack:
        primary = stack.enter_context(serving(**ON_DISK))
        replica = stack.enter_context(serving(**ON_DISK, repl_diskless_sync_delay=0))
        replica.command("REPLICAOF", HOST, primary.port)
        await until(lambda: b"master_link_status:up" in replica.command("INFO", "replication"))
        sentinel = stack.enter_context(watching(primary))
        traffic = Traffic(f"redis+sentinel://{HOST}:{sentinel.port}/sessions{query}")
        async with traffic.running():
            await asyncio.sleep(0.5)
            if lagging:
                primary.command("ACL", "SETUSER", "default", "-psync", "-sync")
                primary.command("CLIENT", "KILL", "TYPE", "replica")
                await asyncio.sleep(0.5)
            primary.kill9()
            await until(lambda: b"role:master" in replica.command("INFO", "replication"))
            await asyncio.sleep(0.5)
        return await traffic.look()


@contextmanager
def watching(primary: Server) -> Iterator[Server]:
    """A Sentinel that watches a server and decides alone."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "sentinel.conf"
        config.write_text(
            f"sentinel monitor sessions {HOST} {primary.port} 1\n"
            "sentinel down-after-milliseconds sessions 2000\n"
            "sentinel failover-timeout sessions 3000\n"
        )
        sentinel = Server(Path(folder), file=config)
        sentinel.start()
        try:
            yield sentinel
        finally:
            sentinel.kill9()


@contextmanager
def two_nodes(options: dict[str, Any]) -> Iterator[tuple[Server, Server]]:
    """A cluster of two nodes, the second of which has no slots yet."""
    with serving(cluster=True, **options) as first, serving(cluster_enabled="yes", **options) as second:
        second.command("CLUSTER", "MEET", HOST, first.port)
        source, target = (node.command("CLUSTER", "MYID") for node in (first, second))
        while source not in second.command("CLUSTER", "NODES") or target not in first.command("CLUSTER", "NODES"):
            time.sleep(0.02)
        second.wait_for_slots()
        yield first, second


async def reshard(options: dict[str, Any], *, query: str = "") -> dict[str, int]:
    """Slots move from one node of a cluster to another."""
    with two_nodes(options) as (first, second):
        traffic = Traffic(first.cluster_url + query)
        async with traffic.running():
            await asyncio.sleep(0.5)
            keys = first.command("KEYS", "*")
            slots = {first.command("CLUSTER", "KEYSLOT", key) for key in keys[:8]}
            slots |= {first.command("CLUSTER", "KEYSLOT", name) for name in ("{ses_counted}", "{all}")}
            for slot in slots:
                await asyncio.to_thread(move, slot, first, second)
        return await traffic.look()


def move(slot: int, first: Server, second: Server) -> None:
    """Move a slot to another node, as an operator's tool does."""
    source, target = (node.command("CLUSTER", "MYID") for node in (first, second))
    second.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
    first.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
    while keys := first.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
        first.command("MIGRATE", HOST, second.port, "", 0, 5000, "KEYS", *keys)
    for node in (second, first):
        node.command("CLUSTER", "SETSLOT", slot, "NODE", target)


async def until(happens: Callable[[], bool]) -> None:
    """Wait for something that servers agree upon."""
    deadline = time.monotonic() + 30
    while not happens():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


Fault = Callable[[], Awaitable[dict[str, int]]]
Faults = dict[tuple[str, str], Fault]
FAULTS: Final[Faults] = {
    ("one server, appendfsync always", "restarts, and loads a while"): partial(restart, ON_DISK),
    ("one server, appendfsync always", "killed with a slow disk"): partial(slow_sync, ON_DISK, seconds=0.05),
    ("one server, appendfsync everysec", "restarts, and loads a while"): partial(restart, EACH_SECOND),
    ("one server, appendfsync everysec", "killed with a slow disk"): partial(slow_sync, EACH_SECOND, seconds=1.5),
    ("one server that evicts", "memory full"): evicting,
    ("one server that evicts, durability=refuse", "memory full"): partial(evicting, query="?durability=refuse"),
    ("one server, noeviction, tracked", "full, until what filled it expires"): full,
    ("Sentinel", "fail-over"): partial(fail_over, lagging=False),
    ("Sentinel", "fail-over to a replica that lags"): partial(fail_over, lagging=True),
    ("Sentinel, replicas=1", "fail-over to a replica that lags"): partial(fail_over, lagging=True, query="?replicas=1"),
    ("cluster", "slots move"): partial(reshard, ON_DISK),
}
WAIT: Final = "?durability=wait"
WAITING: Final[Faults] = {
    ("one server, everysec, durability=wait", "killed with a slow disk"): partial(
        slow_sync, EACH_SECOND, seconds=0.7, query=WAIT
    ),
    ("cluster, everysec, durability=wait", "slots move"): partial(reshard, EACH_SECOND, query=WAIT),
}
"""For servers that know WAITAOF: Redis 7.2, or Valkey."""


def known() -> Faults:
    """Return the faults that the server at hand can be tried with."""
    return FAULTS | (WAITING if redis_servers.shared().did("WAITAOF", 0, 0, 0) else {})


def table(faults: Faults) -> str:
    """Try faults, and return what was found as the documentation shows it."""

    async def found(fault: Fault) -> str:
        return ", ".join(f"{number:,} {what}" for what, number in (await fault()).items())

    rows = [
        f"| {deployment} | {fault} | {anyio.run(found, faults[deployment, fault])} |" for deployment, fault in faults
    ]
    return "\n".join(["| deployment | fault | found |", "|---|---|---|", *rows])

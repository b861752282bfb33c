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
from redis_servers import HOST, Server, serving

from mcp_sessions._errors import ConfigurationError, StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores import make
from mcp_sessions.stores._base import Record, SessionStatus, Store

from .worker import claims

WORKERS: Final = 2
TASKS: Final = 2  # of each worker
PATIENCE: Final = 30  # seconds that a store or a server may take, however busy the machine is
ON_DISK: Final[dict[str, Any]] = {"appendonly": "yes", "appendfsync": "always"}
EACH_SECOND: Final[dict[str, Any]] = {"appendonly": "yes", "appendfsync": "everysec"}
SLOW_DISK: Final = """
#include <sys/syscall.h>
#include <unistd.h>
int fdatasync(int file) { usleep(%d); return syscall(SYS_fdatasync, file); }
"""
Found = dict[str, int]


@dataclass
class Traffic:
    """Living workers on a store, and what they were acknowledged."""

    url: str
    issued_at: int = 0
    deleted: list[str] = field(default_factory=list)
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
        self._shelf = Namespace("ses_counted", self.issued_at + 3600, 1 << 16)
        async with anyio.create_task_group() as tasks:
            for store in self._stores * TASKS:
                tasks.start_soon(self._work, store, pause)
            yield
            self._stopping = True

    async def _work(self, store: Store, pause: float) -> None:
        while not self._stopping:
            name = str(next(self._numbers))
            one = claims(name, self.issued_at)
            try:
                await store.revoke(Record.of(one), reason="deleted", lease=60)
                self.deleted.append(name)
                self.uncertain += 1
                await store.add(self._shelf, "n", 1)
                self.counted, self.uncertain = self.counted + 1, self.uncertain - 1
            except StoreUnavailable:
                await asyncio.sleep(0.02)
            await asyncio.sleep(pause)

    async def more(self, deletes: int) -> None:
        """Wait until so many more deletes are acknowledged."""
        enough = len(self.deleted) + deletes
        await until(lambda: len(self.deleted) >= enough)

    async def look(self) -> Found:
        """Return what came of it all, as the workers and a fresh one see it."""
        fresh = make(self.url, clock=time.time, timeout=5)
        deleted = [claims(name, self.issued_at) for name in self.deleted]
        ended = await patiently(lambda: fresh.statuses(deleted))
        live = [await self._status(f"live-{number}") for number in range(20)]
        kept = int(await patiently(lambda: fresh.read(self._shelf, "n")) or 0)
        await fresh.close()
        await self.close()
        return {
            "deleted": len(ended),
            "deletes lost": sum(standing is SessionStatus.LIVE for standing in ended),
            "counted": self.counted,
            "counts lost or doubled": max(self.counted - kept, kept - self.counted - self.uncertain, 0),
            "live sessions ended": sum(standing is not SessionStatus.LIVE for standing in live),
        }

    async def close(self) -> None:
        for store in self._stores:
            await store.close()

    async def _status(self, name: str) -> SessionStatus:
        status: SessionStatus = await patiently(lambda: self._stores[0].status(claims(name, self.issued_at)))
        return status


async def patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until the store answers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await ask()
        except StoreUnavailable:  # pragma: no cover  # where it was too early
            assert time.monotonic() < deadline, "the store did not come back"
            await asyncio.sleep(0.1)


async def until(happens: Callable[[], object]) -> None:
    """Wait for something that a server tells, or servers agree upon."""
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


# --- faults --------------------------------------------------------------------------------------


async def restart(options: dict[str, Any], *, query: str = "") -> Found:
    """The server is killed and comes back, and takes a while to read its files."""
    loading: dict[str, Any] = {"key_load_delay": 200, "loading_process_events_interval_bytes": 1024}
    with serving(**options, **loading) as server:
        traffic = Traffic(server.url + query)
        async with traffic.running():
            await traffic.more(100)
            server.kill9()
            await asyncio.to_thread(server.restart)
            await traffic.more(10)
        return await traffic.look()


async def without_info(*, query: str = "") -> Found:
    """The server is killed and comes back; the workers' user may not ask it what it keeps."""
    with serving(**ON_DISK, user="worker on >secret ~* &* +@all -info") as server:
        traffic = Traffic(server.url.replace("//", "//worker:secret@") + query)
        try:
            async with traffic.running():
                await traffic.more(50)
                server.kill9()
                await asyncio.to_thread(server.restart)
                await traffic.more(10)
        except ConfigurationError:
            await traffic.close()
            return {"refused at start": 1}
        return await traffic.look()


@contextmanager
def slow_disk(seconds: float) -> Iterator[Path]:
    """A library with which each sync of a file takes so long."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "slow.so"
        source = SLOW_DISK % int(seconds * 1e6)
        command = ["cc", "-shared", "-fPIC", "-include", "unistd.h", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=source.encode(), check=True, capture_output=True)
        yield library


async def slow_sync(options: dict[str, Any], *, seconds: float, query: str = "") -> Found:
    """The server is killed while its disk is slow."""
    with slow_disk(seconds) as library, serving(preload=library, **options) as server:
        traffic = Traffic(server.url + query)
        async with traffic.running(pause=0.005):
            await asyncio.sleep(4)  # in which a slow disk falls behind
            server.kill9()
            await asyncio.to_thread(server.restart)
        return await traffic.look()


async def evicting(*, query: str = "") -> Found:
    """The server evicts what lives to make room."""
    with serving(**ON_DISK, maxmemory="3mb", maxmemory_policy="allkeys-random") as server:
        traffic = Traffic(server.url + query)
        try:
            async with traffic.running():
                await traffic.more(20)
                for number in range(40):
                    server.command("SET", f"filling-{number}", b"x" * 100_000)
        except ConfigurationError:
            await traffic.close()
            return {"refused at start": 1}
        return await traffic.look()


async def full() -> Found:
    """Records fill the server; when their sessions have expired, it recovers by itself."""
    with serving(**ON_DISK) as server:
        now, offset, refused, swept = int(time.time()), 0, 0, 0
        store = make(server.url, clock=lambda: now + offset, timeout=5)
        await store.open()
        for first in range(0, 1200, 100):
            records = (Record(f"ses_{number}", None, now, now + 60, now) for number in range(first, first + 100))
            await asyncio.gather(*map(store.register, records))
        used = int(server.command("INFO", "memory").split(b"used_memory:")[1].split()[0])
        server.command("CONFIG", "SET", "maxmemory", used - 200_000)
        try:
            await store.register(Record("ses_more", None, now, now + 60, now))
        except StoreUnavailable:
            refused = 1
        offset = 1000
        while batch := await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=100):
            await asyncio.gather(*(store.purge(ended.record.ref) for ended in batch))
            swept += len(batch)
        later = now + offset
        await patiently(lambda: store.register(Record("ses_more", None, later, later + 60, later)))
        await store.close()
        return {"refused while full": refused, "swept": swept, "works again": 1}


async def fail_over(*, lagging: bool) -> Found:
    """The primary is killed, and its replica takes over; one that lags has not heard of the last changes."""
    with ExitStack() as stack:
        primary = stack.enter_context(serving(**ON_DISK))
        replica = stack.enter_context(serving(**ON_DISK, repl_diskless_sync_delay=0))
        replica.command("REPLICAOF", HOST, primary.port)
        await until(lambda: b"master_link_status:up" in replica.command("INFO", "replication"))
        sentinel = stack.enter_context(watching(primary))
        await until(lambda: sentinel.command("SENTINEL", "REPLICAS", "sessions"))
        traffic = Traffic(f"redis+sentinel://{HOST}:{sentinel.port}/sessions")
        async with traffic.running():
            await traffic.more(20)
            if lagging:
                primary.command("ACL", "SETUSER", "default", "-psync", "-sync")
                primary.command("CLIENT", "KILL", "TYPE", "replica")
                await until(lambda: offset(primary) > offset(replica))
            primary.kill9()
            await until(lambda: sentinel.did("SENTINEL", "FAILOVER", "sessions"))
            # The replica itself is not asked: it is made to hang up on all clients when it takes over.
            port = str(replica.port).encode()
            await until(lambda: sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "sessions")[1] == port)
            await traffic.more(10)
        return await traffic.look()


def offset(server: Server) -> int:
    """Return how much of what was changed a primary has made, or a replica has heard of."""
    text = server.command("INFO", "replication")
    name = b"master_repl_offset:" if b"role:master" in text else b"slave_repl_offset:"
    return int(text.partition(name)[2].partition(b"\r")[0])


@contextmanager
def watching(primary: Server) -> Iterator[Server]:
    """A Sentinel that watches a server, and fails over when it is asked to: by itself a busy machine would do, too."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "sentinel.conf"
        config.write_text(
            f"sentinel monitor sessions {HOST} {primary.port} 1\nsentinel down-after-milliseconds sessions 60000\n"
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


async def reshard(options: dict[str, Any]) -> Found:
    """Slots move from one node of a cluster to another."""
    with two_nodes(options) as (first, second):
        traffic = Traffic(first.cluster_url)
        async with traffic.running():
            await traffic.more(20)
            names = first.command("KEYS", "*")  # all of one slot, as are those that will follow
            for slot in {first.command("CLUSTER", "KEYSLOT", name) for name in names}:
                await asyncio.to_thread(move, slot, first, second)
            await traffic.more(10)
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


Of = tuple[str, str]  # a deployment, and its fault
Fault = Callable[[], Awaitable[Found]]
ALWAYS, EVERYSEC, EVICTS = (
    "one server, appendfsync always",
    "one server, appendfsync everysec",
    "one server that evicts",
)
FAULTS: Final[dict[Of, Fault]] = {
    (ALWAYS, "restarts, and loads a while"): partial(restart, ON_DISK),
    (EVERYSEC, "restarts, and loads a while"): partial(restart, EACH_SECOND),
    (EVICTS, "memory full"): evicting,
    (f"{EVICTS}, durability=refuse", "memory full"): partial(evicting, query="?durability=refuse"),
    (f"{ALWAYS}, no INFO", "restarts"): without_info,
    (f"{ALWAYS}, no INFO, durability=refuse", "restarts"): partial(without_info, query="?durability=refuse"),
    ("one server, noeviction, tracked", "full, until what filled it expires"): full,
    ("Sentinel", "fail-over"): partial(fail_over, lagging=False),
    ("Sentinel", "fail-over to a replica that lags"): partial(fail_over, lagging=True),
    ("cluster", "slots move"): partial(reshard, ON_DISK),
}
SLOW: Final[dict[Of, Fault]] = {
    (ALWAYS, "killed with a slow disk"): partial(slow_sync, ON_DISK, seconds=0.05),
    (EVERYSEC, "killed with a slow disk"): partial(slow_sync, EACH_SECOND, seconds=1.5),
}
MAY_LOSE: Final = {
    (EVERYSEC, "killed with a slow disk"),
    (EVICTS, "memory full"),
    ("Sentinel", "fail-over to a replica that lags"),
}
"""What the documentation says so of."""


def known() -> dict[Of, Fault]:
    """Return all faults."""
    return FAULTS | SLOW


def losses(of: Of, found: Found) -> Found:
    """Return what was found that the documentation rules out."""
    ruled_out = {what: number for what, number in found.items() if "lost" in what or what == "live sessions ended"}
    return {} if of in MAY_LOSE else {what: number for what, number in ruled_out.items() if number}


def table(faults: dict[Of, Fault]) -> tuple[str, list[str]]:
    """Try faults; return what was found as the documentation shows it, and what it rules out."""

    async def tried(of: Of) -> Found:
        return await faults[of]()

    found = {of: anyio.run(tried, of) for of in faults}
    rows = [(*of, ", ".join(f"{number:,} {what}" for what, number in each.items())) for of, each in found.items()]
    shown = "\n".join(f"| {' | '.join(row)} |" for row in [("deployment", "fault", "found"), ("---",) * 3, *rows])
    return shown, [f"{', '.join(of)}: {losses(of, each)}" for of, each in found.items() if losses(of, each)]

"""Two kills of a worker, and what a Redis of several servers keeps."""

import time
from collections.abc import Callable
from random import Random
from typing import Any

import anyio
import crash
import pytest
from redis_servers import serving, watching
from servers import HOST, wait_for

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._session.claims import Claims
from mcp_sessions.stores import make
from mcp_sessions.stores._base import Record, SessionStatus
from mcp_sessions.testing._contract import statuses_in


def test_nothing_that_was_acknowledged_is_lost() -> None:
    """The worker is killed; `make nightly` kills those of all stores, and the stores' servers, 200 times."""
    with crash.place("sqlite") as place:
        trial = crash.Trial(place, Random(1)).run(2)
    assert trial.problems == []
    assert trial.counts["kills of the worker"] == 2
    assert trial.counts["deletes acknowledged"] > 0


# --- several servers -------------------------------------------------------------------------------

ON_DISK: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always"}


async def keep_through(url: str, fault: Callable[[], object]) -> None:
    """Delete sessions without a pause before, during and after a fault; none may be accepted again."""
    store, issued_at = make(url, clock=time.time, timeout=0.25), int(time.time()) + 1
    deleted: list[Claims] = []
    await store.open()

    async def delete(number: int) -> None:
        while len(deleted) < number:
            one = crash.session(str(len(deleted)), issued_at)
            try:
                await store.revoke(Record.of(one), reason="deleted", lease=60)
                deleted.append(one)
            except StoreUnavailable:
                await anyio.sleep(0.02)

    await delete(20)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delete, 2000)
        await anyio.to_thread.run_sync(fault)
        tasks.cancel_scope.cancel()
    await delete(len(deleted) + 20)
    statuses = await statuses_in(store, [*deleted, crash.session("untouched", issued_at)])
    assert statuses == [*[SessionStatus.ENDED] * len(deleted), SessionStatus.LIVE]
    await store.close()


@pytest.mark.nightly
def test_a_replica_that_takes_over_keeps_everything() -> None:
    """One that has heard of all changes; `docs/stores.md` warns of one that lags."""
    with serving(**ON_DISK) as primary, serving(**ON_DISK, repl_diskless_sync_delay=0) as replica:
        replica.command("REPLICAOF", HOST, primary.port)
        wait_for(lambda: b"master_link_status:up" in replica.command("INFO", "replication"))
        with watching(primary) as sentinel:
            wait_for(lambda: sentinel.command("SENTINEL", "REPLICAS", "sessions"))

            def fail_over() -> None:
                primary.kill9()
                wait_for(lambda: sentinel.did("SENTINEL", "FAILOVER", "sessions"))
                port = str(replica.port).encode()
                wait_for(lambda: sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "sessions")[1] == port)

            anyio.run(keep_through, f"redis+sentinel://{HOST}:{sentinel.port}/sessions", fail_over)


@pytest.mark.nightly
def test_slots_that_move_keep_everything() -> None:
    """From the first node of a cluster to another one, as an operator's tool moves them."""
    with serving(cluster=True, **ON_DISK) as first, serving(cluster_enabled="yes", **ON_DISK) as second:
        second.command("CLUSTER", "MEET", HOST, first.port)
        source, target = (node.command("CLUSTER", "MYID") for node in (first, second))
        wait_for(lambda: source in second.command("CLUSTER", "NODES") and target in first.command("CLUSTER", "NODES"))
        second.wait_for_slots()

        def move() -> None:
            (slot,) = {first.command("CLUSTER", "KEYSLOT", name) for name in first.command("KEYS", "*")}
            second.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
            first.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
            while keys := first.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                first.command("MIGRATE", HOST, second.port, "", 0, 5000, "KEYS", *keys)
            for node in (second, first):
                node.command("CLUSTER", "SETSLOT", slot, "NODE", target)

        anyio.run(keep_through, first.cluster_url, move)

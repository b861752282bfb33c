"""What a change on Redis waits for, and what a store says of a server that cannot promise it."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Iterator

import pytest
import redis_servers
from clients import Clock
from crash.faults import move, patiently, two_nodes, until, watching
from redis_servers import HOST, Server, serving

from mcp_sessions._errors import ConfigurationError, StoreFull, StoreUnavailable
from mcp_sessions._server.lifecycle import Terminator
from mcp_sessions._server.resumption import Streams
from mcp_sessions._session.claims import Claims
from mcp_sessions._session.data import Data, Namespace
from mcp_sessions.stores import _redis_clients as redis_clients
from mcp_sessions.stores import make
from mcp_sessions.stores._base import Standing
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.stores._redis_connection import cause_of
from mcp_sessions.stores._redis_durability import Promise
from mcp_sessions.testing._contract import revoke

LATER = 1_900_000_000
ONE = Claims(
    kind="session", issuer="mcp-sessions", audience="mcp-sessions", jti="one", issued_at=LATER, expires_at=LATER + 3600
)
TWO = Claims(
    kind="session", issuer="mcp-sessions", audience="mcp-sessions", jti="two", issued_at=LATER, expires_at=LATER + 3600
)
SHELF = Namespace("ses_one", LATER + 3600, 100)


@pytest.fixture
def anyio_backend() -> str:
    """The driver knows asyncio alone."""
    return "asyncio"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that is not there is not waited for long."""
    monkeypatch.setattr("mcp_sessions.stores._redis.SYNC_PATIENCE", 0.3)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(appendonly="yes", appendfsync="always") as own:
        yield own


async def test_a_change_that_no_replica_confirms_is_not_acknowledged(server: Server) -> None:
    """It may have been made all the same; once a replica is there, it is."""
    store = RedisStore(f"{server.url}?replicas=1&db=0", timeout=0.3)
    await store.open()
    with pytest.raises(StoreUnavailable) as caught:
        await revoke(store, ONE)
    assert (caught.value.reason, "confirmed" in caught.value.cause) == ("store_not_confirmed", True)
    assert await store.status(ONE) is Standing.ENDED
    with serving() as replica:
        replica.command("REPLICAOF", HOST, server.port)
        await until(lambda: b"state=online" in server.command("INFO", "replication"))
        assert await patiently(lambda: revoke(store, ONE))  # the same call, asked again
        assert not await revoke(store, ONE)
        server.command("SCRIPT", "FLUSH")
        assert await patiently(lambda: store.add(SHELF, "n", 1)) >= 1
    await store.close()


async def test_a_delete_without_an_answer_runs_its_on_end_once(server: Server) -> None:
    """The worker goes on asking; who asks again is the second then."""
    store = make(f"{server.url}?replicas=1", clock=time.time, timeout=0.3)
    ran: list[str] = []

    def data(owner: str, until: int) -> Data:
        return Data(store, Namespace(owner, until, 100), clock=time.time, max_value_bytes=100)

    terminator = Terminator(
        store,
        Streams(store),
        on_end=lambda session, reason: ran.append(reason),
        emit=lambda fact: None,
        data=data,
        clock=time.time,
        pause=0.05,
    )
    with pytest.raises(StoreUnavailable):
        await terminator.end(ONE, "deleted")
    with serving() as replica:
        replica.command("REPLICAOF", HOST, server.port)
        await until(lambda: bool(ran))
        await patiently(lambda: terminator.end(ONE, "deleted again"))
    assert ran == ["deleted"]
    with pytest.raises(StoreUnavailable):
        await terminator.end(TWO, "deleted")
    await store.close()


async def test_a_full_store_is_not_asked_again(server: Server) -> None:
    """It has taken nothing, and says so."""
    store = make(server.url, clock=time.time, timeout=5)
    await store.open()
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    terminator = Terminator(
        store,
        Streams(store),
        on_end=None,
        emit=lambda fact: None,
        data=lambda *_: None,  # type: ignore[arg-type]
        clock=time.time,
    )
    with pytest.raises(StoreFull):
        await terminator.end(ONE, "deleted")
    await store.close()


async def test_a_worker_remembers_a_bounded_number_of_unknown_outcomes(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest is forgotten first: its `on_end` is then not run by who asks again."""
    monkeypatch.setattr("mcp_sessions.stores._redis._MAX_UNSURE", 1)
    store = RedisStore(server.url, replicas=1, timeout=0.3)
    for each in (ONE, TWO):
        with pytest.raises(StoreUnavailable):
            await revoke(store, each)
    assert [*store._unsure] == [TWO.ref]
    await store.close()


async def test_a_change_in_a_cluster_is_confirmed_where_its_slot_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot is followed; one that is on its way for too long is not waited for."""
    monkeypatch.setattr(redis_clients, "_MOVES", 3)
    with two_nodes({}) as (first, second):
        store = RedisStore(f"{first.cluster_url}?replicas=1", prefix="moved:", timeout=1)
        await store.open()
        slot = first.command("CLUSTER", "KEYSLOT", f"{{{ONE.ref}}}")
        await asyncio.to_thread(move, slot, first, second)
        with pytest.raises(StoreUnavailable) as caught:
            await store.write(Namespace(ONE.ref, LATER + 3600, 100), "n", b"1")
        assert caught.value.reason == "store_not_confirmed"
        source, target = (node.command("CLUSTER", "MYID") for node in (second, first))
        first.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
        second.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
        second.command("DEL", *(f"moved:{{{ONE.ref}}}:{part}" for part in ("data", "times")))
        with pytest.raises(StoreUnavailable) as caught:
            await store.write(Namespace(ONE.ref, LATER + 3600, 100), "n", b"1")
        assert caught.value.reason == "store_error"
        await store.close()


def test_what_a_server_confirms_is_judged() -> None:
    """Of WAITAOF the first number is the disk; of WAIT the number of replicas."""
    promise = Promise("wait", 2, 1.0, {"": False})
    assert promise.confirmations == (("WAITAOF", 1, 0, 1000), ("WAIT", 2, 1000))
    assert promise.is_kept([[1, 0], 2])
    assert not promise.is_kept([[0, 0], 2])
    assert not promise.is_kept([[1, 0], 1])


async def test_a_server_without_waitaof_is_refused_unless_it_syncs_always(server: Server) -> None:
    """With the remedy."""
    store = RedisStore(f"{server.url}?durability=wait")
    await store.open()
    assert await revoke(store, ONE)
    await store.close()
    server.command("CONFIG", "SET", "appendfsync", "everysec")
    knows = server.did("WAITAOF", 0, 0, 0)
    store = RedisStore(server.url, durability="wait")
    try:
        await store.open()
    except ConfigurationError as error:
        assert "durability='wait' needs WAITAOF" in str(error)
        assert not knows
    else:  # pragma: no cover  # by Redis from 7.2 and Valkey
        assert knows
    await store.close()


async def test_sentinels_name_the_server_and_what_they_are_asked_is_in_the_url(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that they do not know is a fault with a place and a cause."""
    with watching(server) as sentinel:
        where = f"redis+sentinel://u:p@{HOST}:{sentinel.port},{HOST}:1/sessions"
        assert "u:p" not in RedisStore(where).where
        store = RedisStore(f"redis+sentinel://{HOST}:{sentinel.port},{HOST}:1/sessions/0")
        assert await revoke(store, ONE)
        await store.close()
        strange = make(f"redis+sentinel://{HOST}:{sentinel.port}/strange", clock=Clock(), timeout=1)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await strange.status(ONE)
        await strange.close()
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"Redis 'strange' of the Sentinels {HOST}:{sentinel.port}, database 0" in said


@pytest.mark.parametrize("rest", ["host:26379", "host:26379/", ":26379/name", "host:26379/name/zero"])
def test_a_sentinel_url_needs_hosts_and_a_name(rest: str) -> None:
    """Or it cannot be read."""
    with pytest.raises(ConfigurationError, match="not a valid Redis URL"):
        RedisStore(f"redis+sentinel://{rest}")


async def test_tls_goes_with_a_cluster() -> None:
    """By the URL's two letters s; who vouches for it is a parameter."""
    with serving(tls=True, cluster=True, tls_cluster="yes") as own:
        url = own.url.replace("rediss://", "rediss+cluster://")
        store = RedisStore(url, timeout=10)
        assert await revoke(store, ONE)
        await store.close()


async def causes(url: str) -> str:
    """Return what the log says of the first request."""
    store = RedisStore(url, timeout=5)
    with pytest.raises(StoreUnavailable) as caught:
        await store.status(ONE)
    await store.close()
    return caught.value.cause


async def test_a_fault_is_logged_with_its_cause() -> None:
    """What is wrong with TLS, the database's number, the host's name; a closed port; a user without rights."""
    with serving(tls=True) as own:
        assert (await causes(own.url.partition("?")[0])).startswith("TLS: ")
    url = redis_servers.shared().url
    assert await causes(f"{url}/99") == "it has no database with this number"
    assert await causes("redis://no-such-host.invalid") == "its host name is unknown"
    assert await causes(f"redis://{HOST}:1") == "Connection refused"
    assert "check the user" in await causes(url.replace("://", "://nobody:no@"))
    assert cause_of(KeyError("a"), "store_error") == "KeyError"
    assert (
        cause_of(ssl.SSLError(1, "wrong"), "store_unreachable") == "TLS: the server does not speak it, or not correctly"
    )


async def test_a_server_that_is_loading_is_busy_and_has_lost_nothing(server: Server) -> None:
    """What it says of itself meanwhile is not believed: a session lives on afterwards, and a deleted one does not."""
    store = RedisStore(server.url, timeout=10)
    await store.open()
    assert await revoke(store, ONE)
    server.command("EVAL", "for i = 1, 5000 do redis.call('SET', 'other' .. i, i) end", 0)
    server.kill9()
    starting = asyncio.create_task(asyncio.to_thread(server.restart, key_load_delay=500))
    reasons = set()
    while not starting.done():
        try:
            await store.status(ONE)
        except StoreUnavailable as error:
            reasons.add(error.reason)
        await asyncio.sleep(0.02)
    await starting
    assert "store_loading" in reasons
    assert await store.statuses([ONE, TWO]) == [Standing.ENDED, Standing.LIVE]
    await store.close()

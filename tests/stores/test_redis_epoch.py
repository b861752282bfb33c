"""Redis forgets: how that is noticed, and what is still believed after.

Every fault is a real one, on a server that is killed, emptied or set up badly.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from clients import Clock
from redis_servers import Server, serving

from mcp_sessions._errors import ConfigurationError, StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions.stores import _redis_durability as redis_durability
from mcp_sessions.stores._base import Record, SessionStatus
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.stores._redis_durability import ServerInfo
from mcp_sessions.testing._contract import revoke

LIVE, ENDED, LOST = SessionStatus.LIVE, SessionStatus.ENDED, SessionStatus.UNKNOWN
KEEPS: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always"}


@pytest.fixture
def anyio_backend() -> str:
    """The driver knows asyncio alone."""
    return "asyncio"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def claims(jti: str, clock: Clock) -> Claims:
    """A session that begins now."""
    now = int(clock.now)
    return Claims(
        kind="session",
        issuer="mcp-sessions",
        audience="mcp-sessions",
        jti=jti,
        issued_at=now,
        expires_at=now + 3600,
        subject="sub",
    )


@asynccontextmanager
async def opened(server: Server, clock: Clock, **options: Any) -> AsyncIterator[RedisStore]:
    store = RedisStore(server.url, **{"clock": clock, "timeout": 10, **options})
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def begun(store: RedisStore, jti: str, clock: Clock) -> Claims:
    """A session that begins now, as the server begins one."""
    one = claims(jti, clock)
    await store.register_at_epoch(one)
    return one


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage().partition(";")[0] for record in caplog.records if record.levelno == level]


# --- what is noticed -----------------------------------------------------------------------------


async def test_an_empty_redis_is_a_beginning(clock: Clock) -> None:
    """Sessions that begin in the very second in which it is met live; older ones are vouched for by nobody."""
    old = claims("old", clock)
    clock.now += 1.5
    with serving() as server:
        async with opened(server, clock) as store:
            assert await store.statuses([old, claims("other", clock)]) == [LOST, LOST]
            assert await store.statuses([old, await begun(store, "new", clock)]) == [LOST, LIVE]
            assert await store.statuses([]) == []


async def test_opening_twice_is_the_same_as_once(clock: Clock) -> None:
    """And so is a second worker that opens later."""
    with serving() as server:
        async with opened(server, clock) as store:
            one = await begun(store, "one", clock)
            clock.now += 60
            await store.open()
            async with opened(server, clock) as other:
                assert await store.status(one) is LIVE
                assert await other.status(one) is LIVE


async def test_emptying_redis_at_runtime_ends_what_was_issued_before(clock: Clock) -> None:
    """On every worker, whichever notices first; also in the very second of the loss."""
    with serving() as server:
        async with opened(server, clock) as store, opened(server, clock) as other:
            ended, live = claims("ended", clock), claims("live", clock)
            assert await revoke(store, ended)
            server.command("FLUSHALL")
            assert await store.statuses([ended, live]) == [LOST, LOST]
            assert await other.status(ended) is LOST
            assert await other.statuses([live, await begun(other, "new", clock)]) == [LOST, LIVE]


async def test_an_epoch_moves_on_also_where_another_clock_was_ahead(clock: Clock) -> None:
    """An old copy came back, with the moment of a worker that is a second ahead: whom that one admitted is LOST."""
    with serving() as server:
        ahead = Clock()
        ahead.now = clock.now + 1
        async with opened(server, ahead) as store:
            one = await begun(store, "one", ahead)
            server.command("SAVE")
        server.kill9()
        server.restart()
        async with opened(server, clock) as late:
            assert await late.status(one) is LOST
            assert await late.status(await begun(late, "two", clock)) is LIVE


async def test_who_accepts_the_risk_keeps_sessions(clock: Clock) -> None:
    """And those that had been deleted."""
    with serving() as server:
        async with opened(server, clock, forgotten="accept") as store:
            ended, live = claims("ended", clock), claims("live", clock)
            assert await revoke(store, ended)
            server.command("FLUSHALL")
            clock.now += 60
            assert await store.statuses([ended, live]) == [LIVE, LIVE]
            assert await revoke(store, ended)
            assert await store.statuses([ended, live]) == [ENDED, LIVE]


@pytest.mark.parametrize("tells", [True, False])
async def test_kill_9_with_an_append_only_file_loses_nothing(clock: Clock, tells: bool) -> None:
    """What was acknowledged is there, and sessions live on; whether or not the server tells of itself."""
    silence: dict[str, Any] = {} if tells else {"rename_command": "INFO ''"}
    with serving(**KEEPS, **silence) as server:
        async with opened(server, clock) as store:
            ended, live = claims("ended", clock), await begun(store, "live", clock)
            assert await revoke(store, ended)
            await store.register(Record(live.ref, "sub", live.issued_at, live.expires_at, live.issued_at))
            clock.now += 60
            server.kill9()
            server.restart()
            assert await store.statuses([ended, live]) == [ENDED, LIVE]
            assert await store.touch(live, idle_timeout=3600) is LIVE
        async with opened(server, clock) as later:
            assert await later.statuses([ended, live]) == [ENDED, LIVE]


async def test_kill_9_without_one_ends_what_was_issued_before(clock: Clock) -> None:
    """Recorded or not; sessions that begin after live."""
    with serving() as server:
        async with opened(server, clock) as store:
            ended, live = claims("ended", clock), claims("live", clock)
            assert await revoke(store, ended)
            server.kill9()
            server.restart()
            assert await store.statuses([ended, live]) == [LOST, LOST]
            assert await store.touch(live, idle_timeout=3600) is LOST
            clock.now += 1
            assert await store.status(claims("new", clock)) is LIVE


async def test_a_snapshot_brings_back_the_past_and_is_not_believed(clock: Clock) -> None:
    """The epoch came back with it, and so did records; what was revoked after it did not. The run tells."""
    with serving() as server:
        async with opened(server, clock) as store:
            one = claims("one", clock)
            await store.register(Record(one.ref, "sub", one.issued_at, one.expires_at, one.issued_at))
            server.command("SAVE")
            assert await revoke(store, one)
            clock.now += 60
            server.kill9()
            server.restart()
            assert await store.status(one) is LOST
            assert await store.touch(one, idle_timeout=3600) is LOST
            assert await store.get(one.ref) is None
            assert await store.list_sessions(subject="sub", audience=AUDIENCE, limit=1000) == []
            clock.now += 1
            assert await store.status(claims("new", clock)) is LIVE


async def test_a_file_that_was_switched_on_later_does_not_vouch_for_what_was_before(clock: Clock) -> None:
    """What the run before it kept counts as well."""
    with serving(**KEEPS) as server:
        async with opened(server, clock) as store:
            server.kill9()
            server.restart(appendonly="no")
            server.command("FLUSHALL")
            await store.status(claims("any", clock))  # notices
            clock.now += 10
            one = claims("one", clock)
            assert await store.status(one) is LIVE
            server.kill9()
            server.restart(appendonly="yes")  # which brings back the file of the first run
            clock.now += 10
            assert await store.status(one) is LOST


# --- what is said --------------------------------------------------------------------------------

FORGETS, EVICTS, LATE, UNSURE = (
    getattr(redis_durability, name).partition(";")[0] for name in ("FORGETS", "EVICTS", "LATE", "UNSURE")
)


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        (KEEPS, []),
        ({"appendonly": "yes"}, [LATE]),
        ({**KEEPS, "rename_command": "CONFIG ''"}, [UNSURE]),
        ({}, [FORGETS]),
        ({**KEEPS, "maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"}, [EVICTS]),
        ({**KEEPS, "maxmemory": "100mb", "maxmemory_policy": "volatile-ttl"}, [EVICTS]),
        ({**KEEPS, "maxmemory_policy": "allkeys-lru"}, []),
        ({"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"}, [FORGETS, EVICTS]),
    ],
)
async def test_a_redis_that_may_forget_is_told_at_start(
    clock: Clock, caplog: pytest.LogCaptureFixture, options: dict[str, Any], warnings: list[str]
) -> None:
    """With the remedy, once for each worker; or it is refused, or nobody cares."""
    with serving(**options) as server:
        async with opened(server, clock, durability="ignore") as careless:
            await careless.status(claims("one", clock))
        assert not caplog.records
        async with opened(server, clock) as store:
            await store.status(claims("one", clock))
        assert said(caplog, logging.WARNING) == warnings
        strict = RedisStore(server.url, clock=clock, timeout=10, durability="refuse")
        for warning in warnings:
            with pytest.raises(ConfigurationError) as caught:
                await strict.open()
            assert warning in str(caught.value)
            with pytest.raises(StoreUnavailable):
                await strict.status(claims("one", clock))
        await strict.close()


async def test_a_run_that_may_forget_is_refused_while_it_lasts(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A server that comes back without its file is noticed by a worker that was told to refuse such."""
    with serving(**KEEPS) as server:
        async with opened(server, clock, durability="refuse") as store:
            one = await begun(store, "one", clock)
            server.kill9()
            server.restart(appendonly="no")
            for _ in range(2):
                with pytest.raises(StoreUnavailable) as caught:
                    await store.status(one)
                assert caught.value.reason == "store_misconfigured"
            assert "set 'appendonly yes'" in caplog.text
            server.kill9()
            server.restart(appendonly="yes")
            assert await store.status(one) is LIVE


def test_a_server_that_does_not_say_it_all_is_taken_for_one_that_says_nothing() -> None:
    """Such as a service that speaks Redis's protocol and is something else."""
    told = "# Server|run_id:a:b|aof_enabled:1|maxmemory:0|maxmemory_policy:x|role:master|loading:0|".replace(
        "|", "\r\n"
    )
    found = ServerInfo.parse(told)
    assert found is not None
    assert (found.run, found.keeps, found.evicts, found.is_replica) == ("a:b", True, False, False)
    for missing in ("run_id", "aof_enabled", "maxmemory", "maxmemory_policy", "role", "loading"):
        assert ServerInfo.parse(told.replace(f"\n{missing}:", "\n#")) is None


async def test_a_node_of_a_cluster_that_restarts_is_noticed_too(clock: Clock) -> None:
    """By the name that it keeps."""
    with serving(cluster=True) as server:
        store = RedisStore(server.cluster_url, clock=clock, timeout=10)
        one = await begun(store, "one", clock)
        assert await store.status(one) is LIVE
        server.command("SAVE")
        assert await revoke(store, one)
        server.kill9()
        server.restart()
        server.wait_for_slots()
        assert await store.status(one) is LOST
        await store.close()

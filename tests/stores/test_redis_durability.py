"""Redis loses its data: how that is noticed, what is refused then, and what is logged of a server that may lose some.

Every fault is a real one, on a server that is killed, emptied or set up badly.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from clients import Clock
from redis_servers import Server, serving
from servers import HOST

from mcp_sessions._errors import ConfigurationError, StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions.stores import _redis_durability as durability_texts
from mcp_sessions.stores._base import Record, SessionStatus
from mcp_sessions.stores._redis import LOST, RedisStore
from mcp_sessions.stores._timeout import TimeoutStore
from mcp_sessions.testing._contract import revoke, session, status_in, statuses_in

LIVE, ENDED, UNKNOWN = SessionStatus.LIVE, SessionStatus.ENDED, SessionStatus.UNKNOWN
KEEPS: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always"}


@pytest.fixture
def anyio_backend() -> str:
    """The driver runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
def clock() -> Clock:
    """A clock that a test moves, and that begins at the time of the servers."""
    return Clock(float(int(time.time())))


def claims(jti: str, clock: Clock) -> Claims:
    """A session that begins now."""
    now = int(clock.now)
    return session(jti, issued_at=now, expires_at=now + 3600, subject="sub")


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


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the beginnings of what is logged at WARNING, but for clocks: most tests move theirs."""
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [text.partition(";")[0] for text in texts if "clock is" not in text]


# --- what is noticed -----------------------------------------------------------------------------


async def test_epoch_never_moves_back(clock: Clock) -> None:
    """What was unknown before the loss stays so after it: it may have ended."""
    clock.now -= 50
    old = claims("old", clock)
    clock.now += 50
    with serving(**KEEPS) as server:
        async with opened(server, clock) as store:
            assert await status_in(store, old) is UNKNOWN
            clock.now -= 100
            server.command("FLUSHALL")
            assert await status_in(store, old) is UNKNOWN
            assert await status_in(store, await begun(store, "new", clock)) is LIVE


@pytest.mark.parametrize("appendonly", ["yes", "no"])
async def test_killed_server_keeps_what_is_in_its_file(
    clock: Clock, caplog: pytest.LogCaptureFixture, appendonly: str
) -> None:
    """Without a file it comes back empty, so it vouches for no session from before, on any worker."""
    keeps = appendonly == "yes"
    with serving(appendonly=appendonly, appendfsync="always") as server:
        async with (
            opened(server, clock, durability="ignore") as store,
            opened(server, clock, durability="ignore") as two,
        ):
            clock.now += 10
            ended, live = claims("ended", clock), await begun(store, "live", clock)
            for one in (ended, live):
                await store.register(Record.of(one))
            assert await revoke(store, ended)
            assert await status_in(two, ended) is ENDED
            server.kill9()
            server.start()
            clock.now += 10
            for worker in (store, two):
                assert await statuses_in(worker, [ended, live]) == ([ENDED, LIVE] if keeps else [UNKNOWN, UNKNOWN])
            assert (await store.get(live.ref) is not None) is keeps
            listed = await store.list_sessions(subject="sub", audience=AUDIENCE, limit=1000)
            assert [record.ref for record in listed] == [live.ref] * keeps
            assert await status_in(store, await begun(store, "new", clock)) is LIVE
    assert warnings(caplog) == [LOST.partition(";")[0]] * 2 * (not keeps)


async def test_loading_server_has_lost_nothing(clock: Clock) -> None:
    """What it reports of itself meanwhile is not believed: a session lives on, and a deleted one does not."""
    with serving(**KEEPS) as server:
        async with opened(server, clock) as store:
            clock.now += 1
            one, two = claims("one", clock), claims("two", clock)
            assert await revoke(store, one)
            server.command("EVAL", "for i = 1, 5000 do redis.call('SET', 'other' .. i, i) end", 0)
            server.kill9()
            starting = asyncio.create_task(asyncio.to_thread(server.start, key_load_delay=400))
            reasons = set()
            while not starting.done():
                try:
                    await status_in(store, one)
                except StoreUnavailable as error:
                    reasons.add(error.reason)
                await asyncio.sleep(0.02)
            await starting
            assert "store_loading" in reasons
            assert await statuses_in(store, [one, two]) == [ENDED, LIVE]


# --- what is logged ------------------------------------------------------------------------------

FORGETS, EVICTS, LATE, UNSURE = (
    getattr(durability_texts, name).partition(";")[0] for name in ("FORGETS", "EVICTS", "LATE", "UNSURE")
)


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        (KEEPS, []),
        ({"appendonly": "yes"}, [LATE]),
        ({**KEEPS, "rename_command": "CONFIG ''"}, [UNSURE]),
        ({**KEEPS, "maxmemory": "100mb", "maxmemory_policy": "volatile-ttl"}, [EVICTS]),
        ({**KEEPS, "maxmemory_policy": "allkeys-lru"}, []),
        ({"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"}, [FORGETS, EVICTS]),
    ],
)
async def test_server_that_may_lose_changes_is_reported(
    clock: Clock, caplog: pytest.LogCaptureFixture, options: dict[str, Any], problems: list[str]
) -> None:
    """With the remedy, once for each worker; or it is refused, or ignored."""
    with serving(**options) as server:
        async with opened(server, clock, durability="ignore") as careless:
            await status_in(careless, claims("one", clock))
        assert not caplog.records
        async with opened(server, clock) as store:
            await status_in(store, claims("one", clock))
        assert warnings(caplog) == problems
        strict = RedisStore(server.url, clock=clock, timeout=10, durability="refuse")
        for problem in problems:
            with pytest.raises(ConfigurationError) as caught:
                await strict.open()
            assert problem in str(caught.value)
            with pytest.raises(StoreUnavailable):
                await status_in(TimeoutStore(strict, seconds=10), claims("one", clock))
        await strict.close()


@pytest.mark.parametrize("durability", ["warn", "refuse", "ignore"])
async def test_missing_right_to_info_is_reported(
    durability: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the rights that are missing, once; who wants to be certain is refused until they are given."""
    with serving(user="app on >secret ~* +@all -info", **KEEPS) as own:
        store = RedisStore(f"redis://app:secret@{HOST}:{own.port}?durability={durability}", clock=clock, timeout=10)
        if durability == "refuse":
            with pytest.raises(ConfigurationError, match=r"with 'ACL SETUSER NAME \+info \+config\|get'"):
                await store.open()
            own.command("ACL", "SETUSER", "app", "+info")
        own.command("CLIENT", "KILL", "USER", "app")
        assert await status_in(store, await begun(store, "one", clock)) is LIVE
        await store.close()
    found = warnings(caplog)
    assert len(found) == (durability == "warn")
    assert "'ACL SETUSER NAME +info +config|get'" in caplog.text or durability != "warn"

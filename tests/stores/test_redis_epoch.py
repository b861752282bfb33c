"""Redis forgets: how that is noticed, what is still believed after, and what is logged of a server that may.

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
from servers import HOST, wait_for

from mcp_sessions._errors import ConfigurationError, StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions.stores import _redis_epoch
from mcp_sessions.stores._base import Record, SessionStatus
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.stores._redis_epoch import ServerInfo
from mcp_sessions.stores._timeout import TimeoutStore
from mcp_sessions.testing._contract import revoke, session, status_in, statuses_in, touch_in

LIVE, ENDED, UNKNOWN = SessionStatus.LIVE, SessionStatus.ENDED, SessionStatus.UNKNOWN
KEEPS: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always"}
LOSS = "Redis lost its data, or may have: sessions from before are refused, since some of them may have ended"


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


async def test_a_clock_that_steps_back_takes_the_epoch_nowhere(clock: Clock) -> None:
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


async def test_an_epoch_moves_on_also_where_another_clock_was_ahead(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """An old copy came back, with the moment of a worker that is a second ahead: what that one admitted is unknown.

    A fresh worker finds the loss, since all were replaced meanwhile, and warns.
    """
    with serving() as server:
        ahead = Clock(clock.now + 1)
        async with opened(server, ahead, durability="ignore") as store:
            one = await begun(store, "one", ahead)
            server.command("SAVE")
        server.kill9()
        server.start()
        async with opened(server, clock, durability="ignore") as late:
            assert await status_in(late, one) is UNKNOWN
            assert await status_in(late, await begun(late, "two", clock)) is LIVE
    assert warnings(caplog) == [LOSS]


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        *((before, after, {}) for before in ("yes", "no") for after in ("yes", "no")),
        ("yes", "yes", {"rename_command": "INFO ''"}),  # so that the server tells nothing of itself
    ],
)
async def test_what_is_believed_after_a_kill_is_what_two_runs_kept_in_a_file(
    clock: Clock, caplog: pytest.LogCaptureFixture, before: str, after: str, more: dict[str, Any]
) -> None:
    """A file that is switched on later does not hold what was before, nor one that is switched off what came after.

    The snapshot brings the past back, an old epoch and records, but not what was revoked later: the run shows it.
    """
    keeps = before == after == "yes"
    with serving(appendonly=before, appendfsync="always", **more) as server:
        async with opened(server, clock, durability="ignore") as store:
            clock.now += 10
            ended, live = claims("ended", clock), await begun(store, "live", clock)
            for one in (ended, live):
                await store.register(Record.of(one))
            server.command("SAVE")
            assert await revoke(store, ended)
            server.kill9()
            if (before, after) == ("no", "yes"):  # switched on once, so that the file begins with the snapshot
                server.start()
                server.command("CONFIG", "SET", "appendonly", "yes")
                wait_for(lambda: b"aof_rewrite_in_progress:0" in server.command("INFO", "persistence"))
                server.kill9()
            server.start(appendonly=after)
            clock.now += 10
            assert await statuses_in(store, [ended, live]) == ([ENDED, LIVE] if keeps else [UNKNOWN, UNKNOWN])
            assert await touch_in(store, live, idle_timeout=3600) is (LIVE if keeps else UNKNOWN)
            assert (await store.get(live.ref) is not None) is keeps
            listed = await store.list_sessions(subject="sub", audience=AUDIENCE, limit=1000)
            assert [record.ref for record in listed] == [live.ref] * keeps
            assert await status_in(store, await begun(store, "new", clock)) is LIVE
        async with opened(server, clock, durability="ignore") as later:
            assert await statuses_in(later, [ended, live]) == ([ENDED, LIVE] if keeps else [UNKNOWN, UNKNOWN])
    assert warnings(caplog) == [LOSS] * (not keeps)


async def test_a_server_that_is_loading_is_busy_and_has_lost_nothing(clock: Clock) -> None:
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
    getattr(_redis_epoch, name).partition(";")[0] for name in ("FORGETS", "EVICTS", "LATE", "UNSURE")
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
async def test_a_redis_that_may_forget_is_named_at_start(
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
async def test_a_server_that_may_not_be_asked_is_a_risk(
    durability: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the rights that are missing, once; who wants to be certain is refused until they are given."""
    with serving(user="app on >secret ~* +@all -info", **KEEPS) as own:
        store = RedisStore(f"redis://app:secret@{HOST}:{own.port}?durability={durability}", clock=clock, timeout=10)
        if durability == "refuse":
            with pytest.raises(ConfigurationError, match=r"with 'ACL SETUSER app \+info \+config\|get'"):
                await store.open()
            own.command("ACL", "SETUSER", "app", "+info")
        own.command("CLIENT", "KILL", "USER", "app")
        assert await status_in(store, await begun(store, "one", clock)) is LIVE
        await store.close()
    found = warnings(caplog)
    assert len(found) == (durability == "warn")
    assert "'ACL SETUSER app +info +config|get'" in caplog.text or durability != "warn"


async def test_a_run_that_may_forget_is_refused_while_it_lasts(clock: Clock) -> None:
    """A server that comes back without its file is noticed by a worker that refuses such."""
    with serving(**KEEPS) as server:
        async with opened(server, clock, durability="refuse") as store:
            one = await begun(store, "one", clock)
            server.kill9()
            server.start(appendonly="no")
            for _ in range(2):
                with pytest.raises(ConfigurationError, match="set 'appendonly yes'"):
                    await status_in(store, one)
            server.kill9()
            server.start(appendonly="yes")
            assert await status_in(store, one) is LIVE


def test_a_server_that_leaves_something_out_is_one_that_may_not_be_asked() -> None:
    """Such as a service that speaks Redis's protocol and is something else."""
    fields = ["run_id:a:b", "aof_enabled:1", "maxmemory:0", "maxmemory_policy:x", "role:master", "loading:0"]
    text = "\r\n".join(["# Server", *fields, ""])
    assert ServerInfo.parse(text) == ServerInfo("a:b", keeps=True, evicts=False, is_replica=False, is_loading=False)
    for missing in ("run_id", "aof_enabled", "maxmemory", "maxmemory_policy", "role", "loading"):
        assert ServerInfo.parse(text.replace(f"\n{missing}:", "\n#")) is None

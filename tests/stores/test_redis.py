"""The Redis store: what it is given, what it refuses, and what becomes of calls while Redis is out of reach.

That it keeps the contract is shown in `test_contract.py`, and that it notices when Redis forgets in
`test_redis_epoch.py`. Every server here is a real one.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis_servers
from clients import START, Clock
from crash.faults import offset, patiently, until
from redis import exceptions
from redis.asyncio import Redis, RedisCluster
from redis_servers import HOST, Server, serving

from mcp_sessions._errors import ConfigurationError, DataGone, DataNotInteger, DataTooLarge, StoreFull, StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores._base import Ended, Record, SessionStatus
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.stores._redis_connection import reason_of
from mcp_sessions.testing._contract import revoke


@dataclass(frozen=True)
class Place:
    """A server, and the URL at which it is asked for."""

    server: Server
    url: str


PASSWORD = "a-password-of-the-store"
ROOT = Path(__file__).resolve().parents[2]
DAY = 24 * 3600
LONG = 30  # seconds that no call here may take, however busy the machine is


@pytest.fixture
def anyio_backend() -> str:
    """The driver knows asyncio alone."""
    return "asyncio"


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that a test may harm."""
    with serving() as own:
        yield own


def claims(jti: str = "one", *, issued_at: int = START, subject: str | None = "sub") -> Claims:
    return Claims(
        kind="session",
        issuer="mcp-sessions",
        audience="mcp-sessions",
        jti=jti,
        issued_at=issued_at,
        expires_at=issued_at + 3600,
        subject=subject,
    )


LATER = claims("later", issued_at=START + 1)


def shelf(owner: str = "one") -> Namespace:
    return Namespace(owner, START + 3600, 100)


@asynccontextmanager
async def opened(url: Any, **options: Any) -> AsyncIterator[RedisStore]:
    """A store under keys of its own, which waits long for a busy machine."""
    clock = Clock()
    store = RedisStore(url, **{"prefix": f"{uuid4().hex}:", "clock": clock, "timeout": LONG / 3, **options})
    try:
        clock.now -= DAY  # it was there for a day
        await store.open()
        clock.now += DAY
        yield store
    finally:
        await store.close()


@contextmanager
def unavailable(reason: str) -> Iterator[None]:
    """What happens inside is answered with "nobody knows", for one reason, and not late."""
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        yield
    assert caught.value.reason == reason
    assert caught.value.__suppress_context__
    assert time.monotonic() - began < LONG


# --- what it is given ----------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_trio_is_refused_at_first_use(anyio_backend: str) -> None:
    """The driver would fail in the midst of a request, and not say why."""
    store = RedisStore("redis://localhost")
    for use in (store.open, lambda: store.status(claims())):
        with pytest.raises(ConfigurationError, match="runs on asyncio alone; serve with asyncio, or use 'sqlite:PATH'"):
            await use()


def test_a_second_event_loop_is_refused() -> None:
    """Its connections belong to the first."""
    store = RedisStore("redis://localhost:1")
    with pytest.raises(StoreUnavailable):
        asyncio.run(store.open())
    with pytest.raises(ConfigurationError, match="create one for each loop"):
        asyncio.run(store.open())


def test_a_missing_driver_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """At construction."""
    monkeypatch.setitem(sys.modules, "redis.asyncio.retry", None)
    with pytest.raises(ConfigurationError, match=r'pip install "mcp-sessions\[redis\]"'):
        RedisStore("redis://localhost")


@pytest.mark.parametrize(
    "url", [f"redis//:{PASSWORD}@host", f"http://:{PASSWORD}@host", f"redis://:{PASSWORD}@host:port", 5, None]
)
def test_what_is_no_redis_is_refused_and_not_repeated(url: Any) -> None:
    """A URL may hold a password."""
    with pytest.raises(ConfigurationError, match="is not a valid Redis URL") as caught:
        RedisStore(url)
    assert PASSWORD not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"prefix": ""}, "must be text without braces"),
        ({"prefix": "a{b}:"}, "must be text without braces"),
        ({"durability": "maybe"}, "durability= must be one of 'warn', 'refuse', 'ignore'"),
        ({"forgotten": "maybe"}, "forgotten= must be one of 'refuse', 'accept'"),
        ({"timeout": 0}, "seconds above 0"),
        ({"timeout": float("nan")}, "seconds above 0"),
        ({"connections": 0}, "at least 1"),
    ],
)
def test_a_wrong_option_is_refused_with_the_remedy(options: dict[str, Any], remedy: str) -> None:
    """At construction."""
    with pytest.raises(ConfigurationError, match=remedy):
        RedisStore("redis://localhost", **options)


def test_a_client_that_would_change_what_is_read_is_refused() -> None:
    """Text in place of bytes, or a replica's past in place of the present."""
    with pytest.raises(ConfigurationError, match="remove decode_responses=True"):
        RedisStore(Redis(decode_responses=True))
    with pytest.raises(ConfigurationError, match="remove decode_responses=True"):
        RedisStore("redis+cluster://localhost?decode_responses=True")
    for name in ("read_from_replicas", "load_balancing_strategy"):
        client = RedisCluster("localhost")
        setattr(client, name, "some way")
        with pytest.raises(ConfigurationError, match="reads from replicas"):
            RedisStore(client)


@pytest.mark.parametrize("kind", [Redis, RedisCluster])
async def test_a_client_of_the_user_s_own_is_used_and_left_open(kind: Any) -> None:
    """Without its retries: an increment must not be sent twice."""
    place = redis_servers.shared() if kind is Redis else redis_servers.shared_cluster()
    client = kind(host=HOST, port=place.port)
    async with opened(client) as store:
        assert await revoke(store, claims())
        assert await store.status(claims()) is SessionStatus.ENDED
    assert await client.ping()
    await client.aclose()


async def test_a_client_that_was_connected_before_is_refused() -> None:
    """Its connections were not asked which server they lead to."""
    client = Redis(host=HOST, port=redis_servers.shared().port)
    await client.ping()
    with pytest.raises(ConfigurationError, match="connected before; give the store one of its own"):
        await RedisStore(client).open()
    await client.aclose()


async def test_deployments_that_differ_in_their_prefix_share_a_server() -> None:
    """And nothing else."""
    url = redis_servers.shared().url
    async with opened(url) as one, opened(url) as other:
        assert await revoke(one, claims())
        assert await other.status(claims()) is SessionStatus.LIVE


@pytest.mark.parametrize("user", ["", "app"])
async def test_a_password_and_a_database_are_taken_from_the_url(user: str) -> None:
    """A wrong password is told at start with the remedy, and in the midst of requests in the log; never itself."""
    with serving(requirepass=PASSWORD, user=f"app on >{PASSWORD} ~* +@all") as own:
        address = f"{HOST}:{own.port}"
        async with opened(f"redis://{user}:{PASSWORD}@{address}/3") as store:
            assert await revoke(store, claims())
        assert b"db3:keys=" in own.command("INFO", "keyspace", password=PASSWORD)
        for wrong in (f"redis://{user}:not-{PASSWORD}@{address}", own.url):
            with pytest.raises(ConfigurationError, match="check the user and the password") as caught:
                await RedisStore(wrong).open()
            assert PASSWORD not in str(caught.value)


async def test_a_password_that_is_wrong_in_the_midst_of_requests_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Requests are answered with "nobody knows", as long as it lasts."""
    with serving(requirepass=PASSWORD) as own:
        store = RedisStore(f"redis://:not-{PASSWORD}@{HOST}:{own.port}", timeout=LONG)
        with unavailable("store_misconfigured"):
            await store.status(claims())
        assert "cannot be used: Redis refuses this user" in caplog.text
        assert PASSWORD not in caplog.text
        await store.close()


async def test_a_unix_socket_is_a_way_too(tmp_path: Path) -> None:
    """For a Redis beside the workers."""
    with serving(unixsocket=tmp_path / "socket") as own:
        async with opened(f"unix://{tmp_path}/socket") as store:
            assert await revoke(store, claims())
        assert b"keys=" in own.command("INFO", "keyspace")


async def test_tls_is_verified() -> None:
    """A server that nobody vouches for is out of reach."""
    with serving(tls=True) as own:
        async with opened(own.url) as store:
            assert await revoke(store, claims())
        stranger = RedisStore(own.url.partition("?")[0], timeout=LONG)
        with unavailable("store_unreachable"):
            await stranger.status(claims())
        await stranger.close()


async def test_a_user_needs_no_more_than_these_rights(place: Place) -> None:
    """Those that the documentation shows."""
    shown = (ROOT / "docs/stores.md").read_text("utf-8").partition("ACL SETUSER app")[2].partition("Without")[0]
    rights = [right for right in re.findall(r"[+~][-+\w|:*]+", shown) if "wait" not in right]
    assert len(rights) > 30
    place.server.command("ACL", "SETUSER", "app", "on", f">{PASSWORD}", *rights)
    url = place.url.replace("://", f"://app:{PASSWORD}@")
    async with opened(url, prefix=f"mcp-sessions:{uuid4().hex}:") as store:
        one = claims()
        await store.register(Record.of(one))
        assert await store.list_sessions(subject="sub", audience=AUDIENCE, limit=1000) == [await store.get(one.ref)]
        await store.write(shelf(), "key", b"1", expires_at=START + 5)
        assert await store.add(shelf(), "key", 1) == 2
        assert not await store.compare_and_swap(shelf(), "key", b"1", None)
        assert await store.read(shelf(), "key") == b"2"
        assert await store.touch(one, idle_timeout=600) is SessionStatus.LIVE
        await store.revoke_before(START, audience=AUDIENCE, subject="sub", expires_at=START + 60)
        assert await revoke(store, one)
        assert not await store.claim_ended(audience=AUDIENCE, idle_timeout=600, lease=5, limit=5)
        await store.purge(one.ref)


@pytest.mark.parametrize("durability", ["warn", "refuse", "ignore"])
async def test_a_server_that_says_nothing_of_itself_is_a_risk(
    durability: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the rights that are missing, once; who wants to be certain is refused until they are given."""
    caplog.set_level(logging.INFO, "mcp_sessions")
    with serving(user=f"app on >{PASSWORD} ~* +@all -info", appendonly="yes", appendfsync="always") as own:
        store = RedisStore(f"redis://app:{PASSWORD}@{HOST}:{own.port}?durability={durability}", timeout=LONG)
        if durability == "refuse":
            with pytest.raises(ConfigurationError, match=r"with 'ACL SETUSER app \+info \+config\|get'"):
                await store.open()
            with unavailable("store_misconfigured"):
                await store.status(claims())
            own.command("ACL", "SETUSER", "app", "+info")
            own.command("CLIENT", "KILL", "USER", "app")
        else:
            await store.open()
            own.command("CLIENT", "KILL", "USER", "app")
        await store.register_at_epoch(claims())
        assert await store.status(claims()) is SessionStatus.LIVE
        await store.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (durability == "warn")
    assert all("'ACL SETUSER app +info +config|get'" in warning for warning in warnings)


# --- when it is out of reach ---------------------------------------------------------------------


@pytest.fixture(params=["server", "cluster"])
def place(request: pytest.FixtureRequest) -> Place:
    """A server of the whole run and a cluster, for faults that leave no traces."""
    if request.param == "cluster":
        return Place(redis_servers.shared_cluster(), redis_servers.shared_cluster().cluster_url)
    return Place(redis_servers.shared(), redis_servers.shared().url)


async def test_a_closed_port_is_told_at_once_and_tried_again_later() -> None:
    """Nothing has to be restarted but Redis."""
    with serving() as own:
        own.kill9()
        store = RedisStore(own.url, clock=Clock(), timeout=LONG)
        for _ in range(2):
            with unavailable("store_unreachable"):
                await store.open()
        with unavailable("store_unreachable"):
            await store.status(claims())
        own.restart()
        assert await store.status(LATER) is SessionStatus.LIVE
        await store.close()


async def test_a_cluster_that_cannot_be_reached_is_told_too() -> None:
    """And found again."""
    with serving(cluster=True) as own:
        own.kill9()
        store = RedisStore(own.cluster_url, clock=Clock(), timeout=LONG)
        with unavailable("store_unreachable"):
            await store.status(claims())
        own.restart()
        with unavailable("store_cluster_down"):  # a node that has just started waits for others to speak up
            await store.status(claims())
        own.wait_for_slots()
        assert await store.status(LATER) is SessionStatus.LIVE
        await store.close()


async def test_many_requests_may_be_the_first_at_once(place: Place) -> None:
    """And more than there may be connections wait for their turn."""
    store = RedisStore(place.url, prefix=f"{uuid4().hex}:", clock=Clock(), timeout=LONG, connections=2)
    calls = (store.status(claims(str(n), issued_at=START + 1)) for n in range(20))
    assert set(await asyncio.gather(*calls)) == {SessionStatus.LIVE}
    await store.close()


async def test_a_server_that_hangs_costs_each_call_its_timeout(place: Place) -> None:
    """Not the driver's seven seconds of retries; and when it goes on, so does the store."""
    async with opened(place.url, timeout=0.5, connections=1) as store:  # waiting for its turn counts as well
        assert await revoke(store, claims())
        with frozen(place.server):
            calls = [store.status(claims()), store.add(shelf(), "key", 1), revoke(store, claims("two"))]
            failed = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), LONG)
        assert [(type(error), getattr(error, "reason", None)) for error in failed] == [
            (StoreUnavailable, "store_timeout")
        ] * 3
        assert await patiently(lambda: store.status(claims())) is SessionStatus.ENDED


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.cont()


async def test_connections_that_died_unused_cost_no_request(server: Server) -> None:
    """Not one, however many were open when Redis was restarted."""
    async with opened(server.url) as store:
        server.command("CLIENT", "PAUSE", 300, "ALL")  # so that they need a connection each
        await asyncio.gather(*(store.status(claims(str(n))) for n in range(10)))
        server.kill9()
        server.restart()
        await asyncio.sleep(0)  # the loop, which slept while the server was restarted here, sees that they are closed
        assert await store.add(shelf(), "key", 1) == 1
        standings = await asyncio.gather(*(store.status(claims(str(n))) for n in range(10)))
        assert set(standings) == {SessionStatus.UNKNOWN}


async def cut_off_in_the_midst(own: Server, call: Any) -> Any:
    """Break the connection of a call that Redis was told to keep waiting."""
    own.command("CLIENT", "PAUSE", 60_000, "WRITE")
    task = asyncio.ensure_future(call)
    await until(lambda: b"flags=b " in own.command("CLIENT", "LIST"))
    own.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    own.command("CLIENT", "UNPAUSE")
    return await task


async def test_what_may_be_done_twice_is_tried_again_when_a_connection_breaks(place: Place) -> None:
    """A revocation is, and knows itself again; who revokes after it is told so."""
    async with opened(place.url) as store:
        assert await cut_off_in_the_midst(place.server, revoke(store, claims()))
        assert not await revoke(store, claims())


async def test_an_increment_is_never_tried_again(place: Place) -> None:
    """It may have been made; the app is told that nobody knows."""
    async with opened(place.url) as store:
        assert await store.add(shelf(), "key", 1) == 1
        with unavailable("store_unreachable"):
            await cut_off_in_the_midst(place.server, store.add(shelf(), "key", 1))
        total = int(await store.read(shelf(), "key") or 0)
        assert total in {1, 2}
        assert await store.add(shelf(), "key", 1) == total + 1


async def test_who_gives_up_leaves_no_reply_for_the_next(place: Place) -> None:
    """A cancelled call's answer must not be taken for another call's."""
    async with opened(place.url) as store:
        await store.write(shelf("a"), "key", b'"a"')
        await store.write(shelf("b"), "key", b'"b"')
        place.server.command("CLIENT", "PAUSE", 60_000, "WRITE")
        task = asyncio.ensure_future(store.read(shelf("a"), "key"))
        await until(lambda: b"flags=b " in place.server.command("CLIENT", "LIST"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        place.server.command("CLIENT", "UNPAUSE")
        found = await asyncio.gather(*(store.read(shelf(owner), "key") for owner in "bbaabb"))
        assert b"".join(value or b"" for value in found) == b'"b""b""a""a""b""b"'


@pytest.mark.parametrize("before", [True, False])
async def test_closing_ends_what_is_under_way(place: Place, before: bool) -> None:
    """A server that hangs does not keep a worker from stopping; nor a cluster whose layout is still looked for."""
    store = RedisStore(place.url, timeout=LONG)
    for _ in range(before):
        await store.open()
    with frozen(place.server):
        task = asyncio.ensure_future(store.status(claims()))
        await until(lambda: store._connection._tasks)
        await asyncio.wait_for(store.close(), LONG)
        with pytest.raises(StoreUnavailable) as caught:
            await task
        assert caught.value.reason in {"store_closed", "store_unreachable"}


async def test_a_server_that_is_full_takes_no_revocation_and_forgets_none(place: Place) -> None:
    """What cannot be kept is refused, and reading goes on."""
    async with opened(place.url) as store:
        one, two = claims(), claims("two")
        assert await revoke(store, one)
        await store.register(Record.of(two))
        await store.write(shelf(), "key", b"1")
        with full(place.server):
            with pytest.raises(StoreFull) as caught:
                await revoke(store, two)
            assert caught.value.reason == "store_out_of_memory"
            for change in (
                store.add(shelf(), "key", 1),
                store.add(shelf(), "new", 1),
                store.write(shelf(), "key", b"22"),
            ):
                with unavailable("store_out_of_memory"):
                    await change
            assert await store.statuses([one, two]) == [SessionStatus.ENDED, SessionStatus.LIVE]
            assert await store.read(shelf(), "key") == b"1"
            await store.write(shelf(), "key", None)
        assert await revoke(store, two)


@contextmanager
def full(server: Server) -> Iterator[None]:
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        yield
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")


async def test_a_replica_is_not_believed(server: Server) -> None:
    """It would answer, from the past; also where a server becomes one while it is used."""
    async with opened(server.url) as store:
        with serving() as other:
            other.command("REPLICAOF", HOST, server.port)
            copy = RedisStore(other.url, clock=Clock(), timeout=LONG)
            with unavailable("store_readonly"):
                await copy.status(claims())
            await copy.close()
            other.command("REPLICAOF", "NO", "ONE")
            server.command("REPLICAOF", HOST, other.port)
            with unavailable("store_readonly"):
                await revoke(store, claims())
            with unavailable("store_readonly"):
                await store.status(claims())
            server.command("REPLICAOF", "NO", "ONE")
            await store.status(claims())


async def test_a_cluster_may_be_met_at_a_replica_and_fail_over() -> None:
    """A replica is asked for the layout alone; when it takes over, it is followed."""
    quick: dict[str, Any] = {"cluster_node_timeout": 1000, "repl_diskless_sync_delay": 0}
    with serving(cluster=True, **quick) as first, serving(cluster_enabled="yes", **quick) as second:
        second.command("CLUSTER", "MEET", HOST, first.port)
        main = first.command("CLUSTER", "MYID")
        await until(lambda: second.did("CLUSTER", "REPLICATE", main))
        await until(lambda: b"master_link_status:up" in second.command("INFO", "replication"))
        await until(lambda: b"slave" in first.command("CLUSTER", "NODES"))
        async with opened(second.cluster_url) as store:
            one, two = claims(), claims("two")
            assert await revoke(store, one)
            await until(lambda: offset(second) >= offset(first))
            await until(lambda: second.did("CLUSTER", "FAILOVER", "TAKEOVER"))
            await until(lambda: b"role:slave" in first.command("INFO", "replication"))
            assert await store.statuses([one, two]) == [SessionStatus.ENDED, SessionStatus.LIVE]
            assert await revoke(store, two)


async def test_a_server_that_forgot_the_scripts_is_sent_them_again(place: Place) -> None:
    """As after a restart, a fail-over, or an upgrade of this package."""
    async with opened(place.url) as store:
        await store.register(Record.of(claims()))
        for total in (1, 2):
            place.server.command("SCRIPT", "FLUSH")
            assert await store.touch(claims(), idle_timeout=600) is SessionStatus.LIVE
            place.server.command("SCRIPT", "FLUSH")
            assert await store.add(shelf(), "key", 1) == total


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "store_loading"),
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file"), "store_cannot_save"),
        (exceptions.ResponseError("NOAUTH Authentication required."), "store_forbidden"),
        (exceptions.NoPermissionError("this user has no permissions"), "store_forbidden"),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), "store_error"),
        (ConnectionResetError(), "store_unreachable"),
        (KeyError("key"), "store_error"),
    ],
)
def test_each_failure_has_a_name_for_logs(error: Exception, reason: str) -> None:
    """Those that the tests above do not make."""
    assert reason_of(error) == reason


async def test_a_key_that_another_program_wrote_is_an_error_and_no_answer(server: Server) -> None:
    """Never "not revoked"."""
    async with opened(server.url, prefix="mine:") as store:
        server.command("SET", f"mine:{{{claims().ref}}}:session", "text")
        with unavailable("store_error"):
            await store.touch(claims(), idle_timeout=600)


@pytest.fixture
async def tracked() -> AsyncIterator[RedisStore]:
    """A store on the server of the whole run."""
    async with opened(redis_servers.shared().url) as store:
        yield store


# --- data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [1 << 63, -(1 << 63) - 1])
async def test_no_more_than_64_bits_are_sent(tracked: RedisStore, by: int) -> None:
    """Redis would refuse them in other words."""
    with pytest.raises(DataNotInteger):
        await tracked.add(shelf(), "key", by)


async def test_data_of_a_session_that_is_long_over_cannot_be_changed(tracked: RedisStore) -> None:
    """Or Redis would be asked to keep it for less than no time."""
    clock: Any = tracked._clock
    clock.now = START + 3659
    await tracked.write(shelf(), "key", b"1")
    clock.now = START + 3660
    with pytest.raises(DataGone):
        await tracked.write(shelf(), "key", b"2")


async def test_what_is_full_of_values_whose_time_is_over_has_room(tracked: RedisStore) -> None:
    """They are dropped when room is needed, whether a value is written or grows."""
    clock: Any = tracked._clock
    for key in ("a", "b"):
        await tracked.write(shelf(), key, b'"%s"' % (b"x" * 40), expires_at=START + 5)
    await tracked.write(shelf(), "n", b"9")
    with pytest.raises(DataTooLarge):
        await tracked.write(shelf(), "c", b'"%s"' % (b"x" * 40))
    await tracked.write(shelf(), "pad", b"123456789")
    with pytest.raises(DataTooLarge):
        await tracked.add(shelf(), "n", 1)
    assert await tracked.read(shelf(), "n") == b"9"
    clock.now = START + 5
    assert await tracked.add(shelf(), "n", 1) == 10
    await tracked.write(shelf(), "c", b'"%s"' % (b"x" * 80))


# --- what spans slots ----------------------------------------------------------------------------


def prefix_of(store: RedisStore) -> str:
    return store._keys.epoch.partition("{")[0]


async def test_a_deadline_without_a_record_is_dropped_but_not_too_soon(tracked: RedisStore) -> None:
    """The record may be on its way; where its worker died before it was written, nothing ended."""
    redis_servers.shared().command("ZADD", tracked._keys.due(AUDIENCE), START, "phantom")
    clock: Any = tracked._clock
    for later, left in ((0, 1), (59, 1), (60, 0)):
        clock.now = START + later
        assert await tracked.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=30, limit=5) == []
        assert redis_servers.shared().command("ZCARD", tracked._keys.due(AUDIENCE)) == left


async def test_a_deadline_that_is_left_hides_no_other(tracked: RedisStore) -> None:
    """More are looked at than are taken."""
    for n in range(3):
        redis_servers.shared().command("ZADD", tracked._keys.due(AUDIENCE), START + 3600, f"phantom{n}")
    await tracked.register(Record.of(claims()))
    assert await tracked.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=30, limit=1) == []
    clock: Any = tracked._clock
    clock.now = START + 3600
    (ended,) = await tracked.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=30, limit=4)
    assert ended == Ended(Record.of(claims()), "expired")


async def test_a_listed_session_without_a_record_is_not_listed(tracked: RedisStore) -> None:
    """And goes from the list in the end, when the principal has another session."""
    _, (by_end, by_beginning) = tracked._keys.lists(AUDIENCE, "sub")
    redis_servers.shared().command("ZADD", by_end, START - 10 * 86_400, f"{(START - 11 * 86_400) * 1000:015}phantom")
    redis_servers.shared().command("ZADD", by_beginning, 0, f"{(START - 11 * 86_400) * 1000:015}phantom")
    assert await tracked.list_sessions(subject="sub", audience=AUDIENCE, limit=1000) == []
    await tracked.register(Record.of(claims()))
    assert await tracked.list_sessions(subject="sub", audience=AUDIENCE, limit=1000) == [Record.of(claims())]
    for key in (by_end, by_beginning):
        assert redis_servers.shared().command("ZRANGE", key, 0, -1) == [f"{START * 1000:015}{claims().ref}".encode()]


async def test_a_worker_that_dies_between_the_steps_of_a_revocation_loses_nothing(
    tracked: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was acknowledged: the session lives on, and the look that was planned for its end is planned anew."""
    one = claims()
    await tracked.register(Record.of(one))
    with monkeypatch.context() as fault:
        fault.setattr("mcp_sessions.stores._redis_scripts.REVOKE", None)
        with pytest.raises(TypeError):
            await revoke(tracked, one)
    clock: Any = tracked._clock
    clock.now = START + 30
    assert await tracked.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=30, limit=5) == []
    assert await tracked.touch(one, idle_timeout=None) is SessionStatus.LIVE
    assert (
        redis_servers.shared().command("ZSCORE", tracked._keys.due(AUDIENCE), one.ref) == str(one.expires_at).encode()
    )


async def test_what_was_taken_is_handed_over_though_the_store_fails_after(
    tracked: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its `on_end` would wait for the lease to run out."""

    async def fail(*args: object) -> int:
        raise StoreUnavailable from None

    await tracked.register(Record.of(claims()))
    clock: Any = tracked._clock
    clock.now = START + 3600
    monkeypatch.setattr(tracked, "_postpone", fail)
    assert len(await tracked.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=30, limit=5)) == 1
    with unavailable("store_unavailable"):
        await tracked.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=30, limit=5)
    monkeypatch.undo()
    clock.now += 31
    assert len(await tracked.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=30, limit=5)) == 1


async def test_a_page_does_not_read_what_was_cut_off(server: Server) -> None:
    """Nor what began before Redis may have lost something: else a page takes as long as all that waits to be tidied."""

    def read() -> int:
        return sum(map(int, re.findall(rb"cmdstat_hmget:calls=(\d+)", server.command("INFO", "commandstats"))))

    async with opened(server.url) as store:
        for number in range(500):
            await store.register(Record.of(claims(f"{number:03}")))
        new = Record.of(claims("new", issued_at=START + 2))
        await store.register(new)
        await store.revoke_before(START + 1, audience=AUDIENCE, subject="sub", expires_at=START + DAY)
        before = read()
        assert await store.list_sessions(subject="sub", audience=AUDIENCE, limit=5) == [new]
        assert len(await store.list_sessions(subject="sub", audience=AUDIENCE, limit=5, with_cut_off=True)) == 5
        assert read() - before <= 60
        server.command("SET", store._keys.epoch, START + 100)
        assert await store.list_sessions(subject="sub", audience=AUDIENCE, limit=5, with_cut_off=True) == []
        assert read() - before <= 60


async def test_nothing_outlives_its_session_for_long(tracked: RedisStore) -> None:
    """Each key but those of the deployment itself is collected by Redis, should everybody forget it."""
    one = claims()
    await tracked.register(Record.of(one))
    await tracked.write(shelf(one.ref), "key", b"1", expires_at=START + 60)
    await tracked.write(shelf("unrecorded"), "key", b"1")
    await tracked.revoke_before(START, audience=AUDIENCE, subject="sub", expires_at=START + 3600)
    await tracked.revoke_before(START, audience=AUDIENCE, subject="sub", expires_at=START + 7200)
    await tracked.revoke_before(START, audience=AUDIENCE, subject="sub", expires_at=START + 60)
    await revoke(tracked, one)
    shared, prefix = redis_servers.shared(), prefix_of(tracked)
    ttls = {
        key.decode().removeprefix(prefix).replace(one.ref, "ref"): shared.command("TTL", key)
        for key in shared.command("KEYS", f"{prefix}*")
    }
    week = 7 * 86_400
    expected = {
        "{ref}:ended": 3660,
        "{ref}:session": week + 3660,
        "{ref}:data": week + 3660,
        "{ref}:times": week + 3660,
        "{unrecorded}:data": 3660,
        "{unrecorded}:times": 3660,
        "{all}:recorded:ends:mcp-sessions": week + 3660,
        "{all}:recorded:listed:mcp-sessions": week + 3660,
        "{sub}:sessions:ends:mcp-sessions": week + 3660,
        "{sub}:sessions:listed:mcp-sessions": week + 3660,
        "{sub}:cutoff:mcp-sessions": 7260,
        "{all}:due:mcp-sessions": -1,
        "{all}:epoch:4": -1,
        "{all}:servers": -1,
    }
    assert ttls.keys() == expected.keys()
    for name, ttl in ttls.items():
        assert expected[name] - LONG <= ttl <= expected[name], name

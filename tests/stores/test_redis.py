"""The Redis store: what it accepts, and what becomes of calls while Redis is out of reach.

`test_contract.py` shows that it keeps the contract, and `test_redis_durability.py` that it notices a loss. Every server
here is a real one.
"""

import asyncio
import gc
import re
import ssl
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import redis_servers
from apps import Server as Application
from apps import sessions
from clients import START, Client, Clock, lifespan
from environments import needs
from reasons import refused
from redis import exceptions
from redis.asyncio import Redis, RedisCluster
from redis_servers import Server, serving, watching
from servers import HOST, until
from starlette.types import Receive, Scope, Send

from mcp_sessions import Limits
from mcp_sessions._errors import ConfigurationError, PrincipalDataTooLarge, StoreFull, StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores import make
from mcp_sessions.stores._base import Record, SessionStatus
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.stores._redis_faults import fault_of
from mcp_sessions.stores._timeout import TimeoutStore
from mcp_sessions.testing._contract import ALICE, at_once, claim, revoke, session, status_in, statuses_in, touch_in


class Place(NamedTuple):
    server: Server
    url: str  # of a store on it


LIVE, ENDED, UNKNOWN = SessionStatus.LIVE, SessionStatus.ENDED, SessionStatus.UNKNOWN
PASSWORD = "a-password-of-the-store"
ROOT = Path(__file__).resolve().parents[2]
DAY = 24 * 3600
LONG = 30  # seconds that no call here may take, however busy the machine is


@pytest.fixture
def anyio_backend() -> str:
    """The driver runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that a test may harm."""
    with serving() as own:
        yield own


@pytest.fixture(params=["server", "cluster"])
def place(request: pytest.FixtureRequest) -> Place:
    """A server of the whole run and a cluster, for faults that leave no traces."""
    if request.param == "cluster":
        return Place(redis_servers.shared_cluster(), redis_servers.shared_cluster().cluster_url)
    return Place(redis_servers.shared(), redis_servers.shared().url)


LATER = session("later", issued_at=START + 1)


def shelf(owner: str = "one") -> Namespace:
    return Namespace(owner, START + 3600, 100)


@asynccontextmanager
async def opened(url: Any, *, clock: Clock | None = None, **options: Any) -> AsyncIterator[RedisStore]:
    """A store under keys of its own, a day old, which waits long for a busy machine."""
    clock = clock or Clock()
    store = RedisStore(url, **{"prefix": f"{uuid4().hex}:", "clock": clock, "timeout": LONG / 3, **options})
    try:
        clock.now -= DAY
        await store.open()
        clock.now += DAY
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[RedisStore]:
    """A store on the server of the whole run."""
    async with opened(redis_servers.shared().url, clock=clock) as store:
        yield store


# --- what it accepts -----------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_trio_is_refused_at_first_use(anyio_backend: str) -> None:
    """The driver would fail in the midst of a request, and not say why."""
    store = RedisStore("redis://localhost")
    for use in (store.open, lambda: status_in(store, session())):
        with pytest.raises(ConfigurationError, match="runs on asyncio alone; serve with asyncio, or use 'sqlite:PATH'"):
            await use()


@contextmanager
def loops_that_end() -> Iterator[None]:
    """Expect event loops that end with open connections, which are closed when they are collected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


# Older ones raise when such a connection is collected, at some time after the test.
ends_loops = needs("redis>=6")


@ends_loops
def test_url_serves_one_event_loop_after_another() -> None:
    """As with a runtime that has one for each request, whether or not the store is closed in between."""
    store = RedisStore(redis_servers.shared().url, prefix=f"{uuid4().hex}:", timeout=LONG, durability="ignore")

    async def use(*, closes: bool) -> SessionStatus:
        await revoke(store, session())
        status = await status_in(store, session())
        if closes:
            await store.close()
        return status

    with loops_that_end():
        assert [asyncio.run(use(closes=closes)) for closes in (False, True, False, True)] == [ENDED] * 4
    assert store._clients == {}


@ends_loops
@pytest.mark.parametrize("with_lifespan", [True, False])
def test_application_serves_one_event_loop_after_another(with_lifespan: bool) -> None:
    """As a serverless runtime runs it, with a lifespan for each request or none; many requests at once in each."""
    server = Application()

    async def serve_or_start(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            return await server(scope, receive, send)
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
        return None

    def run() -> None:
        limits = Limits(store_timeout=LONG)
        app = sessions(serve_or_start, store=redis_servers.shared().url, limits=limits)
        client = Client(app)

        async def serve(call: Callable[[], Awaitable[Any]]) -> Any:
            async with lifespan(app) if with_lifespan else nullcontext():
                return await call()

        session = asyncio.run(serve(client.create))
        for _ in range(2):
            answers = asyncio.run(serve(lambda: at_once([partial(client.tool, session=session)] * 20)))
            assert [answer.session is not None for answer in answers] == [True] * 20
        assert "error" not in asyncio.run(serve(partial(client.delete, session))).json
        assert asyncio.run(serve(partial(client.tool, session=session))).json["error"]["code"] == -32043
        asyncio.run(app._runtime.store.close())

    with loops_that_end():
        run()


def test_client_of_another_event_loop_is_refused() -> None:
    """Its connections belong to the loop that made them."""
    store = RedisStore(Redis(port=1))
    with pytest.raises(StoreUnavailable):
        asyncio.run(store.open())
    with pytest.raises(ConfigurationError, match="give the store a URL, or a client for each loop"):
        asyncio.run(store.open())


async def test_slow_connection_is_found_by_a_later_request(caplog: pytest.LogCaptureFixture) -> None:
    """A request that gives up does not end the connecting, which would else begin anew each time."""
    port, is_slow = redis_servers.shared().port, asyncio.Event()

    async def connect_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_slow.wait()
        answers, upstream = await asyncio.open_connection(HOST, port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while part := await source.read(1 << 16):
                target.write(part)
            target.close()

        await asyncio.gather(copy(reader, upstream), copy(answers, writer))

    async with await asyncio.start_server(connect_slowly, HOST, 0) as proxy:
        url = f"redis://{HOST}:{proxy.sockets[0].getsockname()[1]}"
        store = TimeoutStore(RedisStore(url, prefix=f"{uuid4().hex}:", timeout=LONG), seconds=0.1)
        with refused("store_timeout"):
            await status_in(store, session())
        assert "connecting takes longer than 0.1 s" in caplog.text
        is_slow.set()
        await asyncio.wait_for(store._store.open(), LONG)
        assert await status_in(TimeoutStore(store._store, seconds=LONG), session()) is LIVE
        await store.close()


async def test_store_opens_again_after_it_was_closed(place: Place) -> None:
    """As after the lifespan of a test, of a reload, or of each call of a serverless function."""
    store = RedisStore(place.url, prefix=f"{uuid4().hex}:", clock=Clock(), timeout=LONG)
    for first in (True, False):
        assert await revoke(store, session()) is first
        await store.close()
    await store.open()
    assert await status_in(store, session()) is ENDED
    await store.close()


def test_client_that_decodes_or_reads_from_replicas_is_refused() -> None:
    """Text in place of bytes, or a replica's past in place of the present."""
    for client in (Redis(decode_responses=True), "redis+cluster://localhost?decode_responses=True"):
        with pytest.raises(ConfigurationError, match="remove decode_responses=True"):
            RedisStore(client)
    for name in ("read_from_replicas", "load_balancing_strategy"):
        reading = RedisCluster("localhost")
        setattr(reading, name, "some way")
        with pytest.raises(ConfigurationError, match="reads from replicas"):
            RedisStore(reading)


@pytest.mark.parametrize("kind", [Redis, RedisCluster])
async def test_client_object_is_used_and_left_open(kind: Any) -> None:
    """Without its retries: an increment must not be sent twice."""
    place = redis_servers.shared() if kind is Redis else redis_servers.shared_cluster()
    client = kind(host=HOST, port=place.port)
    async with opened(client) as store:
        assert await revoke(store, session())
        assert await status_in(store, session()) is ENDED
    assert await client.ping()
    await client.aclose()


@pytest.mark.parametrize("user", ["", "app"])
async def test_password_and_database_come_from_the_url(user: str, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong password is reported at startup, and later in the log; never the password itself."""
    with serving(requirepass=PASSWORD, user=f"app on >{PASSWORD} ~* +@all") as own:
        address = f"{HOST}:{own.port}"
        async with opened(f"redis://{user}:{PASSWORD}@{address}/3") as store:
            assert await revoke(store, session())
        assert b"db3:keys=" in own.command("INFO", "keyspace", password=PASSWORD)
        wrong = RedisStore(f"redis://{user}:not-{PASSWORD}@{address}", timeout=LONG)
        with pytest.raises(ConfigurationError, match="check the user and the password") as caught:
            await wrong.open()
        assert PASSWORD not in str(caught.value)
        with refused("store_misconfigured"):
            await status_in(TimeoutStore(wrong, seconds=LONG), session())
    assert "(store_misconfigured): Redis at " in caplog.text
    assert PASSWORD not in caplog.text


async def test_connects_over_unix_socket_and_tls(tmp_path: Path) -> None:
    """TLS with a cluster, too; a server without a trusted certificate is out of reach."""
    with serving(unixsocket=tmp_path / "socket") as own:
        async with opened(f"unix://{tmp_path}/socket") as store:
            assert await revoke(store, session())
        assert b"keys=" in own.command("INFO", "keyspace")
    with serving(tls=True) as own:
        async with opened(own.url) as store:
            assert await revoke(store, session())
        assert (await cause(own.url.partition("?")[0])).startswith("TLS: ")
    with serving(tls=True, cluster=True, tls_cluster="yes") as own:
        async with opened(own.url.replace("rediss://", "rediss+cluster://")) as store:
            assert await revoke(store, session())


async def test_sentinels_name_the_server(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A name that they do not know is a fault with a place and a cause."""
    with watching(server) as sentinel:
        assert "u:p" not in RedisStore(f"redis+sentinel://u:p@{HOST}:{sentinel.port},{HOST}:1/sessions").location
        async with opened(f"redis+sentinel://{HOST}:{sentinel.port},{HOST}:1/sessions/0") as store:
            assert await revoke(store, session())
        strange = make(f"redis+sentinel://{HOST}:{sentinel.port}/strange", clock=Clock(), timeout=1)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await status_in(strange, session())
        await strange.close()
    assert caplog.text.count(f"Redis 'strange' of the Sentinels {HOST}:{sentinel.port}, database 0") == 1


async def test_documented_rights_are_enough(place: Place) -> None:
    """Those that the documentation shows."""
    shown = (ROOT / "docs/stores.md").read_text("utf-8").partition("ACL SETUSER app")[2].partition("Without")[0]
    rights = re.findall(r"[+~][-+\w|:*{}]+", shown)
    assert len(rights) > 30
    place.server.command("ACL", "SETUSER", "app", "on", f">{PASSWORD}", *rights)
    url = place.url.replace("://", f"://app:{PASSWORD}@")
    async with opened(url, prefix="mcp-sessions:") as store:
        one = session(uuid4().hex)
        record = Record.of(one)
        await store.register_at_epoch(one)
        await store.register(record, max_sessions=5)
        assert await store.list_sessions(subject=ALICE, audience=AUDIENCE, limit=1000) == [await store.get(one.ref)]
        assert await store.count(audience=AUDIENCE) == 1
        counted = Namespace(one.ref, one.expires_at, 100, ALICE, 1000)
        await store.write(counted, "key", b"1", expires_at=START + 5)
        assert await store.add(counted, "key", 1) == 2
        await store.copy(counted, counted)
        assert not await store.compare_and_swap(counted, "key", b"1", None)
        assert await store.read(counted, "key") == b"2"
        assert await touch_in(store, one, idle_timeout=600) is LIVE
        await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, expires_at=START + 60)
        assert await revoke(store, one)
        assert not await claim(store)
        await store.purge(one.ref)


async def test_without_the_right_to_time_own_clock_counts(place: Place) -> None:
    """Of earlier instructions; two workers whose clocks differ may then disagree."""
    shown = (ROOT / "docs/stores.md").read_text("utf-8").partition("ACL SETUSER app")[2].partition("Without")[0]
    rights = [right for right in re.findall(r"[+~][-+\w|:*{}]+", shown) if right != "+time"]
    place.server.command("ACL", "SETUSER", "older", "on", f">{PASSWORD}", *rights)
    async with opened(place.url.replace("://", f"://older:{PASSWORD}@"), prefix="mcp-sessions:") as store:
        one = session(uuid4().hex)
        await store.register_at_epoch(one)
        assert await status_in(store, one) is LIVE
        assert await revoke(store, one)


# --- when it is out of reach ---------------------------------------------------------------------


async def cause(url: str) -> str:
    """Return what the log says of the first request."""
    store = RedisStore(url, timeout=5)
    with pytest.raises(StoreUnavailable) as caught:
        await status_in(store, session())
    await store.close()
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # it may quote the URL
    return caught.value.cause


async def test_fault_is_logged_with_its_cause() -> None:
    """The host's name; a closed port."""
    assert await cause("redis://no-such-host.invalid") == "its host name is unknown; check the address in the URL"
    assert (await cause(f"redis://{HOST}:1")).startswith("Connection refused; check that it runs")


@asynccontextmanager
async def web_server() -> AsyncIterator[str]:
    """Answer whatever comes as a web server does."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}"


async def test_what_can_never_work_fails_at_startup() -> None:
    """Each with the remedy; it would else look like an outage that ends by itself."""
    shared = redis_servers.shared()
    shared.command("ACL", "SETUSER", "poor", "on", f">{PASSWORD}", "~*", "+ping")
    async with web_server() as address:
        for url, remedy in (
            (f"{shared.url}/99", "no database with this number; correct the end of the URL"),
            (shared.url.replace("://", f"://poor:{PASSWORD}@"), "lacks a permission; docs/stores.md"),
            (shared.cluster_url, "not in a cluster; use redis://"),
            (shared.url.replace("redis://", "redis+sentinel://") + "/name", "lacks a command"),
            (f"redis://{address}", "does not speak as Redis does; correct the host and the port"),
        ):
            store = make(url, clock=Clock(), timeout=LONG)
            with pytest.raises(ConfigurationError, match=remedy):
                await store.open()
            await store.close()


async def test_cluster_node_is_refused_as_a_single_server() -> None:
    """It answers for the keys of its own slots only, which those of the store need not be."""
    with serving(cluster_enabled="yes") as one, serving(cluster_enabled="yes") as other:
        one.command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        other.command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        one.command("CLUSTER", "MEET", HOST, other.port)
        for node in (one, other):
            node.wait_for_slots()
        errors = []
        for node in (one, other):
            store = RedisStore(node.url, timeout=LONG)
            try:
                await store.open()
            except ConfigurationError as error:
                errors.append(str(error))
            await store.close()
    assert len(errors) == 1
    assert "this is a cluster; use redis+cluster://" in errors[0]


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file"), "store_cannot_save", "(MISCONF)"),
        (exceptions.ResponseError("BUSY Redis is busy running a script."), "store_error", "SCRIPT KILL"),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), "store_error", "an error (WRONGTYPE)"),
        (exceptions.ResponseError("something else"), "store_error", "an error (ResponseError)"),
        (exceptions.ConnectionError("max number of clients reached"), "store_too_many_connections", "maxclients"),
        (exceptions.TryAgainError("Multiple keys request"), "store_cluster_down", "is being moved"),
        (ssl.SSLError(1, "wrong"), "store_unreachable", "TLS: the server does not speak it"),
        (OSError(113, "No route"), "store_unreachable", "No route to host; check"),
    ],
)
def test_each_fault_has_a_reason_and_a_remedy(error: Exception, reason: str, words: str) -> None:
    """Those that the other tests do not make."""
    fault = fault_of(error)
    assert fault.reason == reason
    assert words in fault.cause


async def test_cluster_is_found_again_after_an_outage(clock: Clock) -> None:
    """A node that has just started waits for the other nodes. This one keeps no file, which is noticed."""
    with serving(cluster=True) as own:
        one = session(issued_at=START)
        async with opened(own.cluster_url, clock=clock) as store:
            assert await status_in(store, one) is LIVE
            assert await revoke(store, one)
            own.kill9()
            late = RedisStore(own.cluster_url, clock=clock, timeout=LONG)
            with refused("store_unreachable"):
                await status_in(late, one)
            own.start()
            with refused("store_cluster_down"):
                await status_in(late, one)
            own.wait_for_slots()
            assert await status_in(late, LATER) is LIVE
            assert await status_in(store, one) is UNKNOWN
            await late.close()


async def test_many_first_requests_open_the_store_once(place: Place) -> None:
    """And more than there may be connections wait for their turn."""
    prefix = f"{uuid4().hex}:"
    store = TimeoutStore(RedisStore(place.url, prefix=prefix, clock=Clock(), connections=2), seconds=LONG)
    calls = (status_in(store, session(str(n), issued_at=START + 1)) for n in range(20))
    assert set(await asyncio.gather(*calls)) == {LIVE}
    await store.close()


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


async def test_hanging_server_costs_each_call_its_timeout(place: Place) -> None:
    """Not the driver's seven seconds of retries; waiting for a connection counts as well."""
    async with opened(place.url, timeout=0.25, connections=1) as store:
        assert await revoke(store, session())
        with frozen(place.server):
            calls = [store.add(shelf(), "key", 1), revoke(store, session("two"))]
            failed = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), LONG)
        assert [getattr(error, "reason", None) for error in failed] == ["store_timeout"] * 2
        status = None
        while status is None:
            with suppress(StoreUnavailable):  # it may be too early
                status = await status_in(store, session())
        assert status is ENDED


async def test_opening_a_hanging_server_ends_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening goes on when a request gives up, but not for ever."""
    monkeypatch.setattr("mcp_sessions.stores._redis._OPEN_TIMEOUT", 0.1)
    store = RedisStore(server.url, timeout=LONG)
    with frozen(server), pytest.raises(StoreUnavailable) as caught:
        await store.open()
    assert (caught.value.reason, caught.value.cause[:23]) == ("store_timeout", "connecting takes longer")
    await store.close()


async def waiting(server: Server) -> None:
    """Wait until a server keeps a client waiting."""
    await until(lambda: b"flags=b " in server.command("CLIENT", "LIST"))


async def test_only_repeatable_calls_are_sent_again(place: Place) -> None:
    """A revocation is, and knows itself again. An increment may have been made: its outcome is unknown."""
    server = place.server

    async def cut_off_in_the_midst(call: Any) -> Any:
        server.command("CLIENT", "PAUSE", 60_000, "WRITE")
        task = asyncio.ensure_future(call)
        await waiting(server)
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        server.command("CLIENT", "UNPAUSE")
        return await task

    async with opened(place.url) as store:
        assert await cut_off_in_the_midst(revoke(store, session()))
        assert not await revoke(store, session())
        assert await store.add(shelf(), "key", 1) == 1
        with refused("store_unreachable"):
            await cut_off_in_the_midst(store.add(shelf(), "key", 1))
        total = int(await store.read(shelf(), "key") or 0)
        assert total in {1, 2}
        assert await store.add(shelf(), "key", 1) == total + 1


async def test_cancelled_call_leaves_no_reply_behind(place: Place) -> None:
    """A cancelled call's answer must not be taken for another call's; the connections that are unused stay open."""
    async with opened(place.url) as store:
        await store.write(shelf("a"), "key", b"1")
        await store.write(shelf("b"), "key", b"2")
        before = place.server.connections()
        place.server.command("CLIENT", "PAUSE", 60_000, "WRITE")
        task = asyncio.ensure_future(store.add(shelf("a"), "key", 10))
        await waiting(place.server)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        place.server.command("CLIENT", "UNPAUSE")
        *of_b, of_a = [await store.read(shelf(owner), "key") for owner in "bba"]
        assert of_b == [b"2", b"2"]
        assert of_a in {b"1", b"11"}
        commands = 20  # of this test, and its looks at the list of clients
        assert place.server.connections() - before < commands


@pytest.mark.parametrize("before", [True, False])
async def test_closing_ends_running_calls(place: Place, before: bool) -> None:
    """A server that hangs does not keep a worker from stopping; its callers are not cancelled."""
    store = RedisStore(place.url, timeout=1)
    for _ in range(before):
        await store.open()
    with frozen(place.server):
        task = asyncio.ensure_future(status_in(store, session()))
        await asyncio.sleep(0)
        await asyncio.wait_for(store.close(), LONG)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(task, LONG)


async def test_full_server_refuses_and_forgets_nothing(place: Place) -> None:
    """What cannot be kept is refused; reading and removing go on."""
    async with opened(place.url) as store:
        one, two = session(), session("two")
        assert await revoke(store, one)
        await store.register(Record.of(two))
        await store.write(shelf(), "key", b"1")
        place.server.command("CONFIG", "SET", "maxmemory", "1mb")
        for change in (revoke(store, two), store.add(shelf(), "key", 1), store.write(shelf(), "key", b"22")):
            with pytest.raises(StoreFull):
                await change
        assert await statuses_in(store, [one, two]) == [ENDED, LIVE]
        assert await store.read(shelf(), "key") == b"1"
        await store.write(shelf(), "key", None)
        place.server.command("CONFIG", "SET", "maxmemory", "0")
        assert await revoke(store, two)


async def test_replica_is_refused(server: Server) -> None:
    """It would answer from the past; also where a server becomes one while it is used."""
    async with opened(server.url) as store:
        with serving() as other:
            other.command("REPLICAOF", HOST, server.port)
            copy = RedisStore(other.url, clock=Clock(), timeout=LONG)
            with refused("store_readonly"):
                await status_in(copy, session())
            await copy.close()
            other.command("REPLICAOF", "NO", "ONE")
            server.command("REPLICAOF", HOST, other.port)
            for call in (revoke(store, session()), status_in(store, session())):
                with refused("store_readonly"):
                    await call
            server.command("REPLICAOF", "NO", "ONE")
            await status_in(store, session())


def offset(server: Server) -> int:
    """Return how much of what was changed a primary has made, or a replica has heard of."""
    return int(re.findall(rb"_repl_offset:(\d+)", server.command("INFO", "replication"))[0])


async def test_cluster_is_followed_through_a_failover() -> None:
    """A replica is asked for the layout alone; when it takes over, it is followed."""
    quick: dict[str, Any] = {"cluster_node_timeout": 1000, "repl_diskless_sync_delay": 0}
    with serving(cluster=True, **quick) as first, serving(cluster_enabled="yes", **quick) as second:
        second.command("CLUSTER", "MEET", HOST, first.port)
        main = first.command("CLUSTER", "MYID")
        await until(lambda: second.did("CLUSTER", "REPLICATE", main))
        await until(lambda: b"master_link_status:up" in second.command("INFO", "replication"))
        await until(lambda: b"slave" in first.command("CLUSTER", "NODES"))
        async with opened(second.cluster_url) as store:
            one, two = session(), session("two")
            assert await revoke(store, one)
            await until(lambda: offset(second) >= offset(first))
            await until(lambda: second.did("CLUSTER", "FAILOVER", "TAKEOVER"))
            await until(lambda: b"role:slave" in first.command("INFO", "replication"))
            assert await statuses_in(store, [one, two]) == [ENDED, LIVE]
            assert await revoke(store, two)


async def test_forgotten_scripts_are_sent_again(place: Place) -> None:
    """As after a restart, a failover, or an upgrade of this package."""
    async with opened(place.url) as store:
        await store.register(Record.of(session()))
        for total in (1, 2):
            place.server.command("SCRIPT", "FLUSH")
            assert await touch_in(store, session(), idle_timeout=600) is LIVE
            place.server.command("SCRIPT", "FLUSH")
            assert await store.add(shelf(), "key", 1) == total


async def test_claimed_sessions_are_returned_despite_a_later_fault(
    store: RedisStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its `on_end` would wait for the lease to run out."""
    await store.register(Record.of(session()))
    clock.now = START + 3600
    client, calls = await store._opened(), 0
    run = client.run

    async def failing(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise StoreUnavailable
        return await run(*args, **options)

    monkeypatch.setattr(client, "run", failing)
    assert len(await claim(store)) == 1
    calls = 2
    with refused("store_unavailable"):
        await claim(store)


# --- data and lists ------------------------------------------------------------------------------


async def test_expired_record_leaves_the_lists(store: RedisStore, clock: Clock) -> None:
    """It outlives its session by a week, for a sweeper; no sweep runs its `on_end` after that."""
    shared, keys = redis_servers.shared(), store._keys
    await store.register(Record.of(session()))
    shared.command("DEL", keys("session", session().ref))
    assert await store.list_sessions(subject=ALICE, audience=AUDIENCE, limit=1000) == []
    clock.now = START + 3600
    assert await claim(store) == []
    assert await store.count(audience=AUDIENCE) == 0
    assert shared.command("EXISTS", keys.index, keys("due", AUDIENCE)) == 0


async def test_lease_longer_than_idle_timeout_is_looked_at_once(store: RedisStore) -> None:
    """A sweep looks at what was recorded under a longer timeout, and ends."""
    await store.register(Record.of(session()))
    await store.revoke(Record.of(session()), reason="deleted", lease=50)
    sweep = store.claim_ended(audience=AUDIENCE, idle_timeout=30, lease=30, limit=5)
    assert await asyncio.wait_for(sweep, LONG) == []


async def test_page_does_not_read_sessions_that_were_cut_off(server: Server) -> None:
    """Nor what began before Redis may have lost something: else a page takes as long as all that waits to be purged."""

    def read() -> int:
        return sum(map(int, re.findall(rb"cmdstat_hmget:calls=(\d+)", server.command("INFO", "commandstats"))))

    async with opened(server.url) as store:
        for number in range(500):
            await store.register(Record.of(session(f"{number:03}")))
        new = Record.of(session("new", issued_at=START + 2))
        await store.register(new)
        await store.revoke_before(START + 1, audience=AUDIENCE, subject=ALICE, expires_at=START + DAY)
        before = read()
        assert await store.list_sessions(subject=ALICE, audience=AUDIENCE, limit=5) == [new]
        assert len(await store.list_sessions(subject=ALICE, audience=AUDIENCE, limit=5, with_cut_off=True)) == 5
        server.command("SET", store._keys.epoch, START + 100)
        assert await store.list_sessions(subject=ALICE, audience=AUDIENCE, limit=5, with_cut_off=True) == []
        assert read() - before <= 60


async def test_redis_deletes_every_key_in_the_end(store: RedisStore) -> None:
    """Redis deletes every key but the epoch after a time, even if no worker does."""
    one, shared = session(), redis_servers.shared()
    await store.register(Record.of(one))
    await store.write(shelf(one.ref), "key", b"1", expires_at=START + 60)
    await store.write(Namespace("unrecorded", START + 3600, 100, ALICE, None), "key", b"1")
    for later in (3600, 7200, 60):
        await store.revoke_before(START, audience=AUDIENCE, subject=ALICE, expires_at=START + later)
    await revoke(store, one)
    tag = store._keys.epoch.partition("}")[0] + "}"
    ttls = {
        key.decode().removeprefix(tag).replace(one.ref, "ref"): shared.command("TTL", key)
        for key in shared.command("KEYS", f"{tag}*")
    }
    week = 7 * 86_400
    expected = {
        "ended:ref": 3660,
        "session:ref": week + 3660,
        "session:unrecorded": 3660,
        f"cutoff:mcp-sessions:{ALICE}": 7260,
        **dict.fromkeys(("index", "due:mcp-sessions", "usage", "sizes"), week + 3660),
        "epoch:6": -1,
    }
    assert ttls.keys() == expected.keys()
    for name, ttl in ttls.items():
        assert expected[name] - LONG <= ttl <= expected[name], name


async def test_sessions_of_an_earlier_version_live_on(store: RedisStore, clock: Clock) -> None:
    """The keys are those of format 6 as it first was, with two that nothing reads any more."""
    live, leased, ended = (session(name, expires_at=START + DAY) for name in ("live", "leased", "ended"))
    account, member = f"{ALICE} {AUDIENCE}", {one: f"001800000000000{one.ref}\0{ALICE}" for one in (live, leased)}
    tag = store._keys.epoch.partition("}")[0] + "}"
    for words in (
        *(("HSET", f"session:{one.ref}", "m", name, "a", AUDIENCE, "e", START + DAY) for one, name in member.items()),
        ("HSET", f"session:{live.ref}", "s", START + 600, ":cart", "[1]", "#", 7, "n", 1, "$", account),
        ("HSET", f"session:{leased.ref}", "s", START, "x", "deleted", "l", START + 30),
        *(("SET", f"ended:{one.ref}", 1, "EX", DAY) for one in (leased, ended)),
        ("ZADD", f"due:{AUDIENCE}", START + 1830, member[live], START + 30, member[leased]),
        *(("ZADD", "index", 0, f"{AUDIENCE}\0{name}") for name in member.values()),
        *(("ZADD", "index", 0, f"{AUDIENCE}\0={ALICE}\0{name}") for name in member.values()),
        ("ZADD", "principals", 2, account),
        ("HSET", "servers", "", "a-run 1"),
        ("ZADD", "usage", 207, account, 207, "*"),
        ("ZADD", "sizes", START + DAY, f"{live.ref} 207 {account}"),
    ):
        redis_servers.shared().command(words[0], f"{tag}{words[1]}", *words[2:])
    assert await statuses_in(store, [live, leased, ended]) == [LIVE, ENDED, ENDED]
    assert await store.list_sessions(subject=ALICE, audience=AUDIENCE, limit=9) == [await store.get(live.ref)]
    clock.now = START + 1800
    assert [one.record.ref for one in await claim(store, idle_timeout=1800)] == [leased.ref]
    assert await touch_in(store, live, idle_timeout=1800) is LIVE
    place = Namespace(live.ref, live.expires_at, 1000, ALICE, 500)
    assert await store.read(place, "cart") == b"[1]"
    with pytest.raises(PrincipalDataTooLarge):
        await store.write(place, "more", b"x" * 100)
    assert await revoke(store, live, lease=None)
    await store.purge(leased.ref)
    assert await store.count(audience=AUDIENCE) == 0

"""Beside the contract: losses, lost answers, who fills a store, and how often a request waits for one on a network."""

import asyncio
import logging
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import postgres_servers
import pytest
import redis_servers
from apps import Server, sessions
from clients import Client, Clock
from every_store import STORES, name
from servers import HOST

from mcp_sessions import Limits, Session
from mcp_sessions._errors import PrincipalDataTooLarge, StoreUnavailable
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores._base import Ended, Record, SessionStatus, Store
from mcp_sessions.stores._timeout import TimeoutStore
from mcp_sessions.testing._contract import (
    ALICE,
    DAY,
    LATER,
    START,
    at_once,
    claim,
    namespace,
    register,
    revoke,
    session,
    status_in,
    statuses_in,
)
from mcp_sessions.testing._store_contract import shelf

SHARED = pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])


@pytest.fixture
def anyio_backend() -> str:
    """Redis's driver knows asyncio alone."""
    return "asyncio"


# --- losses --------------------------------------------------------------------------------------


def lose(kind: str, folder: Path) -> None:
    """Take away all that a store holds."""
    if kind == "sqlite":
        with closing(sqlite3.connect(folder / "sessions.db")) as connection, connection:
            for table in ("store", "sessions", "cutoffs", "items", "amounts"):
                connection.execute(f"DELETE FROM {table}")
    elif kind == "redis":
        shared = redis_servers.shared()
        shared.command("DEL", *shared.command("KEYS", f"*{name(folder)}*"))
    else:
        postgres_servers.shared().execute(f"DROP SCHEMA {name(folder)} CASCADE")


@SHARED
@pytest.mark.parametrize(("forgotten", "status"), [("refuse", SessionStatus.UNKNOWN), ("accept", SessionStatus.LIVE)])
async def test_a_store_that_is_new_or_was_emptied_vouches_for_no_session_from_before(
    kind: str, forgotten: str, status: SessionStatus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have been ended, so it is refused, unless that is asked for; a line in the log says so.

    On every worker, whichever notices first, and in the very second of the loss; what begins after it lives.
    """
    caplog.set_level(logging.INFO, "mcp_sessions")
    clock = Clock()
    workers = [STORES[kind](clock, tmp_path, forgotten=forgotten) for _ in range(3)]
    *both, fresh = workers
    old, one, new = session("old", issued_at=START - 1), session("one"), session("new")
    await both[0].register_at_epoch(one)
    for worker in both:
        assert await statuses_in(worker, [old, one]) == [status, SessionStatus.LIVE]
    made = [text for text in caplog.messages if "it accepts sessions that begin from now on" in text]
    assert len(made) == (kind != "redis")
    assert await revoke(both[0], one)
    lose(kind, tmp_path)
    clock.now += 0.001
    for worker in (*both, *both):
        assert await statuses_in(worker, [old, one]) == [status] * 2
    lost = [text for text in caplog.messages if re.search("lost its data|were emptied|were dropped", text)]
    assert 1 <= len(lost) <= len(both)
    await fresh.register_at_epoch(new)
    for worker in workers:
        assert await statuses_in(worker, [old, one, new]) == [status, status, SessionStatus.LIVE]
    assert await revoke(fresh, old)
    assert [await status_in(worker, old) for worker in workers] == [SessionStatus.ENDED] * 3
    for worker in workers:
        await worker.close()


@SHARED
async def test_revocation_without_an_answer_is_finished_after_the_lease(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows that it was the first, so asked again, it is not; the next sweep runs `on_end`."""
    store: Any = STORES[kind](clock := Clock(), tmp_path)
    await register(store, session())
    caller, method = (await store._opened(), "run") if kind == "redis" else (store, "_change")
    call = getattr(caller, method)

    async def lose_answer(*args: Any, **options: Any) -> None:
        await call(*args, **options)
        raise StoreUnavailable("store_timeout")

    with monkeypatch.context() as fault:
        fault.setattr(caller, method, lose_answer)
        with pytest.raises(StoreUnavailable):
            await revoke(store, session(), lease=30)
    assert not await revoke(store, session(), lease=30)
    assert await claim(store) == []
    clock.now += 30
    assert await claim(store) == [Ended(Record.of(session()), "deleted")]
    await store.close()


@pytest.mark.parametrize("kind", ["redis", "postgres"])
@pytest.mark.parametrize(("seconds", "told"), [(-120, ["120 s behind"]), (6, ["6 s ahead of"]), (4.5, []), (-4.5, [])])
async def test_a_clock_that_differs_from_the_server_s_is_reported_once(
    kind: str, seconds: int, told: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a worker accepts what has expired, or refuses what lives. A few seconds do no harm."""
    store: Any = STORES[kind](lambda: time.time() + seconds, tmp_path)
    await at_once([partial(status_in, store, session())] * 4)
    warned = [text.partition(";")[0] for text in caplog.messages if "synchronize the clocks" in text]
    assert [re.findall(r"\d+ s \w+(?: of)?", text)[0] for text in warned] == told
    assert all(f"that of {store.location}" in text for text in warned)
    await store.close()


# --- outages -------------------------------------------------------------------------------------


SERVERS: dict[str, Any] = {
    "redis": partial(redis_servers.serving, appendonly="yes", appendfsync="always"),
    "postgres": partial(postgres_servers.serving, **postgres_servers.DOES_NO_HARM),
}


@pytest.fixture(scope="module", params=SERVERS)
def harmed(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """A server that tests may stop; each leaves it running, with what it acknowledged."""
    with SERVERS[request.param]() as server:
        yield request.param, server


@pytest.mark.parametrize(("ends", "returns"), [("kill9", "start"), ("pause", "resume")])
async def test_an_outage_is_answered_in_time_and_forgotten_at_once(
    harmed: tuple[str, Any], ends: str, returns: str, tmp_path: Path
) -> None:
    """Each request ends in the time that is documented, with 503 and Retry-After; then few connections are enough."""
    kind, server = harmed
    store = TimeoutStore(STORES[kind](time.time, tmp_path, url=server.url, timeout=1), seconds=0.5)
    await store.open()
    client = Client(sessions(Server(), store=store, tracked=True))
    held, other = await client.create(), await client.create()
    await at_once([partial(client.tool, session=held)] * 5)
    calls: list[Any] = [partial(client.tool, session=held)] * 5
    calls += [partial(client.delete, other), partial(client.send, "sessions/create")]
    getattr(server, ends)()
    for _ in range(2):
        with anyio.fail_after(30):  # three times as long for the last two, and a slow machine
            answers = await at_once(calls)
        assert {(one.status, one.headers[b"retry-after"]) for one in answers} == {(503, b"1")}
    getattr(server, returns)()
    before = server.connections() if kind == "redis" else 0
    with anyio.fail_after(60):
        while (answer := await client.tool(session=held)).status == 503:
            """A call on a slow machine may still come too early."""
    assert answer.session is not None
    assert kind != "redis" or server.connections() - before <= 3
    await store.close()


@pytest.mark.parametrize("end", ["stop", "kill9"])
async def test_a_restart_of_the_server_costs_no_request(harmed: tuple[str, Any], end: str, tmp_path: Path) -> None:
    """Every connection is dead, and the first call on each finds out and is made again. What was promised holds."""
    kind, server = harmed
    store = STORES[kind](Clock(), tmp_path, url=server.url)
    ended, later, live = (session(one) for one in ("ended", "later", "live"))
    await store.register_at_epoch(live)
    assert await revoke(store, ended) is True
    look, found = [partial(statuses_in, store, [ended, live])] * 10, [[SessionStatus.ENDED, SessionStatus.LIVE]] * 10
    assert await at_once(look) == found
    getattr(server, end)()
    server.start()
    for _ in range(2):  # the loop, which slept while the server was restarted here, sees that they are closed
        await anyio.lowlevel.checkpoint()
    assert await store.add(namespace(live), "n", 1) == 1
    assert await revoke(store, later) is True
    assert await at_once(look) == found
    await store.close()


# --- what fills a store --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORES)
async def test_data_that_is_over_is_no_longer_counted(kind: str, tmp_path: Path) -> None:
    """Also where nothing but time ended its session."""
    make = partial(STORES[kind], clock := Clock(), tmp_path)
    store = make()
    await store.write(shelf("a"), "k", b"x" * 700)
    clock.now = LATER + 9 * DAY  # Redis keeps it so long for an `on_end`
    other, later, last = (Namespace(f"ses_{n}", int(clock.now) + DAY, 10_000, ALICE, 1000) for n in range(3))
    for _ in range(2):  # what is over goes with a change
        await store.write(other, "k", None)
        clock.now += 61
    if kind != "memory":  # what is deleted in the background is, when a store is closed
        await store.close()
        store = make()
    await store.write(later, "k", b"x" * 700)
    with pytest.raises(PrincipalDataTooLarge):
        await store.write(last, "k", b"x" * 700)
    await store.close()


def rows(kind: str, folder: Path, table: str) -> int:
    if kind == "postgres":
        ((count,),) = postgres_servers.shared().execute(f"SELECT count(*) FROM {name(folder)}.{table}")
    else:
        with closing(sqlite3.connect(folder / "sessions.db")) as connection:
            ((count,),) = connection.execute(f"SELECT count(*) FROM {table}")
    return int(count)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_is_over_is_deleted_by_and_by(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a minute, in small steps, after some change. A recorded session's data stays until it is purged."""
    monkeypatch.setattr("mcp_sessions.stores._sql.SWEPT_ROWS", 2)
    store = STORES[kind](clock := Clock(), tmp_path)
    await register(store, session("recorded"))
    for one in ("gone", "recorded"):
        await store.write(namespace(session(one)), "k", b"1")
    for n in range(5):
        await revoke(store, session(f"revoked-{n}"))
    for until in (LATER, LATER + 1):
        await store.revoke_before(START, audience=f"{until}", subject=None, expires_at=until)
    clock.now = LATER + 60
    await revoke(store, session("later", expires_at=LATER + DAY))
    await store.close()
    # With the rows that mark the first two as complete.
    assert [rows(kind, tmp_path, table) for table in ("sessions", "cutoffs", "items")] == [3, 2, 1]


# --- round trips: on a network, users notice nothing else of a store -----------------------------

# Before the last, scripts are known, and statements prepared on each connection.
ROUNDS = {"redis": 4, "postgres": 24}
TRIPS = {"create": 1, "request": 0, "get": 1, "increment": 1, "update": 2, "delete": 1}
"""The round trips of each step besides the one for the status, tracked or not."""


async def use(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Change or read the session's data."""
    assert session is not None
    how = arguments["how"]
    if how == "update":
        return await session.data.update("m", lambda n: n + 1, default=0)
    return await getattr(session.data, how)("n")


class Proxy:
    """Copies bytes to and from a server, and counts what is sent over a connection and then answered."""

    def __init__(self, connect: Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]) -> None:
        self._connect = connect
        self._trips = 0
        self.connections: set[asyncio.Task[Any]] = set()

    def taken(self) -> int:
        """Return how many round trips were made since this was last called."""
        trips, self._trips = self._trips, 0
        return trips

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, upstream = await self._connect()
        was_asked = False  # what a server sends unasked does not count, nor does a farewell

        async def pass_on() -> None:
            nonlocal was_asked
            while data := await reader.read(1 << 16):
                was_asked = True
                upstream.write(data)
            upstream.close()

        self.connections |= {asking := asyncio.ensure_future(pass_on())}
        with suppress(OSError):
            while data := await answers.read(1 << 16):
                self._trips += was_asked
                was_asked = False
                writer.write(data)
        writer.close()
        await asking


@asynccontextmanager
async def counted(kind: str, clock: Clock, folder: Path, freshness: float) -> AsyncIterator[tuple[Store, Proxy]]:
    """A store of a kind, all of whose round trips are counted."""
    if kind == "redis":
        proxy, url = Proxy(partial(asyncio.open_connection, HOST, redis_servers.shared().port)), "redis://{}"
    else:
        socket = postgres_servers.shared().folder / ".s.PGSQL.5432"
        url = "postgresql://postgres@{}/postgres?sslmode=disable&gssencmode=disable"
        proxy = Proxy(partial(asyncio.open_unix_connection, socket))
    async with await asyncio.start_server(proxy.serve, HOST, 0) as server:
        url = url.format(f"{HOST}:{server.sockets[0].getsockname()[1]}")
        store = STORES[kind](clock, folder, url=url, timeout=20, durability="ignore", freshness=freshness)
        await store.open()
        yield store, proxy
        await store.close()
        await asyncio.gather(*proxy.connections)


@pytest.mark.parametrize("kind", ROUNDS)
@pytest.mark.parametrize(
    ("options", "later", "freshness"),
    [({}, 0, 0), ({"tracked": True}, 60, 5), ({"tracked": True, "idle_timeout": 3600}, 0, 0), ({}, 60, 5)],
    ids=["untracked, at the store's epoch", "tracked, fresh", "tracked with idle timeout", "untracked, fresh"],
)
async def test_a_request_takes_few_round_trips(
    kind: str, options: dict[str, Any], later: float, freshness: float, tmp_path: Path
) -> None:
    """One to look at the session, none where its status is recent, and one or two more for its data."""
    clock = Clock()
    async with counted(kind, clock, tmp_path, freshness) as (store, proxy):
        limits = Limits(store_timeout=20)
        client = Client(sessions(Server(use=use), store=store, clock=clock, limits=limits, **options))
        clock.now += later
        found = dict.fromkeys(TRIPS, 99)

        def note(step: str) -> None:
            found[step] = min(found[step], proxy.taken())  # background work may ask meanwhile

        for _ in range(ROUNDS[kind]):
            proxy.taken()
            session = await client.create()
            note("create")
            await client.tool(session=session)
            proxy.taken()
            for how in ("request", "get", "increment", "update"):
                answer = await client.tool("whoami" if how == "request" else "use", session=session, how=how)
                assert answer.session is not None
                note(how)
            assert "error" not in (await client.delete(session)).json
            note("delete")
    looks = not freshness
    assert found == {step: trips + (looks and step != "create") for step, trips in TRIPS.items()}

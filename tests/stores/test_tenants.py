"""One tenant against all: what a flood leaves to others, where data is counted, and what a full store says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import postgres_servers
import psycopg
import pytest
import redis_servers
from apps import Server, sessions, sweeper_of
from clients import Client, Clock

from mcp_sessions._errors import PrincipalDataTooLarge, StoreFull
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores import _postgres as postgres_store
from mcp_sessions.stores._base import ANONYMOUS, Record, Store
from mcp_sessions.stores._memory import MemoryStore
from mcp_sessions.stores._postgres import PostgresStore
from mcp_sessions.stores._redis import RedisStore
from mcp_sessions.stores._sqlite import SQLiteStore
from mcp_sessions.stores._timeout import TimeoutStore
from mcp_sessions.testing._contract import ALICE, BOB, LATER, session
from mcp_sessions.testing._store_contract import shelf


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def server() -> Iterator[redis_servers.Server]:
    """A Redis that a test may fill."""
    with redis_servers.serving() as own:
        yield own


def small_redis(clock: Clock, _: Path, request: pytest.FixtureRequest) -> Store:
    own: redis_servers.Server = request.getfixturevalue("server")
    return RedisStore(own.url, prefix="full[1]:", clock=clock, timeout=10)


def postgres(clock: Clock, *_: object) -> Store:
    url, schema = postgres_servers.shared().url, f"s{uuid4().hex}"
    return PostgresStore(url, schema=schema, clock=clock, durability="ignore", timeout=10)


SMALL: dict[str, Callable[[Clock, Path, pytest.FixtureRequest], Store]] = {
    "memory": lambda clock, *_: MemoryStore(max_sessions=3, clock=clock),
    "sqlite": lambda clock, path, _: SQLiteStore(path / "sessions.db", max_bytes=1 << 18, clock=clock),
    "redis": small_redis,
    "postgres": postgres,
}
"""Stores so small that a few sessions fill them, or that a test fills."""


@pytest.fixture(params=SMALL)
async def store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> AsyncIterator[Store]:
    made = SMALL[request.param](clock, tmp_path, request)
    yield made
    await made.close()


async def test_anonymous_sessions_leave_room_in_memory_for_those_with_a_principal() -> None:
    """A tenth of the records, and a quarter of the data."""
    store = MemoryStore(max_sessions=20, max_data_bytes=1000, clock=Clock())
    for n in range(18):
        await store.register(Record.of(session(f"{n}", subject=None)))
    with pytest.raises(StoreFull):
        await store.register(Record.of(session("x", subject=None)))
    await store.register(Record.of(session("b", subject=BOB)))
    await store.purge(session("0", subject=None).ref)
    await store.register(Record.of(session("x", subject=None)))
    await store.write(Namespace("ses_1", LATER, 10_000, ANONYMOUS, None), "k", b"x" * 500)
    with pytest.raises(StoreFull):
        await store.write(Namespace("ses_2", LATER, 10_000, ANONYMOUS, None), "k", b"x")
    await store.write(shelf("b", BOB), "k", b"x")


async def test_what_is_kept_for_sessions_with_a_principal_is_of_all_audiences_together() -> None:
    store = MemoryStore(max_sessions=20, clock=Clock())
    for n in range(18):
        record = Record.of(session(f"{n}", subject=None))
        await store.register(replace(record, audience=f"shop {n % 2}"))
    with pytest.raises(StoreFull):
        await store.register(replace(Record.of(session("x", subject=None)), audience="shop 0"))
    await store.register(Record.of(session("b", subject=BOB)))


async def test_data_that_is_over_is_no_longer_counted(store: Store, clock: Clock) -> None:
    """Also where nothing but time ended its session."""
    await store.write(shelf("a"), "k", b"x" * 700)
    clock.now = LATER + 7200
    if isinstance(store, RedisStore):
        clock.now += 8 * 86_400  # it is kept for an `on_end`
    ends = int(clock.now) + 3600
    for _ in range(2):  # what is over goes with a change
        await store.write(Namespace("ses_other", ends, 10_000), "k", b"x")
        clock.now += 61
    later, last = (Namespace(f"ses_{name}", ends, 10_000, ALICE, 1000) for name in "de")
    with anyio.fail_after(10):
        while not await fits(store, later):  # noqa: ASYNC110  # the server deletes by itself
            await anyio.sleep(0.01)  # pragma: no cover  # only where it is late
    with pytest.raises(PrincipalDataTooLarge):
        await store.write(last, "k", b"x" * 700)


@contextmanager
def full(store: Store, server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill the store: of PostgreSQL no disk is filled."""

    def fills(*_: object, **__: object) -> None:
        raise psycopg.errors.DiskFull

    if server is not None:
        server.command("CONFIG", "SET", "maxmemory", "1mb")
    real = postgres_store._execute
    execute = lambda on, *statements: fills() if len(statements) > 1 else real(on, *statements)  # noqa: E731
    monkeypatch.setattr(postgres_store, "_execute", execute)
    yield


async def fits(store: Store, namespace: Namespace) -> bool:
    """Whether a value is taken; PostgreSQL deletes what is over beside the changes."""
    with suppress(PrincipalDataTooLarge):
        await store.write(namespace, "k", b"x" * 700)
        return True
    return False  # pragma: no cover  # only where the deletion is late


async def test_a_store_that_is_full_says_how_it_got_full(
    store: Store,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Once a minute: how many sessions are recorded, what data takes, and the most of one principal."""
    for name, subject in (("a", ALICE), ("b", ALICE), ("c", BOB)):
        await store.register(Record.of(session(name, subject=subject)))
        await store.write(shelf(name, subject, None), "k", b"x" * 300)
    fill = partial(store.write, Namespace(session("a").ref, LATER, 1 << 20), "big", b"x" * (1 << 19))
    if isinstance(store, MemoryStore):
        fill = partial(store.register, Record.of(session("d")))
    server = request.getfixturevalue("server") if isinstance(store, RedisStore) else None
    usage = store if isinstance(store, MemoryStore) else TimeoutStore(store, seconds=10)
    fill = partial(getattr(usage, fill.func.__name__), *fill.args)
    with full(store, server, monkeypatch):
        for _ in range(2):
            with pytest.raises(StoreFull):
                await fill()
    (text,) = logged(caplog)
    assert "3 sessions are recorded, at most 2 of one principal" in text
    assert "at most 1002 of them of one principal" in text


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "store is full" in record.getMessage()]


async def test_a_client_that_begins_sessions_and_never_ends_them_leaves_nothing(clock: Clock) -> None:
    """Not tracked, as by default: what a session is stands in its token, so no store is asked to keep it."""
    store = MemoryStore(clock=clock)
    client = Client(sessions(Server(), store=store, clock=clock))
    for _ in range(50):
        await client.tool(session=await client.create())
    assert (len(store._entries), len(store._revoked), store._data.bytes) == (0, 0, 0)


async def test_tracked_sessions_are_gone_after_a_day_of_silence(clock: Clock) -> None:
    """Without any option, and not before: clients that connect for each call never end theirs."""
    store = MemoryStore(clock=clock)
    app = sessions(Server(), clock=clock, store=store, tracked=True)
    sweeper = sweeper_of(app)
    for _ in range(3):
        client = Client(app)
        await client.tool(session=await client.create())
    for later, left in ((86_400 - 1, 3), (2 * 60, 0)):
        clock.now += later
        assert not await sweeper.sweep()
        assert await store.count(audience=AUDIENCE) == left
    assert await store.list_sessions(audience=AUDIENCE, limit=3) == []

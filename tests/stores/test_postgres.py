"""What is particular to the PostgreSQL store: its tables, faults, and what it asks of the server.

That it keeps the contract is shown in `test_contract.py`.
"""

import logging
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import anyio
import anyio.lowlevel
import postgres_servers
import psycopg
import pytest
from postgres_servers import DOES_NO_HARM, Server, serving
from psycopg import OperationalError, errors
from reasons import refused
from servers import HOST

from mcp_sessions._errors import ConfigurationError, StoreFull, StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions.stores import _postgres as postgres
from mcp_sessions.stores import _sql_text as sql
from mcp_sessions.stores._base import SessionStatus
from mcp_sessions.stores._postgres import PostgresStore
from mcp_sessions.stores._postgres_faults import named_faults
from mcp_sessions.stores._timeout import TimeoutStore
from mcp_sessions.testing._contract import (
    ALICE,
    DAY,
    HOUR,
    START,
    Clock,
    at_once,
    claim,
    namespace,
    register,
    revoke,
    session,
    status_in,
    statuses_in,
)

PASSWORD = "a-password-of-the-store"
Make = Callable[..., PostgresStore]


@pytest.fixture
def anyio_backend() -> str:
    """The store refuses trio."""
    return "asyncio"


@pytest.fixture(scope="module")
def harmed() -> Iterator[Server]:
    """A server that tests may stop; each leaves it running."""
    with serving(**DOES_NO_HARM) as server:
        yield server


@pytest.fixture
def schema() -> str:
    return f"s{uuid4().hex}"


@pytest.fixture
async def make_store(clock: Clock, schema: str) -> AsyncIterator[Make]:
    """What makes stores in one schema of a server; they are closed after the test."""
    made = []

    def make_one(server: Server | None = None, **options: Any) -> PostgresStore:
        url = (server or postgres_servers.shared()).url
        defaults: dict[str, Any] = {"schema": schema, "clock": clock, "durability": "ignore", "timeout": 5}
        made.append(PostgresStore(url, **defaults | options))
        return made[-1]

    yield make_one
    for one in made:
        await one.close()


# --- tables --------------------------------------------------------------------------------------


async def test_many_workers_make_the_tables_together(make_store: Make, caplog: pytest.LogCaptureFixture) -> None:
    """One does, in one transaction, and each other sees them whole."""
    stores = [make_store() for _ in range(8)]
    with caplog.at_level(logging.INFO, "mcp_sessions"):
        await at_once([one.open for one in stores])
    assert [await status_in(one, session()) for one in stores] == [SessionStatus.LIVE] * 8
    assert sum(text.startswith("created the session store's tables") for text in caplog.messages) == 1


async def test_the_time_that_tables_take_to_be_made_is_not_a_difference_of_clocks(
    make_store: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two clocks are read together, on a slow server as well."""
    offset, create = [0], PostgresStore._create

    async def slowly(self: PostgresStore, connection: Any) -> None:
        await create(self, connection)
        offset[0] = 60

    monkeypatch.setattr(PostgresStore, "_create", slowly)
    await make_store(clock=lambda: time.time() + offset[0]).open()
    assert offset == [60]
    assert not any("synchronize the clocks" in text for text in caplog.messages)


async def test_tables_of_another_version_are_refused_with_the_remedy(
    make_store: Make, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """When a worker starts, and when one that is at work connects again."""
    working, late = make_store(timeout=1), make_store()
    await make_store().open()
    postgres_servers.shared().execute(f"UPDATE {schema}.store SET format = {sql.FORMAT + 1}")
    said = rf"it has format {sql.FORMAT + 1}, this one knows {sql.FORMAT}\); install that version again"
    with pytest.raises(ConfigurationError, match=said):
        await late.open()
    with refused("store_misconfigured"):
        await status_in(TimeoutStore(working, seconds=10), session())
    assert "give another schema" in caplog.text


# --- faults --------------------------------------------------------------------------------------


async def test_a_call_waits_for_a_server_that_is_started(make_store: Make, harmed: Server) -> None:
    """It is answered as soon as the server is back, if that is in its time."""
    store = make_store(harmed, timeout=60)
    await store.open()
    harmed.stop()
    with refused("store_unreachable"):
        await status_in(make_store(harmed, timeout=0.3), session())
    with anyio.fail_after(30):
        status, _ = await at_once(
            [partial(status_in, store, session()), partial(anyio.to_thread.run_sync, harmed.start)]
        )
    assert status is SessionStatus.LIVE


async def test_what_a_change_prolongs_while_it_is_swept_stays(
    make_store: Make, schema: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep looks for what has expired, and deletes what still has."""
    store, place = make_store(timeout=10), namespace(session())
    store._swept_at = START  # so that no other sweep looks at it
    await store.write(place, "k", b"1")
    clock.now = place.expires_at + DAY
    execute = store._execute

    async def prolonging(statements: Any, connection: Any) -> Any:
        rows = await execute(statements, connection)
        if statements[0][0] is sql.EXPIRED:
            postgres_servers.shared().execute(f"UPDATE {schema}.sessions SET expires_at = expires_at + {9 * DAY}")
        return rows

    monkeypatch.setattr(store, "_execute", prolonging)
    await store._sweep()
    assert await store.read(place, "k") == b"1"


async def test_purge_waits_for_a_change_of_the_session(make_store: Make, schema: str) -> None:
    """Or what it adds meanwhile would stay, and count, without a session."""
    store, place, server = make_store(timeout=20), namespace(session()), postgres_servers.shared()
    await register(store, session())
    await revoke(store, session())
    with psycopg.connect(server.url, options=f"-c search_path={schema}") as other:
        other.execute("UPDATE sessions SET account = 'alice', bytes = 201 WHERE ref = %s", (place.owner,))
        other.execute("INSERT INTO items (owner, key, value) VALUES (%s, 'k', '1')", (place.owner,))
        other.execute("INSERT INTO amounts VALUES ('data alice', 0, 0, 201)")
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        async with anyio.create_task_group() as group:
            group.start_soon(store.purge, place.owner)
            while not server.execute(waits, "%sessions%ref IN%"):
                await anyio.lowlevel.checkpoint()
            other.commit()
    assert server.execute(f"SELECT * FROM {schema}.items") == []
    found = server.execute(f"SELECT sum(amount) FROM {schema}.amounts WHERE name = 'data alice'")
    assert found == [(0,)]


PLANNED = {sql.CLAIM_DUE, sql.CLAIM_IDLE, sql.CLAIMED, sql.EXPIRED, sql.COUNT, *sql.SWEEP[-2:]}


async def test_claiming_sweeping_and_counting_read_no_live_sessions(
    make_store: Make, schema: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index finds what has expired, however many sessions live; what is counted is never counted again."""
    store, server, asked = make_store(), postgres_servers.shared(), list[tuple[str, Any]]()
    await store.open()
    clock.now += 0.5
    row = f"'ses_' || n, '{AUDIENCE}', '{ALICE}', {START}, {START} + n, {START}, 0"
    columns = "ref, audience, subject, created_at, expires_at, seen_at, part"
    server.execute(f"INSERT INTO {schema}.sessions ({columns}) SELECT {row} FROM generate_series(100, 20000) AS n")
    server.execute(f"INSERT INTO {schema}.amounts SELECT 'data ' || n, 0, 0, 1 FROM generate_series(1, 20000) AS n")
    server.execute(f"ANALYZE {schema}.sessions, {schema}.amounts")
    execute = store._execute

    async def noted(statements: Any, connection: Any) -> Any:
        asked.extend(statements)
        return await execute(statements, connection)

    monkeypatch.setattr(store, "_execute", noted)
    assert await claim(store, idle_timeout=HOUR) == []
    await store.count(audience=AUDIENCE)
    await store.close()  # once it has swept
    with psycopg.connect(server.url, options=f"-c search_path={schema} -c enable_sort=off") as connection:
        for text, values in asked:
            if text in PLANNED:
                plan = connection.execute(b"EXPLAIN " + postgres._render(text), values).fetchall()
                lines = "\n".join(line for (line,) in plan)
                assert not re.search("Seq Scan on (sessions|amounts)", lines), lines
                assert not re.search(r"Filter: \(+expires_at\)::double", lines), lines
    assert {text for text, _ in asked} >= PLANNED


async def test_a_change_whose_reply_was_lost_is_not_made_twice(
    make_store: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum is then unknown; a revocation, made again, still knows that it was this call that ended the session."""
    store = make_store()
    await store.open()
    execute, losing = store._execute, [1]
    store._swept_at = START  # so that no sweep loses it instead

    async def lose(statements: Any, connection: Any) -> Any:
        result = await execute(statements, connection)
        if losing:
            losing.clear()
            await connection.close()
            raise psycopg.OperationalError("the connection is lost")
        return result

    monkeypatch.setattr(store, "_execute", lose)
    assert [await revoke(store, session()) for _ in range(2)] == [True, False]
    losing.append(1)
    with refused("store_unreachable"):
        await store.add(namespace(session("b")), "n", 1)
    assert await store.add(namespace(session("b")), "n", 1) == 2


async def test_a_full_server_costs_a_wait_for_another_call_s_connection() -> None:
    """Forty calls, of which the server lets few connect, are all answered. With its defaults it is durable."""
    with serving(max_connections=8, superuser_reserved_connections=2) as server:
        server.execute("CREATE ROLE guest LOGIN")
        server.execute("CREATE SCHEMA guests AUTHORIZATION guest")
        store = PostgresStore(f"{server.url}&user=guest", schema="guests", durability="refuse", timeout=20)
        await at_once([partial(revoke, store, session(f"{n}")) for n in range(40)])
        held = [psycopg.connect(server.url) for _ in range(2)]  # as many as are reserved for it
        found = await at_once([partial(status_in, store, session(f"{n}")) for n in range(40)])
        assert found == [SessionStatus.ENDED] * 40
        for connection in held:
            connection.close()
        await store.close()


async def test_a_call_takes_a_connection_that_another_gives_back(
    make_store: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for a further one, which takes long to make if the worker is busy."""
    store = make_store(timeout=30)
    await store.open()

    async def never(*_: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(store._pool, "_connect", never)
    found = await at_once([partial(status_in, store, session(f"{n}")) for n in range(20)])
    assert found == [SessionStatus.LIVE] * 20


async def test_a_sweep_that_fails_is_logged(make_store: Make, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """It gets no other chance for a minute, and nobody waits for it."""
    store = make_store()
    await store.open()
    postgres_servers.shared().execute(f"ALTER TABLE {schema}.cutoffs RENAME COLUMN expires_at TO ends")
    await revoke(store, session())
    await store.close()
    assert "expired sessions were not deleted from the store yet (store_error)" in caplog.messages


async def test_a_caller_that_gives_up_is_free_at_once(make_store: Make, schema: str) -> None:
    """Its change is made or not, whole; a change that never gets its turn is given up by the server."""
    store = make_store(connections=2, timeout=1)
    await store.write(namespace(session()), "k", b"1")
    with psycopg.connect(postgres_servers.shared().url) as other:
        other.execute(f"LOCK TABLE {schema}.items")
        with anyio.move_on_after(0.05) as scope:
            await at_once([partial(store.write, namespace(session()), "k", b"2")] * 5)
        assert scope.cancelled_caught
        with refused("store_timeout"):
            await store.write(namespace(session()), "k", b"3")
    assert await store.read(namespace(session()), "k") in {b"1", b"2"}


def test_a_store_serves_one_event_loop_after_another(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own connections, closed or not, and so has a forked process."""
    store = PostgresStore(postgres_servers.shared().url, schema=schema, clock=Clock(), durability="ignore", timeout=5)
    anyio.run(revoke, store, session("parent"))
    child = multiprocessing.get_context("fork").Process(target=anyio.run, args=(revoke, store, session("child")))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    ended = anyio.run(partial(statuses_in, store, [session("parent"), session("child")]))
    assert ended == [SessionStatus.ENDED] * 2
    (kept,) = store._pool._loops  # those of the loops before were closed
    monkeypatch.setattr(os, "getpid", lambda: 0)  # as in the child, whose coverage ends with it
    anyio.run(use_and_close, store)
    assert [*store._pool._loops] == [kept]
    monkeypatch.undo()
    anyio.run(use_and_close, store)
    assert not store._pool._loops


async def use_and_close(store: PostgresStore) -> None:
    assert await status_in(store, session("child")) is SessionStatus.ENDED
    await store.close()


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_trio_is_refused_at_first_use(make_store: Make) -> None:
    with pytest.raises(ConfigurationError, match="runs on asyncio alone; serve with asyncio"):
        await make_store().open()


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server((HOST, 0)) as server:
        yield f"postgresql://u@{HOST}:{server.getsockname()[1]}/d"


async def test_a_slow_connection_is_named_and_goes_on(silent: str) -> None:
    """Each call has its time; a database that wakes up is connected to meanwhile."""
    store = PostgresStore(silent, timeout=0.2)
    with pytest.raises(StoreUnavailable) as caught:
        await status_in(store, session())
    assert "connecting takes longer than Limits.store_timeout (0.2 s)" in caught.value.cause
    (mine,) = store._pool._loops.values()
    assert mine.connecting is not None
    await store.close()


def test_a_process_ends_though_a_server_does_not_answer(silent: str) -> None:
    """Also if nobody closes the store."""
    program = f"import anyio; from mcp_sessions.stores import PostgresStore; store = PostgresStore({silent!r})\n"
    program += "async def main():\n  try: await store.count(audience='a')\n  except Exception as error: print(error)\n"
    ended = subprocess.run([sys.executable, "-c", program + "anyio.run(main)"], timeout=30, check=True)
    assert ended.returncode == 0


async def test_tls_is_a_matter_of_the_url(make_store: Make, caplog: pytest.LogCaptureFixture) -> None:
    """The server's certificate is verified; one that is not trusted is a fault that says so."""
    with serving(tls=True, **DOES_NO_HARM) as server:
        base = f"postgresql://postgres@{HOST}:{server.port}/postgres?sslmode=verify-full&sslrootcert="
        trusting = PostgresStore(f"{base}{server.authority}", durability="ignore")
        await trusting.open()
        assert await revoke(trusting, session()) is True
        await trusting.close()
        wary = TimeoutStore(PostgresStore(f"{base}system", durability="ignore"), seconds=10)
        with refused("store_tls"):
            await wary.open()
    where = f"PostgreSQL at {HOST}:{server.port}/postgres"
    assert f"session store unavailable (store_tls): {where}: TLS: the certificate" in caplog.text


async def test_a_server_that_may_forget_is_named(make_store: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Once, unless that is ignored, or it is refused. That commits wait for the disk is set where it is not."""
    for durability, logged in (("ignore", 0), ("warn", 1)):
        store = make_store(durability=durability)
        await at_once([partial(status_in, store, session())] * 5)
        assert sum(text.startswith("PostgreSQL runs with fsync or") for text in caplog.messages) == logged
        assert await store._change(("SHOW synchronous_commit", {})) == [[("on",)]]
    with pytest.raises(ConfigurationError, match="PostgreSQL runs with fsync"):
        await make_store(durability="refuse").open()


ROLES = {
    "without a schema": ("user={}", "may not create or change .* CREATE SCHEMA {} AUTHORIZATION", "store_forbidden"),
    "unknown": ("user=mallory", "user in the store's URL does not exist: CREATE ROLE", "store_forbidden"),
    "in no database": ("dbname=nowhere", "database in the store's URL does not exist: CREATE", "store_no_database"),
}


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_without_access_learns_the_remedy(role: str, schema: str) -> None:
    """At start, the server is not started; a request gets an answer that it may try again."""
    server = postgres_servers.shared()
    server.execute(f"CREATE ROLE {schema} LOGIN")
    option, remedy, reason = (text.format(schema) for text in ROLES[role])
    store = PostgresStore(f"{server.url}&{option}", schema=schema, durability="ignore", timeout=5)
    with pytest.raises(ConfigurationError, match=remedy):
        await store.open()
    with refused(reason):
        await status_in(store, session())
    server.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {schema}")
    if role == "without a schema":
        await store.open()
    await store.close()


async def test_a_standby_is_not_asked(make_store: Make, harmed: Server) -> None:
    """It would answer from the past, so a URL that names one alone is refused until it is promoted."""
    harmed.stop()
    (harmed.folder / "data" / "standby.signal").touch()
    harmed.start()
    store = make_store(harmed)
    with refused("store_readonly"):
        await store.open()
    with refused("store_readonly"):
        await PostgresStore(f"{harmed.url}&target_session_attrs=any", durability="ignore").open()
    harmed.execute("SELECT pg_promote()")
    await store.open()


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (errors.DiskFull(), "store_full_disk", "the disk of the database is full"),
        (errors.DivisionByZero(), "store_error", "SQLSTATE 22012 (DivisionByZero)"),
        (errors.InsufficientPrivilege(), "store_forbidden", "CREATE SCHEMA shop AUTHORIZATION"),
        (errors.TooManyConnections(), "store_too_many_connections", "raise max_connections"),
        (OperationalError("FATAL: the database system is starting up"), "store_restarting", "it starts or stops"),
        (OperationalError("FATAL: password authentication failed for u"), "store_forbidden", "password .* is wrong"),
        (OperationalError("FATAL: no pg_hba.conf entry for host"), "store_forbidden", "add a line to its pg_hba.conf"),
        (OperationalError("connection refused"), "store_unreachable", "is it running"),
    ],
)
def test_each_fault_has_a_reason_and_a_remedy(error: Exception, reason: str, words: str) -> None:
    """By its code, or by the words of those that come before a connection; the driver's own words stay in it."""
    with pytest.raises(StoreUnavailable) as caught, named_faults("shop"):
        raise error
    assert caught.value.reason == reason
    assert isinstance(caught.value, StoreFull) is (reason == "store_full_disk")
    assert re.search(words.replace("(", r"\(").replace(")", r"\)"), caught.value.cause)

"""The store of one machine: what it takes, what it survives, and what it never does while others wait."""

import gc
import itertools
import multiprocessing
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent import futures
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio.abc import TaskGroup
from every_store import memory_folder

from mcp_sessions._errors import DataGone, MCPSessionsError, StoreFull, StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions.stores import _sqlite as sqlite
from mcp_sessions.stores import _sqlite_file as sqlite_file
from mcp_sessions.stores._base import Record, SessionStatus
from mcp_sessions.stores._sqlite import SQLiteStore
from mcp_sessions.testing._contract import (
    LATER,
    START,
    Clock,
    at_once,
    namespace,
    revoke,
    session,
    status_in,
    statuses_in,
    touch_in,
)

PATIENCE = 120  # seconds until a test fails that would wait for ever


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_folder() as folder:
        yield Path(folder, "sessions.db")


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    made = SQLiteStore(path, clock=clock)
    yield made
    await made.close()


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program's connection to the file."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        yield connection


async def outcome(call: Callable[[], Awaitable[Any]]) -> Any:
    """What a call returns, or the error that it raises."""
    try:
        return await call()
    except MCPSessionsError as error:
        return error


class Work:
    """Holds up the thread of a store until it is released."""

    def __init__(self) -> None:
        self.begun, self.released, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.released.wait(PATIENCE)
        self.ended.set()

    async def begin(self, group: TaskGroup, store: SQLiteStore) -> None:
        group.start_soon(store._run, self)
        assert await anyio.to_thread.run_sync(self.begun.wait, PATIENCE)


# --- what came before ----------------------------------------------------------------------------


# --- locks and giving up -------------------------------------------------------------------------


async def test_a_locked_file_is_told_and_then_used(path: Path, clock: Clock, other: sqlite3.Connection) -> None:
    """Reads go on meanwhile; when the lock is gone, so do changes, with no restart."""
    store = SQLiteStore(path, busy_timeout=1, clock=clock)
    await store.open()
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable) as caught:
        await revoke(store, session())
    assert caught.value.reason == "store_locked"
    assert await status_in(store, session()) is SessionStatus.LIVE
    await store.open()  # of one that is open, as for each new session, nothing is asked
    with pytest.raises(StoreUnavailable) as caught:  # which is no reason not to start
        await SQLiteStore(path, busy_timeout=0.1, clock=clock).open()
    assert caught.value.reason == "store_locked"
    other.execute("ROLLBACK")
    assert await revoke(store, session()) is True
    await store.close()


async def test_reads_do_not_wait_for_a_change_that_waits(store: SQLiteStore, other: sqlite3.Connection) -> None:
    """Nor do the changes of who gave up stand in the way of others."""
    await store.open()
    other.execute("BEGIN IMMEDIATE")
    async with anyio.create_task_group() as group:
        for n in range(10):
            group.start_soon(revoke, store, session(f"s{n}"))
        for _ in range(10):
            await status_in(store, session())
        group.cancel_scope.cancel()
    other.execute("ROLLBACK")
    assert await revoke(store, session("next")) is True
    ended = await statuses_in(store, [session(f"s{n}") for n in range(10)])
    assert ended.count(SessionStatus.LIVE) >= 9  # the one that had begun may be done


async def test_a_session_that_ends_while_its_use_is_noted_has_ended(
    store: SQLiteStore, clock: Clock, other: sqlite3.Connection
) -> None:
    """It was alive when it was looked at; the note is written only if it is still so."""
    a = session()
    await store.open()
    await store.register(Record(a.ref, None, START, LATER, START))
    clock.now = START + 100
    other.execute("BEGIN IMMEDIATE")

    async def end() -> None:
        for _ in range(20):  # by then it waits for the lock; were it slower, the test would hold all the same
            await status_in(store, a)
        other.execute("UPDATE sessions SET reason = 'deleted' WHERE ref = ?", (a.ref,))
        other.execute("COMMIT")

    assert (await at_once([partial(touch_in, store, a, idle_timeout=None), end]))[0] is SessionStatus.ENDED


async def test_a_store_can_be_closed_at_any_time(store: SQLiteStore) -> None:
    """By one that is told to hurry and does not wait, and by several at once; and it can be used after that."""
    await store.open()
    thread = store._thread
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.close()
    assert store._thread is not thread
    await at_once([store.close] * 3)
    assert await status_in(store, session()) is SessionStatus.LIVE


# --- forgetting ----------------------------------------------------------------------------------


async def test_opening_sweeps_all_that_is_over(path: Path, clock: Clock) -> None:
    """However much it is, in small steps."""
    store = SQLiteStore(path, clock=clock)
    await store.open()
    with closing(sqlite3.connect(path)) as connection, connection:
        over = [(f"r{n}", START - 60 - n) for n in range(1000)]
        connection.executemany("INSERT INTO sessions (ref, expires_at, part, reason) VALUES (?, ?, 0, 'x')", over)
    await revoke(store, session())
    await store.close()
    await store.open()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sessions WHERE ref <> ''").fetchone() == (1,)
    await store.close()


async def test_a_file_that_lost_its_epoch_vouches_for_nothing(store: SQLiteStore, other: sqlite3.Connection) -> None:
    """A table that lost a row is no reason to let every session in."""
    await store.open()
    other.execute("DELETE FROM store")
    assert await status_in(store, session(issued_at=START)) is SessionStatus.UNKNOWN


# --- threads -------------------------------------------------------------------------------------


async def test_without_opentelemetry_there_is_nothing_to_suppress(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not imported for that."""
    monkeypatch.delitem(sys.modules, "opentelemetry.context", raising=False)
    assert await revoke(store, session()) is True
    assert "opentelemetry.context" not in sys.modules


@pytest.mark.parametrize("ends", ["closed", "let go"])
async def test_a_store_has_one_thread_which_ends_with_it(path: Path, clock: Clock, ends: str) -> None:
    """However many ask at once. Its connections are closed there, so the log goes."""
    store, before = SQLiteStore(path, clock=clock), set(threading.enumerate())
    await at_once([partial(store.count, audience=AUDIENCE), *(partial(revoke, store, session(name)) for name in "abc")])
    started = set(threading.enumerate()) - before
    (thread,) = (one for one in started if one.name.startswith("mcp-sessions-sqlite"))
    if ends == "closed":
        await store.close()
    del store
    gc.collect()
    await anyio.to_thread.run_sync(thread.join, PATIENCE)
    assert not thread.is_alive()
    assert not await anyio.Path(f"{path}-wal").exists()


async def test_a_store_does_not_wait_for_the_file_of_another(
    path: Path, other: sqlite3.Connection, clock: Clock
) -> None:
    """One process may have several, such as two servers with a file each."""
    waits, free = (SQLiteStore(at, busy_timeout=20, clock=clock) for at in (path, path.with_name("free.db")))
    for each in (waits, free):
        await each.open()
    other.execute("BEGIN IMMEDIATE")
    async with anyio.create_task_group() as group:
        group.start_soon(revoke, waits, session())
        for _ in range(20):  # by then it waits for the lock; were it slower, the test would hold all the same
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(10):
            assert await revoke(free, session()) is True
        other.execute("ROLLBACK")
    for each in (waits, free):
        await each.close()


class Looked(deque[Any]):
    """Changes that wait. Who looks at the first one, in the event loop, is held up until the thread is through."""

    def __init__(self) -> None:
        super().__init__()
        self.is_drained, self.is_looked_at = threading.Event(), threading.Event()

    def __len__(self) -> int:
        if threading.current_thread() is not threading.main_thread():
            self.is_drained.set()
            self.is_looked_at.wait(PATIENCE)
        return super().__len__()

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.is_looked_at.set()
        futures.wait([found.future], 0.5)
        time.sleep(0.05)  # in which the thread takes none
        return found


async def test_a_change_that_comes_as_the_last_one_is_taken_is_not_left_alone(store: SQLiteStore) -> None:
    """It finds one that waits, and relies on the thread that takes that one to take both."""
    waiting = store._waiting = Looked()
    async with anyio.create_task_group() as group:
        group.start_soon(revoke, store, session("one"))
        while not waiting.is_drained.is_set():
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(30):
            await revoke(store, session("other"))


def test_one_store_serves_several_event_loops(path: Path, anyio_backend: str) -> None:
    """One after the other, of both kinds; one that ends meanwhile is let go, though what had begun there runs on."""
    store, work = SQLiteStore(path, clock=Clock()), Work()
    for n, backend in enumerate(("asyncio", "trio")):
        assert anyio.run(revoke, store, session(f"{n}"), backend=backend) is True

    async def give_up() -> None:
        async with anyio.create_task_group() as group:
            await work.begin(group, store)
            group.cancel_scope.cancel()

    anyio.run(give_up, backend=anyio_backend)
    work.released.set()
    assert anyio.run(revoke, store, session(), backend=anyio_backend) is True
    assert work.ended.is_set()
    anyio.run(store.close, backend=anyio_backend)


async def test_what_a_fork_inherits_is_not_touched(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new process has threads and connections of its own; one that was never used has nothing to leave."""
    await revoke(store, session())
    connections: list[sqlite3.Connection | None] = []
    monkeypatch.setattr(sqlite_file, "_abandoned", connections)
    monkeypatch.setattr(sqlite, "_stores", {store, SQLiteStore(path)})
    before = store._thread
    sqlite._before_fork()
    sqlite._after_fork(is_child=True)
    inherited = [one for one in connections if one is not None]
    assert len(inherited) == 2
    assert await status_in(store, session()) is SessionStatus.ENDED
    assert await revoke(store, session()) is False
    assert store._thread is not before
    before.shutdown()
    for connection in inherited:
        connection.close()  # here no other process has them


async def test_a_fork_waits_for_what_is_at_work(store: SQLiteStore) -> None:
    """Else the child would inherit a file that is half changed; the parent goes on."""
    work, forking = Work(), threading.Thread(target=store._before_fork)
    async with anyio.create_task_group() as group:
        await work.begin(group, store)
        forking.start()
        forking.join(0.1)
        waits = forking.is_alive()
        work.released.set()
    forking.join(PATIENCE)
    store._after_fork(is_child=False)
    assert waits
    assert await revoke(store, session()) is True


async def count(store: SQLiteStore) -> None:
    """Add 1 by swaps, three times in each of four tasks."""

    async def swaps() -> None:
        for _ in range(3):
            swapped = False
            while not swapped:
                old = await store.read(namespace(session()), "n")
                swapped = await store.compare_and_swap(namespace(session()), "n", old, b"%d" % (int(old or 0) + 1))

    await at_once([swaps] * 4)
    await store.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # since Python 3.12
def test_processes_that_are_forked_amid_changes_share_a_file(path: Path) -> None:
    """They inherit no lock, whatever another thread is at, and nothing is lost, though all begin on a new file."""
    store, counted = SQLiteStore(path, busy_timeout=PATIENCE, clock=Clock()), threading.Event()

    async def work() -> None:
        for n in itertools.count():
            await at_once([partial(revoke, store, session(f"{n}-{one}")) for one in range(50)])
            if counted.is_set():
                return

    worker = threading.Thread(target=anyio.run, args=(work,))
    worker.start()
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=anyio.run, args=(count, store)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join(PATIENCE)
    counted.set()
    worker.join()
    assert [child.exitcode for child in children] == [0] * 8
    assert anyio.run(store.read, namespace(session()), "n") == b"96"
    anyio.run(store.close)


# --- in groups ------------------------------------------------------------------------------------


async def test_a_change_that_fails_fails_alone(store: SQLiteStore) -> None:
    """What was asked for in the same moment is committed with the others', and each hears of its own outcome."""
    alive, ended = (namespace(session(name)) for name in "ab")
    await revoke(store, session("b"))
    calls = [partial(outcome, partial(store.add, one, "n", 1)) for one in (alive, ended, alive, ended, alive)]
    found = await at_once(calls)
    assert [type(one) for one in found] == [int, DataGone, int, DataGone, int]
    assert await store.read(alive, "n") == b"3"


async def test_what_there_is_room_for_is_kept_beside_what_there_is_none_for(path: Path, clock: Clock) -> None:
    """Though both were asked for in the same moment."""
    store = SQLiteStore(path, max_bytes=1 << 18, clock=clock)
    places = [namespace(session(name), max_bytes=1 << 20) for name in "abc"]
    sizes = zip(places, (1000, 500_000, 1000), strict=True)
    found = await at_once([partial(outcome, partial(store.write, at, "k", b"1" * size)) for at, size in sizes])
    assert [type(one) for one in found] == [type(None), StoreFull, type(None)]
    assert [len(await store.read(at, "k") or b"") for at in places] == [1000, 0, 1000]
    await store.close()


async def test_all_that_wait_for_a_broken_file_are_refused(path: Path, clock: Clock) -> None:
    """Each with an error of its own."""
    await anyio.Path(path).write_bytes(b"no database" * 1000)
    store = SQLiteStore(path, clock=clock)
    errors = await at_once([partial(outcome, partial(revoke, store, session(name))) for name in "abc"])
    assert [error.reason for error in errors] == ["store_corrupt"] * 3
    assert len(set(map(id, errors))) == 3
    await store.close()

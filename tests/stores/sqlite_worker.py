"""A process that uses a SQLite store together with others, for `test_sqlite.py`.

python sqlite_worker.py count PATH    four processes add to one number by swaps, three times in each of four tasks
python sqlite_worker.py fork PATH     uses one store in children, while its thread changes the file, and after it
python sqlite_worker.py fill FOLDER   fills the disk, and prints what was refused and what was kept
"""

import multiprocessing
import sys
import threading
from functools import partial
from pathlib import Path

import anyio

from mcp_sessions._errors import StoreFull
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores._base import Record, Store
from mcp_sessions.stores._sqlite import SQLiteStore
from mcp_sessions.testing import _contract as contract

FOREVER = 2_000_000_000
SHELF = Namespace("ses_shared", FOREVER, 10_000)
fork_context = multiprocessing.get_context("fork")
session = partial(contract.session, issued_at=FOREVER - 1, expires_at=FOREVER)


async def revoke(store: Store, name: str) -> bool:
    return await contract.revoke(store, session(name))


def count(path: str) -> None:
    """All processes at once, and how they ended."""
    started = [fork_context.Process(target=anyio.run, args=(count_in, path)) for _ in range(4)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    print(*(process.exitcode for process in started), anyio.run(SQLiteStore(path).read, SHELF, "n"))


async def count_in(path: str) -> None:
    store = SQLiteStore(path, busy_timeout=60)

    async def swaps() -> None:
        for _ in range(3):
            swapped = False
            while not swapped:
                old = await store.read(SHELF, "n")
                swapped = await store.compare_and_swap(SHELF, "n", old, b"%d" % (int(old or 0) + 1))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(swaps)
    await store.close()


def fork(path: str) -> None:
    """Fork at any moment of a store's work on another thread: each child changes the file, and so does the parent."""
    store, names = SQLiteStore(path), [f"child-{number}" for number in range(20)]
    working, forked = threading.Event(), threading.Event()

    async def work() -> None:
        for number in range(1000):
            async with anyio.create_task_group() as group:
                for one in range(50):
                    group.start_soon(revoke, store, f"{number}-{one}")
                    group.start_soon(store.status, session(f"{number}-{one}"))
            working.set()
            if forked.is_set():
                return

    worker = threading.Thread(target=anyio.run, args=(work,))
    worker.start()
    working.wait()  # with all that it imports
    children = [fork_context.Process(target=anyio.run, args=(revoke, store, name)) for name in names]
    for child in children:
        child.start()
    forked.set()
    worker.join()
    for child in children:
        child.join()
    statuses = anyio.run(store.statuses, [session(name) for name in names])
    anyio.run(store.close)
    print(*{child.exitcode for child in children}, *set(statuses))


def fill(folder: str) -> None:
    anyio.run(fill_disk, Path(folder))


async def fill_disk(folder: Path) -> None:
    store, ballast = SQLiteStore(folder / "sessions.db"), folder / "ballast"
    await revoke(store, "kept")
    try:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
    except OSError as error:
        print(error.strerror)
    try:
        for number in range(1000):
            ends, name = FOREVER - 50, f"ses_{number}"
            await store.register(Record(name, "alice", FOREVER - 100, ends, FOREVER - 100))
            await store.write(Namespace(name, ends, 100_000), "k", b"1" * 20_000)
    except StoreFull as full:
        print(full.reason)
    print(await store.status(session("kept")))
    ballast.unlink()
    await revoke(store, "later")
    print(await store.status(session("later")))
    await store.close()


if __name__ == "__main__":
    {"count": count, "fork": fork, "fill": fill}[sys.argv[1]](sys.argv[2])

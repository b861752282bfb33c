"""A process that uses a SQLite store together with others, for `test_sqlite.py`.

python sqlite_worker.py count PATH NUMBER TASKS TIMES    so many processes add TIMES to a number by swaps, in each task
python sqlite_worker.py fork PATH TIMES      uses one store in children, while its thread changes the file, and after it
python sqlite_worker.py fill FOLDER          fills the disk, and prints what was refused and what was kept
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from mcp_sessions._errors import StoreFull
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores._base import Record, Store
from mcp_sessions.stores._sqlite import SQLiteStore
from mcp_sessions.testing import _contract as contract

FOREVER = 2_000_000_000
SHELF = Namespace("ses_shared", FOREVER, 10_000)


session = partial(contract.session, issued_at=FOREVER - 1, expires_at=FOREVER)


async def revoke(store: Store, name: str) -> bool:
    return await contract.revoke(store, session(name))


def count(path: str, number: str, tasks: str, times: str) -> None:
    """All processes at once, and how each ended."""
    started = []
    for _ in range(int(number)):
        process = os.fork()
        if process == 0:
            anyio.run(count_in, path, tasks, times)
            sys.exit()
        started.append(process)
    print(*(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started))


async def count_in(path: str, tasks: str, times: str) -> None:
    store = SQLiteStore(path, busy_timeout=60)

    async def swaps() -> None:
        for _ in range(int(times)):
            swapped = False
            while not swapped:
                old = await store.read(SHELF, "n")
                swapped = await store.compare_and_swap(SHELF, "n", old, b"%d" % (int(old or 0) + 1))

    async with anyio.create_task_group() as group:
        for _ in range(int(tasks)):
            group.start_soon(swaps)
    await store.close()


def fork(path: str, times: str) -> None:
    """Fork at any moment of a store's work on another thread: each child changes the file, and so does the parent."""
    store, names = SQLiteStore(path), [f"child-{number}" for number in range(int(times))]

    async def work() -> None:
        for number in range(1000):
            async with anyio.create_task_group() as group:
                for one in range(50):
                    group.start_soon(revoke, store, f"{number}-{one}")
                    group.start_soon(store.status, session(f"{number}-{one}"))
            working.set()
            if forked.is_set():
                return

    working, forked = threading.Event(), threading.Event()
    worker = threading.Thread(target=anyio.run, args=(work,))
    worker.start()
    working.wait()  # with all that it imports
    children = [
        multiprocessing.get_context("fork").Process(target=anyio.run, args=(revoke, store, name)) for name in names
    ]
    for child in children:
        child.start()
    forked.set()
    worker.join()
    for child in children:
        child.join()
    standings = anyio.run(store.statuses, [session(name) for name in names])
    anyio.run(store.close)
    print(*{child.exitcode for child in children}, *set(standings))


async def refused(store: Store) -> list[str]:
    """Record sessions, each with data, until there is no room."""
    names: list[str] = []
    try:
        while True:
            ends, name = FOREVER - 50, f"ses_{len(names)}"
            await store.register(Record(name, "alice", FOREVER - 100, ends, FOREVER - 100))
            names.append(name)
            await store.write(Namespace(name, ends, 100_000), "k", b"1" * 20_000)
    except StoreFull as full:
        print(full.reason)
    return names


async def fill(folder: str) -> None:
    store = SQLiteStore(f"{folder}/sessions.db")
    await revoke(store, "kept")
    ballast = Path(folder, "ballast")
    fill_disk(ballast)
    await refused(store)
    print(await store.status(session("kept")))
    await anyio.Path(ballast).unlink()
    await revoke(store, "later")
    print(await store.status(session("later")))
    await store.close()


def fill_disk(ballast: Path) -> None:
    try:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
    except OSError as error:
        print(error.strerror)


MODES: dict[str, Any] = {
    "count": count,
    "fork": fork,
    "fill": lambda folder: anyio.run(fill, folder),
}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])

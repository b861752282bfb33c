"""Crash trials: a worker or its store is killed with signal 9 in mid-change, and what was acknowledged still holds.

`python -m tests.tools.crash` kills, starts again and looks, cycle after cycle; the exit status is 1 after a loss. A
worker prints a line before each change and one after the store has answered it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("", "support")]  # as pytest finds the modules

import anyio
import postgres_servers
import redis_servers

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions._session.data import Data, Namespace
from mcp_sessions.stores import make
from mcp_sessions.stores._base import Record, SessionStatus, Store
from mcp_sessions.testing._contract import statuses_in

TASKS: Final = 4  # of a worker
DAY: Final = 24 * 3600  # seconds
LEASE: Final = 1.0  # seconds
Server = redis_servers.Server | postgres_servers.Server
Place = tuple[str, Server | None]  # the URL of a store, and the server that can be killed


def session(name: str, issued_at: int) -> Claims:
    """Return a session by a name that no other has."""
    names = {"issuer": AUDIENCE, "audience": AUDIENCE, "jti": name}
    return Claims(kind="session", issued_at=issued_at, expires_at=issued_at + DAY, **names)


def data(store: Store, issued_at: int) -> Data:
    """Return the data in which every worker counts."""
    counted = session("counted", issued_at)
    return Data(store, Namespace(counted.ref, counted.expires_at, 1 << 16), clock=time.time, max_value_bytes=1 << 10)


# --- the worker ----------------------------------------------------------------------------------


async def work(url: str, name: str, issued_at: int) -> None:
    """Do what others left, and then change after change, until killed or cut off from the store."""
    store = make(url, clock=time.time, timeout=10)
    await store.open()

    async def on_end(ref: str) -> None:
        say("on_end", ref)
        await store.purge(ref)

    async def change(task: int) -> None:
        for turn in count():
            one, now = session(f"{name}-{task}-{turn}", issued_at), int(time.time())
            await store.register(Record(one.ref, None, now, now + DAY, now))
            say("deleting", one.jti)
            await store.revoke(Record.of(one), reason="deleted", lease=LEASE)
            say("deleted", one.jti)
            await on_end(one.ref)
            say("adding", one.jti)
            say("added", await data(store, issued_at).increment("n"))

    async def until_cut_off(act: Callable[..., Awaitable[None]], *of: object) -> None:
        with suppress(StoreUnavailable):  # the server was killed; what was under way was not answered
            await act(*of)

    async def finish_others() -> None:
        for ended in await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=LEASE, limit=100):
            await on_end(ended.record.ref)

    await until_cut_off(finish_others)
    async with anyio.create_task_group() as tasks:
        for task in range(TASKS):
            tasks.start_soon(until_cut_off, change, task)


def say(what: str, of: object) -> None:
    """Print at once: no buffer of this process holds it back."""
    os.write(1, f"{what} {of}\n".encode())


# --- the stores ----------------------------------------------------------------------------------


STORES: Final = ("sqlite", "redis", "postgres")


@contextmanager
def place(store: str) -> Iterator[Place]:
    """Make a store's place within the block."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="mcp-sessions-crash-") as folder:
            yield f"sqlite:{folder}/sessions.db", None
    elif store == "redis":
        with redis_servers.serving(appendonly="yes", appendfsync="always") as redis:
            yield redis.url, redis
    else:
        with postgres_servers.serving() as postgres:
            yield postgres.url, postgres


# --- the trial -----------------------------------------------------------------------------------


class Trial:
    """All cycles on one store, and what they showed: `counts` to print, and `problems`."""

    def __init__(self, place: Place, chance: random.Random) -> None:
        self.url, self.server = place
        self.chance = chance
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.said: dict[str, list[str]] = {word: [] for word in ("deleting", "deleted", "adding", "added", "on_end")}

    def run(self, cycles: int) -> Trial:
        """Kill so often, and look each time."""
        anyio.run(self._begin)
        for cycle in range(cycles):
            self._kill(str(cycle), self.server if cycle % 2 == 0 else None)
            anyio.run(self._look)
        anyio.run(self._finish)
        return self

    async def _begin(self) -> None:
        """Make the store, which vouches for no session that was issued before."""
        async with opened(self.url):
            self.issued_at = int(time.time()) + 1

    def _kill(self, name: str, server: Server | None) -> None:
        """Start a worker, and kill the server or else the worker, some time after its first update was acknowledged."""
        command = [sys.executable, __file__, "--work", self.url, name, str(self.issued_at)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            lines = b""
            for line in worker.stdout:
                lines += line
                if line.startswith(b"added"):
                    break
            time.sleep(self.chance.uniform(0, 0.2))
            worker.kill() if server is None else server.kill9()
            lines += worker.stdout.read()
        assert worker.returncode == (-signal.SIGKILL if server is None else 0)
        if server is not None:
            server.start()
        self.counts[f"kills of the {'worker' if server is None else 'server'}"] += 1
        for word, of in re.findall(r"^(\w+) (.+)\n", lines.decode(), re.MULTILINE):
            self.said[word].append(of)

    async def _look(self) -> None:
        """See that a fresh worker finds every acknowledged change, and nothing that nobody began."""
        async with opened(self.url) as store:
            began, deleted = self.said["deleting"], {*self.said["deleted"]}
            statuses = await statuses_in(store, [session(name, self.issued_at) for name in (*began, "untouched")])
            number = await data(store, self.issued_at).get("n", 0)
        ended = {name for name, status in zip(began, statuses, strict=False) if status is SessionStatus.ENDED}
        added = [int(text) for text in self.said["added"]]
        self.counts["deletes acknowledged"] = len(deleted)
        self.counts["deletes kept that were not acknowledged"] = len(ended - deleted)
        self.counts["data updates acknowledged"] = len(added)
        self.counts["data updates kept that were not acknowledged"] = number - len(added)
        self.problems += [f"accepted after its deletion: {name}" for name in deleted - ended]
        if statuses[-1] is not SessionStatus.LIVE:
            self.problems.append(f"a session that nobody deleted is {statuses[-1].name}")
        if not len(added) <= number <= len(self.said["adding"]) or max(added, default=0) > number:
            self.problems.append(f"{number} is kept of {len(added)} acknowledged updates")
        self.problems += [f"two updates made {same}" for same, times in Counter(added).items() if times > 1]

    async def _finish(self) -> None:
        """Run each `on_end` that is left, and see that none was forgotten."""
        async with opened(self.url, time.time() + DAY / 2) as store:
            while left := await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=LEASE, limit=100):
                self.said["on_end"] += [ended.record.ref for ended in left]
                await store.purge(*(ended.record.ref for ended in left))
        times = Counter(self.said["on_end"])
        due = {session(name, self.issued_at).ref for name in self.said["deleted"]}
        self.counts["on_end run again after a crash"] = sum(number > 1 for number in times.values())
        self.problems += [f"on_end was never run: {ref}" for ref in due - times.keys()]


@asynccontextmanager
async def opened(url: str, now: float | None = None) -> AsyncIterator[Store]:
    """Open a store within the block, by a clock that stands still where `now` is given."""
    store = make(url, clock=time.time if now is None else lambda: now, timeout=60)
    await store.open()
    yield store
    await store.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line names; the exit status tells whether anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.crash", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", choices=STORES, action="append", help="only this one")
    parser.add_argument("--cycles", type=int, default=200, help="kills (200)")
    options = parser.parse_args(arguments)
    problems = []
    for name in options.store or STORES:
        with place(name) as made:
            trial = Trial(made, random.Random()).run(options.cycles)
        print(name, *(f"  {number:>7,}  {what}" for what, number in trial.counts.items()), *trial.problems, sep="\n")
        problems += trial.problems
    return int(bool(problems))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        anyio.run(work, sys.argv[2], sys.argv[3], int(sys.argv[4]))
        sys.exit()
    sys.exit(main())

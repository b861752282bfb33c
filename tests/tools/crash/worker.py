"""The process of a trial: changes a store in several tasks without a pause, and says what it does.

A line is said before a change begins and after the store has answered it. Lines go straight to the reader, so what was
said before the end came was said: it is the reply of this process. At one change, which the trial chose, a process is
killed: this one, or the store's server. Nothing here judges what came of it.

Plans are read from standard input, one a line, and each is carried out by a process of its own: a fork of this one,
which has imported all that is needed, once. How it ended is the last line of each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Literal

import anyio

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions._session.data import Data, Namespace
from mcp_sessions.stores import _sqlite, make
from mcp_sessions.stores._base import Record, Store
from mcp_sessions.stores._sqlite_file import SQLiteFile

TASKS: Final = 4
CHANGES: Final = 200  # after which it ends by itself, where it was not the one that was killed
LEASE: Final = 1.0  # seconds
COUNTED: Final = "counted"  # the session whose data is changed, in every process of a run
COUNTERS: Final = ("increment", "update")

Hook = Literal["begun", "answered", "written", "committed"]
Say = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Plan:
    """What a process is to do, and when which one is killed.

    A hook is `"answered"`: the store has answered the change, which is not said yet; or `"begun"`: some time after it
    began. On SQLite also, at the next change, `"written"`: before its commit; and `"committed"`: after that, before
    any caller knows.
    """

    url: str
    name: str  # which no other process of the run has
    issued_at: int  # of all sessions of the run, Unix seconds
    victim: int  # the process to kill, or 0 for this one
    at: int  # the number of the change at which
    hook: Hook
    share: float = 0.0  # how long after it began, in times that a change takes on average


def deleted(plan_name: str) -> list[str]:
    """Return the sessions that a process deletes, if it comes so far."""
    turns = [f"{plan_name}-{task}-{turn}" for task in range(TASKS) for turn in range(0, CHANGES // TASKS, 4)]
    return [name + suffix for name in turns for suffix in ("", "-recorded")]


def claims(name: str, issued_at: int) -> Claims:
    """A session, by a name that no other has."""
    day = 24 * 3600
    return Claims(
        kind="session",
        issuer="mcp-sessions",
        audience="mcp-sessions",
        jti=name,
        issued_at=issued_at,
        expires_at=issued_at + day,
    )


def data(store: Store, issued_at: int) -> Data:
    """The data that every process of a run changes."""
    counted = claims(COUNTED, issued_at)
    shelf = Namespace(counted.ref, counted.expires_at, max_bytes=1 << 16)
    return Data(store, shelf, clock=time.time, max_value_bytes=1 << 10)


class Worker:
    """One process."""

    def __init__(self, plan: Plan, store: Store, say: Say) -> None:
        self._plan = plan
        self._store = store
        self._say = say
        self._data = data(store, plan.issued_at)
        self._numbers = count()
        self._durations = [0.002]  # seconds
        self._is_armed = self._plan.hook in {"begun", "answered"}

    async def run(self) -> None:
        """Do what others left, and then change after change, until killed or cut off from the store."""
        for ended in await self._store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=LEASE, limit=100):
            await self._on_end(ended.record.ref)
        async with anyio.create_task_group() as tasks:
            for task in range(TASKS):
                tasks.start_soon(self._task, f"{self._plan.name}-{task}")

    async def _task(self, name: str) -> None:
        """Deletes and updates in turns; every other session that is deleted was recorded."""
        try:
            for turn in range(0, CHANGES // TASKS, 4):
                await self._delete(f"{name}-{turn}")
                await self._change("increment", COUNTERS[0], self._data.increment(COUNTERS[0]))
                await self._record(f"{name}-{turn}-recorded", lifetime=24 * 3600)
                await self._delete(f"{name}-{turn}-recorded")
                await self._on_end(claims(f"{name}-{turn}-recorded", self._plan.issued_at).ref)
                await self._change("update", COUNTERS[1], self._data.update(COUNTERS[1], lambda n: n + 1, default=0))
            await self._record(f"{name}-expired", lifetime=0)
        except StoreUnavailable:
            """The server was killed. What was under way was not answered."""

    async def _delete(self, name: str) -> None:
        session = claims(name, self._plan.issued_at)
        revoked = self._store.revoke(Record.of(session), reason="deleted", lease=LEASE)
        await self._change("delete", name, revoked)

    async def _record(self, name: str, *, lifetime: int) -> None:
        session, now = claims(name, self._plan.issued_at), int(time.time())
        await self._store.register(Record(session.ref, None, now, now + lifetime, now))
        self._say({"recorded": session.ref, "ends": name if lifetime else None})

    async def _on_end(self, ref: str) -> None:
        self._say({"on_end": ref})
        await self._store.purge(ref)

    async def _change(self, kind: str, name: str, change: Awaitable[int]) -> None:
        """One change, with a line before and a line after."""
        number, began = next(self._numbers), time.monotonic()
        self._say({"n": number, "change": kind, "of": name, "at": began})
        if (number, "begun") == (self._plan.at, self._plan.hook):
            threading.Thread(target=self._kill_soon).start()
        if kind == "delete" and number >= self._plan.at and not self._is_armed:
            self._is_armed = True
            self._arm()
        result = await change
        if (number, "answered") == (self._plan.at, self._plan.hook):
            self._kill()
        ended = time.monotonic()
        self._say({"n": number, "answer": int(result), "at": ended})
        self._durations.append(ended - began)

    def _arm(self) -> None:
        """Kill after the next step that the hook names: a change is written, or committed."""
        where, name = (_sqlite, "_execute") if self._plan.hook == "written" else (SQLiteFile, "change")
        really = getattr(where, name)

        def deadly(*given: Any, **options: Any) -> Any:
            setattr(where, name, really)
            result = really(*given, **options)
            self._kill()
            return result  # where another process was killed

        setattr(where, name, deadly)

    def _kill_soon(self) -> None:
        time.sleep(self._plan.share * sum(self._durations) / len(self._durations))
        self._kill()

    def _kill(self) -> None:
        os.kill(self._plan.victim or os.getpid(), signal.SIGKILL)


async def work(plan: Plan, say: Say) -> None:
    """Open the store and go on until the end."""
    store = make(plan.url, clock=time.time, timeout=60)
    await store.open()
    await Worker(plan, store, say).run()
    await store.close()


def say_aloud(line: dict[str, Any]) -> None:
    """To the reader at once: no buffer of this process holds it back."""
    os.write(sys.stdout.fileno(), json.dumps(line).encode() + b"\n")


def carry_out(plan: Plan) -> int:
    """What a process ended with that did it: 0, or the number of the signal that killed it, negative."""
    process = os.fork()
    if process == 0:
        anyio.run(work, plan, say_aloud)
        sys.exit()
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    for line in sys.stdin:
        say_aloud({"ended": carry_out(Plan(**json.loads(line)))})

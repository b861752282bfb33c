"""Kill, start again, and look whether what was acknowledged still holds; many times over.

The kills come at a change that chance chooses: after the store answered it and before the worker could say so, or some
time after it began. What was under way then may have been kept or not, and both are counted, so that it can be seen
where the kills landed. What was acknowledged is judged by the check of histories, over the whole run.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import postgres_servers
import redis_servers
from history import Kind, Operation, Outcome, Recorder, Rule, violations

from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions.stores import make
from mcp_sessions.stores._base import SessionStatus, Store

from . import faults
from .worker import COUNTED, COUNTERS, LEASE, Hook, Plan, claims, data, deleted

WORKER: Final = Path(__file__).with_name("worker.py")
AHEAD: Final = 3600  # seconds; by a clock so far ahead, every lease has run out
LOST_DELETES: Final = {Rule.REVIVED, Rule.WAVERED}
LOST_UPDATES: Final = {Rule.LOST, Rule.REPEATED, Rule.INVENTED}

Line = dict[str, Any]
Work = Callable[[Plan], "list[Line]"]
"""Has a worker carry out a plan; what it said, and how it ended."""


@dataclass(frozen=True)
class Place:
    """A store that is there for a run."""

    url: str
    server: redis_servers.Server | postgres_servers.Server | None = None  # which can be killed
    hooks: tuple[Hook, ...] = ("begun", "begun", "answered")  # when a worker may be killed

    def victim(self, cycle: int) -> int:
        """Who is killed: the server in every other cycle, else the worker itself, which is 0."""
        if self.server is None or cycle % 2:
            return 0
        if isinstance(self.server, postgres_servers.Server):
            return self.server.pid
        found = re.search(rb"process_id:(\d+)", self.server.command("INFO", "server"))
        assert found is not None
        return int(found[1])

    def revive(self) -> None:
        """Start the server again on the files that it left."""
        assert self.server is not None
        self.server.kill9()  # waits for the end of the one that was killed
        self.server.start()


@contextmanager
def sqlite() -> Iterator[Place]:
    """A file."""
    with tempfile.TemporaryDirectory(prefix="mcp-sessions-crash-") as folder:
        yield Place(f"sqlite:{folder}/sessions.db", hooks=("begun", "begun", "answered", "written", "committed"))


@contextmanager
def redis() -> Iterator[Place]:
    """A server that has every change on disk before it answers."""
    with redis_servers.serving(appendonly="yes", appendfsync="always") as server:
        yield Place(server.url, server)


@contextmanager
def postgres() -> Iterator[Place]:
    """A server as it comes, which has every change on disk before it answers."""
    with postgres_servers.serving() as server:
        yield Place(server.url, server)


PLACES: Final = {"sqlite": sqlite, "redis": redis, "postgres": postgres}


@contextmanager
def workers() -> Iterator[Work]:
    """What has one worker process after the other carry out a plan."""
    command = [sys.executable, str(WORKER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def work(plan: Plan) -> list[Line]:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps(asdict(plan)), file=process.stdin, flush=True)
            lines = [json.loads(process.stdout.readline())]
            while "ended" not in lines[-1]:
                lines.append(json.loads(process.stdout.readline()))
            return lines

        yield work


@dataclass
class Run:
    """What was done and found in all cycles on one store."""

    place: Place
    seed: int
    issued_at: int = 0
    history: list[Operation] = field(default_factory=list)  # every change, and every look back after a crash
    kills: Counter[str] = field(default_factory=Counter)  # by who was killed and when
    under_way: Counter[str] = field(default_factory=Counter)  # what was not answered when the end came: kept or not
    due: set[str] = field(default_factory=set)  # recorded sessions that ended, whose `on_end` must run
    on_end: Counter[str] = field(default_factory=Counter)  # how many times each one's was run
    counted: Counter[str] = field(default_factory=Counter)
    living: Store = field(init=False)  # which is open all the time, in this process
    stale: list[str] = field(default_factory=list)  # sessions that it accepted although they had ended

    async def begin(self) -> None:
        """Make the store. It vouches for no session that was issued before, however long that took."""
        store = make(self.place.url, clock=time.time, timeout=60)
        await store.open()
        await store.close()
        self.issued_at = int(time.time()) + 1
        if self.place.server is None:  # else its connections belong to one event loop
            self.living = make(self.place.url, clock=time.time, timeout=60)

    def cycle(self, number: int, work: Work) -> None:
        """Let a worker work until the kill, bring back what was killed, and look."""
        plan = self._plan(number)
        if self.place.server is None:
            anyio.run(self._still_living, deleted(plan.name))
        *lines, last = work(plan)
        assert last["ended"] == (0 if plan.victim else -signal.SIGKILL), f"the worker ended by itself: {plan}"
        self.kills[f"{'the server' if plan.victim else 'the worker'}, when a change had {plan.hook}"] += 1
        if plan.victim:
            self.place.revive()
        changes = list(operations(lines))
        self.history += changes
        self.on_end.update(line["on_end"] for line in lines if "on_end" in line)
        anyio.run(self._look_back, changes, [line for line in lines if "recorded" in line])

    def _plan(self, number: int) -> Plan:
        chance = random.Random(f"{self.seed}-{number}")
        hook: Hook = chance.choice(self.place.hooks)
        victim, at = self.place.victim(number), chance.randrange(20, 60)
        return Plan(self.place.url, f"{number}", self.issued_at, victim, at, hook, chance.uniform(0, 2))

    async def _look_back(self, changes: Sequence[Operation], recorded: Sequence[Line]) -> None:
        """What the store says of the last changes, now that it was started again."""
        store = make(self.place.url, clock=time.time, timeout=60)
        names = [COUNTED, *(each.session for each in changes if each.kind == "delete")]
        ended = await self._standings(store, names)
        deletes = [each.session for each in changes if each.kind == "delete" and each.outcome == "unknown"]
        self.under_way.update("kept" if name in ended else "not kept" for name in deletes)
        if self.place.server is None:
            self.stale += await self._still_living(sorted(ended))
        await self._count(store, changes)
        self.due.update(line["recorded"] for line in recorded if line["ends"] is None or line["ends"] in ended)
        await store.close()

    async def _still_living(self, names: Sequence[str]) -> set[str]:
        """Which sessions a store takes for alive that was open all the time, and saw each of them before it ended."""
        found = await self.living.statuses([claims(name, self.issued_at) for name in names])
        return {name for name, standing in zip(names, found, strict=True) if standing is SessionStatus.LIVE}

    async def _standings(self, store: Store, names: Sequence[str]) -> set[str]:
        """Which sessions have ended; each is noted as a use that was accepted or refused."""
        began = time.monotonic()
        found = await store.statuses([claims(name, self.issued_at) for name in names])
        ended = time.monotonic()
        for name, standing in zip(names, found, strict=True):
            outcome: Outcome = "accepted" if standing is SessionStatus.LIVE else "refused"
            self.history.append(Operation("use", name, began, ended, outcome))
        return {name for name, standing in zip(names, found, strict=True) if standing is SessionStatus.ENDED}

    async def _count(self, store: Store, changes: Sequence[Operation]) -> None:
        recorder, kept = Recorder(), data(store, self.issued_at)
        for counter in COUNTERS:
            with recorder.operation("read", counter) as answer:
                answer.accepted(await kept.get(counter, 0))
            of_it = Counter(each.outcome for each in changes if each.session == counter)
            silently = answer.number - self.counted[counter] - of_it["accepted"]
            self.under_way.update({"kept": silently, "not kept": of_it["unknown"] - silently})
            self.counted[counter] = answer.number
        self.history += recorder.operations

    async def finish(self) -> None:
        """Look at every deleted session once more, and run each `on_end` that is left."""
        store = make(self.place.url, clock=lambda: time.time() + AHEAD, timeout=60)
        await self._standings(store, sorted({each.session for each in self.history if each.kind == "delete"}))
        if self.place.server is None:
            await self.living.close()
        while left := await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=LEASE, limit=100):
            for ended in left:
                self.on_end[ended.record.ref] += 1
                await store.purge(ended.record.ref)
        await store.close()


def operations(lines: Sequence[Line]) -> Iterator[Operation]:
    """The changes of one worker, as far as it could say what came of them."""
    answers = {line["n"]: line for line in lines if "answer" in line}
    for line in lines:
        if "change" in line:
            kind: Kind = "delete" if line["change"] == "delete" else "add"
            answer = answers.get(line["n"])
            if answer is None:
                yield Operation(kind, line["of"], line["at"], float("inf"), "unknown")
            else:
                yield Operation(kind, line["of"], line["at"], answer["at"], "accepted", answer["answer"])


@dataclass(frozen=True)
class Report:
    """What a run showed."""

    lines: list[str]
    problems: list[str]  # everything that was lost


def report(run: Run) -> Report:
    """Judge a run."""
    found = violations(run.history)
    acknowledged = Counter(each.kind for each in run.history if each.outcome == "accepted")
    times = Counter(min(run.on_end[ref], 2) for ref in run.due)
    rows = [
        *((f"kills of {what}", number) for what, number in sorted(run.kills.items())),
        ("changes under way at a kill: kept, between commit and reply", run.under_way["kept"]),
        ("changes under way at a kill: not kept", run.under_way["not kept"]),
        ("deletes acknowledged", acknowledged["delete"]),
        ("deletes lost", sum(each.rule in LOST_DELETES for each in found)),
        ("data updates acknowledged", acknowledged["add"]),
        ("data updates lost, or counted twice", sum(each.rule in LOST_UPDATES for each in found)),
        ("ended sessions accepted by a worker that had seen them live", len(run.stale)),
        ("sessions refused that had not ended", sum(each.rule is Rule.EARLY for each in found)),
        ("recorded sessions ended, on_end run once", times[1]),
        ("recorded sessions ended, on_end run again after a crash", times[2]),
        ("recorded sessions ended, on_end never run", times[0]),
    ]
    problems = [*map(str, found), *(f"accepted after its end: {name}" for name in run.stale)]
    problems += [f"on_end was never run: {ref}" for ref in sorted(run.due) if not run.on_end[ref]]
    return Report([f"  {number:>7,}  {what}" for what, number in rows], problems)


def trial(store: str, cycles: int, seed: int) -> Report:
    """All cycles on one store."""
    with PLACES[store]() as place:
        return go(Run(place, seed), cycles)


def go(run: Run, cycles: int) -> Report:
    """All cycles of a run."""
    anyio.run(run.begin)
    with workers() as work:
        for number in range(cycles):
            run.cycle(number, work)
    anyio.run(run.finish)
    return report(run)


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line names; the exit status tells whether anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.crash", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", choices=[*PLACES, "all"], default="all")
    parser.add_argument("--cycles", type=int, default=200, help="kills (200)")
    parser.add_argument("--faults", action="store_true", help="what each Redis keeps through which fault, as a table")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the whole run; printed")
    options = parser.parse_args(given)
    if options.faults:
        shown, problems = faults.table(faults.known())
        print("\n".join([shown, *problems]))
        return 1 if problems else 0
    problems = []
    for store in PLACES if options.store == "all" else [options.store]:
        started = time.monotonic()
        found = trial(store, options.cycles, options.seed)
        print(f"{store}: {options.cycles} cycles in {time.monotonic() - started:.0f} s, seed {options.seed}")
        print("\n".join([*found.lines, *found.problems]), flush=True)
        problems += found.problems
    return 1 if problems else 0

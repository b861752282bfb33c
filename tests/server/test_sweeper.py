"""What ends without a request: taken by one worker, finished like any other end, and never in the middle of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import START, Clock

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server.lifecycle import AT_ONCE, LEASE, SWEEP_BATCH
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.events import Fact, SessionDeleted
from mcp_sessions._session.session import EndedSession
from mcp_sessions.stores import make
from mcp_sessions.stores._base import Ended, Record
from mcp_sessions.stores._memory import MemoryStore

HOUR = 3600
DEADLINE = 30  # seconds after which a test that hangs fails


class Store(MemoryStore):
    """A store that may be away or led by somebody else, and tells when it was asked."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.is_away = False
        self.leader: str | None = None
        self.claims = SWEEP_BATCH  # before it is away
        self.asked = 0
        self.terms: list[float] = []
        self.was_asked = anyio.Event()

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        self.asked += 1
        self.terms.append(seconds)
        self.was_asked.set()
        self.was_asked = anyio.Event()
        if self.is_away:
            raise StoreUnavailable
        return self.leader in {None, worker}

    async def claim_ended(self, **options: Any) -> list[Ended]:
        if self.claims == 0:
            raise StoreUnavailable
        self.claims -= 1
        return await super().claim_ended(**options)


class Worker:
    """One worker that sweeps.

    Args:
        clock: What it tells the time by.
        on_end: The hook; by default it writes down whose end it was and why.
        idle_timeout: Seconds.
        interval: Seconds between two looks.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        on_end: Callable[[EndedSession, str], Any] | None = None,
        idle_timeout: int | None = None,
        interval: float = 0.001,
    ) -> None:
        self.ran: list[tuple[str, str]] = []
        self.facts: list[Fact] = []
        self.fails = False
        self.store = Store(clock)
        app = sessions(
            Server(),
            clock=clock,
            store=self.store,
            tracked=True,
            idle_timeout=idle_timeout,
            sweep_interval=interval,
            on_end=on_end or (lambda session, reason: self.ran.append((session.ref, reason))),
            listen=self.emit,
        )
        assert app._options.sweeper is not None
        self.sweeper = app._options.sweeper

    def emit(self, fact: Fact) -> None:
        """Hear a fact, and fail once where that is asked for."""
        if self.fails:
            self.fails = False
            raise LookupError
        self.facts.append(fact)

    async def record(self, ref: str, lifetime: int = HOUR) -> None:
        await self.store.register(Record(ref, None, START, START + lifetime, seen_at=START, trace=f"trace of {ref}"))

    async def looks(self, times: int = 2) -> None:
        """Wait until the store was asked so many times more."""
        with anyio.fail_after(DEADLINE):
            for _ in range(times):
                await self.store.was_asked.wait()


class TestOneLook:
    async def test_what_expired_or_stood_idle_is_finished_with_its_reason(self) -> None:
        """Each is told once, by a fact with the trace of its start and by the hook; what lives is left alone."""
        clock = Clock()
        worker = Worker(clock, idle_timeout=2 * HOUR)
        await worker.record("short", HOUR)
        await worker.record("long", 100 * HOUR)
        assert not await worker.sweeper.sweep()
        assert worker.ran == []
        clock.now += HOUR
        await worker.sweeper.sweep()
        assert worker.ran == [("short", "expired")]
        clock.now += 2 * HOUR
        await worker.sweeper.sweep()
        assert worker.ran == [("short", "expired"), ("long", "idle")]
        assert worker.facts == [
            SessionDeleted("short", "expired", HOUR, "trace of short"),
            SessionDeleted("long", "idle", 3 * HOUR, "trace of long"),
        ]
        await worker.sweeper.sweep()
        assert len(worker.ran) == 2

    async def test_what_a_dead_worker_left_is_taken_over_when_its_lease_is_over(self) -> None:
        """With the reason for which it was ended; so is what an operator ended, at once."""
        clock = Clock()
        worker = Worker(clock)
        await worker.record("left")
        await worker.record("operated")
        await worker.store.revoke("left", audience=AUDIENCE, expires_at=START + HOUR, reason="deleted", lease=LEASE)
        await worker.store.revoke("operated", audience=AUDIENCE, expires_at=START + HOUR, reason="support", lease=0)
        await worker.sweeper.sweep()
        assert worker.ran == [("operated", "support")]
        clock.now += LEASE
        await worker.sweeper.sweep()
        assert worker.ran[1:] == [("left", "deleted")]
        assert worker.facts == [
            SessionDeleted("operated", "support", 0, "trace of operated"),
            SessionDeleted("left", "deleted", 60, "trace of left"),
        ]

    async def test_who_does_not_lead_takes_nothing(self) -> None:
        clock = Clock()
        worker = Worker(clock)
        await worker.record("a")
        clock.now += HOUR
        worker.store.leader = "another worker"
        assert not await worker.sweeper.sweep()
        assert worker.ran == []

    async def test_many_are_taken_in_parts(self) -> None:
        """So that each is begun well within its lease, side by side with the others of its part."""
        clock, inside, full = Clock(), [], anyio.Event()

        async def on_end(session: EndedSession, reason: str) -> None:
            inside.append(session.ref)
            if len(inside) == SWEEP_BATCH:
                full.set()
            await full.wait()

        worker = Worker(clock, on_end=on_end)
        for number in range(SWEEP_BATCH + 1):
            await worker.record(f"session {number}")
        clock.now += HOUR
        with anyio.fail_after(DEADLINE):
            assert await worker.sweeper.sweep()
            assert worker.store.terms == [LEASE, 0]  # while its hooks run, another worker may take the rest
            assert not await worker.sweeper.sweep()
            assert worker.store.terms == [LEASE, 0, LEASE]
        assert len(set(inside)) == SWEEP_BATCH + 1

    async def test_what_was_taken_before_the_store_went_away_is_finished(self) -> None:
        """Or its `on_end` would wait for the lease to run out."""
        clock = Clock()
        worker = Worker(clock)
        for number in range(2 * AT_ONCE):
            await worker.record(f"session {number}")
        clock.now += HOUR
        worker.store.claims = 1
        await worker.sweeper.sweep()
        assert len(worker.ran) == AT_ONCE
        with pytest.raises(StoreUnavailable):
            await worker.sweeper.sweep()


class TestBesideTheServer:
    async def test_it_sweeps_until_it_is_stopped(self) -> None:
        """Started twice it runs once, and when it has stopped it can be started again."""
        clock = Clock()
        worker = Worker(clock)
        for name in ("first", "second"):
            await worker.record(name, HOUR if name == "first" else 2 * HOUR)
            worker.sweeper.start()
            worker.sweeper.start()
            clock.now += HOUR
            await worker.looks()
            with anyio.fail_after(DEADLINE):
                await worker.sweeper.stop()
            asked = worker.store.asked
            await anyio.wait_all_tasks_blocked()
            assert worker.store.asked == asked
        assert worker.ran == [("first", "expired"), ("second", "expired")]

    async def test_a_full_part_is_followed_by_the_next_at_once(self) -> None:
        """And the pause comes when there is nothing more."""
        clock, ran, all_ran = Clock(), list[str](), anyio.Event()

        def on_end(session: EndedSession, reason: str) -> None:
            ran.append(session.ref)
            if len(ran) == 2 * SWEEP_BATCH:
                all_ran.set()

        worker = Worker(clock, on_end=on_end, interval=3600)
        for number in range(2 * SWEEP_BATCH):
            await worker.record(f"session {number}")
        clock.now += HOUR
        worker.sweeper.start()
        with anyio.fail_after(DEADLINE):
            await all_ran.wait()
            await worker.sweeper.stop()

    async def test_a_hook_that_runs_is_waited_for_when_it_is_stopped(self) -> None:
        """Cut off, it would run a second time on another worker."""
        clock, inside, go, ended = Clock(), anyio.Event(), anyio.Event(), []

        async def on_end(session: EndedSession, reason: str) -> None:
            inside.set()
            await go.wait()
            ended.append("hook")

        async def stop() -> None:
            await worker.sweeper.stop()
            ended.append("sweeper")

        worker = Worker(clock, on_end=on_end)
        await worker.record("a")
        clock.now += HOUR
        worker.sweeper.start()
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as group:
                await inside.wait()
                group.start_soon(stop)
                await anyio.wait_all_tasks_blocked()
                assert ended == []
                assert worker.store.terms[-1] == 0  # another worker may lead at once
                go.set()
        assert ended == ["hook", "sweeper"]

    async def test_a_lead_that_cannot_be_given_up_runs_out(self) -> None:
        """A store that is away keeps no worker from stopping."""
        worker = Worker(Clock(), interval=60)
        worker.sweeper.start()
        await anyio.wait_all_tasks_blocked()
        worker.store.is_away = True
        with anyio.fail_after(DEADLINE):
            await worker.sweeper.stop()

    async def test_what_never_ran_need_not_be_stopped(self) -> None:
        """A server may stop before it has served anything."""
        await Worker(Clock()).sweeper.stop()

    async def test_it_goes_on_when_the_store_is_back(self, caplog: pytest.LogCaptureFixture) -> None:
        """While the store is away the log says that ended sessions wait."""
        clock = Clock()
        worker = Worker(clock)
        await worker.record("a")
        clock.now += HOUR
        worker.store.is_away = True
        worker.sweeper.start()
        await worker.looks()
        assert worker.ran == []
        worker.store.is_away = False
        await worker.looks()
        await worker.sweeper.stop()
        assert worker.ran == [("a", "expired")]
        assert set(caplog.messages) == {"sweep postponed: store unavailable (store_unavailable)"}

    async def test_it_goes_on_after_a_listener_that_raises(self, caplog: pytest.LogCaptureFixture) -> None:
        """The session is taken again when its lease is over: its hook runs late, and is not lost."""
        clock = Clock()
        worker = Worker(clock)
        await worker.record("a")
        worker.fails = True
        clock.now += HOUR
        worker.sweeper.start()
        await worker.looks()
        assert worker.ran == []
        clock.now += LEASE
        await worker.looks()
        await worker.sweeper.stop()
        assert worker.ran == [("a", "expired")]
        (line,) = caplog.messages
        assert line.startswith("sweep postponed: ")


SERVED = """
from starlette.applications import Starlette
from mcp_sessions import MCPSessionMiddleware

app = MCPSessionMiddleware(Starlette(), keys="a key of the test, at least 32 bytes", store="{store}", tracked=True)
"""


def test_a_server_that_is_asked_to_stop_leaves_the_lead_to_another_at_once(tmp_path: Path) -> None:
    """A lease would last a minute more."""
    url = f"sqlite:{tmp_path / 'sessions.db'}"
    (tmp_path / "served.py").write_text(SERVED.format(store=url), encoding="utf-8")

    async def leads() -> bool:
        store = make(url, clock=time.time, timeout=5)
        await store.open()
        elected = await store.elect("another", audience=AUDIENCE, seconds=0)
        await store.close()
        return elected

    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "served:app", "--app-dir", str(tmp_path), "--port", "0"]
    )
    deadline = time.monotonic() + DEADLINE
    while anyio.run(leads):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    server.terminate()
    server.wait(DEADLINE)
    assert anyio.run(leads)

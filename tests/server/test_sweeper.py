"""What ends without a request: taken by one worker, finished like any other end, and never in the middle of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from apps import Server, sessions, sweeper_of
from clients import DEADLINE, START, Clock

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server.lifecycle import BATCH_SIZE, LEASE, SWEEP_BATCH
from mcp_sessions._session.events import SessionDeleted, SessionEvent
from mcp_sessions._session.session import EndedSession
from mcp_sessions.stores._base import Ended, Record
from mcp_sessions.stores._memory import MemoryStore

HOUR = 3600


class Store(MemoryStore):
    """A store that may be away, and tells when it was asked."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.is_away = False
        self.claims = SWEEP_BATCH  # before it is away
        self.asked = 0
        self.was_asked = anyio.Event()

    async def claim_ended(self, **options: Any) -> list[Ended]:
        self.asked += 1
        self.was_asked.set()
        self.was_asked = anyio.Event()
        if self.is_away or self.claims == 0:
            raise StoreUnavailable
        self.claims -= 1
        return await super().claim_ended(**options)


def record(ref: str, lifetime: int = HOUR) -> Record:
    return Record(ref, None, START, START + lifetime, seen_at=START, trace=f"trace of {ref}")


class Worker:
    """One worker that sweeps; by default its hook writes down whose end it was and why."""

    def __init__(
        self,
        clock: Clock,
        *,
        on_end: Callable[[EndedSession, str], Any] | None = None,
        idle_timeout: int | None = None,
        interval: float = 0.001,
    ) -> None:
        self.clock = clock
        self.ran: list[tuple[str, str]] = []
        self.facts: list[SessionEvent] = []
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
        self.sweeper = sweeper_of(app)

    def emit(self, fact: SessionEvent) -> None:
        if self.fails:
            self.fails = False
            raise LookupError
        self.facts.append(fact)

    async def record(self, ref: str, lifetime: int = HOUR) -> None:
        await self.store.register(record(ref, lifetime))

    async def expire(self, count: int = 1) -> None:
        for number in range(count):
            await self.record(f"session {number}")
        self.clock.now += HOUR

    async def looks(self, times: int = 2) -> None:
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
        await worker.store.revoke(record("left"), reason="deleted", lease=LEASE)
        await worker.store.revoke(record("operated"), reason="support", lease=0)
        await worker.sweeper.sweep()
        assert worker.ran == [("operated", "support")]
        clock.now += LEASE
        await worker.sweeper.sweep()
        assert worker.ran[1:] == [("left", "deleted")]
        assert worker.facts == [
            SessionDeleted("operated", "support", 0, "trace of operated"),
            SessionDeleted("left", "deleted", 60, "trace of left"),
        ]

    async def test_what_was_taken_before_the_store_went_away_is_finished(self) -> None:
        """Or its `on_end` would wait for the lease to run out."""
        worker = Worker(Clock())
        await worker.expire(2 * BATCH_SIZE)
        worker.store.claims = 1
        await worker.sweeper.sweep()
        assert len(worker.ran) == BATCH_SIZE
        with pytest.raises(StoreUnavailable):
            await worker.sweeper.sweep()


class TestBesideTheServer:
    async def test_it_sweeps_until_it_is_stopped(self) -> None:
        """Started twice it runs once, and when it has stopped, or never ran, it can be stopped and started."""
        worker = Worker(clock := Clock())
        await worker.sweeper.stop()
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
        """Each is begun well within its lease, side by side with its part; the pause comes when there is no more."""
        clock, inside, full, all_ran = Clock(), [], anyio.Event(), anyio.Event()

        async def on_end(session: EndedSession, reason: str) -> None:
            inside.append(session.ref)
            if len(inside) == SWEEP_BATCH:
                full.set()
            await full.wait()
            if len(inside) == SWEEP_BATCH + 1:
                all_ran.set()

        worker = Worker(clock, on_end=on_end, interval=3600)
        await worker.expire(SWEEP_BATCH + 1)
        worker.sweeper.start()
        with anyio.fail_after(DEADLINE):
            await all_ran.wait()
            await worker.sweeper.stop()
        assert len(set(inside)) == SWEEP_BATCH + 1

    async def test_a_hook_that_runs_is_waited_for_when_it_is_stopped(self) -> None:
        """Cut off, it would run a second time on another worker."""
        inside, go, ended = anyio.Event(), anyio.Event(), []

        async def on_end(session: EndedSession, reason: str) -> None:
            inside.set()
            await go.wait()
            ended.append("hook")

        async def stop() -> None:
            await worker.sweeper.stop()
            ended.append("sweeper")

        worker = Worker(Clock(), on_end=on_end)
        await worker.expire()
        worker.sweeper.start()
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as group:
                await inside.wait()
                group.start_soon(stop)
                await anyio.wait_all_tasks_blocked()
                assert ended == []
                go.set()
        assert ended == ["hook", "sweeper"]

    async def test_it_goes_on_when_the_store_is_back(self, caplog: pytest.LogCaptureFixture) -> None:
        """While the store is away the log says once a minute that ended sessions wait."""
        worker = Worker(Clock())
        await worker.expire()
        worker.store.is_away = True
        worker.sweeper.start()
        await worker.looks(5)
        assert worker.ran == []
        worker.store.is_away = False
        await worker.looks()
        await worker.sweeper.stop()
        assert worker.ran == [("session 0", "expired")]
        assert caplog.messages == ["sweep postponed: store unavailable (store_unavailable)"]

    async def test_it_goes_on_after_a_listener_that_raises(self, caplog: pytest.LogCaptureFixture) -> None:
        """The session is taken again when its lease is over: its hook runs late, and is not lost."""
        worker = Worker(clock := Clock())
        await worker.expire()
        worker.fails = True
        worker.sweeper.start()
        await worker.looks()
        assert worker.ran == []
        clock.now += LEASE
        await worker.looks()
        await worker.sweeper.stop()
        assert worker.ran == [("session 0", "expired")]
        (line,) = caplog.messages
        assert line.startswith("sweep postponed: ")

"""What runs beside requests: work that outlives them, the sweeper, and the gauge of how many sessions live."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from apps import Server, sessions, sweeper_of
from clients import DEADLINE, START, Client, Clock
from failing import Failing
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import background
from mcp_sessions._server.lifecycle import BATCH_SIZE, SWEEP_BATCH
from mcp_sessions._session.session import EndedSession
from mcp_sessions.events import SessionDeleted, SessionEvent
from mcp_sessions.stores import Record
from mcp_sessions.telemetry import SessionMetrics

HOUR = 3600
GAUGE = "mcp_sessions.session.active"
of_a_request: ContextVar[str] = ContextVar("of_a_request", default="none")


async def test_work_inherits_nothing_and_an_error_ends_it_alone(caplog: pytest.LogCaptureFixture) -> None:
    """It must not be taken for a part of the request that began it; an error may quote what no log should hold."""
    seen: list[str] = []

    async def work() -> None:
        seen.append(of_a_request.get())
        raise LookupError("redis://user:password@host")

    async def request() -> None:
        of_a_request.set("a request")
        background.start(work)

    async with anyio.create_task_group() as group:
        group.start_soon(request)
    await anyio.wait_all_tasks_blocked()
    assert (seen, caplog.messages) == (["none"], ["background work stopped: LookupError"])


def record(ref: str, lifetime: int = HOUR) -> Record:
    return Record(ref, None, START, START + lifetime, seen_at=START, trace=f"trace of {ref}")


def asked_for(event: anyio.Event) -> Callable[..., Any]:
    async def ask(*_: object) -> None:
        event.set()

    return ask


async def away(*_: object) -> None:
    raise StoreUnavailable


class Sweeping:
    """One worker that sweeps; by default its hook writes down whose end it was and why."""

    def __init__(self, *, on_end: Callable[[EndedSession, str], Any] | None = None, **options: Any) -> None:
        self.clock = Clock()
        self.ran: list[tuple[str, str]] = []
        self.facts: list[SessionEvent] = []
        self.fails = False
        self.store = Failing(clock=self.clock)
        options = {"sweep_interval": 0.001, "tracked": True, "clock": self.clock, "store": self.store, **options}
        on_end = on_end or (lambda session, reason: self.ran.append((session.ref, reason)))
        self.app = sessions(Server(), on_end=on_end, listen=self.emit, **options)
        self.sweeper = sweeper_of(self.app)

    def emit(self, fact: SessionEvent) -> None:
        if self.fails:
            self.fails = False
            raise LookupError
        self.facts.append(fact)

    async def expire(self, count: int = 1) -> None:
        for number in range(count):
            await self.store.register(record(f"session {number}"))
        self.clock.now += HOUR

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.sweeper.start()
        with anyio.fail_after(DEADLINE):
            yield
            await self.sweeper.stop()

    async def looks(self, times: int = 2) -> None:
        """Wait until it has asked so often what has ended."""
        for _ in range(times):
            asked = anyio.Event()
            self.store.before["claim_ended"] = asked_for(asked)
            await asked.wait()


class TestOneSweep:
    async def test_what_expired_or_stood_idle_is_finished_with_its_reason(self) -> None:
        """Each is told once, by a fact with the trace of its start and by the hook; what lives is left alone."""
        worker = Sweeping(idle_timeout=2 * HOUR)
        await worker.store.register(record("short", HOUR))
        await worker.store.register(record("long", 100 * HOUR))
        for hours, reported in ((0, 0), (1, 1), (2, 2), (0, 2)):
            worker.clock.now += hours * HOUR
            await worker.sweeper.sweep()
            assert worker.ran == [("short", "expired"), ("long", "idle")][:reported]
        assert worker.facts == [
            SessionDeleted("short", "expired", HOUR, "trace of short", "expiry"),
            SessionDeleted("long", "idle", 3 * HOUR, "trace of long", "expiry"),
        ]

    async def test_what_was_taken_before_the_store_went_away_is_finished(self) -> None:
        """Or its `on_end` would wait for the lease to run out."""
        worker = Sweeping()
        await worker.expire(2 * BATCH_SIZE)

        async def last_answer(*_: object) -> None:
            worker.store.before["claim_ended"] = away

        worker.store.before["claim_ended"] = last_answer
        await worker.sweeper.sweep()
        assert len(worker.ran) == BATCH_SIZE
        worker.store.before["claim_ended"] = away
        with pytest.raises(StoreUnavailable):
            await worker.sweeper.sweep()


class TestSweepingBesideTheServer:
    async def test_it_goes_on_until_it_is_stopped(self) -> None:
        """Started twice it runs once, and when it has stopped, or never ran, it can be stopped and started."""
        worker = Sweeping()
        await worker.sweeper.stop()
        for _ in range(2):
            worker.sweeper.start()
            async with worker.running():
                await worker.looks()
            worker.store.before["claim_ended"] = away
            await anyio.wait_all_tasks_blocked()
            assert worker.store.before.pop("claim_ended") is away

    async def test_without_a_lifespan_it_begins_with_the_first_request(self) -> None:
        worker = Sweeping()
        await Client(worker.app).create()
        with anyio.fail_after(DEADLINE):
            await worker.looks(1)

    async def test_a_full_part_is_followed_by_the_next_at_once(self) -> None:
        """Each is begun well within its lease, side by side with its part; the pause comes when there is no more."""
        inside, full, all_ran = list[str](), anyio.Event(), anyio.Event()

        async def on_end(session: EndedSession, reason: str) -> None:
            inside.append(session.ref)
            if len(inside) == SWEEP_BATCH:
                full.set()
            await full.wait()
            if len(inside) == SWEEP_BATCH + 1:
                all_ran.set()

        worker = Sweeping(on_end=on_end, sweep_interval=3600)
        await worker.expire(SWEEP_BATCH + 1)
        async with worker.running():
            await all_ran.wait()
        assert len(set(inside)) == SWEEP_BATCH + 1

    async def test_it_goes_on_when_the_store_is_back(self, caplog: pytest.LogCaptureFixture) -> None:
        """While the store is away the log says once a minute that ended sessions wait."""
        worker = Sweeping()
        await worker.expire()
        worker.store.failing.add("claim_ended")
        async with worker.running():
            await worker.looks(5)
            assert worker.ran == []
            worker.store.failing.clear()
            await worker.looks()
        assert worker.ran == [("session 0", "expired")]
        assert caplog.messages == ["sweep postponed: store unavailable (store_unavailable)"]

    async def test_it_goes_on_after_a_listener_that_raises(self) -> None:
        """The hook runs at once."""
        worker = Sweeping()
        await worker.expire()
        worker.fails = True
        async with worker.running():
            await worker.looks()
        assert worker.ran == [("session 0", "expired")]

    async def test_it_goes_on_after_a_store_that_raises(self, caplog: pytest.LogCaptureFixture) -> None:
        """One that is no store of ours may raise anything."""
        worker = Sweeping()
        await worker.expire()
        worker.store.error = LookupError
        worker.store.failing.add("claim_ended")
        async with worker.running():
            await worker.looks()
            worker.store.failing.clear()
            await worker.looks()
        assert worker.ran == [("session 0", "expired")]
        assert {*caplog.messages} == {"sweep postponed: LookupError"}

    async def test_a_hook_that_runs_is_waited_for_when_it_is_stopped(self) -> None:
        """Cut off, it would run a second time on another worker."""
        inside, go, ended = anyio.Event(), anyio.Event(), list[str]()

        async def on_end(session: EndedSession, reason: str) -> None:
            inside.set()
            await go.wait()
            ended.append("hook")

        async def let_go() -> None:
            await anyio.wait_all_tasks_blocked()
            ended.append("let go")
            go.set()

        worker = Sweeping(on_end=on_end)
        await worker.expire()
        async with anyio.create_task_group() as group:
            async with worker.running():
                await inside.wait()
                group.start_soon(let_go)
            ended.append("stopped")
        assert ended == ["let go", "hook", "stopped"]


class Counting:
    """A worker with metrics of its own, which counts each millisecond while it runs."""

    def __init__(self, store: Any = "memory:", **options: Any) -> None:
        self.reader = InMemoryMetricReader()
        metrics = SessionMetrics(MeterProvider([self.reader], shutdown_on_exit=False))
        self.app = sessions(Server(), store=store, metrics=metrics, **{"tracked": True, **options})
        self.client = Client(self.app)
        self.running = self.app.services.around(lambda _: nullcontext(), None)

    def gauge(self) -> list[Any] | None:
        """What it reports now; None where there is no gauge."""
        data = self.reader.get_metrics_data()
        assert data is not None
        metrics: list[Any] = [metric for one in data.resource_metrics[0].scope_metrics for metric in one.metrics]
        found = [metric for metric in metrics if metric.name == GAUGE]
        return [point.value for point in found[0].data.data_points] if found else None

    async def shows(self, *expected: int) -> None:
        """Wait until it reports this number, or nothing."""
        with anyio.fail_after(DEADLINE):
            while (self.gauge() or []) != [*expected]:
                await checkpoint()


class TestTheGaugeOfLiveSessions:
    @pytest.fixture(autouse=True)
    def quickly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count each millisecond, and not less often where the machine is slow."""
        monkeypatch.setattr(background.LiveSessionCounter.__init__, "__defaults__", (0.001,))
        monkeypatch.setattr(background, "MAX_DUTY", 0)

    async def test_it_is_right_across_a_restart(self, tmp_path: Path) -> None:
        """And the same on each worker, so that their maximum is right; one that ends leaves it at what lives.

        Without tracking there is none, which would not see sessions that expire.
        """
        first, second, third = (Counting(f"sqlite:{tmp_path / 'sessions.db'}") for _ in range(3))
        untracked = Counting(tracked=False)
        async with second.running, untracked.running:
            async with first.running:
                held = [await first.client.create() for _ in range(3)]
                await first.shows(3)
            assert first.gauge() is third.gauge() is None
            await untracked.client.create()
            await second.shows(3)
            assert untracked.gauge() is None
        async with third.running:
            await third.shows(3)
            for session in held:
                await third.client.delete(session)
            await third.shows(0)

    async def test_several_servers_of_one_process_add_up(self) -> None:
        """A meter has one gauge of a name, whoever offers it."""
        worker = Counting()
        provider = MeterProvider([reader := InMemoryMetricReader()], shutdown_on_exit=False)
        counts = [SessionMetrics(provider), SessionMetrics(provider)]
        for number, count in enumerate(counts, 1):
            count.follow()
            count.alive(count, "shop", number)
        worker.reader = reader
        assert worker.gauge() == [3]
        for _ in range(2):
            counts[0].alive(counts[0], "shop", None)
        assert worker.gauge() == [2]

    async def test_while_the_store_does_not_answer_there_is_no_number(self) -> None:
        """Rather than an old one."""
        store = Failing()
        worker = Counting(store)
        async with worker.running:
            await worker.client.create()
            await worker.shows(1)
            store.failing.add("count")
            await worker.shows()
            store.failing.clear()
            await worker.shows(1)

"""How many sessions live: read from the gauge, right across restarts, and the same on each worker."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import DEADLINE, Client, Clock
from failing import Failing
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from mcp_sessions import MCPSessionMiddleware
from mcp_sessions._server import background
from mcp_sessions.telemetry import SessionMetrics

GAUGE = "mcp_sessions.session.active"


class Telling(SessionMetrics):
    """Metrics that tell when they were given a number of sessions."""

    def __init__(self, provider: MeterProvider) -> None:
        super().__init__(provider)
        self.told = anyio.Event()

    def alive(self, *told: Any) -> None:
        super().alive(*told)
        self.told.set()
        self.told = anyio.Event()


class Worker:
    """A worker with metrics of its own, which counts each millisecond while it runs."""

    def __init__(self, store: Any, clock: Clock | None = None, **options: Any) -> None:
        self.reader = InMemoryMetricReader()
        self.metrics = Telling(MeterProvider([self.reader], shutdown_on_exit=False))
        given = {"tracked": True, "clock": clock or Clock(), **options}
        self.app: MCPSessionMiddleware = sessions(Server(), store=store, metrics=self.metrics, **given)
        self.client = Client(self.app)
        self.running = self.app.services.around(lambda _: nullcontext(), None)

    def gauge(self) -> list[Any] | None:
        """What it reports now; None where there is no gauge."""
        data = self.reader.get_metrics_data()
        assert data is not None
        found: dict[str, Any] = {
            metric.name: metric for one in data.resource_metrics[0].scope_metrics for metric in one.metrics
        }
        return [point.value for point in found[GAUGE].data.data_points] if GAUGE in found else None

    async def shows(self, *expected: int) -> None:
        """Wait until it reports this number, or nothing."""
        with anyio.fail_after(DEADLINE):
            while (self.gauge() or []) != [*expected]:
                await self.metrics.told.wait()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count each millisecond, and not less often where the machine is slow."""
    monkeypatch.setattr(background.LiveSessionCounter.__init__, "__defaults__", (0.001,))
    monkeypatch.setattr(background, "MAX_DUTY", 0)


async def test_it_is_right_across_a_restart(tmp_path: Path) -> None:
    """And the same on each worker, so that the maximum over them is right; one that ends leaves it at what lives."""
    store, clock = f"sqlite:{tmp_path / 'sessions.db'}", Clock()
    first, second, third = (Worker(store, clock) for _ in range(3))
    await third.app.services.stopping()  # before it has started
    async with second.running:
        async with first.running:
            held = [await first.client.create() for _ in range(3)]
            await first.shows(3)
        assert first.gauge() is third.gauge() is None
        await second.shows(3)
    async with third.running:
        await third.shows(3)
        for session in held:
            await third.client.delete(session)
        await third.shows(0)


async def test_without_tracking_there_is_no_gauge() -> None:
    """It would not see sessions that expire."""
    worker = Worker("memory:", tracked=False)
    async with worker.running:
        await worker.client.create()
        assert worker.gauge() is None


async def test_several_servers_of_one_process_add_up() -> None:
    """A meter has one gauge of a name, whoever offers it."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    counts = [SessionMetrics(provider), SessionMetrics(provider)]
    for number, count in enumerate(counts, 1):
        count.follow()
        count.alive(count, "shop", number)
    worker = Worker("memory:")
    worker.reader = reader
    assert worker.gauge() == [3]
    counts[0].alive(counts[0], "shop", None)
    counts[0].alive(counts[0], "shop", None)
    assert worker.gauge() == [2]


async def test_what_is_not_known_is_not_reported() -> None:
    """While the store does not answer there is no number, rather than an old one."""
    store = Failing()
    worker = Worker(store)
    async with worker.running:
        await worker.client.create()
        await worker.shows(1)
        store.failing.add("count")
        await worker.shows()
        store.failing.clear()
        await worker.shows(1)

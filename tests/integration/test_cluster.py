"""Several worker processes on one store, one of which is killed: sessions and their data are the same on each.

Every request is recorded with its times, and the history is checked for lost updates and deleted sessions that live.
"""

from __future__ import annotations

import http.client
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier

import pytest
import redis_servers
from history import Kind, Recorder, violations

from .test_rotation import Worker, working
from .wire import SESSION_KEY, Held

WORKERS = 4
CALLS = 64  # at the same time
NOT_FOUND = -32043

SERVED = """
import os
from apps import Server
from mcp_sessions import Limits, MCPSessionMiddleware

async def increment(session, arguments):
    return await session.data.increment("calls")

async def update(session, arguments):
    return await session.data.update("calls", lambda calls: calls + 1, default=0)

async def pid(session, arguments):
    return os.getpid()

app = MCPSessionMiddleware(
    Server(increment=increment, update=update, pid=pid),
    keys="a key of the cluster: 7dXo3uLs5cHf9aGe2ivB",
    store={store!r},
    limits=Limits(store_timeout=60),
)
"""


class Cluster:
    """The workers, one more that may be killed, and the history of their requests."""

    def __init__(self, doomed: Worker, *workers: Worker) -> None:
        self.doomed = doomed
        self.workers = workers
        self.recorder = Recorder()

    def ask(self, kind: Kind, tool: str, held: Held, worker: Worker) -> int:
        """Call a tool, or delete the session; return the number that came back, or 0 where it was refused."""
        with self.recorder.operation(kind, held.id) as written:
            if kind == "delete":
                answer = worker.request("sessions/delete", _meta={SESSION_KEY: held.sent()})
            else:
                answer = worker.request("tools/call", held, name=tool)
            if "error" in answer:
                assert answer["error"]["code"] == NOT_FOUND
                written.refused()
                return 0
            number: int = answer["result"].get("content", 0)
            written.accepted(number)
            return number


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        store = f"sqlite:{folder}/sessions.db"
        if request.param == "redis":
            store = stack.enter_context(redis_servers.serving(appendonly="yes")).url
        (folder / "served.py").write_text(SERVED.format(store=store), "utf-8")
        yield Cluster(*stack.enter_context(working(folder, WORKERS + 1)))


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """The same workers for each test, with a new history."""
    return Cluster(running.doomed, *running.workers)


@pytest.mark.parametrize("tool", ["increment", "update"])
def test_parallel_calls_all_count(cluster: Cluster, tool: str) -> None:
    held, together = cluster.workers[0].create(), Barrier(CALLS, timeout=60)

    def call(place: int) -> int:
        together.wait()
        return cluster.ask("add", tool, held, cluster.workers[place % WORKERS])

    with ThreadPoolExecutor(CALLS) as pool:
        numbers = list(pool.map(call, range(CALLS)))
    assert sorted(numbers) == list(range(1, CALLS + 1))
    assert violations(cluster.recorder.operations) == []


def test_acknowledged_updates_survive_a_killed_worker(cluster: Cluster) -> None:
    held = cluster.workers[0].create()
    pid = cluster.ask("use", "pid", held, cluster.doomed)

    def call(place: int) -> bool:
        if place == CALLS // 2:
            os.kill(pid, signal.SIGKILL)
        try:
            cluster.ask("add", "increment", held, [cluster.doomed, *cluster.workers][place % (WORKERS + 1)])
        except (OSError, http.client.HTTPException):
            return False
        return True

    with ThreadPoolExecutor(CALLS // 4) as pool:
        answered = list(pool.map(call, range(CALLS)))
    last = cluster.ask("add", "increment", held, cluster.workers[0])
    assert not all(answered)
    assert sum(answered) < last <= CALLS + 1
    assert violations(cluster.recorder.operations) == []


def test_a_session_deleted_on_one_worker_is_refused_by_all_at_once(cluster: Cluster) -> None:
    held, (first, *others) = cluster.workers[0].create(), cluster.workers
    together = Barrier(WORKERS, timeout=60)

    def use(worker: Worker) -> None:
        cluster.ask("use", "pid", held, worker)
        together.wait()
        while cluster.ask("use", "pid", held, worker):
            """Until it is refused."""

    with ThreadPoolExecutor(WORKERS) as pool:
        using = [pool.submit(use, worker) for worker in others]
        together.wait()
        cluster.ask("delete", "", held, first)
        for each in using:
            each.result()
    assert [cluster.ask("use", "pid", held, worker) for worker in cluster.workers] == [0] * WORKERS
    assert violations(cluster.recorder.operations) == []

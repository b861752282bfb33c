"""Work that belongs to no request: it outlives what started it, and ends with the event loop."""

from __future__ import annotations

from contextvars import ContextVar

import anyio
import pytest

from mcp_sessions._server import background

of_a_request: ContextVar[str] = ContextVar("of_a_request", default="none")


async def test_it_outlives_what_started_it_and_inherits_nothing() -> None:
    """The task group of the request has ended, and what the request had set is not seen."""
    go, done = anyio.Event(), anyio.Event()
    seen: list[str] = []

    async def work() -> None:
        await go.wait()
        seen.append(of_a_request.get())
        done.set()

    async def request() -> None:
        of_a_request.set("a request")
        background.start(work)

    async with anyio.create_task_group() as group:
        group.start_soon(request)
    go.set()
    with anyio.fail_after(5):
        await done.wait()
    assert seen == ["none"]


async def test_an_error_is_logged_by_its_kind_and_ends_that_work_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Its text may quote what no log should hold."""
    failed, done = anyio.Event(), anyio.Event()

    async def fail() -> None:
        failed.set()
        raise LookupError("redis://user:password@host")

    async def work() -> None:
        done.set()

    background.start(fail)
    with anyio.fail_after(5):
        await failed.wait()
        background.start(work)
        await done.wait()
    assert caplog.messages == ["background work stopped: LookupError"]


def test_it_ends_with_the_event_loop(anyio_backend: str) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("ended")

    async def main() -> None:
        background.start(work)
        await anyio.wait_all_tasks_blocked()

    anyio.run(main, backend=anyio_backend)
    assert ended == ["ended"]

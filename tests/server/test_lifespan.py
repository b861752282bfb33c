"""The server's start and stop: what runs beside the application lives shorter than it, and the store longer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from anyio.lowlevel import checkpoint
from clients import Incoming
from starlette.types import Message, Receive, Scope, Send

from mcp_sessions._server.lifecycle import Services
from mcp_sessions.stores._memory import MemoryStore

STARTUP, SHUTDOWN = {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}


class Noted(Services):
    """Notes its steps in place of doing anything."""

    def __init__(self, steps: list[str]) -> None:
        super().__init__(MemoryStore(), (), closes=True, on_start=checkpoint)
        self.steps = steps

    async def open(self) -> None:
        self.steps.append("opened")

    def started(self) -> None:
        self.steps.append("started")

    async def stopping(self) -> None:
        self.steps.append("stopping")

    async def stopped(self) -> None:
        self.steps.append("stopped")


async def lived(*says: str) -> list[str]:
    """What happens in order where an application answers this to each thing that it hears."""
    steps: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for said in says:
            steps.append(f"the application hears {(await receive())['type']}")
            await send({"type": said})

    async def hear(message: Message) -> None:
        steps.append(f"the server hears {message['type']}")

    await Noted(steps).run(app, {"type": "lifespan"}, Incoming(STARTUP, SHUTDOWN), hear)
    return steps


@pytest.mark.parametrize("end", ["complete", "failed"])
async def test_ours_begins_after_the_application_and_ends_before_it(end: str) -> None:
    """The store is closed when the application has stopped, well or not, while the event loop still runs."""
    assert await lived("lifespan.startup.complete", f"lifespan.shutdown.{end}") == [
        "the application hears lifespan.startup",
        "the server hears lifespan.startup.complete",
        "started",
        "stopping",
        "the application hears lifespan.shutdown",
        "stopped",
        f"the server hears lifespan.shutdown.{end}",
    ]


async def test_an_application_that_does_not_start_starts_nothing() -> None:
    """One without a lifespan returns at once, which servers take for "not supported", and goes on serving."""
    failed = await lived("lifespan.startup.failed")
    assert failed == ["the application hears lifespan.startup", "the server hears lifespan.startup.failed"]
    assert await lived() == []


class TestARouter:
    @asynccontextmanager
    async def own(self, app: object) -> AsyncIterator[str]:
        """What the router does around its own life."""
        self.steps.append("the application starts")
        yield f"state of {app}"
        self.steps.append("the application stops")

    async def test_lives_at_once_are_ended_once(self) -> None:
        """With the last of them, as where an application is mounted twice."""
        self.steps: list[str] = []
        services = Noted(self.steps)
        async with services.around(self.own, "app") as state, services.around(self.own, "app"):
            self.steps.append("serves")
        assert state == "state of app"
        assert self.steps == [
            *("opened", "the application starts", "started", "opened", "the application starts", "started", "serves"),
            *("the application stops", "stopping", "the application stops", "stopped"),
        ]

    async def test_what_fails_at_its_start_is_not_left_open(self) -> None:
        self.steps = []

        def fails(app: object) -> AbstractAsyncContextManager[None]:
            raise LookupError(app)

        with pytest.raises(LookupError):
            await Noted(self.steps).around(fails, "app").__aenter__()
        assert self.steps == ["opened", "stopped"]

"""The server's start and stop: what runs beside the application lives shorter than it, and the store longer."""

from __future__ import annotations

import pytest
from starlette.types import Message, Receive, Scope, Send

from clients import Incoming
from mcp_sessions.lifespan import Lifespan

STARTUP, SHUTDOWN = {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}


class Life:
    """One life, whose steps are written down in their order.

    Args:
        says: What the application answers to each thing that it hears.
    """

    def __init__(self, *says: str) -> None:
        self.steps: list[str] = []
        self._says = says

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        for said in self._says:
            self.steps.append(f"the application hears {(await receive())['type']}")
            await send({"type": said})

    async def run(self) -> list[str]:
        """What happened, in order."""

        async def hear(message: Message) -> None:
            self.steps.append(f"the server hears {message['type']}")

        async def stopping() -> None:
            self.steps.append("stopping")

        async def stopped() -> None:
            self.steps.append("stopped")

        life = Lifespan(self.app, lambda: self.steps.append("started"), stopping, stopped)
        await life.run({"type": "lifespan"}, Incoming(STARTUP, SHUTDOWN), hear)
        return self.steps


@pytest.mark.parametrize("end", ["complete", "failed"])
async def test_ours_begins_after_the_application_and_ends_before_it(end: str) -> None:
    """The store is closed when the application has stopped, well or not, while the event loop still runs."""
    assert await Life("lifespan.startup.complete", f"lifespan.shutdown.{end}").run() == [
        "the application hears lifespan.startup",
        "the server hears lifespan.startup.complete",
        "started",
        "stopping",
        "the application hears lifespan.shutdown",
        "stopped",
        f"the server hears lifespan.shutdown.{end}",
    ]


async def test_an_application_that_does_not_start_starts_nothing() -> None:
    """Nor is anything stopped."""
    assert await Life("lifespan.startup.failed").run() == [
        "the application hears lifespan.startup",
        "the server hears lifespan.startup.failed",
    ]


async def test_an_application_without_a_lifespan_goes_on_serving() -> None:
    """It returns at once, which servers take for "not supported": nothing must be closed under it."""
    assert await Life().run() == []

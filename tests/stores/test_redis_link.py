"""A command's time is counted like any other limit of a store, and is longer where no request waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from mcp_sessions.errors import StoreUnavailable
from mcp_sessions.stores.redis_connection import Link
from mcp_sessions.stores.redis_scripts import Step

PING = Step(("PING",))


@pytest.fixture
def anyio_backend() -> str:
    """The driver knows asyncio alone."""
    return "asyncio"


class Slow:
    """A client that is told of its answer late.

    Args:
        stall: Seconds for which the event loop does not run at first.
        pauses: Seconds of each time that it waits after that.
    """

    def __init__(self, *, stall: float = 0, pauses: Sequence[float] = ()) -> None:
        self._stall = stall
        self._pauses = pauses
        self.dropped = asyncio.Event()

    async def ready(self) -> None:
        """Nothing has to be learnt."""

    async def one(self, *words: Any) -> Any:
        keep_from_running(self._stall)
        for pause in self._pauses:
            await asyncio.sleep(pause)
        return words

    async def drop_idle(self) -> None:
        self.dropped.set()


def keep_from_running(seconds: float) -> None:
    time.sleep(seconds)


def linked(client: Any) -> Link:
    return Link(client, timeout=0.01, connections=1)


async def test_time_in_which_the_event_loop_did_not_run_counts_once() -> None:
    """What was answered meanwhile is heard."""
    link = linked(Slow(stall=0.03, pauses=[0] * 3))
    assert await link.run(PING, again=False) == [("PING",)]


async def test_what_no_request_waits_for_may_take_longer() -> None:
    """What a request waits for may not, and the connections that stand by are dropped then."""
    client = Slow(pauses=[0.002] * 50)
    assert await linked(client).run(PING, again=False, at_leisure=True) == [("PING",)]
    with pytest.raises(StoreUnavailable) as caught:
        await linked(client).run(PING, again=False)
    assert caught.value.reason == "store_timeout"
    await client.dropped.wait()


class Deaf(Slow):
    """A client to which the first cancellation is lost, as it can be while a connection is made."""

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()

    async def greet(self) -> None:
        self.began.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async def close(self) -> None:
        """There is no connection."""


async def test_closing_cancels_again_what_did_not_hear_it() -> None:
    """So who waits for a server that hangs is told at once that the store is closed."""
    client = Deaf()
    link = linked(client)
    greeting = asyncio.ensure_future(link.greet())
    await client.began.wait()
    await link.close()
    with pytest.raises(asyncio.CancelledError):
        await greeting

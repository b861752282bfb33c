"""Commands of callers that give up: a store's timeout, a client that hung up, a store that closes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import pytest

from mcp_sessions._errors import StoreUnavailable
from mcp_sessions.stores._base import Store
from mcp_sessions.stores._redis_connection import RedisConnection
from mcp_sessions.stores._timeout import TimeoutStore

PING = ("PING",)


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

    async def execute(self, *words: Any) -> Any:
        keep_from_running(self._stall)
        for pause in self._pauses:
            await asyncio.sleep(pause)
        return words

    async def drop_idle(self) -> None:
        self.dropped.set()


def keep_from_running(seconds: float) -> None:
    time.sleep(seconds)


def connected(client: Any) -> RedisConnection:
    return RedisConnection(client, timeout=0.01, connections=1)


class Pinging:
    """A store whose every call is a command."""

    def __init__(self, client: Any) -> None:
        self._connection = connected(client)

    async def status(self, claims: None) -> list[Any]:
        return await self._connection.run(PING, idempotent=False)

    get = status


def timed(client: Any) -> Any:
    """The same, as the middleware uses a store."""
    return TimeoutStore(cast("Store", Pinging(client)), seconds=0.01, background_timeout=10)


async def test_time_in_which_the_event_loop_did_not_run_counts_once() -> None:
    """What was answered meanwhile arrives."""
    store = timed(Slow(stall=0.03, pauses=[0] * 3))
    assert await store.status(None) == [("PING",)]


async def test_what_no_request_waits_for_may_take_longer() -> None:
    """What a request waits for may not, and the connections that stand by are dropped then."""
    client = Slow(pauses=[0.002] * 50)
    assert await timed(client).get(None) == [("PING",)]
    assert not client.dropped.is_set()
    with pytest.raises(StoreUnavailable) as caught:
        await timed(client).status(None)
    assert caught.value.reason == "store_timeout"
    await client.dropped.wait()


async def test_a_client_that_hangs_up_drops_no_connections() -> None:
    """Or each that did would cost the others new ones."""
    client = Slow(pauses=[10])
    task = asyncio.ensure_future(
        RedisConnection(cast("Any", client), timeout=60, connections=1).run(PING, idempotent=True)
    )
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert not client.dropped.is_set()


class Deaf(Slow):
    """A client to which the first cancellation is lost, as it can be while a connection is made."""

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()

    async def ping(self) -> None:
        self.began.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async def close(self) -> None:
        """There is no connection."""


async def test_closing_cancels_again_what_did_not_hear_it() -> None:
    """So who waits for a server that hangs learns at once that the store is closed; nobody has cancelled it."""
    client = Deaf()
    connection = connected(client)
    pinging = asyncio.ensure_future(connection.ping())
    await client.began.wait()
    await connection.close()
    with pytest.raises(StoreUnavailable) as caught:
        await pinging
    assert caught.value.reason == "store_closed"

"""A time limit ends what hangs, and does not end what answered while nobody could hear it."""

from __future__ import annotations

import time

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mcp_sessions.stores.timeout import STEPS, Countdown


def stall(seconds: float) -> None:
    """Keep the event loop from running, as other processes do on a busy machine."""
    time.sleep(seconds)


async def test_what_hangs_is_cancelled() -> None:
    """When its time is over."""
    with anyio.fail_after(5), anyio.CancelScope() as scope, Countdown(scope, 0.01):
        await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_what_is_done_in_time_goes_on() -> None:
    """Nothing is cancelled any more when it is over."""
    with anyio.CancelScope() as scope, Countdown(scope, 60):
        await checkpoint()
    assert not scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_time_in_which_the_event_loop_did_not_run_counts_once() -> None:
    """What was answered meanwhile has as many rounds of the loop as it needs to be heard."""
    with anyio.CancelScope() as scope, Countdown(scope, 0.01):
        stall(0.03)
        for _ in range(STEPS - 2):
            await checkpoint()
    assert not scope.cancelled_caught

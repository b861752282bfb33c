"""Hooks: the application's own functions, of either kind."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from mcp_sessions._server.lifecycle import call_hook


class Callable:
    """An object that is called like a function."""

    async def __call__(self, *arguments: Any) -> None:
        await checkpoint()
        heard.append(arguments)


heard: list[tuple[Any, ...]] = []


async def waits(*arguments: Any) -> None:
    await checkpoint()
    heard.append(arguments)


def does_not_wait(*arguments: Any) -> None:
    heard.append(arguments)


@pytest.mark.parametrize("hook", [waits, does_not_wait, Callable(), partial(waits)])
async def test_a_hook_has_run_when_the_call_returns(hook: Any) -> None:
    """Whatever kind of function it is, and with what it was given."""
    heard.clear()
    await call_hook(hook, "a", 1)
    assert heard == [("a", 1)]


async def test_what_it_raises_comes_out() -> None:
    """Who calls it decides what becomes of that."""

    async def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await call_hook(fail)

"""Parallel updates of one value: which are committed together, and what becomes of them when one fails or leaves."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from mcp_sessions._errors import DataTooLarge, StoreUnavailable
from mcp_sessions._session.data import Data, Namespace
from mcp_sessions.stores._memory import MemoryStore
from mcp_sessions.stores._turns import Turns

PLACE = ("ses_a", "n")
SHELF = Namespace("ses_a", int(time.time()) + 3600, max_bytes=100)


class Commits:
    """A store's side: each commit waits until it may go on."""

    def __init__(self, *, tries: int = 1) -> None:
        self.batches: list[list[str]] = []
        self.may_go = anyio.Event()
        self.error: Exception | None = None
        self._tries = tries

    async def __call__(self, batch: list[str]) -> int:
        self.batches.append(batch)
        await self.may_go.wait()
        if self.error is not None and len(batch) > 1:
            raise self.error
        return self._tries


@pytest.mark.parametrize("tries", [1, 2])
async def test_what_comes_during_a_commit_goes_together_in_the_next(tries: int) -> None:
    """In its order; and who had to try again leaves others a moment."""
    turns, commits = Turns(), Commits(tries=tries)
    async with anyio.create_task_group() as group:
        for name in "abcd":
            group.start_soon(turns.take, PLACE, name, commits)
            await anyio.wait_all_tasks_blocked()
        commits.may_go.set()
    await turns.take(PLACE, "e", commits)
    assert commits.batches == [["a"], ["b", "c", "d"], ["e"]]


async def test_an_error_of_the_store_is_everybody_s() -> None:
    """Nobody knows whether the changes were made."""
    turns, commits, failed = Turns(), Commits(), []
    commits.error = StoreUnavailable("store_timeout")

    async def take(name: str) -> None:
        try:
            await turns.take(PLACE, name, commits)
        except StoreUnavailable:
            failed.append(name)

    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(take, name)
            await anyio.wait_all_tasks_blocked()
        commits.may_go.set()
    assert sorted(failed) == ["b", "c"]


async def start_cancellable(group: Any, call: Callable[..., Awaitable[None]], *args: Any) -> anyio.CancelScope:
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            await call(*args)

    group.start_soon(run)
    await anyio.wait_all_tasks_blocked()
    return scope


async def test_who_leaves_keeps_nobody_waiting() -> None:
    """One that waits takes its change along; one that commits for others finishes first."""
    turns, commits = Turns(), Commits()
    async with anyio.create_task_group() as group:
        scopes = {name: await start_cancellable(group, turns.take, PLACE, name, commits) for name in "ab"}
        scopes["b"].cancel()  # which waits
        await anyio.wait_all_tasks_blocked()
        scopes |= {name: await start_cancellable(group, turns.take, PLACE, name, commits) for name in "cd"}
        scopes["a"].cancel()  # which commits, for itself alone
        await anyio.wait_all_tasks_blocked()
        for name in "dc":  # the one whose change is being committed, and the one that commits both
            scopes[name].cancel()
        await anyio.wait_all_tasks_blocked()
        commits.may_go.set()
    assert commits.batches == [["a"], ["c", "d"]]
    await turns.take(PLACE, "e", commits)


async def test_whose_turn_comes_as_it_leaves_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it gives others time, for example."""
    monkeypatch.setattr("random.random", lambda: 1e9)
    turns, commits = Turns(), Commits(tries=2)
    async with anyio.create_task_group() as group:
        await start_cancellable(group, turns.take, PLACE, "a", commits)
        await start_cancellable(group, turns.take, PLACE, "b", commits)
        first = commits.may_go
        commits.may_go = anyio.Event()
        first.set()
        await anyio.wait_all_tasks_blocked()
        await start_cancellable(group, turns.take, PLACE, "c", commits)
        assert commits.batches == [["a"]]  # the second gives others time
        group.cancel_scope.cancel()
    assert not turns._waiting


# --- of session data -----------------------------------------------------------------------------

CALLER: ContextVar[str] = ContextVar("caller")


class Slow(MemoryStore):
    """A store whose reading lets others come."""

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        await anyio.sleep(0.01)
        return await super().read(namespace, key)


async def test_updates_that_go_together_fail_each_for_itself() -> None:
    """What one function raises is its own caller's affair, as is what does not fit."""
    data = Data(Slow(), SHELF, clock=time.time, max_value_bytes=90, turns=Turns())
    outcomes: dict[str, Any] = {}

    async def update(caller: str, fn: Callable[[list[str]], Any]) -> None:
        CALLER.set(caller)
        try:
            outcomes[caller] = await data.update("n", fn, default=[])
        except (ZeroDivisionError, DataTooLarge) as error:
            outcomes[caller] = type(error)

    def add(found: list[str]) -> list[str]:
        return [*found, CALLER.get()]

    def overflow(found: list[str]) -> list[str]:
        return [*found, "x" * 90]

    async with anyio.create_task_group() as group:
        for caller, fn in (("a", add), ("b", lambda _: 1 / 0), ("c", overflow), ("d", add)):
            group.start_soon(update, caller, fn)
            await anyio.wait_all_tasks_blocked()
    assert outcomes == {"a": ["a"], "b": ZeroDivisionError, "c": DataTooLarge, "d": ["a", "d"]}
    assert await data.get("n") == ["a", "d"]  # what was returned is stored, whoever else failed
    with pytest.raises(ZeroDivisionError):
        await data.update("n", lambda _: 1 / 0)


async def test_what_is_too_large_for_the_session_is_found_one_by_one() -> None:
    """Those that fit are made."""
    data = Data(Slow(), SHELF, clock=time.time, max_value_bytes=200, turns=Turns())
    outcomes: list[Any] = []

    async def update(length: int) -> None:
        try:
            outcomes.append(len(await data.update("n", lambda found: found + "x" * length, default="")))
        except DataTooLarge:
            outcomes.append(None)

    async with anyio.create_task_group() as group:
        for length in (1, 2, 150, 4):
            group.start_soon(update, length)
            await anyio.wait_all_tasks_blocked()
    assert sorted(each or 0 for each in outcomes) == [0, 1, 3, 7]

"""A lane: one thread and what it made, from any event loop, for as long as it is needed."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from mcp_sessions.stores.sqlite_file import Lane

PATIENCE = 10  # seconds until a test fails that would wait for ever


class Desk:
    """What a thread makes: it notes who uses it, and when it is left."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.left = threading.Event()
        self.notes: list[str] = []

    def note(self, text: str) -> threading.Thread:
        self.notes.append(text)
        return threading.current_thread()


class Office:
    """Makes desks, and keeps them to be looked at."""

    def __init__(self) -> None:
        self.desks: list[Desk] = []

    @contextmanager
    def __call__(self) -> Iterator[Desk]:
        desk = Desk()
        self.desks.append(desk)
        yield desk
        desk.left.set()


class Block:
    """Work that goes on until it is released."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.released = threading.Event()

    def __call__(self, desk: Desk) -> None:
        self.begun.set()
        assert self.released.wait(PATIENCE)
        desk.note("blocked")


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def lane(office: Office) -> Iterator[Lane[Desk]]:
    made = Lane("a lane", office)
    yield made
    made.stop()


async def begun(block: Block) -> None:
    """Wait until the work has begun."""
    assert await anyio.to_thread.run_sync(block.begun.wait, PATIENCE)


async def test_all_calls_run_on_the_thread_that_made_what_they_use(lane: Lane[Desk], office: Office) -> None:
    """Which is not the event loop's, and there is one."""
    threads = {await lane.run(lambda desk: desk.note("a")) for _ in range(3)}
    (desk,) = office.desks
    assert threads == {desk.thread} != {threading.current_thread()}
    assert desk.thread.daemon
    assert desk.thread.name == "a lane"


async def test_calls_run_one_after_the_other(lane: Lane[Desk], office: Office) -> None:
    """However many wait at the same time."""
    block = Block()
    async with anyio.create_task_group() as group:
        group.start_soon(lane.run, block)
        await begun(block)
        for n in range(5):
            group.start_soon(lane.run, partial(Desk.note, text=f"{n}"))
            await anyio.lowlevel.checkpoint()
        block.released.set()
    assert office.desks[0].notes[0] == "blocked"
    assert sorted(office.desks[0].notes[1:]) == ["0", "1", "2", "3", "4"]


async def test_an_error_is_the_callers(lane: Lane[Desk]) -> None:
    """And hurts nobody else."""
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda _: 1 / 0)
    assert await lane.run(lambda _: 5) == 5


async def test_who_gives_up_waiting_is_free_at_once(lane: Lane[Desk], office: Office) -> None:
    """What had begun runs to its end, what had not is never done, and those after it have their turn."""
    block = Block()
    async with anyio.create_task_group() as group:
        group.start_soon(lane.run, block)
        await begun(block)
        group.start_soon(lane.run, partial(Desk.note, text="given up"))
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert office.desks[0].notes == []
    block.released.set()
    await lane.run(lambda desk: desk.note("next"))
    assert office.desks[0].notes == ["blocked", "next"]


async def test_a_lane_that_was_stopped_finishes_what_it_has_and_begins_anew(lane: Lane[Desk], office: Office) -> None:
    """A request that is still under way at shutdown is not left waiting."""
    block = Block()
    async with anyio.create_task_group() as group:
        group.start_soon(lane.run, block)
        await begun(block)
        lane.stop()
        await lane.run(lambda desk: desk.note("after"))
        block.released.set()
    first, second = office.desks
    assert await anyio.to_thread.run_sync(first.left.wait, PATIENCE)
    assert [first.notes, second.notes] == [["blocked"], ["after"]]


def test_stopping_what_never_began_is_no_error(lane: Lane[Desk], office: Office) -> None:
    """And starts nothing."""
    lane.stop()
    lane.stop()
    assert office.desks == []


def test_one_lane_serves_several_event_loops(lane: Lane[Desk], office: Office, anyio_backend: str) -> None:
    """One after the other, and of both kinds."""
    for backend in ("asyncio", "trio", anyio_backend):
        anyio.run(lane.run, lambda desk: desk.note("a"), backend=backend)
    assert len(office.desks) == 1
    assert office.desks[0].notes == ["a"] * 3


def test_an_event_loop_that_ended_meanwhile_is_let_go(lane: Lane[Desk], office: Office, anyio_backend: str) -> None:
    """Nobody waits there any more, so there is nobody to tell."""
    block = Block()

    async def give_up() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(lane.run, block)
            await begun(block)
            group.cancel_scope.cancel()

    anyio.run(give_up, backend=anyio_backend)
    block.released.set()
    anyio.run(lane.run, lambda desk: desk.note("next"), backend=anyio_backend)
    assert office.desks[0].notes == ["blocked", "next"]


def test_a_lane_that_nobody_holds_lets_its_thread_end(office: Office, anyio_backend: str) -> None:
    """Also where nobody stopped it."""
    lane = Lane("forgotten", office)
    anyio.run(lane.run, lambda desk: desk.note("a"), backend=anyio_backend)
    del lane
    gc.collect()
    assert office.desks[0].left.wait(PATIENCE)


async def test_what_a_call_held_is_let_go_before_the_next_one_comes(lane: Lane[Desk]) -> None:
    """An idle thread keeps nothing alive."""
    thing = Desk()
    gone = threading.Event()
    weakref.finalize(thing, gone.set)
    await lane.run(partial(_hold, thing))
    del thing
    gc.collect()
    assert await anyio.to_thread.run_sync(gone.wait, PATIENCE)


def _hold(thing: Desk, desk: Desk) -> None:
    desk.note(thing.thread.name)

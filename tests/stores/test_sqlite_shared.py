"""What processes share beside a SQLite file: counters that fail closed, a turn, and room for a full disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_sessions.stores import _sqlite_shared as sqlite_shared
from mcp_sessions.stores._sqlite_shared import PAGE, SharedFile, _slot

ONE, OTHER = _slot("one"), _slot("other")
PATIENCE = 60


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "sessions.db")


@pytest.fixture
def shared(path: str) -> Iterator[SharedFile]:
    made = SharedFile(path, 1 << 20)
    made.open()
    yield made
    made.close()


@pytest.fixture
def beside(shared: SharedFile, path: str) -> Iterator[SharedFile]:
    """Another process's view of the same file."""
    made = SharedFile(path, 1 << 20)
    made.open()
    yield made
    made.close()


def stamp(file: SharedFile) -> int:
    found = file.stamp(ONE, OTHER)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["one", "other", None])
def test_what_ends_a_session_moves_its_counter(shared: SharedFile, beside: SharedFile, name: str | None) -> None:
    """Before the commit every process asks the database, and after it none takes for true what it knew before."""
    before = stamp(beside)
    assert beside.is_at(before, ONE, OTHER)
    with shared.turn():
        shared.move(name)
        assert not beside.is_at(before, ONE, OTHER)
        assert beside.stamp(ONE, OTHER) is None
    assert not beside.is_at(before, ONE, OTHER)
    assert beside.is_at(stamp(beside), ONE, OTHER)


def test_a_turn_that_ends_no_session_moves_nothing(shared: SharedFile, beside: SharedFile) -> None:
    """What is known stays known while data is written."""
    before = stamp(beside)
    with shared.turn():
        assert beside.is_at(before, ONE, OTHER)
    assert beside.is_at(before, ONE, OTHER)


def test_a_process_that_is_killed_in_its_turn_leaves_all_to_the_database(
    shared: SharedFile, beside: SharedFile, path: str
) -> None:
    """Nothing is known of those sessions until one that starts, or ends such a session, counts on."""
    for counts_on in (SharedFile(path, 1 << 20).open, lambda: end(beside)):
        with shared.turn():
            shared.move("one")
            shared._moving.clear()  # as one leaves it that is killed here; the lock goes with the process
        assert beside.stamp(ONE, OTHER) is None
        counts_on()
        assert beside.is_at(stamp(beside), ONE, OTHER)


def end(file: SharedFile) -> None:
    with file.turn():
        file.move("one")


def test_a_file_that_was_deleted_is_trusted_no_more(shared: SharedFile, path: str) -> None:
    """It is made anew, after so long that whoever maps the old one has noticed; no count of it comes again."""
    before = stamp(shared)
    Path(shared.path).unlink()
    time.sleep(2 * sqlite_shared._LOOK)
    assert not shared.is_at(before, ONE, OTHER)
    assert shared.stamp(ONE, OTHER) is None
    started = time.monotonic()
    shared.open()
    assert time.monotonic() - started >= sqlite_shared._LOOK
    assert stamp(shared) > before
    shared.open()


def test_a_file_that_was_begun_is_finished(shared: SharedFile, path: str) -> None:
    """Whoever made it was killed before it wrote the page."""
    os.truncate(shared.path, 0)
    again = SharedFile(path, 0)
    again.open()
    assert os.stat(again.path).st_size == PAGE
    assert again.is_at(stamp(again), ONE, OTHER)
    again.close()


def test_one_has_the_turn_at_a_time(shared: SharedFile, beside: SharedFile) -> None:
    """Others wait for it, in a queue."""
    order: list[str] = []

    def take(name: str) -> None:
        with beside.turn():
            order.append(name)

    with shared.turn():
        waiting = threading.Thread(target=take, args=("second",))
        waiting.start()
        waiting.join(0.05)
        order.append("first")
    waiting.join(PATIENCE)
    assert order == ["first", "second"]


def test_the_spare_room_is_taken_given_and_taken_again(shared: SharedFile) -> None:
    """A sixteenth of what the database may take, at the most."""
    assert os.stat(shared.path).st_size == PAGE + shared.spare() == PAGE + (1 << 16)
    shared.give_spare()
    assert os.stat(shared.path).st_size == PAGE
    assert shared.fill_spare()
    assert os.stat(shared.path).st_size == PAGE + (1 << 16)

"""Session data in memory: bounded in all, and dropped without a look at the rest."""

from __future__ import annotations

import pytest
from clients import START

from mcp_sessions._session.data import Namespace
from mcp_sessions.errors import DataTooLarge, StoreFull
from mcp_sessions.stores.memory import VALUE_COST, MemoryData

LATER = START + 3600


def shelf(owner: str = "ses_a", *, until: int = LATER, max_bytes: int = 1000) -> Namespace:
    return Namespace(owner, until, max_bytes)


def test_the_data_of_all_sessions_has_a_limit() -> None:
    """What would exceed it is refused and changes nothing; each value costs something besides its bytes."""
    data = MemoryData(2 * (VALUE_COST + 10))
    data.replace(shelf("ses_a"), "k", b"123456789", START)
    data.replace(shelf("ses_b"), "k", b"123456789", START)
    for one, key, value in ((shelf("ses_c"), "k", b"1"), (shelf("ses_a"), "l", b"1"), (shelf("ses_a"), "k", b"1" * 10)):
        with pytest.raises(StoreFull):
            data.replace(one, key, value, START)
    assert data.read("ses_a", "k", START) == b"123456789"
    assert len(data) == 2


def test_what_is_dropped_makes_room() -> None:
    """Deleted, over, or of a session that is forgotten: all of it is counted back."""
    data = MemoryData(VALUE_COST + 10)
    for n in range(3):
        data.replace(shelf(), "k", b"123456789", START)
        data.end("ses_a", "k", START + 10)
        data.replace(shelf(), "k", None, START + 10 * (n == 0))
        data.replace(shelf("ses_b"), "k", b"123456789", START)
        data.drop("ses_b")
        data.drop("ses_b")
    assert len(data) == 0
    data.replace(shelf(), "k", b"1", START)
    data.end("ses_a", "k", START + 10)
    data.replace(shelf(), "longer", b"1234", START + 10)
    assert data.read("ses_a", "longer", START + 10) == b"1234"


def test_a_refused_value_leaves_no_empty_shelf() -> None:
    """A session that never got to keep anything takes no room."""
    data = MemoryData(10_000)
    with pytest.raises(DataTooLarge):
        data.replace(shelf(max_bytes=3), "k", b"123", START)
    data.replace(shelf(), "k", None, START)
    assert len(data) == 0


def test_the_end_of_a_value_can_be_taken_back() -> None:
    """It then lives as long as its session."""
    data = MemoryData(10_000)
    data.replace(shelf(), "k", b"1", START)
    data.end("ses_a", "k", START + 10)
    data.end("ses_a", "k", None)
    assert data.read("ses_a", "k", START + 10) == b"1"


def test_what_is_over_is_dropped_but_for_what_is_to_be_kept() -> None:
    """A session whose `on_end` is yet to run may read its data; those that live are not looked at."""
    data = MemoryData(10_000)
    for owner, until in (("over", START), ("kept", START), ("in a second", START + 1), ("living", LATER)):
        data.replace(shelf(owner, until=until), "k", b"1", START - 100)
    data.drop_over(START, keep={"kept"}.__contains__)
    found = [owner for owner in ("over", "kept", "in a second", "living") if data.read(owner, "k", START)]
    assert found == ["kept", "in a second", "living"]
    data.drop_over(START, keep=lambda owner: False)
    assert data.read("kept", "k", START) is None

"""A calendar: what is due is found, and nothing else is looked at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_sessions.stores.memory import Calendar


@given(entered=st.lists(st.floats(0, 10_000), max_size=20), now=st.floats(-100, 10_100))
def test_all_that_is_due_is_found(entered: list[float], now: float) -> None:
    """And of the rest only what will be due within the minute; earlier pages come first."""
    calendar, moments = Calendar(), {f"{number}": moment for number, moment in enumerate(entered)}
    for name, moment in moments.items():
        calendar.put(name, moment)
    found = list(calendar.due(now))
    assert {name for name, moment in moments.items() if moment <= now} <= set(found)
    assert all(moments[name] < now + 60 for name in found)
    pages = [moments[name] // 60 for name in found]
    assert pages == sorted(pages)


def test_what_was_struck_is_not_found() -> None:
    """The others of its minute are."""
    calendar = Calendar()
    calendar.put("a", 1)
    calendar.put("b", 2)
    calendar.strike("a", 1)
    assert list(calendar.due(10)) == ["b"]
    calendar.strike("b", 2)
    assert list(calendar.due(10)) == []


def test_striking_what_does_not_stand_there_is_an_error() -> None:
    """Or a name would stay for ever."""
    calendar = Calendar()
    calendar.put("a", 1)
    with pytest.raises(KeyError):
        calendar.strike("a", 100)


def test_names_may_be_moved_while_they_are_looked_at() -> None:
    """Each is given once, however they are moved."""
    calendar = Calendar()
    for n in range(10):
        calendar.put(f"a{n}", n)
        calendar.put(f"b{n}", n + 60)
    seen = []
    for name in calendar.due(100):
        seen.append(name)
        calendar.strike(name, int(name[1]) + 60 * (name[0] == "b"))
        calendar.put(name, 1000)
    assert len(seen) == len(set(seen)) == 20
    assert list(calendar.due(100)) == []

"""Values of `session.data` and `session.state` come back equal or are refused where they are written."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_sessions._session import data

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON)
def test_every_json_value_comes_back_as_it_is(value: Any) -> None:
    kept = data.decode(data.encode(value))
    assert (kept, repr(kept)) == (value, repr(value))


@given(st.integers())
def test_integers_of_any_size_come_back(number: int) -> None:
    assert data.decode(data.encode(number)) == number


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [object(), {"a": {1, 2, object()}}, "\ud800", {"\udfff": 1}, nested(100_000), {(1, 2): 1}],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_json_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^it holds a value that has no JSON form$"):
        data.encode(value)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, (1, 2), b"x", {1: 2}, {"a": date(2026, 7, 28)}, {1, 2}, [frozenset()]], ids=repr
)
def test_what_would_come_back_as_something_else_is_refused(value: Any) -> None:
    """A tuple as a list, a date as text: a program that reads it later would meet a surprise."""
    with pytest.raises(ValueError, match=r"^it holds a value that would not come back as it is$"):
        data.encode(value)

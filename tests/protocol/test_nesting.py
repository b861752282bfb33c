"""How deep a text is nested, found before anything parses it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_sessions._protocol.strict_json import is_deeper

VALUES = st.recursive(
    st.none() | st.text('[]{}"\\a'), lambda inner: st.lists(inner) | st.dictionaries(st.text('[]{}"\\a'), inner)
)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(VALUES, st.integers(0, 6))
def test_the_depth_is_that_of_the_value(value: Any, limit: int) -> None:
    """Brackets in strings and names count for nothing, however they are escaped."""
    assert is_deeper(json.dumps(value).encode(), limit) is (depth_of(value) > limit)


def test_width_is_not_depth() -> None:
    assert not is_deeper(b"[" + b",".join([b"[{}]"] * 10_000) + b"]", 3)
    assert is_deeper(b"[" + b",".join([b"[{}]"] * 10_000) + b"]", 2)


def test_a_few_deep_members_are_measured_one_bracket_at_a_time() -> None:
    text = b"[" + b",".join([b"[" * 99 + b"]" * 99] * 3) + b"]"
    assert not is_deeper(text, 100)
    assert is_deeper(text, 99)


def test_brackets_in_strings_are_no_levels() -> None:
    assert not is_deeper(b'"[[[["', 0)
    assert not is_deeper(b'["[[[["]', 1)


@pytest.mark.parametrize("text", [b'"' + b"[" * 9, b"{" * 9, b"[" * 4 + b"]" * 2 + b"[" * 4])
def test_what_is_no_json_is_judged_strictly(text: bytes) -> None:
    assert is_deeper(text, 5)

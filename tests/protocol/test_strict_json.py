"""Reading one object at a time: names resolved, values as they were sent, and nothing that two parsers read apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsontext import broken_texts, load, seeds, write
from msgspec import Raw
from reasons import refused

from mcp_sessions._errors import Refusal
from mcp_sessions._protocol.strict_json import (
    has_no_other_members,
    is_deeper,
    members,
    string,
)


def test_members_are_the_slices_of_one_object() -> None:
    found = members(b' { "b" : [ 1 ] , "a" : "\\ud800" } ')
    assert [(name, bytes(value)) for name, value in found.items()] == [("b", b"[ 1 ]"), ("a", b'"\\ud800"')]
    assert list(members(b'{"\\u0061\\u0062":"\\ud800"}')) == ["ab"]


@pytest.mark.parametrize(
    ("text", "proved"),
    [
        (b'{"a":1,"b":[ 2 ]}', True),
        (b'{ "a" : 1 ,\n "b" : [ 2 ] }', True),
        (b'{"a":1,"b":[ 2 ],"":0}', False),
        (b'{ "a" : 1 , "b" : [ 2 ] , "":0}', False),
        (b'{"\\u0061":1,"b":[ 2 ]}', False),
    ],
)
def test_the_length_proves_that_there_are_no_other_members(text: bytes, proved: bool) -> None:
    """A further one takes five bytes at least; escapes can spoil the proof, and nothing can feign it."""
    assert has_no_other_members(text, {"a": Raw(b"1"), "b": Raw(b"[ 2 ]")}) is proved


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[]", "not_jsonrpc"),
        (b"null", "not_jsonrpc"),
        (b'{"a":1,"b":2,"a":3}', "duplicate_member"),
        (b'{"\\u0061\\u0062":"\\ud800","ab":1}', "duplicate_member"),
        *((text % b"\xff", "not_utf8") for text in (b'{"\\u0061":"%b"}', b'{"%b":1}', b'{"a":"\\ud800","%b":1}')),
    ],
)
def test_members_are_refused_for_what_is_wrong_with_them(text: bytes, reason: str) -> None:
    with refused(reason):
        members(text)
    with refused("session_missing"):
        members(b"null", "session_missing")


@pytest.mark.parametrize(
    ("text", "value"),
    [(b'"a\\n\\ud83d\\ude00"', "a\n\U0001f600"), (b'""', ""), *((text, None) for text in (b"1", b"null", b'["a"]'))],
)
def test_a_string_is_decoded_and_another_value_is_none(text: bytes, value: str | None) -> None:
    assert string(text) == value
    with refused("not_utf8"):
        string(b'"\xff"')


@given(broken_texts, seeds)
@example("\ud800", None)
def test_every_string_is_decoded_or_refused_for_its_surrogates(text: str, seed: int | None) -> None:
    written = write(text, seed).strip()
    try:
        assert string(written) == load(written)
    except Refusal as refusal:
        assert refusal.reason == "lone_surrogate"
        with pytest.raises(UnicodeEncodeError):
            text.encode()


NAMES = st.text('[]{}"\\a', max_size=4)
VALUES = st.recursive(st.none() | NAMES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=12)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(VALUES, st.integers(0, 6))
def test_the_depth_is_that_of_the_value(value: Any, limit: int) -> None:
    """Brackets in strings and names count for nothing, however they are escaped."""
    assert is_deeper(json.dumps(value).encode(), limit) is (depth_of(value) > limit)


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        (b"[" + b",".join([b"[{}]"] * 10_000) + b"]", 3),
        (b"[" + b",".join([b"[" * 99 + b"]" * 99] * 3) + b"]", 100),  # a few deep members
        (b'"[[[["', 0),
        (b'["[[[["]', 1),
        *((b'["a",' * depth, depth) for depth in (4, 5)),
    ],
    ids=lambda value: str(value)[:20],
)
def test_brackets_count_where_they_are_levels(text: bytes, depth: int) -> None:
    """Neither width nor strings make a value deep."""
    assert not is_deeper(text, depth)
    assert depth == 0 or is_deeper(text, depth - 1)


@pytest.mark.parametrize("text", [b'"' + b"[" * 9, b"{" * 9, b"[" * 4 + b"]" * 2 + b"[" * 4])
def test_what_is_no_json_is_judged_strictly(text: bytes) -> None:
    assert is_deeper(text, 5)

"""JSON texts for property tests: the same value in every spelling that RFC 8259 allows.

`write` spells a value with the white space and escapes of a seed; `load` reads a text strictly with the standard
library, and keeps the digits of numbers and the order and repetition of members.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st

SPACES = ("", "", " ", "\n", "\t ", "\r\n  ")
SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True)
class Number:
    """A number in its written form."""

    digits: str


class Object(tuple[tuple[str, Any], ...]):
    """The members of an object in their written form."""

    __slots__ = ()


def load(text: bytes) -> Any:
    """Read a text with the standard library, without NaN and Infinity.

    Raises:
        ValueError: The text is not JSON.
    """

    def refuse(name: str) -> None:
        raise ValueError(name)

    read = json.JSONDecoder(object_pairs_hook=Object, parse_int=Number, parse_float=Number, parse_constant=refuse)
    return read.decode(bytes(text).decode())


def write(value: Any, seed: int | None = None) -> bytes:
    """Write the value compactly, or as the seed asks."""
    return Writer(None if seed is None else Random(seed)).value(value).encode()


class Writer:
    """One spelling, which is compact without a source of randomness."""

    def __init__(self, random: Random | None) -> None:
        self.random = random

    def value(self, value: Any) -> str:
        """Return the text of one value, with space around it."""
        space = self.space
        if isinstance(value, Number):
            text = value.digits
        elif isinstance(value, str):
            text = self.string(value)
        elif isinstance(value, dict | Object):
            pairs = value.items() if isinstance(value, dict) else value
            members = (f"{space()}{self.string(name)}{space()}:{self.value(inner)}" for name, inner in pairs)
            text = "{" + (",".join(members) or space()) + "}"
        elif isinstance(value, list):
            text = "[" + (",".join(map(self.value, value)) or space()) + "]"
        else:
            text = {None: "null", True: "true", False: "false"}[value]
        return space() + text + space()

    def space(self) -> str:
        return self.random.choice(SPACES) if self.random else ""

    def string(self, text: str) -> str:
        """Return a string, each character literal or escaped."""
        return '"' + "".join(map(self.character, text)) + '"'

    def character(self, character: str) -> str:
        """Spell one character in one of its ways, by the 16-bit units of RFC 8259 section 7."""
        units = character.encode("utf-16-be", "surrogatepass")
        escaped = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        ways = [SHORT[character]] if character in SHORT else []
        if character >= " " and character not in '"\\' and not "\ud800" <= character <= "\udfff":
            ways.insert(0, character)
        if self.random is None:
            return (ways or [escaped])[0]
        upper = "".join(f"\\u{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2))
        return self.random.choice([*ways[:1] * 4, *ways, escaped, upper])


numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,22})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,3})?", fullmatch=True).map(Number)
texts = st.text(st.characters(codec="utf-8"), max_size=8)
broken_texts = st.text(
    st.one_of(st.characters(), st.sampled_from('\ud800\udfff\udc00\\u"\x7f\u05f5\u05f6')), max_size=8
)
READ_BY_SOME = ["Method", "ID", "JSONRPC", "param\u017f", "_Meta", "uRi", "sessionID", "method\u0301", "method\0"]
names = st.one_of(st.sampled_from(["name", "_meta", "id", "method", "Method", "method\0", "", "a/b"]), texts)
odd_names = names | st.sampled_from(READ_BY_SOME)


def values(strings: st.SearchStrategy[str] = broken_texts) -> st.SearchStrategy[Any]:
    """Draw any JSON value, by default with lone surrogates in its strings and names."""
    leaves = st.one_of(st.none(), st.booleans(), numbers, strings)
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3))


seeds = st.one_of(st.none(), st.integers(0, 2**32))

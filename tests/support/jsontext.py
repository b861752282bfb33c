"""JSON texts for property tests: the same value in every spelling that RFC 8259 allows.

`write` spells a value with the white space and escapes of a seed; `load` reads a text strictly with the standard
library, and keeps the digits of numbers and the order and repetition of members. `judge` is the oracle for bodies: what
we read must be what the standard library reads, and what a parser that folds case would read otherwise, as Go's does,
must be refused.
"""

import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st

from mcp_sessions._errors import Refusal
from mcp_sessions._protocol import jsonrpc

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
    """Write the value compactly, or with the white space and escapes of a seed."""
    return _text(value, None if seed is None else Random(seed)).encode()


def _text(value: Any, random: Random | None) -> str:
    def space() -> str:
        return random.choice(SPACES) if random else ""

    def string(text: str) -> str:
        return '"' + "".join(_character(character, random) for character in text) + '"'

    if isinstance(value, Number):
        text = value.digits
    elif isinstance(value, str):
        text = string(value)
    elif isinstance(value, dict | Object):
        pairs = value.items() if isinstance(value, dict) else value
        members = (f"{space()}{string(name)}{space()}:{_text(inner, random)}" for name, inner in pairs)
        text = "{" + (",".join(members) or space()) + "}"
    elif isinstance(value, list):
        text = "[" + (",".join(_text(inner, random) for inner in value) or space()) + "]"
    else:
        text = {None: "null", True: "true", False: "false"}[value]
    return space() + text + space()


def _character(character: str, random: Random | None) -> str:
    """Spell one character in one of its ways, by the 16-bit units of RFC 8259 section 7."""
    units = character.encode("utf-16-be", "surrogatepass")
    escaped = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    ways = [SHORT[character]] if character in SHORT else []
    if character >= " " and character not in '"\\' and not "\ud800" <= character <= "\udfff":
        ways.insert(0, character)
    if random is None:
        return (ways or [escaped])[0]
    return random.choice([*ways[:1] * 4, *ways, escaped, escaped.upper().replace("\\U", "\\u")])


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

# --- the oracle ----------------------------------------------------------------------------------

READ = [  # by level: the envelope, `params` and `_meta`
    {"jsonrpc", "id", "method", "params", "result", "error", "sessionId"},
    {"name", "uri", "_meta", "clientInfo", "capabilities", "protocolVersion", "cursor", "sessionId"},
    {jsonrpc.SESSION_KEY, jsonrpc.PROTOCOL_VERSION_KEY, jsonrpc.CLIENT_CAPABILITIES_KEY, "baggage"},
]
TARGETS = {
    **dict.fromkeys(("tools/call", "prompts/get"), "name"),
    **dict.fromkeys(("resources/read", "resources/subscribe", "resources/unsubscribe"), "uri"),
}
Reading = tuple[str, str, Any, Any, "dict[str, Any] | None"]
"""Kind, method, id, target and members of `_meta` of a message."""


def judge(body: bytes) -> None:
    """Assert that the package and the standard library read the same in a body, or that it is refused by both."""
    try:
        document = load(body)
        expected = [_expected(item) for item in (document or [None] if isinstance(document, list) else [document])]
    except (ValueError, RecursionError):
        expected = None
    try:
        try:
            items: tuple[jsonrpc.Message, ...] = (jsonrpc.parse(body),)
        except jsonrpc.Batch as batch:
            items = batch.items
        found = [_found(item) for item in items]
    except Refusal as refused:
        # Only here may the package be the stricter one: what has no UTF-8 form, and what is nested too deeply.
        is_stricter = refused.reason in {"lone_surrogate", "nesting_too_deep"} or b"\\ud" in body.lower()
        assert expected is None or is_stricter, f"{refused.reason}, and the oracle reads {expected}: {body!r}"
        return
    assert found == expected, body


def _found(message: jsonrpc.Message) -> Reading:
    meta = None if message.meta is None else {name: load(bytes(raw)) for name, raw in message.meta.items()}
    return message.kind.value, message.method, message.id and load(message.id), message.target(), meta


def _expected(item: Any) -> Reading:
    envelope = _members(item, 0)
    if envelope.get("jsonrpc") != "2.0":
        raise ValueError
    if "method" not in envelope:
        return "response", "", None, None, None
    method, own, params = envelope["method"], envelope.get("id", ""), envelope.get("params")
    params = {} if params is None else _members(params, 1)
    meta = None if params.get("_meta") is None else _members(params["_meta"], 2)
    is_whole = isinstance(own, Number) and re.fullmatch("0|-?[1-9][0-9]*", own.digits)
    if not isinstance(method, str) or not (isinstance(own, str) or is_whole):
        raise ValueError
    target = params.get(TARGETS.get(method, ""))
    kind = "request" if "id" in envelope else "notification"
    return kind, method, envelope.get("id"), target if isinstance(target, str) else None, meta


def _members(item: Any, level: int) -> dict[str, Any]:
    """Return the members of an object in which none is there twice, or is one that is read but for its case."""
    members = dict(item) if isinstance(item, Object) else {}
    folded = {name.replace("\u017f", "s").replace("\u212a", "k").lower() for name in members.keys() - READ[level]}
    if not isinstance(item, Object) or len(members) != len(item) or folded & {name.lower() for name in READ[level]}:
        raise ValueError
    return members

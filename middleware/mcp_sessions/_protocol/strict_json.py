"""Reading one JSON object so that no other parser can read it differently; values stay slices of the text.

What two parsers could read differently is refused: text that is not UTF-8, a name given twice, a lone surrogate where
it would be read, nesting that exhausts a stack. What a client sent is counted before it is built, since a dict takes
twenty times its text. Sources: RFC 8259 sections 4, 7 and 8, RFC 7493 (I-JSON).
"""

from __future__ import annotations

from array import array
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable
from itertools import accumulate, islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from .._errors import Refusal
from .._refusals import NOT_JSONRPC, refusal

DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The decoder's errors for a text that it cannot read as asked."""

NULL: Final = Raw(b"null")
SPACE: Final = b" \t\n\r"
# Characters that no text holds, two bytes each, as is the escaped backslash that one of them stands for.
_UNASSIGNED: Final = tuple(chr(code).encode() for code in range(0x5F5, 0x600))

_object = msgspec.json.Decoder(dict[str, Raw]).decode  # which refuses escaped lone surrogates
_string = msgspec.json.Decoder(str).decode
_array = msgspec.json.Decoder(list[Raw]).decode
# As `_object`, but each name becomes an object that equals no other, so what is given twice is there twice.
_every_member = msgspec.json.Decoder(dict[object, Raw], dec_hook=lambda _type, _name: object()).decode
_encoder: Final = msgspec.json.Encoder()
join: Final = _encoder.encode
"""Write names, values and slices as JSON: each `Raw` as it is."""

SHORTEST_MEMBER: Final = len('"":0,')
MAX_MEMBERS: Final = 1000  # of one object that is read of what a client sent

_T = TypeVar("_T")


def members(text: bytes, wrong: str = NOT_JSONRPC) -> dict[str, Raw]:
    """Return the members of one object, in order, each value the exact slice of the text.

    Raises:
        Refusal: `not_json`, `not_utf8`, `nesting_too_deep` or `too_many_members`.
        Refusal: `duplicate_member`, where two names are equal once their escapes are resolved, or
            `lone_surrogate`, where a name holds one or, beside a value that does, an escaped backslash or pair.
        Refusal: With the reason `wrong`, where the text is another JSON value.
    """
    found = few_members(text, wrong)
    check_level(text, found)
    return found


def few_members(text: bytes, wrong: str = NOT_JSONRPC) -> dict[str, Raw]:
    """Return members as `last_members` does, of what a client sent; refuse `too_many_members` without reading them."""
    return last_members(text, wrong, _small_object)


def last_members(
    text: bytes, wrong: str = NOT_JSONRPC, decode: Callable[[bytes], dict[str, Raw]] = _object
) -> dict[str, Raw]:
    """Return members as `members` does, of several of one name the last: for what is added to and not judged."""
    try:
        return decode(text)
    except DECODE_ERRORS as error:
        found, mask = decode_with_surrogates(decode, error, bytes(text), wrong)
    names = "".join(found).encode()
    if any(mark in names for mark in mask.marks):  # a name may be another one than it seems
        raise refusal("lone_surrogate")
    return dict(zip(found, mask.unmask(found.values()), strict=True))


def items(text: bytes, wrong: str = NOT_JSONRPC) -> list[Raw]:
    """Return the items of one array, each the exact slice of the text; refuse another value with `wrong`."""
    try:
        return _array(text)
    except DECODE_ERRORS as error:
        found, mask = decode_with_surrogates(_array, error, bytes(text), wrong)
        return mask.unmask(found) if found else []


def _small_object(text: bytes) -> dict[str, Raw]:
    if len(text) > MAX_MEMBERS * SHORTEST_MEMBER:
        numbers = iter(range(MAX_MEMBERS))  # one for each name, also for those that are equal
        try:
            msgspec.json.Decoder(dict[object, Raw], dec_hook=lambda _type, _name: next(numbers)).decode(text)
        except StopIteration:  # and the decoder read no further
            raise refusal("too_many_members") from None
    return _object(text)


def string(raw: bytes) -> str | None:
    """Return the string that a JSON value is, or None if it is another value; refuse one without a UTF-8 form."""
    try:
        return _string(raw)
    except msgspec.ValidationError:
        return None
    except UnicodeDecodeError:
        raise refusal("not_utf8") from None
    except msgspec.DecodeError:
        raise refusal("lone_surrogate") from None


def check_utf8(body: bytes) -> None:
    """Refuse a text that is not UTF-8 (`not_utf8`) or begins with a `byte_order_mark`."""
    if body.startswith(b"\xef\xbb\xbf"):
        raise refusal("byte_order_mark")
    decoder = getincrementaldecoder("utf-8")()  # in pieces: the decoded whole could take four times the body's size
    try:
        for start in range(0, len(body), 65536):
            decoder.decode(body[start : start + 65536])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise refusal("not_utf8") from None


def check_level(text: bytes, found: dict[str, Raw]) -> None:
    """Refuse an object that has more members than those found (`duplicate_member`)."""
    if has_no_other_members(text, found):
        return
    body = bytes(text)
    check_utf8(body)
    try:
        number = len(_every_member(body))
    except DECODE_ERRORS as error:
        number = len(decode_with_surrogates(_every_member, error, body, NOT_JSONRPC)[0])
    if number != len(found):
        raise refusal("duplicate_member")


def has_no_other_members(text: bytes, found: Any) -> bool:
    """Whether the length of a text proves that it has no members but those found, whatever their order.

    No object of these members is shorter than they are joined, with white space or without, and each further member
    takes 5 bytes at least: `"":0,`. Long escapes can spoil the proof, and nothing can feign it. In `found`, a dict or a
    struct, objects may be taken apart, too.
    """
    joined = bytearray(len(text))  # which is cut to the length, and need not grow
    _encoder.encode_into(found, joined)
    if len(text) - len(joined) < SHORTEST_MEMBER:
        return True
    return len(bytes(text).translate(None, SPACE)) - len(joined.translate(None, SPACE)) < SHORTEST_MEMBER


class Names:
    """The names that are read at one level."""

    def __init__(self, *names: str) -> None:
        self._names: Final = frozenset(names)
        self._folded: Final = frozenset(map(str.casefold, names))
        self._longest: Final = max(map(len, names))

    def has_case_variant(self, found: Iterable[str]) -> bool:
        """Whether a name differs in case alone from one that is read: some parsers take it for that."""
        others = [name for name in found if name not in self._names]
        if others and max(map(len, others)) > self._longest:  # which folds to nothing shorter
            others = [name for name in others if len(name) <= self._longest]
        return bool(others) and not self._folded.isdisjoint(map(str.casefold, others))

    def check(self, found: Iterable[str]) -> None:
        """Refuse an object with such a name (`member_case`)."""
        if self.has_case_variant(found):
            raise refusal("member_case")


def _refusal(error: Exception, wrong: str) -> Refusal:
    if isinstance(error, msgspec.ValidationError):
        return refusal(wrong)
    if isinstance(error, RecursionError):
        return refusal("nesting_too_deep")
    return refusal("not_utf8") if isinstance(error, UnicodeDecodeError) else refusal("not_json")


class SurrogateMask:
    """A text with its surrogate escapes hidden, and the way back.

    msgspec refuses an escaped lone surrogate anywhere, even in what it skips, and TypeScript clients send them in
    arguments. Three marks, none of which the text contains, stand for an escaped backslash and for the beginnings of
    the escapes of U+D000 to U+DFFF, whose last three digits stay: no flaw of the text can hide behind the mask.
    """

    def __init__(self, text: bytes) -> None:
        self.marks = list(islice((mark for mark in _UNASSIGNED if text.isascii() or mark not in text), 3))
        if len(self.marks) < 3:
            raise refusal("not_json")
        pair, lower, upper = self.marks
        text = text.replace(b"\\\\", pair)  # every backslash that is left begins an escape
        self.text = text.replace(b"\\ud", lower + b"\\u0").replace(b"\\uD", upper + b"\\u0")

    def unmask(self, values: Iterable[bytes]) -> list[Raw]:
        """Return the values as they were sent. All at once: no JSON text contains NUL."""
        pair, lower, upper = self.marks
        text = b"\x00".join(values).replace(lower + b"\\u0", b"\\ud").replace(upper + b"\\u0", b"\\uD")
        return list(map(Raw, text.replace(pair, b"\\\\").split(b"\x00")))


def decode_with_surrogates(
    decode: Callable[[bytes], _T], error: Exception, text: bytes, wrong: str
) -> tuple[_T, SurrogateMask]:
    """Decode a text that the decoder refused, provided that lone surrogates were its only flaw; else refuse it."""
    if type(error) is not msgspec.DecodeError:
        raise _refusal(error, wrong) from None
    mask = SurrogateMask(text)
    try:
        return decode(mask.text), mask
    except DECODE_ERRORS as other:
        raise _refusal(other, wrong) from None


# --- nesting -------------------------------------------------------------------------------------

_OTHERS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS: Final = bytes.maketrans(b"[{]}", bytes([1, 1, 0xFF, 0xFF]))  # up and, as a signed byte, down
_PIECE: Final = 1024  # bytes of quotes and brackets that are looked at together


def is_deeper(text: bytes, limit: int) -> bool:
    """Whether arrays and objects lie in each other more than `limit` levels deep, found without building them.

    A parser that recurses spends stack on every level, so a text that is too deep is refused before any sees it. For a
    text that is not JSON the answer does not matter, since it is refused all the same.
    """
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks, depth, in_string = text.translate(None, _OTHERS), 0, False
    for start in range(0, len(marks), _PIECE):
        parts = marks[start : start + _PIECE].split(b'"')
        steps = b"".join(parts[in_string::2]).translate(_STEPS)
        in_string ^= len(parts) % 2 == 0
        opened = steps.count(1)
        if depth + opened > limit and max(accumulate(array("b", steps), initial=depth)) > limit:
            return True
        depth += 2 * opened - len(steps)
    return False

"""Reading a JSON-RPC message so that no other parser can read it differently.

Only what sessions need is decoded: the envelope, `params` and `_meta`, one level each; every value
stays the slice of the body that it was. A body that two parsers could understand differently (not
UTF-8, a duplicate member, a strange id) is refused here, never repaired and never passed on.
Nothing here knows what a session is beyond the name of its key. Sources: JSON-RPC 2.0 sections 4
to 6, RFC 8259 sections 4, 7 and 8, RFC 7493 (I-JSON).
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from .errors import (
    BatchRefused,
    BatchTooLarge,
    ByteOrderMark,
    DuplicateMember,
    IdNotStringOrInteger,
    LoneSurrogate,
    MetaNotObject,
    MethodNotString,
    NestingTooDeep,
    NotJSONRPC,
    NotUTF8,
    ParamsNotObject,
    ParseError,
    Refusal,
)

SESSION_KEY: Final = "io.modelcontextprotocol/session"

# The member of `params` that says what a method is about.
TARGETS: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "resources/subscribe": "uri",
    "resources/unsubscribe": "uri",
}

_VERSION: Final = Raw(b'"2.0"')
_NULL: Final = Raw(b"null")
_SPACE: Final = b" \t\n\r"
# Characters that no text holds, two bytes each, as is the escaped backslash that one of them stands for.
_UNASSIGNED: Final = tuple(chr(code).encode() for code in range(0x5F5, 0x600))

_object = msgspec.json.Decoder(dict[str, Raw]).decode
_array = msgspec.json.Decoder(list[Raw]).decode
_value = msgspec.json.Decoder(Raw).decode
_string = msgspec.json.Decoder(str).decode
_join = msgspec.json.Encoder().encode  # writes each Raw as it is
# As `_object`, but each name becomes an object that equals no other, so what is given twice is there twice.
_every_member = msgspec.json.Decoder(dict[object, Raw], dec_hook=lambda _type, _name: object()).decode

_T = TypeVar("_T")
_Members: TypeAlias = "dict[str, Raw] | None"
_FLAWS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_LABEL: Final = re.compile(r"[A-Za-z0-9_/$-]{0,64}")  # no dot, so no session id
_MAY_BE_MESSAGE: Final = re.compile(rb"jsonrpc|\\u00(?:6[3aef]|7[023])", re.IGNORECASE)  # or a letter of it, escaped
_TRIES: Final = 10  # how many times `max_batch` items are read at most, to find whether any is a message


class Kind(Enum):
    """What a JSON-RPC message is."""

    REQUEST = "request"
    NOTIFICATION = "notification"
    RESPONSE = "response"  # anything without `method`: a client's answer to a request of the server


class Message(msgspec.Struct, frozen=True, gc=False):
    """One JSON-RPC message, read as far as sessions need it.

    A msgspec struct and not a dataclass, since one is made per request and costs a tenth. Its body
    holds credentials, so no representation shows it.

    Args:
        body: The message as it came.
        kind: Request, notification or response.
        method: The method; empty for a response.
        id: The id's JSON text as sent; None unless this is a request.
        params: The members of `params`, values as sent; None where absent or null.
        meta: The members of `params._meta`, likewise.
    """

    body: bytes
    kind: Kind
    method: str = ""
    id: bytes | None = None
    params: _Members = None
    meta: _Members = None

    def target(self) -> str | None:
        """The tool, prompt or resource that the message is about, or None where it names none.

        Raises:
            LoneSurrogate: The name cannot be written down again.
        """
        name = TARGETS.get(self.method)
        if name is None or self.params is None or name not in self.params:
            return None
        return string(self.params[name])

    @property
    def label(self) -> str:
        """The method for logs, where it is spelt as methods are: a client may write anything there, even its id."""
        return self.method if _LABEL.fullmatch(self.method) else "(unusual method)"

    def __repr__(self) -> str:
        return f"<Message {self.kind.value} {self.label}>"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("kind", self.kind.value), ("method", self.label)]


class Batch(msgspec.Struct, frozen=True):
    """Several messages in one body (MCP 2025-03-26 only)."""

    items: tuple[Message, ...]


MAX_BATCH: Final = 100


def parse(body: bytes, *, max_batch: int = MAX_BATCH) -> Message | Batch:
    """Read the body of one POST.

    Args:
        body: The whole body, already bounded in size.
        max_batch: Messages that a batch may hold.

    Returns:
        The message, or the batch where the body is an array.

    Raises:
        ParseError: Not JSON; also its kinds `NotUTF8`, `ByteOrderMark` and `NestingTooDeep`.
        NotJSONRPC: JSON, but not a JSON-RPC 2.0 message or a batch of them.
        BatchRefused: Some items of an array are JSON-RPC 2.0 messages and others are not.
        BatchTooLarge: A batch of more than `max_batch` messages.
        DuplicateMember: The envelope, `params` or `_meta` gives a member twice.
        LoneSurrogate: A name or a value that is read here holds one.
        MethodNotString: `method` is not a string.
        IdNotStringOrInteger: `id` is neither a string nor written as an integer, or it is -0.
        ParamsNotObject: `params` is neither an object nor null.
        MetaNotObject: `params._meta` is neither an object nor null.
    """
    if not body.isascii():
        _check_utf8(body)
    return _message(body) if body.startswith(b"{") else _other(body, max_batch)


def members(text: bytes, wrong: type[Refusal] = NotJSONRPC) -> dict[str, Raw]:
    """The members of one object, in order, each value the exact slice of the text.

    Args:
        text: JSON text of an object.
        wrong: What to raise where it is some other JSON value.

    Raises:
        ParseError: Not JSON; also its kinds `NotUTF8` and `NestingTooDeep`.
        DuplicateMember: Two names are equal once their escapes are resolved.
        LoneSurrogate: A name holds one. Where a value does, names with an escaped backslash or surrogate
            pair are refused too: no client sends both, and reading them would take another parser.
        Refusal: The one named by `wrong`.
    """
    found = last_members(text, wrong)
    _check_level(text, found)
    return found


def last_members(text: bytes, wrong: type[Refusal] = NotJSONRPC) -> dict[str, Raw]:
    """As `members`, but the last of several members of one name stands for all, as in most parsers.

    For what a server answers, which is read to be added to and not to be judged.

    Raises:
        ParseError: Not JSON; also its kinds `NotUTF8` and `NestingTooDeep`.
        LoneSurrogate: A name holds one.
        Refusal: The one named by `wrong`.
    """
    try:
        return _object(text)
    except _FLAWS as flaw:
        return _despite(flaw, bytes(text), wrong)


def string(raw: bytes) -> str | None:
    """The string that a JSON value is, or None where it is another value.

    Args:
        raw: One value as `members` gives it.

    Raises:
        LoneSurrogate: The string holds one, so it has no UTF-8 form.
        NotUTF8: The text is not UTF-8.
    """
    try:
        return _string(raw)
    except msgspec.ValidationError:
        return None
    except UnicodeDecodeError:
        raise NotUTF8 from None
    except msgspec.DecodeError:
        raise LoneSurrogate from None


def _other(body: bytes, max_batch: int) -> Message | Batch:
    first = body.lstrip(_SPACE)[:1]
    if first == b"{":
        return _message(body)
    if first == b"[":
        return _batch(body, max_batch)
    try:
        _value(body)
    except _FLAWS as flaw:
        _masked(_value, flaw, body, NotJSONRPC)
    raise NotJSONRPC


def _batch(body: bytes, max_batch: int) -> Batch:
    try:
        items = _array(body)
    except _FLAWS as flaw:
        found, mask = _masked(_array, flaw, body, NotJSONRPC)
        items = mask.off(found)
    # Where the path serves other things too, arrays without any message pass, whatever their length.
    tried = list(islice(filter(_MAY_BE_MESSAGE.search, items), _TRIES * max_batch + 1))
    read = tuple(filter(None, map(_message_or_none, tried)))
    if not read and len(tried) <= _TRIES * max_batch:
        raise NotJSONRPC
    if len(items) > max_batch:
        raise BatchTooLarge
    if len(read) < len(items):
        raise BatchRefused  # a server could skip what is no message and execute the rest
    return Batch(read)


def _message_or_none(item: Raw) -> Message | None:
    try:
        return _message(bytes(item))
    except NotJSONRPC:
        return None


def _message(body: bytes) -> Message:
    envelope = last_members(body)
    version = envelope.get("jsonrpc")
    if version is None:
        raise NotJSONRPC
    if version != _VERSION and string(version) != "2.0":
        _check_level(body, envelope)  # another parser may take the first of two versions
        raise NotJSONRPC
    if "method" not in envelope:
        _check_distinct(body, envelope, None, None)
        return Message(body, Kind.RESPONSE)
    method = string(envelope["method"])
    if method is None:
        raise MethodNotString
    params = _inner(envelope, "params", ParamsNotObject)
    meta = None if params is None else _inner(params, "_meta", MetaNotObject)
    _check_distinct(body, envelope, params, meta)
    if "id" not in envelope:
        return Message(body, Kind.NOTIFICATION, method, None, params, meta)
    return Message(body, Kind.REQUEST, method, _id(envelope["id"]), params, meta)


def _inner(outer: dict[str, Raw], name: str, wrong: type[Refusal]) -> _Members:
    raw = outer.get(name, _NULL)
    return None if raw == _NULL else last_members(raw, wrong)


def _id(raw: Raw) -> bytes:
    """The id's text. 1, 1.0 and 1e0 are one id to some parsers and three to others, so only digits pass.

    Servers that read -0 answer it with 0.
    """
    text = bytes(raw)
    negative = text.startswith(b"-") and text[1:].isdigit() and text != b"-0"
    if text.isdigit() or negative or string(raw) is not None:
        return text
    raise IdNotStringOrInteger


def _check_utf8(body: bytes) -> None:
    """In pieces, since the decoded whole could take four times the body's size."""
    if body.startswith(b"\xef\xbb\xbf"):
        raise ByteOrderMark
    decoder = getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(body), 65536):
            decoder.decode(body[start : start + 65536])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise NotUTF8 from None


def _check_distinct(body: bytes, envelope: dict[str, Raw], params: _Members, meta: _Members) -> None:
    """That no member is given twice: one proof for all three levels, and where it fails one for each."""
    inner = params if params is None or meta is None else {**params, "_meta": meta}
    if _is_all(body, envelope if inner is None else {**envelope, "params": inner}):
        return
    _check_level(body, envelope)
    if params is not None:
        _check_level(envelope["params"], params)
    if params is not None and meta is not None:
        _check_level(params["_meta"], meta)


def _check_level(text: bytes, found: dict[str, Raw]) -> None:
    if not _is_all(text, found) and _count(bytes(text)) != len(found):
        raise DuplicateMember


def _is_all(text: bytes, found: Mapping[str, Any]) -> bool:
    """Whether the length of a text proves that it has no members but those found.

    No object of these members is shorter than they are joined, with white space or without, and each
    further member takes 5 bytes at least: `"":0,`. Long escapes in names can spoil the proof.
    """
    joined = _join(found)
    if len(text) - len(joined) < 5:
        return True
    return len(bytes(text).translate(None, _SPACE)) - len(joined.translate(None, _SPACE)) < 5


def _count(text: bytes) -> int:
    """How many members an object has, duplicates included. What lies deeper is skipped, not read."""
    _check_utf8(text)
    try:
        return len(_every_member(text))
    except _FLAWS as flaw:
        return len(_masked(_every_member, flaw, text, NotJSONRPC)[0])


def _refusal(flaw: Exception, wrong: type[Refusal]) -> Refusal:
    if isinstance(flaw, msgspec.ValidationError):
        return wrong()
    if isinstance(flaw, RecursionError):
        return NestingTooDeep()
    return NotUTF8() if isinstance(flaw, UnicodeDecodeError) else ParseError()


class _Mask:
    """A text with its surrogate escapes hidden, and the way back.

    msgspec refuses an escaped lone surrogate anywhere, even in what it skips, and TypeScript clients
    send them in arguments. Three marks, none of which the text contains, stand for an escaped
    backslash and for the beginnings of the escapes of U+D000 to U+DFFF. Their last three digits stay
    in an escape, so no flaw of the text can hide behind the mask.
    """

    def __init__(self, text: bytes) -> None:
        self._marks = list(islice((mark for mark in _UNASSIGNED if text.isascii() or mark not in text), 3))
        if len(self._marks) < 3:
            raise ParseError
        pair, lower, upper = self._marks
        text = text.replace(b"\\\\", pair)  # every backslash that is left begins an escape
        self.text = text.replace(b"\\ud", lower + b"\\u0").replace(b"\\uD", upper + b"\\u0")

    def covers(self, names: Iterable[str]) -> bool:
        """Whether a name may be another one than it seems."""
        text = "".join(names).encode()
        return any(mark in text for mark in self._marks)

    def off(self, values: Iterable[bytes]) -> list[Raw]:
        """The values as they were sent. All at once: no JSON text contains NUL."""
        pair, lower, upper = self._marks
        text = b"\x00".join(values).replace(lower + b"\\u0", b"\\ud").replace(upper + b"\\u0", b"\\uD")
        return list(map(Raw, text.replace(pair, b"\\\\").split(b"\x00")))


def _despite(flaw: Exception, text: bytes, wrong: type[Refusal]) -> dict[str, Raw]:
    found, mask = _masked(_object, flaw, text, wrong)
    if mask.covers(found):
        raise LoneSurrogate
    return dict(zip(found, mask.off(found.values()), strict=True))


def _masked(decode: Callable[[bytes], _T], flaw: Exception, text: bytes, wrong: type[Refusal]) -> tuple[_T, _Mask]:
    """What a text holds in which the decoder found a flaw, provided that surrogates were the only one."""
    if type(flaw) is not msgspec.DecodeError:
        raise _refusal(flaw, wrong) from None
    mask = _Mask(text)
    try:
        return decode(mask.text), mask
    except _FLAWS as other:
        raise _refusal(other, wrong) from None

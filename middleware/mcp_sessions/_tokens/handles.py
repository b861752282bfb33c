"""Explicit handles: their text, its tag, and the errors that tell a model how it misquoted one.

The tag covers text, type and holder, since a model copies handles from call to call. Verification is strict: mending
case or look-alikes would give one object several names.
Sources: SEP-2567 (explicit state handles), RFC 2104 (HMAC), Crockford's base 32 for the alphabet.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from typing import ClassVar, Final

from .._errors import ConfigurationError, MCPSessionsError
from .._session.claims import Principal
from .keys import Key, KeyRing, encode_fields

ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # no i and l beside 1, no o beside 0, no u beside v
BITS: Final = 5  # of a character, all used: no two texts mean the same

LAYOUT: Final = {"key": 2, "id": 26, "expiry": 7, "tag": 13}
"""Characters of each part that follows the type and its underscore, in their order."""

MAX_CHARS: Final = 64
BODY_CHARS: Final = sum(LAYOUT.values())
MAX_TYPE_CHARS: Final = MAX_CHARS - 1 - BODY_CHARS

_TYPE: Final = r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*"
_CLASS: Final = "[0-9a-hjkmnp-tv-z]"
_SHAPE: Final = re.compile(rf"({_TYPE})_" + "".join(f"({_CLASS}{{{width}}})" for width in LAYOUT.values()))
_PURPOSE: Final = "mcp-sessions/handle/1"


@dataclass(frozen=True, slots=True)
class Handle:
    """A verified handle.

    Attributes:
        type: The type of object.
        id: The name of the object, 26 characters: safe in logs, useless as a handle.
        expires_at: Unix seconds, or None for a handle that does not expire.
        bound: Whether it works in one session only.
        text: The handle itself, which is a credential for anonymous callers; not in `repr`.
    """

    type: str
    id: str
    expires_at: int | None
    bound: bool
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a handle; another holder's handle does not verify."""

    audience: str  # the deployment
    principal: Principal | None = None  # None is an anonymous caller
    session: str | None = None  # the `ref` of the caller's session


class HandleError(MCPSessionsError, ValueError):
    """The argument is not the expected handle. The text tells a model what to do, and never repeats the argument."""

    reason: ClassVar[str]  # machine-readable


class HandleMalformed(HandleError):
    """It does not have the form of a handle."""

    reason = "malformed"


class HandleUnknown(HandleError):
    """It was mistyped, is another holder's, was made up, or its key is gone: one answer for all of them."""

    reason = "unknown"


class HandleOfOtherType(HandleError):
    """It is the caller's own, of another type."""

    reason = "other_type"


class HandleExpired(HandleError):
    """It is the caller's own, and has expired."""

    reason = "expired"


def check_type(type: str) -> str:
    """Return a type that can stand in a handle, or raise ConfigurationError."""
    if isinstance(type, str) and len(type) <= MAX_TYPE_CHARS and re.fullmatch(_TYPE, type):  # type: ignore[redundant-expr]  # as it came
        return type
    raise ConfigurationError(
        f"type={type!r} must be at most {MAX_TYPE_CHARS} lower-case letters and digits, in words joined by "
        "underscores, as in 'basket' or 'price_list'"
    )


def pattern(type: str) -> str:
    """Return the regular expression of a type's handles, for JSON schemas (ECMA 262)."""
    return f"^{type}_{_CLASS}{{{BODY_CHARS}}}$"


def make_id() -> str:
    """Return the part `id` of a new handle: 130 random bits."""
    return _digits(secrets.randbits(BITS * LAYOUT["id"]), "id")


def mint(key: Key, type: str, id: str, holder: Holder, *, expires_at: int | None = None) -> str:
    """Return the handle of an object, by an id of `make_id`. The same arguments give the same text.

    With a session in its holder it works there only; `expires_at` is the first second at which it is refused.
    """
    body = _short_name(key) + id + _digits(expires_at or 0, "expiry")
    return f"{type}_{body}{_tag(key, type, body, holder)}"


def verify(
    ring: KeyRing, type: str, text: object, holder: Holder, *, now: float, lifetime: float | None = None
) -> Handle:
    """Return the handle in a text, if it is one of this type and this holder; the class of `HandleError` says why not.

    A handle that is bound to no session is valid in every one. `lifetime`, in seconds, is for the text of an error.
    """
    shape = _shape(text)
    if shape is None:
        raise HandleMalformed(_diagnosis(type, text))
    found, words = _authentic(ring, shape, holder), _words(type)
    if found is None:
        raise HandleUnknown(
            f"not one of your {words} handles: copy the handle again exactly as it was given, or create a new {words}"
        )
    if not found.type == type:
        raise HandleOfOtherType(f"not {_one(type)} handle: it is {_one(found.type)} handle")
    if found.expires_at is None or now < found.expires_at:
        return found
    lives = "" if lifetime is None else f" {words} handles live {_duration(lifetime)};"
    raise HandleExpired(f"expired:{lives} create a new {words}")


def _shape(text: object) -> re.Match[str] | None:
    return _SHAPE.fullmatch(text) if isinstance(text, str) and len(text) <= MAX_CHARS else None


def _authentic(ring: KeyRing, shape: re.Match[str], holder: Holder) -> Handle | None:
    kind, name, random, expiry, tag = shape.groups()
    anywhere = Holder(holder.audience, holder.principal)
    expires_at = sum(ALPHABET.index(digit) << BITS * place for place, digit in enumerate(reversed(expiry))) or None
    # One pair of keys in 1,024 shares a short name, and a public key makes no handles.
    for key in (key for key in ring if key.handle_key is not None and _short_name(key) == name):
        for candidate in {anywhere, holder}:
            if hmac.compare_digest(_tag(key, kind, name + random + expiry, candidate), tag):
                return Handle(kind, random, expires_at, candidate.session is not None, shape[0])
    return None


def _short_name(key: Key) -> str:
    return _cut(sha256(f"{_PURPOSE}/{key.kid}".encode("ascii")).digest(), "key")


def _tag(key: Key, type: str, head: str, holder: Holder) -> str:
    assert key.handle_key is not None, "a public key makes no handles"
    owner = key.subject(holder.principal)
    fields = encode_fields(_PURPOSE, key.kid, holder.audience, owner, holder.session, type, head)
    return _cut(hmac.digest(key.handle_key, fields, "sha256"), "tag")


def _digits(number: int, part: str) -> str:
    places = reversed(range(LAYOUT[part]))
    return "".join(ALPHABET[number >> BITS * place & len(ALPHABET) - 1] for place in places)


def _cut(digest: bytes, part: str) -> str:
    return _digits(int.from_bytes(digest, "big") >> len(digest) * 8 - BITS * LAYOUT[part], part)


_AROUND: Final = " \t\r\n\"'`.,;:!?()[]{}<>*"  # what a model may write around a handle


def _diagnosis(type: str, text: object) -> str:
    one, words, length = _one(type), _words(type), len(type) + 1 + BODY_CHARS
    if not isinstance(text, str):
        return f"not {one} handle: a handle is a string"
    read = text[: 4 * MAX_CHARS]  # a text that is far too long is not read further
    if _shape(read.strip(_AROUND)) is not None:
        return f"not {one} handle as it stands: send it alone, with no spaces, quotes or punctuation around it"
    if read.isascii() and _shape(read.lower()) is not None:
        return f"not {one} handle as it stands: handles are lower case; copy it again exactly as it was given"
    if not read.startswith(f"{type}_"):
        hint = f"copy it again exactly as it was given, or create a new {words}"
        return f"not {one} handle: those begin with {type}_; {hint}"
    if len(read) < length:
        return f"this {words} handle was cut short: copy all {length} characters of it"
    if len(read) > length:
        return f"this {words} handle is too long: copy its {length} characters and nothing else"
    return f"this {words} handle was mistyped: copy it again exactly as it was given"


def _words(type: str) -> str:
    return type.replace("_", " ")


def _one(type: str) -> str:
    return f"{'an' if type[0] in 'aeiou' else 'a'} {_words(type)}"


# Seconds in a unit, and from how many of them on it is used where it divides evenly.
_UNITS: Final = ((86_400, 2, "days"), (3_600, 1, "h"), (60, 1, "min"), (1, 0, "s"))


def _duration(seconds: float) -> str:
    whole = int(seconds)
    size, _, unit = next(row for row in _UNITS if whole >= row[0] * row[1] and whole % row[0] == 0)
    return f"{whole // size} {unit}"

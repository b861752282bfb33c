"""Telling a session id of ours from any other text, by its envelope alone and never by whether it verifies.

What is ours is kept from the wrapped server, whose logs it could reach, so it is told generously; what
verifies is decided strictly, in `tokens`. Nothing here knows a key.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from typing import Final

TYP: Final = "mcp-session+jwt"
MAX_TOKEN_BYTES: Final = 2048

_FROM_BASE64URL: Final = bytes.maketrans(b"-_", b"+/")
_BEGINNING: Final = re.compile(b"eyJ")  # base64url of `{"`, with which every header begins that is minted here
_MAX_BEGINNINGS: Final = 16
_NOT_BASE64: Final = re.compile(rb"[^A-Za-z0-9+/]")


def looks_like_ours(value: str | bytes) -> bool:
    """Whether a value is or contains one of our tokens by its envelope's `typ` alone, verified or not.

    What counts as ours is decided generously (any padding, any order of members, any case of `typ`,
    further segments, any text around it): it is kept from the wrapped server, whose logs it could
    reach. What verifies is decided strictly, elsewhere.

    Args:
        value: A header's value or another text.
    """
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    if data.count(b".") < 2:
        return False
    # The first segment needs no such beginning: other spellings of a header may have white space there.
    return _is_header(data, 0) or _contains_header(data)


def _contains_header(data: bytes) -> bool:
    starts = [found.start() for found in _BEGINNING.finditer(data, 1)]
    if len(starts) <= _MAX_BEGINNINGS:
        return any(_is_header(data, start) for start in starts)
    return True  # more than any honest value has, and more than are worth decoding


def _is_header(data: bytes, start: int) -> bool:
    """Whether the text from there to the next dot, or to the end, is a header of ours."""
    segment = data[start:].partition(b".")[0]
    try:
        header = json.loads(_decode_leniently(segment), object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return False
    return isinstance(header, tuple) and any(name == "typ" and _is_ours(value) for name, value in header)


def _decode_leniently(segment: bytes) -> bytes:
    if not len(segment) <= MAX_TOKEN_BYTES:
        return b""
    alphabet_only = _NOT_BASE64.sub(b"", segment.translate(_FROM_BASE64URL))
    return b64decode(alphabet_only + b"==")


def _is_ours(typ: object) -> bool:
    return isinstance(typ, str) and typ.strip().lower().removeprefix("application/") == TYP

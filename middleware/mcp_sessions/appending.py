"""The session appended to an answer that is written as nearly every server writes it.

Such an answer holds `jsonrpc`, `id` and `result` in this order and nothing else, compact or with the spaces of
Python's `json`; its result has no cache hints, and `_meta` comes last in it or not at all. It need not be taken
apart: the session goes before its last braces, and all bytes of the server stay. That these braces close what
they seem to close is proved each time, and never guessed from a name that is found somewhere. Any other answer
is left to `splice`. Sources: RFC 8259; the data-layer sessions draft (2026-02-23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .jsonrpc import SESSION_KEY
from .members import FLAWS, read_object

COPIED: Final = 8192  # bytes; a slice of a longer answer is a view, which takes longer to make than a short copy

# An answer up to the quote that opens the first name in its result, with a place for the id; and from the `_meta`
# that ends its result, with a place for the value. By the character that tells how the server puts spaces.
_SPELLINGS: Final = {
    b'"': (b'{"jsonrpc":"2.0","id":%b,"result":{"', b'"_meta":%b}}'),
    b" ": (b'{"jsonrpc": "2.0", "id": %b, "result": {"', b'"_meta": %b}}'),
}
_TELLING: Final = slice(len('{"jsonrpc":'), len('{"jsonrpc":') + 1)

_NEW_META: Final = b',"_meta":{"%b":' % SESSION_KEY.encode()
_MORE_META: Final = b',"%b":' % SESSION_KEY.encode()
_BACKSLASH: Final = ord("\\")


def append(response: bytes, request_id: bytes, session: Callable[[], bytes]) -> bytes | None:
    """The answer with the session as the last member of `result._meta`.

    Args:
        response: A JSON-RPC message of the server.
        request_id: JSON text of the request's id.
        session: As for `splice.echo`.

    Returns:
        The new message, or None where the response is not an answer of the common form.
    """
    spelling = _SPELLINGS.get(response[_TELLING])
    if spelling is None:
        return None
    opening, ending = spelling[0] % request_id, spelling[1]
    start = len(opening)
    if response[:start] != opening or response[-2:] != b"}}":
        return None
    text = response if len(response) < COPIED else memoryview(response)
    try:
        # What stands between the opening and the last brace is one object and nothing more, or the decoder would not
        # read it: so it is the result, the envelope has no other members, and both end with the text.
        result = read_object(text[start - 2 : -1])
        has_meta = "_meta" in result
        if has_meta and not _ends_with_meta(response, bytes(result["_meta"]), ending):
            return None
    except FLAWS:
        return None
    if "cacheScope" in result or "ttlMs" in result:
        return None
    if has_meta:
        return b"".join((text[:-3], _MORE_META, session(), b"}}}"))
    return b"".join((text[:-2], _NEW_META, session(), b"}}}"))


def _ends_with_meta(response: bytes, value: bytes, ending: bytes) -> bool:
    """Whether `_meta` is the last member of the result, and an object of some members but no session.

    The text that comes last may look like `_meta` and yet lie deeper, or within a string. It does neither: its first
    quote would have to be escaped, or the rest would be no JSON; and its value ends just before the result does.
    """
    ending = ending % value
    at = len(response) - len(ending)
    if response[at:] != ending or response[at - 1] == _BACKSLASH:
        return False
    meta = read_object(value)
    return bool(meta) and SESSION_KEY not in meta

"""The request's headers, found in one pass and decoded when asked for.

Values stay exactly as sent, and duplicates are kept: two parsers that take the first and the last copy of a header are
the start of every smuggling attack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from .._errors import refuse
from .._session.claims import RedactedRepr, looks_like_session_id

HANDSHAKE_VERSIONS: Final = frozenset({"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"})
"""The legacy era: these versions, or no version header at all. Any other version is modern."""
SESSION_HEADER: Final = b"mcp-session-id"
CODING: Final = b"content-encoding"
LENGTH: Final = b"content-length"
ACCEPT_CODING: Final = b"accept-encoding"
METHOD: Final = b"mcp-method"
VERSION: Final = b"mcp-protocol-version"

Header = tuple[bytes, bytes]


def edit(headers: Iterable[Header], *, drop: Iterable[bytes] = (), add: Iterable[Header] = ()) -> list[Header]:
    """Return a new list of ASGI headers, without any copy of those to drop and with others at the end."""
    names = frozenset(drop)
    kept = [header for header in headers if header[0] not in names]
    kept.extend(add)
    return kept


def ours_of(session_ids: Sequence[str]) -> str | None:
    """Return what `any_of` does where it looks like ours, and must not reach the application, else None."""
    found = any_of(session_ids)
    return found if found is not None and looks_like_session_id(found) else None


def any_of(session_ids: Sequence[str]) -> str | None:
    """Return the `Mcp-Session-Id` header, of which `session_ids` are all copies, or None where there is none.

    Raises:
        Refusal: `duplicate_session_header`: There are several, and two readers may take different ones.
    """
    if len(session_ids) > 1:
        raise refuse("duplicate_session_header")
    return session_ids[0] if session_ids else None


class RequestHeaders(RedactedRepr, msgspec.Struct, gc=False):
    """The headers of one request. (A struct, which is made in a third of the time.)

    Of a repeated header the first copy counts, as in the official SDK; but a second session or method header refuses
    the request, and encodings add up.
    """

    headers: Sequence[Header]  # as ASGI has them, names in lower case
    common: tuple[int, bytes | None] | None = None  # the native reader's, where none concerns a session or the body
    found: dict[bytes, bytes] | None = None  # the last copy of each, once that was asked for
    session_id: str | None = None  # the `Mcp-Session-Id` where it is one of ours, once that was looked at
    cookie: str | None = None  # the value of our cookie where it counts, once that was looked at

    @property
    def by_name(self) -> dict[bytes, bytes]:
        """The last copy of each."""
        if self.found is None:
            self.found = dict(self.headers)
        return self.found

    def all(self, name: bytes) -> list[str]:
        """Return every copy of a header, in order."""
        by_name = self.found or self.by_name
        if name in by_name and len(by_name) < len(self.headers):
            return [value.decode("latin-1") for other, value in self.headers if other == name]
        return [by_name[name].decode("latin-1")] if name in by_name else []

    def first(self, name: bytes) -> str | None:
        """Return the first copy of a header, or None where there is none."""
        by_name = self.found
        if by_name is None:  # a property would take three times as long
            self.found = by_name = dict(self.headers)
        if name not in by_name:
            return None
        return by_name[name].decode("latin-1") if len(by_name) == len(self.headers) else self.all(name)[0]

    def without_coding(self, headers: Sequence[Header]) -> Sequence[Header]:
        """Return these headers, edited or not, without what asks for a compressed answer."""
        kept, common = list(headers), self.common
        if common is not None and headers is self.headers:
            if common[0] >= 0:
                del kept[common[0]]
            return kept
        by_name = self.found or self.by_name
        if ACCEPT_CODING not in by_name:
            return headers
        if len(by_name) == len(self.headers):  # none is repeated, so it is found in a third of the time
            try:
                kept.remove((ACCEPT_CODING, by_name[ACCEPT_CODING]))
            except ValueError:  # it is gone already, or pairs are not tuples
                pass
            else:
                return kept
        return edit(headers, drop=(ACCEPT_CODING,))

    @property
    def modern_version(self) -> str | None:
        """The version that a request of the modern era states, told as by the official SDK: by this header alone."""
        version = self.first(VERSION)
        return None if version in HANDSHAKE_VERSIONS else version

    @property
    def is_modern(self) -> bool:
        return self.modern_version is not None

    @property
    def is_json(self) -> bool:
        """Whether a server might take the body for JSON: some do when the type only begins or lists it."""
        return any("json" in kind.lower() for kind in self.all(b"content-type"))

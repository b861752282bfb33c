"""The request head: every header that decides something here, found in one pass and decoded when asked for.

Header values are kept as text exactly as sent. Duplicates are kept too: two parsers that take the
first and the last copy of a header are the start of every smuggling attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .protocol import HANDSHAKE_VERSIONS

SESSION_HEADER: Final = b"mcp-session-id"
_METHOD: Final = b"mcp-method"
_VERSION: Final = b"mcp-protocol-version"
_TYPE: Final = b"content-type"
_ENCODING: Final = b"content-encoding"
LENGTH: Final = b"content-length"


class Head:
    """The headers of one request that this middleware reads.

    Of a repeated header the first copy counts, as in the official SDK; of the session and the
    method header every copy is kept, since a second copy refuses the request; of the encoding, too,
    since codings add up.

    Args:
        headers: The request's ASGI headers (names in lower case, as ASGI has them).

    Attributes:
        session_ids: Every `Mcp-Session-Id`.
        content_encoding: All codings of the body, in order, or None.
        content_length: How long the body says it is, as sent; the last copy, since servers refuse a second one.
    """

    __slots__ = ("_by_name", "_headers", "content_encoding", "content_length", "session_ids")

    def __init__(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._headers = headers
        self._by_name = dict(headers)
        self.session_ids: Sequence[str] = self.all(SESSION_HEADER) if SESSION_HEADER in self._by_name else []
        self.content_encoding = ", ".join(self.all(_ENCODING)) if _ENCODING in self._by_name else None
        self.content_length = self._by_name.get(LENGTH)

    def all(self, name: bytes) -> list[str]:
        """Every copy of a header, in order."""
        return [value.decode("latin-1") for other, value in self._headers if other == name]

    def first(self, name: bytes) -> str | None:
        """The first copy of a header, or None where there is none."""
        if name not in self._by_name:
            return None
        if len(self._by_name) == len(self._headers):  # no header is repeated
            return self._by_name[name].decode("latin-1")
        return self.all(name)[0]

    @property
    def methods(self) -> list[str]:
        """Every `Mcp-Method`."""
        return self.all(_METHOD)

    @property
    def version(self) -> str | None:
        """The first `MCP-Protocol-Version`."""
        return self.first(_VERSION)

    @property
    def is_modern(self) -> bool:
        """Whether the request belongs to the modern era, told as the official SDK tells it: by this header alone."""
        return self.version is not None and self.version not in HANDSHAKE_VERSIONS

    @property
    def is_json(self) -> bool:
        """Whether a server might take the body for JSON: some do when the type only begins or lists it."""
        return any("json" in kind.lower() for kind in self.all(_TYPE))

"""The request head: every header that decides something here, read in one pass.

Header values are kept as text exactly as sent. Duplicates are kept too: two parsers that take the
first and the last copy of a header are the start of every smuggling attack.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from .protocol import HANDSHAKE_VERSIONS

SESSION_HEADER: Final = b"mcp-session-id"
_METHOD: Final = b"mcp-method"
_VERSION: Final = b"mcp-protocol-version"
_TYPE: Final = b"content-type"
_ENCODING: Final = b"content-encoding"
_LENGTH: Final = b"content-length"
_READ: Final = frozenset({SESSION_HEADER, _METHOD, _VERSION, _TYPE, _ENCODING, _LENGTH})


@dataclass(slots=True)
class Head:
    """The headers of one request that this middleware reads.

    Of a repeated header the first copy counts, as in the official SDK; of the session and the
    method header every copy is kept, since a second copy refuses the request; of the encoding, too,
    since codings add up.
    """

    version: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    content_length: str | None = None
    session_ids: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)

    @property
    def is_modern(self) -> bool:
        """Whether the request belongs to the modern era, told as the official SDK tells it: by this header alone."""
        return self.version is not None and self.version not in HANDSHAKE_VERSIONS

    @property
    def is_json(self) -> bool:
        """Whether a server might take the body for JSON: some do when the type only begins or lists it."""
        return "json" in (self.content_type or "").lower()


def read(headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """Read a request's head from its ASGI headers (names in lower case, as ASGI has them)."""
    found: dict[bytes, list[str]] = {}
    for name, value in headers:
        if name in _READ:
            found.setdefault(name, []).append(value.decode("latin-1"))
    return Head(
        version=_first(found.get(_VERSION)),
        content_type=_joined(found.get(_TYPE)),
        content_encoding=_joined(found.get(_ENCODING)),
        content_length=_first(found.get(_LENGTH)),
        session_ids=found.get(SESSION_HEADER, []),
        methods=found.get(_METHOD, []),
    )


def _first(values: list[str] | None) -> str | None:
    return values[0] if values else None


def _joined(values: list[str] | None) -> str | None:
    return ", ".join(values) if values else None

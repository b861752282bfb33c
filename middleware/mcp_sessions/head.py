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
_METHOD_HEADER: Final = b"mcp-method"
_SINGLE: Final = {
    b"mcp-protocol-version": "version",
    b"content-type": "content_type",
    b"content-encoding": "content_encoding",
    b"content-length": "content_length",
}


@dataclass(slots=True)
class Head:
    """The headers of one request that this middleware reads.

    Of a repeated header the first copy counts, as in the official SDK; of the session and the
    method header every copy is kept, since a second copy refuses the request.
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
        """Whether the body claims to be JSON."""
        return (self.content_type or "").split(";")[0].strip().lower() == "application/json"


def read(headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """Read a request's head from its ASGI headers (names in lower case, as ASGI has them)."""
    head = Head()
    for name, value in headers:
        if name == SESSION_HEADER:
            head.session_ids.append(value.decode("latin-1"))
        elif name == _METHOD_HEADER:
            head.methods.append(value.decode("latin-1"))
        elif name in _SINGLE and getattr(head, _SINGLE[name]) is None:
            setattr(head, _SINGLE[name], value.decode("latin-1"))
    return head

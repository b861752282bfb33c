"""The headers of requests and responses, decoded when asked for.

Values stay exactly as sent, and duplicates are kept: two parsers that take the first and the last copy of a header are
the start of every smuggling attack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from .._refusals import refusal
from .._session.claims import RedactedRepr

HANDSHAKE_VERSIONS: Final = frozenset({"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"})
"""The legacy era: these versions, or no version header at all. Any other version is modern."""
SESSION_HEADER: Final = b"mcp-session-id"
LAST_EVENT_ID: Final = b"last-event-id"
CODING: Final = b"content-encoding"
LENGTH: Final = b"content-length"
ACCEPT_CODING: Final = b"accept-encoding"
METHOD: Final = b"mcp-method"
VERSION: Final = b"mcp-protocol-version"

JSON: Final = b"application/json"
EVENTS: Final = b"text/event-stream"
BODY_DEPENDENT_HEADERS: Final = frozenset(
    {b"content-length", b"transfer-encoding", b"etag", b"content-digest", b"repr-digest", b"digest", b"content-md5"}
)

_KEEP_COOKIES: Final = frozenset({"python-httpx", "python-httpx2"})
"""How HTTP clients that keep cookies name themselves in the User-Agent, in lower case. A list of those that keep none
could never be complete: hosts send names of their own."""

Header = tuple[bytes, bytes]


def edit(headers: Iterable[Header], *, drop: Iterable[bytes] = (), add: Iterable[Header] = ()) -> list[Header]:
    """Return a new list of ASGI headers, without any copy of those to drop and with others at the end."""
    names = frozenset(drop)
    return [header for header in headers if header[0] not in names] + [*add]


def content_type(headers: Iterable[Header]) -> tuple[bytes, bytes | None]:
    """Return the media type of a response, in lower case, and its content coding, each None if it is missing."""
    media_type, coding = b"", None
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-type":
            media_type = value.partition(b";")[0].strip().lower()
        elif lower == b"content-encoding" and value.lower() != b"identity":
            coding = value
    return media_type, coding


def independent_of_body(headers: Iterable[Header]) -> list[Header]:
    """Return the headers of a response that stay true when its body changes."""
    return [header for header in headers if header[0].lower() not in BODY_DEPENDENT_HEADERS]


def pop_event_ids(headers: Sequence[Header]) -> tuple[list[str], list[Header]]:
    """Return every `Last-Event-ID` of a request, and its headers without them.

    WSGI and CGI take an underscore in a name for a hyphen, so that spelling counts, too.
    """
    copies, others = list[str](), list[Header]()
    for name, value in headers:
        if name.lower().replace(b"_", b"-") == LAST_EVENT_ID:
            copies.append(value.decode("latin-1"))
        else:
            others.append((name, value))
    return copies, others


def single_header(copies: Sequence[str], reason: str = "duplicate_session_header") -> str:
    """Return the only copy of a header, or refuse for a reason: of several, two readers may take different ones."""
    if len(copies) > 1:
        raise refusal(reason)
    return copies[0]


class RequestHeaders(RedactedRepr, msgspec.Struct, gc=False):
    """The headers of one request.

    Of a repeated header the first copy counts, as in the official SDK; but a second session or method header refuses
    the request, and encodings add up.
    """

    headers: Sequence[Header]  # as ASGI has them, names in lower case
    by_name: dict[bytes, bytes] = {}  # the first copy of each
    session_id: str | None = None  # the `Mcp-Session-Id` if the middleware created it, once it was checked
    cookie: str | None = None  # the value of our cookie where it counts, once it was checked
    event_id: str | None = None  # the signed id of the event from which a stream resumes, once it was checked

    # The version that a request of the modern era states: by this header alone, as in the official SDK.
    modern_version: str | None = None
    is_modern: bool = False

    def __post_init__(self) -> None:
        self.by_name = dict(reversed(self.headers))
        version = self.by_name.get(VERSION)
        if version is not None and (text := version.decode("latin-1")) not in HANDSHAKE_VERSIONS:
            self.modern_version, self.is_modern = text, True

    def all(self, name: bytes) -> list[str]:
        """Return every copy of a header, in order."""
        if name not in self.by_name:
            return []
        return [value.decode("latin-1") for other, value in self.headers if other == name]

    def first(self, name: bytes) -> str | None:
        """Return the first copy of a header, or None if it is missing."""
        value = self.by_name.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def is_json(self) -> bool:
        """Whether a server might take the body for JSON: some do when the type only begins or lists it."""
        return any("json" in kind.lower() for kind in self.all(b"content-type"))


def keeps_cookies(headers: RequestHeaders) -> bool:
    """Return whether a client is known to keep cookies: it is on Python's httpx, or a page of the endpoint's origin."""
    return not _KEEP_COOKIES.isdisjoint(_products(headers)) or headers.all(b"sec-fetch-site") == ["same-origin"]


def product_of(headers: RequestHeaders) -> str:
    """Return the first product that the User-Agent of a client names, in lower case and without its version."""
    return next(iter(_products(headers)), "")


def _products(headers: RequestHeaders) -> list[str]:
    return [word.partition("/")[0].lower() for word in (headers.first(b"user-agent") or "").split()]

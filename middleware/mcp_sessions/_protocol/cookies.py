"""The cookie dialect: clients of the modern era that keep cookies are in a session without speaking of any.

The answer to `server/discover` sets a cookie that holds a token of a kind of its own, and later requests bring it back.
Our cookies never reach the wrapped server; all others pass as they came.
Sources: RFC 6265, sections 4.1, 4.2 and 5.4; RFC 6265bis for `SameSite`, `__Secure-` and `__Host-`.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections.abc import Iterable
from typing import Final

from .headers import Header

DISCOVER: Final = "server/discover"
COOKIE: Final = b"cookie"

SHARED_JAR: Final = "shared"
"""The value that names no session, once two clients were seen to share one jar of cookies."""

UNREADABLE: Final = ""
"""What stands for a cookie of ours that is given more than once: a session id that is never valid."""

_HOST, _SECURE = b"__Host-", b"__Secure-"  # with the former, no other host of the site can set the cookie


def cookie_name(audience: str) -> bytes:
    """Return the name of the cookie without its prefix; deployments on one host differ by their audience."""
    digest = hashlib.sha256(b"mcp-sessions/1/cookie/" + audience.encode()).digest()
    return b"mcp-session-" + b32encode(digest[:5]).lower()


def pop_session_cookie(
    headers: Iterable[Header], name: bytes, *, path: str, secure: bool
) -> tuple[str | None, list[Header]]:
    """Return the value of our cookie, or None, and the headers without it.

    Those with another prefix are taken out as well and never read: over plain text, or on another host of the site,
    anybody could have set them.

    Args:
        headers: The headers of the request.
        name: The name of our cookie, without its prefix.
        path: The endpoint as its clients see it, percent-encoded.
        secure: Whether the request came by https.
    """
    values, kept = list[bytes](), list[Header]()
    read = _prefix(path, secure=secure) + name
    for header in headers:
        if header[0] == COOKIE and name in header[1]:
            others = []
            for pair in header[1].split(b";"):
                key, _, value = pair.strip().partition(b"=")
                if key.rstrip() == read:
                    values.append(value.strip())
                elif key.rstrip() not in {name, _SECURE + name, _HOST + name}:
                    others.append(pair.strip())
            header = (COOKIE, b"; ".join(others))  # noqa: PLW2901  # what is left of it
            if not others:
                continue
        kept.append(header)
    if not values:
        return None, kept
    return values[0].decode("latin-1") if len(values) == 1 else UNREADABLE, kept


def set_cookie(name: bytes, value: str, *, path: str, secure: bool) -> Header:
    """Return the header that sets our cookie until its client is closed; the token holds when the session ends.

    Args:
        name: The name of our cookie, without its prefix.
        value: A token, or `SHARED_JAR`.
        path: The endpoint as its clients see it, percent-encoded.
        secure: Whether the request came by https.
    """
    attributes = b"; Path=%b; HttpOnly; SameSite=Strict%b" % (path.encode("ascii"), b"; Secure" if secure else b"")
    return b"set-cookie", _prefix(path, secure=secure) + name + b"=" + value.encode("ascii") + attributes


def _prefix(path: str, *, secure: bool) -> bytes:
    if not secure:
        return b""
    return _HOST if path == "/" else _SECURE  # `__Host-` is for the whole host

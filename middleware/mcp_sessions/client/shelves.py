"""What a jar holds and how it changes, apart from where it is kept.

A shelf is one user's sessions on one server, by the names that the program gave them. A server is its origin and path,
so a session is never sent to another origin. Every change is one pure function of a shelf, which a jar applies as a
whole.
Source: the data-layer sessions draft ("MUST associate retained sessionIds with the issuing Server"); RFC 6454.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from .metadata import Metadata

Shelf = dict[str, Metadata]
Edit = Callable[[Shelf], Shelf]

LEEWAY: Final = timedelta(minutes=5)
"""How long past its hint a session is still tried: clocks differ, and a hint that only moved is not always written."""

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Place:
    """Whose sessions on which server.

    Args:
        server: Origin and path, as `server_of` writes them.
        identity: Whom the program speaks for, in its own words.
    """

    server: str
    identity: str


def server_of(url: str) -> str:
    """A server's origin and path, written in one way.

    Raises:
        ConfigurationError: It is no HTTP URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ConfigurationError(f"a jar keeps sessions by the server's URL, and {url!r} is no HTTP URL; set server=")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}{parts.path or '/'}"


def url_of(transport: Any) -> str | None:
    """The URL that a transport was made with, or None where it does not show."""
    shown = getattr(transport, "url", None)
    given = (*getattr(transport, "args", ()), *getattr(transport, "kwds", {}).values())
    return next((one for one in (shown, *given) if isinstance(one, str) and one.startswith(("http:", "https:"))), None)


def put(name: str, metadata: Metadata) -> Edit:
    """Hold a session that is new."""
    return lambda shelf: {**shelf, name: metadata}


def update(name: str, metadata: Metadata) -> Edit:
    """Hold what is new of a session, unless another process has put a different session in its place."""
    return lambda shelf: {**shelf, name: metadata} if _holds(shelf, name, metadata.session_id) else shelf


def drop(name: str, session_id: str) -> Edit:
    """Hold a session no longer, unless another process has put a different session in its place."""
    return lambda shelf: (
        {kept: shelf[kept] for kept in shelf if kept != name} if _holds(shelf, name, session_id) else shelf
    )


def without_expired(shelf: Shelf) -> Shelf:
    """The sessions that may still live."""
    limit = datetime.now(timezone.utc) - LEEWAY
    return {name: held for name, held in shelf.items() if held.expires is None or limit < held.expires}


def _holds(shelf: Shelf, name: str, session_id: str) -> bool:
    return name in shelf and shelf[name].session_id == session_id

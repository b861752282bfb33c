"""Single options, checked: each function returns what it was given, in its plainest form.

The types are promises of callers that no type checker has seen, so everything here takes `Any`. What
is wrong is said with the option's name and what to write instead.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, Final, cast

from starlette.types import ASGIApp

from .errors import ConfigurationError

Seconds = float | timedelta
CENTURY: Final = 36_525 * 24 * 3600  # seconds; no session needs more, and calendars end


def application(app: Any) -> ASGIApp:
    """What is wrapped.

    Raises:
        ConfigurationError: It cannot be called, as a server's own object cannot.
    """
    if callable(app):
        return cast(ASGIApp, app)
    raise ConfigurationError(
        f"{type(app).__name__} is no ASGI application; "
        "wrap what its streamable_http_app() returns, which FastMCP calls http_app()"
    )


def path(path: Any) -> str | None:
    """The MCP path without a trailing slash, or None for every path.

    Raises:
        ConfigurationError: It is no path.
    """
    if path is None:
        return None
    if isinstance(path, str) and ("{" in path or "}" in path):
        raise ConfigurationError(
            f"path={path!r}: a pattern never matches; use add_sessions(app, path=...) or path=None"
        )
    if isinstance(path, str) and path.startswith("/"):
        return path.rstrip("/")
    raise ConfigurationError(f"path={path!r} must begin with '/', as in path='/mcp'; None means every path")


def name(option: str, value: Any) -> str:
    """A name in printable ASCII.

    Raises:
        ConfigurationError: It is none.
    """
    if isinstance(value, str) and value and value.isascii() and value.isprintable():
        return value
    raise ConfigurationError(f"{option}={value!r} must be printable ASCII, as in {option}='https://api.example/mcp'")


def seconds(option: str, value: Any, *, least: float = 0.001) -> float:
    """A duration in seconds.

    Raises:
        ConfigurationError: It is none, or out of range.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and least <= seconds <= CENTURY:
        return float(seconds)
    raise ConfigurationError(f"{option}={value!r} must be from {least} to {CENTURY} seconds, a number or a timedelta")


def whole(option: str, value: Any, *, least: float = -math.inf) -> int:
    """A whole number.

    Raises:
        ConfigurationError: It is none, or too small.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    bound = "" if least == -math.inf else f" of at least {least}"
    raise ConfigurationError(f"{option}={value!r} must be a whole number{bound}")


def word(option: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    """One of some words.

    Raises:
        ConfigurationError: It is none of them.
    """
    if value in allowed:
        return value
    raise ConfigurationError(f"{option}={value!r} must be one of {', '.join(map(repr, allowed))}")


def words(option: str, value: Any, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Several of some words, or none.

    Raises:
        ConfigurationError: One is none of them, or it is one text.
    """
    if isinstance(value, (tuple, list, set, frozenset)) and all(one in allowed for one in value):
        return tuple(value)
    raise ConfigurationError(f"{option}={value!r} must be a tuple of some of {', '.join(map(repr, allowed))}, or ()")


def yes_or_no(option: str, value: Any) -> bool:
    """True or False.

    Raises:
        ConfigurationError: It is neither.
    """
    if isinstance(value, bool):
        return value
    raise ConfigurationError(f"{option}={value!r} must be True or False")


def function(option: str, value: Any) -> Any:
    """A function, plain or async, or None.

    Raises:
        ConfigurationError: It cannot be called.
    """
    if value is None or callable(value):
        return value
    raise ConfigurationError(f"{option}= takes a function, not {type(value).__name__}")

"""Single options, checked: each function returns what it was given, in its plainest form.

The types are promises of callers that no type checker has seen, so everything here takes `Any`. What
is wrong is said with the option's name and what to write instead.

Units and words of the options.

Options from the environment: `MCP_SESSIONS_LIFETIME=12h` is `lifetime=12 * HOUR`.

Each variable is the prefix and an option's name in capitals; `SETTINGS` says in which form each is written.
What an option may be is not checked here: the middleware does that, with the remedy. A variable with the prefix
that names no option is an error, so that a misspelled one is never passed over; Kubernetes' own are no settings.
Source: the twelve-factor habit of configuration in the environment.

The application's own code at the two ends of a session: `on_create` and `on_end`.

A hook may be a plain or an async function. Nothing here decides when a hook runs; that `on_end` runs
once is the store's work (`endings`).
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, Literal, cast

from starlette.types import ASGIApp, Scope

from .._protocol import decision
from .._session.session import EndedSession, Session
from ..errors import ConfigurationError

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


HOUR: Final = 3600
DAY: Final = 24 * HOUR
KIBIBYTE: Final = 1 << 10
MEBIBYTE: Final = 1 << 20
EVERY_EXTENSION: Final = tuple(decision.EXTENSIONS)
TYPICAL_TOKEN_BYTES: Final = 512  # a lower limit would refuse what is minted here
Admission = Literal["ask", "own"]
OnStoreError = Literal["refuse", "allow"]
Transport = Literal["auto", "off"]
Era = Literal["any", "legacy"]


PREFIX: Final = "MCP_SESSIONS_"
OTHER_KEYS: Final = "MCP_SESSION_KEYS"
"""Where keys are looked for besides, since `keys="env:MCP_SESSION_KEYS"` is how they are named in code."""

SERVICE_LINK: Final = re.compile(r"(SERVICE_(HOST|PORT.*)|PORT(_\d+_(TCP|UDP|SCTP).*)?)", re.ASCII)
"""What follows the prefix in the variables that Kubernetes gives every pod beside a Service called `mcp-sessions`."""

IN_CODE: Final = frozenset({"clock", "dialects", "listen", "metrics", "on_create", "on_end", "principal", "redact"})
"""Options that are functions or objects, which no variable can hold."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a value is written in a variable.

    Args:
        words: What may be written, for people.
        read: What it means; raises `ValueError` where it is written otherwise.
    """

    words: str
    read: Callable[[str], Any]


# --- the forms -----------------------------------------------------------------------------------

_UNITS: Final[Mapping[str, int]] = MappingProxyType({"s": 1, "m": 60, "h": 3600, "d": 24 * 3600})
_YES_OR_NO: Final[Mapping[str, bool]] = MappingProxyType({"true": True, "false": False, "1": True, "0": False})


def _seconds(text: str) -> float:
    unit = _UNITS.get(text[-1])
    return float(text) if unit is None else float(text[:-1]) * unit


def _yes_or_no(text: str) -> bool:
    try:
        return _YES_OR_NO[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _words(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(word.strip() for word in text.split(","))


def _require(text: str) -> Any:
    if text.startswith("{"):
        return json.loads(text)
    return text if text in {"never", "always"} else _words(text)


def _correlate(text: str) -> bool | tuple[str, ...]:
    return _YES_OR_NO[text] if text in _YES_OR_NO else _words(text)


def _propagate(text: str) -> bool | str:
    return _YES_OR_NO.get(text, text)


def _path(text: str) -> str | None:
    return None if text == "*" else text


def _keys(text: str) -> str:
    """Where they are, and never what they are: what is returned may be shown."""
    return text if text.startswith(("file:", "env:")) else f"env:{PREFIX}KEYS"


TEXT: Final = Form("text", str)
WHOLE: Final = Form("a whole number", int)
SECONDS: Final = Form("seconds, or a number with `s`, `m`, `h` or `d`, as in `12h`", _seconds)
YES_OR_NO: Final = Form("`true` or `false`", _yes_or_no)

SETTINGS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "keys": Form("secrets, separated by commas or lines, or `file:PATH`", _keys),
        "path": Form("a path, or `*` for every path", _path),
        "audience": TEXT,
        "issuer": TEXT,
        "lifetime": SECONDS,
        "idle_timeout": SECONDS,
        "require": Form('`never`, `always`, `tools/call,prompts/get`, or `{"tools/call": ["checkout"]}`', _require),
        "extensions": Form("names, separated by commas, or `none`", _words),
        "lists": Form("`stable`, `session` or `untouched`", str),
        "transport": Form("`auto` or `off`", str),
        "transport_lifetime": SECONDS,
        "bridge": YES_OR_NO,
        "era": Form("`any` or `legacy`", str),
        "correlate": Form("`true`, or sources, separated by commas", _correlate),
        "propagate": Form("`true`, or a member of baggage", _propagate),
        "store": Form("`memory:`, `sqlite:PATH`, or `redis://...`", str),
        "store_timeout": SECONDS,
        "on_store_error": Form("`refuse` or `allow`", str),
        "tracked": YES_OR_NO,
        "sweep_interval": SECONDS,
        "max_data_bytes": WHOLE,
        "max_value_bytes": WHOLE,
        "admission": Form("`ask` or `own`", str),
        "not_found_code": WHOLE,
        "required_code": WHOLE,
        "max_body_bytes": WHOLE,
        "max_state_bytes": WHOLE,
        "max_event_bytes": WHOLE,
        "max_batch": WHOLE,
        "max_nesting": WHOLE,
        "max_token_bytes": WHOLE,
        "body_timeout": SECONDS,
        "create_limit": WHOLE,
        "token_cache": WHOLE,
        "spans": Form("`auto`, `server`, `internal`, `enrich` or `off`", str),
        "trace": Form("`request` or `session`", str),
        "tail": TEXT,
    }
)


# --- read ----------------------------------------------------------------------------------------


def from_env(**options: Any) -> dict[str, Any]:
    """The options that the environment holds, for whatever takes the middleware's options.

    As in `add_sessions(app, **from_env())` and `app.add_middleware(MCPSessionMiddleware, **from_env(on_end=free))`.

    Args:
        options: Runtime that are given in code; they win over the environment.

    Returns:
        Both together. Keys are not in it, only where they are; a store's URL may hold a password.

    Raises:
        ConfigurationError: A variable names no option, is empty, or is written in no form that is known; the message
            says what to write instead.
    """
    found = {_option(name): text for name, text in os.environ.items() if _is_ours(name)}
    if "keys" not in found and os.environ.get(OTHER_KEYS):
        options = {"keys": f"env:{OTHER_KEYS}", **options}
    return {**{option: _read(option, text) for option, text in found.items()}, **options}


def variable(option: str) -> str:
    """The variable that holds an option."""
    return PREFIX + option.upper()


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX) and not SERVICE_LINK.fullmatch(name.removeprefix(PREFIX))


def _option(name: str) -> str:
    option = name.removeprefix(PREFIX).lower()
    if variable(option) == name and option in SETTINGS:
        return option
    if option in IN_CODE:
        raise ConfigurationError(f"{name}: no variable holds {option}=; give it in code, as in from_env({option}=...)")
    near = get_close_matches(option, SETTINGS, n=1)
    remedy = (
        f"did you mean {variable(near[0])}?" if near else f"these are settings: {', '.join(map(variable, SETTINGS))}"
    )
    raise ConfigurationError(f"{name} is no setting; {remedy}")


def _read(option: str, text: str) -> Any:
    if not text.strip():
        raise ConfigurationError(f"{variable(option)} is empty; remove it, or write {SETTINGS[option].words}")
    try:
        return SETTINGS[option].read(text.strip())
    except ValueError:
        raise ConfigurationError(f"{variable(option)}={text!r} must be {SETTINGS[option].words}") from None


OnCreate = Callable[[Session, dict[str, Any], Scope], Awaitable[None] | None]
"""Called with a new session, the `params` of `sessions/create` without `_meta`, and the ASGI scope.

It may fill the session's state and data, or raise `CreateRefused` with a message for the client.
"""

OnEnd = Callable[[EndedSession, str], Awaitable[None] | None]
"""Called with a session that has ended and the reason.

`"deleted"`, `"expired"`, `"idle"`, `"ended_all"` with all of its principal's, `"root_ended"` with its lineage,
`"not_begun"` where its client could not be told of it, or what `end` was given.
"""


async def call(hook: Callable[..., Awaitable[None] | None], *arguments: Any) -> None:
    """Run a hook to its end, whichever kind of function it is."""
    outcome = hook(*arguments)
    if inspect.isawaitable(outcome):
        await outcome

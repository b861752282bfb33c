"""How one option is checked, read from the environment and described: the `OptionType` in its annotation.

A check returns the value in its plainest form, or raises `ConfigurationError` with the option's name and what to write
instead. Source: the twelve-factor habit of configuration in the environment.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, cast, get_args

from starlette.types import ASGIApp

from .._errors import ConfigurationError
from .._session.claims import RedactedRepr
from .._session.functions import check_clock, check_function
from .._tokens.keys import REMEDY
from .._tokens.placeholders import form_of

Seconds = float | timedelta | str
"""A duration in code: seconds, a `timedelta`, or text with a unit as in a variable: `"12h"`."""
Check = Callable[[str, Any], Any]
CENTURY: Final = 36_525 * 24 * 3600  # seconds; no session needs more, and calendars end

_HOST: Final = re.compile(r"\[.*:.*\]|[^:]*")
_MIN_SECRET: Final = 16  # characters
_UNITS: Final[Mapping[str, int]] = MappingProxyType({"s": 1, "m": 60, "h": 3600, "d": 24 * 3600})
_FLAGS: Final[Mapping[str, bool]] = MappingProxyType({"true": True, "false": False, "1": True, "0": False})


@dataclass(frozen=True, slots=True)
class OptionType:
    """How the value of an option may be given."""

    help: str = ""  # what may be written in a variable, for people; empty if no variable can hold it
    check: Check = lambda option, value: value
    read: Callable[[str], Any] = str  # returns what a variable's text stands for, or raises
    group: type | None = None  # the class of the option object that it may be


class Default(NamedTuple):
    """The value of an option that is not given."""

    value: Any


class OptionObject:
    """A dataclass of options, which are checked when it is made."""

    __slots__ = ()
    _option = ""  # the option whose value it is

    def __post_init__(self) -> None:
        for name, kind in types_of(type(self)).items():
            object.__setattr__(self, name, kind.check(f"{self._option}.{name}", getattr(self, name)))

    def __repr__(self) -> str:
        """Show the fields that differ from their defaults, and no secret."""
        shown = [one for one in fields(cast(Any, self)) if one.repr and getattr(self, one.name) != one.default]
        return f"{type(self).__name__}({', '.join(f'{one.name}={getattr(self, one.name)!r}' for one in shown)})"


class CheckedOptions(RedactedRepr):
    """Options after their check. It is not a mapping, since tools that report errors show the values of those."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, option: str) -> Any:
        return self._values[option]


def types_of(kind: type) -> dict[str, OptionType]:
    """Return the types of the options that a class declares, by their names."""
    return {name: cast(Any, annotation).__metadata__[0] for name, annotation in kind.__annotations__.items()}


def defaults_of(kind: type) -> dict[str, Any]:
    """Return the defaults of the keywords that a `TypedDict` declares."""
    return {name: cast(Any, annotation).__metadata__[1].value for name, annotation in kind.__annotations__.items()}


def as_seconds(checked: Seconds) -> float:
    """Return a duration that was checked: a number of seconds by then."""
    return cast(float, checked)


def application(app: Any) -> ASGIApp:
    """Return the application to wrap if it can be called, unlike the server objects of frameworks."""
    if callable(app):
        return cast(ASGIApp, app)
    raise ConfigurationError(
        f"{type(app).__name__} is not an ASGI application; "
        "wrap what its streamable_http_app() returns, which FastMCP calls http_app()"
    )


# --- checks --------------------------------------------------------------------------------------


def validator(what: str, accepts: Callable[[Any], bool]) -> Check:
    """Return a check that says what a value must be unless it is accepted."""

    def check(option: str, value: Any) -> Any:
        if accepts(value):
            return value
        raise ConfigurationError(f"{option}={value!r} must be {what.format(option=option)}")

    return check


def _path(option: str, value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and ("{" in value or "}" in value):
        raise ConfigurationError(
            f"{option}={value!r}: a pattern never matches; use add_sessions(app, path=...) or path=None"
        )
    if isinstance(value, str) and value.startswith("/"):
        return value.rstrip("/")
    raise ConfigurationError(f"{option}={value!r} must begin with '/', as in path='/mcp'; None means every path")


# --- texts ---------------------------------------------------------------------------------------


def _read_seconds(text: str) -> float:
    unit = _UNITS.get(text[-1])
    return float(text) if unit is None else float(text[:-1]) * unit


def _read_words(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(word.strip() for word in text.split(","))


def read_sources(text: str) -> bool | tuple[str, ...]:
    """Return what a variable says of where hosts name their conversations."""
    return _FLAGS[text.lower()] if text.lower() in _FLAGS else _read_words(text)


def _read_require(text: str) -> Any:
    if text.startswith("{"):
        return json.loads(text)
    return text if text in {"never", "always"} else _read_words(text)


def _inspector(option: str, value: Any) -> Any:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    with suppress(ValueError):
        is_host = host == "localhost" or bool(_HOST.fullmatch(host) and ip_address(host.strip("[]")))
        if is_host and 0 < int(port) < 65_536:
            return value
    if callable(getattr(value, "bind", None)):  # an `Inspector`, whose class is not imported here
        return value
    raise ConfigurationError(f"{option}={value!r} must be an IP address and a port, as in inspector='127.0.0.1:8787'")


def _address(option: str, value: Any) -> str:
    with suppress(ValueError):
        return str(ip_address(value))
    raise ConfigurationError(f"{option}={value!r} must be an IP address of this machine, as in {option}='10.1.2.3'")


def is_loopback(address: str) -> bool:
    """Return whether an address that was checked can be reached from this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    return host == "localhost" or ip_address(host).is_loopback


def _not_by_reference(check: Check) -> Check:
    """Return a check that refuses `env:NAME` and `file:PATH`, which would be taken for the value itself."""

    def checked(option: str, value: Any) -> Any:
        if isinstance(value, str) and value.startswith(("env:", "file:")):
            code = 'os.environ["NAME"]' if value.startswith("env:") else 'Path("PATH").read_text().strip()'
            raise ConfigurationError(
                f"{option}= is not read from elsewhere: only keys= reads env:NAME and file:PATH; pass {code}"
            )  # the value is not shown, since it may be a password
        return check(option, value)

    return checked


def _secret(option: str, value: Any) -> Any:
    if isinstance(value, str) and len(value) >= _MIN_SECRET and value.isascii() and value.isprintable():
        if (what := form_of(value)) is None:
            return value
        raise ConfigurationError(f"{option}= is {what}, and no password; {REMEDY}")
    raise ConfigurationError(f"{option}= must have at least {_MIN_SECRET} printable ASCII characters")  # not shown


# --- option types ---------------------------------------------------------------------------------------


def or_none(one: OptionType) -> OptionType:
    """Return the type of an option that may also be None."""
    return replace(one, check=lambda option, value: None if value is None else one.check(option, value))


def instance_or_alias(
    kind: type, aliases: Mapping[Any, Any] = MappingProxyType({}), in_variables: OptionType = OptionType()
) -> OptionType:
    """Return the type of an option that is an option object, or an alias of one.

    Args:
        kind: The class of the object.
        aliases: The objects by their aliases.
        in_variables: How an alias is written in a variable.
    """

    def check(option: str, value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, (str, bool)) and value in aliases:
            return aliases[value]
        *others, last = [*map(repr, aliases), f"{kind.__name__}(...)"]
        allowed = f"{', '.join(others)} or {last}" if others else last
        raise ConfigurationError(f"{option}={value!r} must be {allowed}")

    return replace(in_variables, check=check, group=kind)


def word(literal: Any) -> OptionType:
    """Return the type of an option that is one of the words of a `Literal`."""
    allowed = get_args(literal)
    *others, last = (f"`{one}`" for one in allowed)
    check = validator(f"one of {', '.join(map(repr, allowed))}", lambda value: value in allowed)
    return OptionType(f"{', '.join(others)} or {last}", check)


def flag_or(alternative: str) -> OptionType:
    """Return the type of an option that is True, False or a word."""
    return OptionType(
        f"`true`, `false` or `{alternative}`",
        validator(f"True, False or {alternative!r}", lambda value: isinstance(value, bool) or value == alternative),
        lambda text: _FLAGS.get(text.lower(), text),
    )


def names(allowed: tuple[str, ...]) -> OptionType:
    """Return the type of an option that is a collection of some of these names."""

    def accepts(value: Any) -> bool:
        return isinstance(value, (tuple, list, set, frozenset)) and all(one in allowed for one in value)

    check = validator(f"a tuple of some of {', '.join(map(repr, allowed))}, or ()", accepts)
    return OptionType(
        "names, separated by commas, or `none`", lambda option, value: tuple(check(option, value)), _read_words
    )


def _duration(least: float) -> OptionType:
    def check(option: str, value: Any) -> float:
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(value, str) and value.strip()[-1:] in _UNITS:
            with suppress(ValueError):
                seconds = _read_seconds(value.strip())
        if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and least <= seconds <= CENTURY:
            return float(seconds)
        what = f"from {least} to {CENTURY} seconds, a number or a timedelta, or text with a unit, as in '12h'"
        raise ConfigurationError(f"{option}={value!r} must be {what}")

    return OptionType("seconds, or a number with `s`, `m`, `h` or `d`, as in `12h`", check, _read_seconds)


def whole(least: float) -> OptionType:
    """Return the type of an option that is a whole number."""
    check = validator(
        f"a whole number of at least {least}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least,
    )
    return OptionType("a whole number", check, int)


NAME: Final = OptionType(
    "text",
    _not_by_reference(
        validator(
            "printable ASCII, as in {option}='https://api.example/mcp'",
            lambda value: isinstance(value, str) and value != "" and value.isascii() and value.isprintable(),
        )
    ),
)
PATH: Final = OptionType("a path, or `*` for every path", _path, lambda text: None if text == "*" else text)
KEYS: Final = OptionType(
    "secrets, separated by commas or lines, or `file:PATH`",
    # Where the keys are, and never the keys, since the result may be shown.
    read=lambda text: text if text.startswith(("file:", "env:")) else "env:MCP_SESSIONS_KEYS",
)
FLAG: Final = OptionType(
    "`true` or `false`",
    validator("True or False", lambda value: isinstance(value, bool)),
    lambda text: _FLAGS[text.lower()],
)
DURATION: Final = _duration(0.001)
LIFETIME: Final = _duration(1)
FUNCTION: Final = OptionType(check=check_function)  # not async
HOOK: Final = OptionType(check=partial(check_function, may_be_async=True))  # plain or async
CLOCK: Final = OptionType(check=lambda _, value: check_clock(value))
OBJECT: Final = OptionType()

Name = Annotated[str, NAME]
Flag = Annotated[bool, FLAG]
Whole = Annotated[int, whole(1)]
WholeOrNone = Annotated[int | None, or_none(whole(1))]
Duration = Annotated[Seconds, DURATION]
Lifetime = Annotated[Seconds, LIFETIME]
LifetimeOrNone = Annotated[Seconds | None, or_none(LIFETIME)]
ADDRESS: Final = OptionType("an IP address of this machine, as in `10.1.2.3`", _address)
INSPECTOR: Final = or_none(OptionType("an address and a port, as in `127.0.0.1:8787`", _inspector))
Secret = Annotated[str | None, or_none(OptionType("at least 16 characters", _not_by_reference(_secret)))]
REQUIRE: Final = OptionType(
    '`never`, `always`, `tools/call,prompts/get`, or `{"tools/call": ["checkout"]}`', read=_read_require
)
STORE: Final = OptionType(
    "`memory:`, `sqlite:PATH`, `redis://...`, or `postgresql://...`",
    _not_by_reference(lambda option, value: value),  # `stores.make` checks the rest
)
CORRELATE: Final = OptionType("`true`, or sources, separated by commas", read=read_sources)

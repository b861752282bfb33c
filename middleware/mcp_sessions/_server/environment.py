"""The options as keywords with their types, and from variables of the environment.

`from_env` reads what text can express: `MCP_SESSIONS_LIFETIME=12h`, `MCP_SESSIONS_LIMITS_BATCH=7` and so on (the
twelve-factor app, III).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, cast

from .._dialects.base import Dialect
from .._errors import ConfigurationError
from .._protocol.policy import Require
from .._session.keywords import check_keywords
from .._tokens.keyfile import Keys
from ..stores._base import Store
from . import option_types
from .option_types import OptionType, Seconds
from .options import (
    GROUPS,
    Admission,
    Limits,
    OnCreate,
    OnEnd,
    OnStoreError,
    Options,
    Telemetry,
    Tracking,
    TransportSessions,
    Wire,
)
from .principal import PrincipalOf
from .workers import failing_once

if TYPE_CHECKING:
    from typing_extensions import Unpack


class EndpointOptions(TypedDict, total=False):
    """The options of `add_sessions`, which finds the path itself, as keywords with their types."""

    keys: Keys
    audience: str
    lifetime: Seconds
    idle_timeout: Seconds | None
    require: Require
    principal: PrincipalOf | None
    admission: Admission
    store: str | Store
    on_store_error: OnStoreError
    tracked: bool | Tracking
    on_create: OnCreate | None
    on_end: OnEnd | None
    dialects: Sequence[Dialect]
    transport: Literal["auto", "off"] | TransportSessions
    wire: Wire
    limits: Limits
    telemetry: Telemetry
    clock: Callable[[], float]


class MiddlewareOptions(EndpointOptions, total=False):
    """The options of `MCPSessionMiddleware`, as keywords with their types."""

    path: str | None


PREFIX: Final = "MCP_SESSIONS_"
MISSPELLED_PREFIX: Final = "MCP_SESSION_"  # what is meant for us must not be passed over

# What follows the prefix, with its value, in the variables that Kubernetes (environment variables of Services) and
# Docker (links) give a container beside a service called `mcp-sessions`, `mcp-sessions-redis` and so on. Names that a
# setting could be called are told by the value.
SERVICE_LINK: Final = re.compile(
    r"([A-Z\d_]+_)?(SERVICE_HOST=.*|SERVICE_PORT(_[A-Z\d_]+)?=.*|PORT=(tcp|udp|sctp)://.*|"
    r"PORT_\d+_(TCP|UDP|SCTP)(_(PORT_)?(START|END)|_ADDR|_PORT|_PROTO)?=.*|NAME=/[^/]+/.+|ENV_\w+=.*)",
    re.ASCII | re.DOTALL,
)

_OPTION_TYPES: Final[Mapping[str, OptionType]] = {
    **{
        field.name: option_types.option_type(Options, field.name)
        for field in fields(Options)
        if field.name not in GROUPS
    },
    "transport": option_types.word(Literal["auto", "off"]),
    "tracked": option_types.FLAG,
    **{
        f"{name}.{field.name}": option_types.option_type(kind, field.name)
        for name, kind in GROUPS.items()
        for field in fields(kind)
    },
}
SETTINGS: Final[Mapping[str, OptionType]] = {path: kind for path, kind in _OPTION_TYPES.items() if kind.help}
"""Every option that a variable can hold, by its path, and how it is written there."""


def variable(setting: str) -> str:
    """Return the variable that holds a setting."""
    return PREFIX + setting.replace(".", "_").upper()


VARIABLES: Final[Mapping[str, str]] = {variable(setting): setting for setting in SETTINGS}
"""Every variable that is read, and the setting in it."""


@failing_once()
def from_env(**options: Unpack[MiddlewareOptions]) -> MiddlewareOptions:
    """Return the options in environment variables, for anything that takes the middleware's options.

    As in `add_sessions(app, **from_env())` and `app.add_middleware(MCPSessionMiddleware, **from_env(on_end=free))`.

    Args:
        options: Options from code, which override the environment; of an option object, the fields that differ from
            their defaults.

    Returns:
        All options. They name the source of keys, never the secrets; the URL of a store may contain a password.

    Raises:
        ConfigurationError: A variable is unknown, empty or malformed; the message names the remedy.
    """
    check_keywords("from_env", options, MiddlewareOptions.__annotations__)
    named = {_setting(name): name for name in sorted(os.environ) if _is_ours(name)}
    for name in sorted(os.environ):
        meant = PREFIX + name.removeprefix(MISSPELLED_PREFIX)
        if name.startswith(MISSPELLED_PREFIX) and meant in VARIABLES:
            raise ConfigurationError(f"{name} is not a setting; did you mean {meant}?")
    values = {setting: _read(SETTINGS[setting], name, os.environ[name]) for setting, name in named.items()}
    merged = {**{name: value for name, value in values.items() if "." not in name}, **options}
    for group, kind in GROUPS.items():
        inner = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{group}.")}
        if not inner:
            continue
        value = merged.get(group, False if kind is Tracking else kind())
        base = option_types.option_type(Options, group).check(group, value)
        if base is not None:  # where sessions are not tracked, there is nothing to fill in
            merged[group] = replace(base, **{k: v for k, v in inner.items() if getattr(base, k) == getattr(kind(), k)})
    return cast(MiddlewareOptions, merged)


def _is_ours(name: str) -> bool:
    """Whether a variable is meant for us, and not for those who look for a service."""
    of_service = SERVICE_LINK.fullmatch(f"{name.removeprefix(PREFIX)}={os.environ[name]}")
    return name in VARIABLES or (name.startswith(PREFIX) and not of_service)


def _setting(name: str) -> str:
    setting = VARIABLES.get(name)
    if setting is not None:
        return setting
    option = name.removeprefix(PREFIX).lower()
    if (path := next((path for path in _OPTION_TYPES if variable(path) == name), None)) is not None:
        group, _, option = path.rpartition(".")
        code = f"{group}={GROUPS[group].__name__}({option}=...)" if group else f"{option}=..."
        raise ConfigurationError(f"{name}: no variable holds {option}=; give it in code, as in from_env({code})")
    near = get_close_matches(option, (known.removeprefix(PREFIX).lower() for known in VARIABLES), n=1)
    settings = f"these are settings: {', '.join(map(variable, SETTINGS))}"
    raise ConfigurationError(f"{name} is not a setting; {f'did you mean {variable(near[0])}?' if near else settings}")


def _read(option_type: OptionType, name: str, text: str) -> Any:
    if not text.strip():
        raise ConfigurationError(f"{name} is empty; remove it, or write {option_type.help}")
    try:
        return option_type.read(text.strip())
    except (LookupError, ValueError):
        raise ConfigurationError(f"{name}={text!r} must be {option_type.help}") from None

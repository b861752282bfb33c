"""The options as keywords of a call, and from variables of the environment.

`from_env` reads what text can express: `MCP_SESSIONS_LIFETIME=12h`, `MCP_SESSIONS_LIMITS_BATCH=7` and so on (the
twelve-factor app, III).
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from .._dialects import Options
from .._errors import ConfigurationError
from .._session.keywords import known_keywords
from .option_types import CheckedOptions, OptionType, defaults_of, types_of
from .workers import exit_on_config_error

if TYPE_CHECKING:
    from typing_extensions import Unpack

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS: Final[Mapping[str, OptionType]] = types_of(Options)
GROUPS: Final[Mapping[str, type]] = {name: kind.group for name, kind in OPTIONS.items() if kind.group is not None}
"""The option objects, by the option that takes each."""


def takes_options(**defaults: Any) -> Callable[[F], F]:
    """Decorate a function that takes `**options: Unpack[Options]`: its signature shows them, and misspelt ones fail.

    Args:
        defaults: The defaults of options if they differ from those of the middleware.
    """
    shown = {**defaults_of(Options), **defaults}
    options = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=shown[name]) for name in OPTIONS]

    def decorate(callee: F) -> F:
        signature = inspect.signature(callee)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        cast(Any, callee).__signature__ = signature.replace(parameters=[*own, *options])
        return exit_on_config_error(known_keywords(callee))

    return decorate


def checked_options(given: Options) -> Options:
    """Return all options, checked, with the defaults of those that are not given.

    Raises:
        ConfigurationError: One is wrong; the message names the remedy.
    """
    values = {**defaults_of(Options), **given}
    checked = {name: kind.check(name, values[name]) for name, kind in OPTIONS.items()}
    idle, lifetime = checked["idle_timeout"], checked["lifetime"]
    if idle is not None and idle > lifetime:
        raise ConfigurationError(
            f"idle_timeout={idle:g} is longer than lifetime={lifetime:g}, so it has "
            "no effect; make it shorter, or leave it out"
        )
    return cast(Options, CheckedOptions(checked))


PREFIX: Final = "MCP_SESSIONS_"
MISSPELLED_PREFIX: Final = "MCP_SESSION_"  # a variable that is meant for us must not be ignored

# Kubernetes (environment variables of Services) and Docker (links) give such variables to every container beside a
# service whose name begins with `mcp-sessions`. This is what follows the prefix, with the value, which tells them from
# settings of the same name.
SERVICE_LINK: Final = re.compile(
    r"([A-Z\d_]+_)?(SERVICE_HOST=.*|SERVICE_PORT(_[A-Z\d_]+)?=.*|PORT=(tcp|udp|sctp)://.*|"
    r"PORT_\d+_(TCP|UDP|SCTP)(_(PORT_)?(START|END)|_ADDR|_PORT|_PROTO)?=.*|NAME=/[^/]+/.+|ENV_\w+=.*)",
    re.ASCII | re.DOTALL,
)

_OPTION_TYPES: Final[Mapping[str, OptionType]] = {
    **OPTIONS,
    **{f"{group}.{name}": type_ for group, kind in GROUPS.items() for name, type_ in types_of(kind).items()},
}
SETTINGS: Final[Mapping[str, OptionType]] = {path: kind for path, kind in _OPTION_TYPES.items() if kind.help}
"""Every option that a variable can hold, by its path, and how it is written there."""


def variable(setting: str) -> str:
    """Return the variable that holds a setting."""
    return PREFIX + setting.replace(".", "_").upper()


VARIABLES: Final[Mapping[str, str]] = {variable(setting): setting for setting in SETTINGS}
"""Every variable that is read, and the setting in it."""


@takes_options()
def from_env(**options: Unpack[Options]) -> Options:
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
    named = {_setting(name): name for name in sorted(os.environ) if _is_setting(name)}
    for name in sorted(os.environ):
        meant = PREFIX + name.removeprefix(MISSPELLED_PREFIX)
        if name.startswith(MISSPELLED_PREFIX) and meant in VARIABLES:
            raise ConfigurationError(f"{name} is not a setting; did you mean {meant}?")
    values = {setting: _read(SETTINGS[setting], name, os.environ[name]) for setting, name in named.items()}
    merged = {**{name: value for name, value in values.items() if "." not in name}, **options}
    defaults = defaults_of(Options)
    for group, kind in GROUPS.items():
        inner = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{group}.")}
        if not inner:
            continue
        base = OPTIONS[group].check(group, merged.get(group, defaults[group]))
        if base is not None:  # None if sessions are not tracked
            merged[group] = replace(base, **{k: v for k, v in inner.items() if getattr(base, k) == getattr(kind(), k)})
    return cast(Options, merged)


def _is_setting(name: str) -> bool:
    """Return whether a variable is meant as a setting, and does not describe a service."""
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

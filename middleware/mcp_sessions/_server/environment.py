"""Options from variables of the environment: `MCP_SESSIONS_LIFETIME=12h`, `MCP_SESSIONS_LIMITS_BATCH=7` and so on.

Every option that text can express has a variable; how it is written there says its form. Source: the twelve-factor
app, III (config).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from .._errors import ConfigurationError
from .._native import SWITCH
from . import forms
from .forms import Form
from .options import GROUPS, MOVED, MiddlewareOptions, Options, Tracking

if TYPE_CHECKING:
    from typing_extensions import Unpack

PREFIX: Final = "MCP_SESSIONS_"
SLIP: Final = "MCP_SESSION_"  # the prefix, nearly: what is meant for us must not be passed over
OTHER_KEYS: Final = f"{SLIP}KEYS"  # the former name of `MCP_SESSIONS_KEYS`

# What follows the prefix in the variables that Kubernetes gives every pod beside a Service called `mcp-sessions`.
SERVICE_LINK: Final = re.compile(r"(SERVICE_(HOST|PORT.*)|PORT(_\d+_(TCP|UDP|SCTP).*)?)", re.ASCII)

_FORMS: Final[Mapping[str, Form]] = {
    **{field.name: forms.form_of(Options, field.name) for field in fields(Options) if field.name not in GROUPS},
    "transport": forms.word(Literal["auto", "off"]),
    "tracked": forms.FLAG,
    **{
        f"{name}.{field.name}": forms.form_of(kind, field.name)
        for name, kind in GROUPS.items()
        for field in fields(kind)
    },
}
SETTINGS: Final[Mapping[str, Form]] = {path: form for path, form in _FORMS.items() if form.words}
"""Every option that a variable can hold, by its path, and how it is written there."""

IN_CODE: Final = _FORMS.keys() - SETTINGS.keys()
"""Options that are functions or objects, which no variable can hold."""


def variable(setting: str) -> str:
    """Return the variable that holds a setting."""
    return PREFIX + setting.replace(".", "_").upper()


VARIABLES: Final[Mapping[str, str]] = {
    **{variable(old): path for old, path in MOVED.items() if path in SETTINGS},
    **{variable(setting): setting for setting in SETTINGS},
}
"""Every variable that is read, also under the name that it had before the option moved, and the setting in it."""


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
    ours = [name for name in os.environ if name.startswith(PREFIX) and not SERVICE_LINK.fullmatch(name[len(PREFIX) :])]
    found = {name: _setting(name) for name in sorted(ours) if name != SWITCH}
    for name in sorted(os.environ):
        meant = PREFIX + name.removeprefix(SLIP)
        if name.startswith(SLIP) and meant in VARIABLES and name != OTHER_KEYS:
            raise ConfigurationError(f"{name} is not a setting; did you mean {meant}?")
    # An option's former name yields to the present one.
    named = {setting: name for name, setting in sorted(found.items(), key=lambda one: variable(one[1]) == one[0])}
    values = {setting: _read(setting, name, os.environ[name]) for setting, name in named.items()}
    if "keys" not in values and os.environ.get(OTHER_KEYS):
        values["keys"] = f"env:{OTHER_KEYS}"
    merged = {**{name: value for name, value in values.items() if "." not in name}, **options}
    for group, kind in GROUPS.items():
        inner = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{group}.")}
        if not inner:
            continue
        given = merged.get(group, False if kind is Tracking else kind())
        base = forms.form_of(Options, group).check(group, given)
        if base is not None:  # where sessions are not tracked, there is nothing to fill in
            merged[group] = replace(base, **{k: v for k, v in inner.items() if getattr(base, k) == getattr(kind(), k)})
    return cast(MiddlewareOptions, merged)


def _setting(name: str) -> str:
    setting = VARIABLES.get(name)
    if setting is not None:
        return setting
    option = name.removeprefix(PREFIX).lower()
    path = MOVED.get(option, option)
    if path in IN_CODE:
        group, _, field = path.rpartition(".")
        code = f"{group}={GROUPS[group].__name__}({field}=...)" if group else f"{option}=..."
        raise ConfigurationError(f"{name}: no variable holds {option}=; give it in code, as in from_env({code})")
    near = get_close_matches(option, (known.removeprefix(PREFIX).lower() for known in VARIABLES), n=1)
    settings = f"these are settings: {', '.join(map(variable, SETTINGS))}"
    raise ConfigurationError(f"{name} is not a setting; {f'did you mean {variable(near[0])}?' if near else settings}")


def _read(setting: str, name: str, text: str) -> Any:
    form = SETTINGS[setting]
    if not text.strip():
        raise ConfigurationError(f"{name} is empty; remove it, or write {form.words}")
    try:
        return form.read(text.strip())
    except ValueError:
        raise ConfigurationError(f"{name}={text!r} must be {form.words}") from None

"""Which requests need a session: the option `require=`, checked once, then asked about each message.

A rule is not an access control: every caller that the server admits may create a session.
Source: the data-layer sessions draft, where a server may require a session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias

from .._errors import ConfigurationError
from .._session.functions import check_function, is_unfinished
from .jsonrpc import TARGETS

HANDSHAKE_METHODS: Final = frozenset({"initialize", "notifications/initialized", "server/discover"})
SESSION_METHODS: Final = "sessions/"
"""No rule may name the methods before a client can have a session, nor those below this."""

LIST_METHODS: Final = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})
DISCOVERY_METHODS: Final = LIST_METHODS | {"ping"}
"""Requests that pass without a session unless a rule names them."""

KNOWN_METHODS: Final = (
    *sorted(DISCOVERY_METHODS),
    *TARGETS,
    *("completion/complete", "logging/setLevel", "subscriptions/listen"),
    *("tasks/get", "tasks/list", "tasks/result", "tasks/update", "tasks/cancel"),
)
"""Requests of the protocol; what nearly spells one is a slip, and a rule on it would hold for nothing."""

NOTIFICATIONS: Final = "notifications/"
"""Notifications below this pass without a session unless a rule names them; a `tools/call` without an id does not."""


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """A message without a session, as a `require=` function sees it."""

    method: str
    target: str | None  # the tool's or prompt's name or the resource's URI; None where there is none that can be read
    notification: bool  # whether the message has no id


Target: TypeAlias = Callable[[], str | None]
Judge: TypeAlias = Callable[[PolicyRequest], bool]
Rule: TypeAlias = Callable[[str, Target, bool], bool]
"""Takes a method, what returns its target (called by a rule on names alone), and whether it is a notification."""
Summary: TypeAlias = Literal["never", "some", "always"]
Require: TypeAlias = Literal["never", "always"] | Mapping[str, bool | Collection[str]] | Collection[str] | Judge

_OPTION_TYPES: Final = (
    'require= takes "never", "always", a set of methods such as {"tools/call"}, a mapping such as '
    '{"tools/call": ["checkout"], "resources/read": True}, or a function of PolicyRequest that returns a bool'
)


class Policy:
    """The checked form of `require=`.

    Args:
        require: One of

            - `"never"`: nothing needs a session.
            - `"always"`: all but `HANDSHAKE_METHODS`, `SESSION_METHODS`, `DISCOVERY_METHODS` and `NOTIFICATIONS`.
            - `{"tools/call", "prompts/get"}`: messages with these methods do.
            - `{"tools/call": ["checkout"], "resources/read": True}`: the same, narrowed to names of tools or prompts. A
              message whose name cannot be read counts as named. Resources are not named: a server serves one under many
              URIs. A misspelt name is refused at the start, if the server lists what it has, and so is a tool of
              FastMCP that runs others by name, unless a rule names it, too.
            - a function of `PolicyRequest` that returns a bool, for all but `HANDSHAKE_METHODS` and `SESSION_METHODS`.

    Attributes:
        requires: Returns whether a message must be refused when it carries no session. Raises `TypeError` where the
            `require=` function returns something other than a bool.
        summary: The value that is advertised to clients.

    Raises:
        ConfigurationError: It is none of these, or names what cannot need a session.
    """

    __slots__ = ("requires", "summary")

    requires: Rule
    summary: Summary

    def __init__(self, require: Require) -> None:
        self.requires, self.summary = _compile(require)


def _compile(require: object) -> tuple[Rule, Summary]:
    if isinstance(require, str):
        if require in _WORDS:
            return _WORDS[require]
        raise ConfigurationError(
            f"require={require!r} is not a rule; one method goes into a set: require={{{require!r}}}. {_OPTION_TYPES}"
        )
    if isinstance(require, Mapping):
        return _named(require.items())
    if isinstance(require, Collection):
        return _named((method, True) for method in require)
    if callable(require):
        return _judged(check_function("require", require)), "some"
    raise ConfigurationError(f"{_OPTION_TYPES}, not {require!r}")


def _always(method: str, _target: Target, notification: bool) -> bool:
    passes = _is_beyond_rules(method) or method in DISCOVERY_METHODS
    return not (passes or (notification and method.startswith(NOTIFICATIONS)))


def _is_beyond_rules(method: str) -> bool:
    return method in HANDSHAKE_METHODS or method.startswith(SESSION_METHODS)


_WORDS: Final[Mapping[str, tuple[Rule, Summary]]] = {
    "never": (lambda _method, _target, _notification: False, "never"),
    "always": (_always, "always"),
}


def _judged(judge: Callable[..., object]) -> Rule:
    def rule(method: str, target: Target, notification: bool) -> bool:
        if _is_beyond_rules(method):
            return False
        answer = judge(PolicyRequest(method, target(), notification))
        if isinstance(answer, bool):
            return answer
        # Truth would be a guess: a coroutine is true, and a forgotten `return` would open every door.
        is_unfinished(answer)
        raise TypeError(f"the require= function must return True or False, not {type(answer).__name__}")

    return rule


# --- methods, and names by method ----------------------------------------------------------------


def _named(rules: Iterable[tuple[object, object]]) -> tuple[Rule, Summary]:
    checked = {_method(method): names for method, names in rules}
    if not checked:
        raise ConfigurationError('require= names no method; write require="never" if nothing needs a session')
    matchers = {method: _matcher(method, names) for method, names in checked.items() if names is not False}

    def rule(method: str, target: Target, _notification: bool) -> bool:
        matches = matchers.get(method)
        return matches is not None and matches(target)

    return rule, "some" if matchers else "never"


def _method(method: object) -> str:
    if not isinstance(method, str):
        raise ConfigurationError(f"require= names methods as strings, not {method!r}")
    if _is_beyond_rules(method):
        raise ConfigurationError(
            f"require= cannot name {method!r}: a client sends it to get a session or give it up; take it out"
        )
    near = get_close_matches(method.strip().lower(), KNOWN_METHODS, n=1, cutoff=0.85)
    if near and method not in KNOWN_METHODS:
        raise ConfigurationError(f"require= names {method!r}, which is not a method; did you mean {near[0]!r}?")
    if "/" in method or method == "ping":
        return method
    raise ConfigurationError(
        f"require= names methods, not {method!r}; for a tool of that name write {{'tools/call': [{method!r}]}}"
    )


def _matcher(method: str, names: object) -> Callable[[Target], bool]:
    if names is True:
        return lambda _target: True
    if TARGETS.get(method) == "uri":  # a server reads one resource by many spellings
        raise ConfigurationError(f"require={{{method!r}: ...}}: rules by URI could be evaded; write True")
    wanted = _names(method, names)
    if method not in TARGETS:
        raise ConfigurationError(
            f"require={{{method!r}: ...}} cannot go by name, only tools/call and prompts/get can; write True or use a "
            "function"
        )
    return lambda target: (name := target()) is None or name in wanted


def _names(method: str, names: object) -> frozenset[str]:
    if isinstance(names, Collection) and not isinstance(names, str):
        wanted = [name for name in names if isinstance(name, str) and name]
        if wanted and len(wanted) == len(names):
            return frozenset(wanted)
    raise ConfigurationError(
        f"require={{{method!r}: {names!r}}} must be a list of names, such as ['checkout']; "
        "write True for all of them, False for none"
    )

"""Which requests need a session: the option `require=`, checked once, then asked about each message.

A rule is no access control: every caller that the server admits may create a session.
Source: the data-layer sessions draft, by which a server may require a session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias, cast

from .._errors import ConfigurationError
from .._session.functions import check_function, is_unfinished
from .jsonrpc import TARGETS

HANDSHAKE_METHODS: Final = frozenset({"initialize", "notifications/initialized", "server/discover"})
SESSION_METHODS: Final = "sessions/"
"""No rule may name the methods that a client sends before it can have a session, nor those that begin with this."""

LIST_METHODS: Final = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})
DISCOVERY_METHODS: Final = LIST_METHODS | {"ping"}
"""Requests that need no session unless a rule names them."""

KNOWN_METHODS: Final = (
    *sorted(DISCOVERY_METHODS),
    *TARGETS,
    *("completion/complete", "logging/setLevel", "subscriptions/listen"),
    *("tasks/get", "tasks/list", "tasks/result", "tasks/update", "tasks/cancel"),
)
"""Requests of the protocol. Near-misspellings of one are rejected: such a rule would never match."""

NOTIFICATIONS: Final = "notifications/"
"""Notifications that begin with this need no session unless a rule names them. A `tools/call` without an id does."""


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """A message without a session, as a `require=` function sees it.

    Args:
        method: The method.
        target: The name of the tool or prompt or the URI of the resource, or None if none can be read.
        notification: Whether the message has no id.
    """

    method: str
    target: str | None
    notification: bool


Target: TypeAlias = Callable[[], str | None]
Judge: TypeAlias = Callable[[PolicyRequest], bool]
Rule: TypeAlias = Callable[[str, Target, bool], bool]
"""Takes a method, a function that returns its target (called only by rules on names), and whether it has no id."""
Summary: TypeAlias = Literal["never", "some", "always"]
Require: TypeAlias = Literal["never", "always"] | Mapping[str, bool | Collection[str]] | Collection[str] | Judge

_FORMS: Final = (
    'require= takes "never", "always", a set of methods such as {"tools/call"}, a mapping such as '
    '{"tools/call": ["checkout"], "resources/read": True}, or a function of PolicyRequest that returns a bool'
)


class Policy:
    """The checked form of `require=`.

    Args:
        require: One of

            - `"never"`: nothing needs a session.
            - `"always"`: all but `HANDSHAKE_METHODS`, `SESSION_METHODS`, `DISCOVERY_METHODS` and `NOTIFICATIONS`.
            - `{"tools/call", "prompts/get"}`: messages with these methods.
            - `{"tools/call": ["checkout"], "resources/read": True}`: the same, but of tools and prompts only these. A
              message whose name cannot be read needs one, too. Resources have no names, since a server serves one under
              many URIs.
            - a function of `PolicyRequest` that returns a bool, for all but `HANDSHAKE_METHODS` and `SESSION_METHODS`.

    Attributes:
        requires: Returns whether a message without a session must be refused. Raises `TypeError` if the `require=`
            function returns something other than a bool.
        summary: The value that is advertised to clients.

    Raises:
        ConfigurationError: It has another form, or names what cannot need a session.
    """

    __slots__ = ("requires", "summary")

    requires: Rule
    summary: Summary

    def __init__(self, require: Require) -> None:
        self.requires, self.summary = _compile(require)


def _compile(require: object) -> tuple[Rule, Summary]:
    if require == "never":
        return (lambda _method, _target, _notification: False), "never"
    if require == "always":
        return _always, "always"
    if isinstance(require, str):
        raise ConfigurationError(
            f"require={require!r} is not a rule; one method goes into a set: require={{{require!r}}}. {_FORMS}"
        )
    if isinstance(require, Mapping):
        return _by_method(require.items())
    if isinstance(require, Collection):
        return _by_method((method, True) for method in require)
    if callable(require):
        return _by_function(check_function("require", require)), "some"
    raise ConfigurationError(f"{_FORMS}, not {require!r}")


def _always(method: str, _target: Target, notification: bool) -> bool:
    passes = _is_exempt(method) or method in DISCOVERY_METHODS
    return not (passes or (notification and method.startswith(NOTIFICATIONS)))


def _is_exempt(method: str) -> bool:
    """Return whether no rule may name a method."""
    return method in HANDSHAKE_METHODS or method.startswith(SESSION_METHODS)


def _by_function(judge: Callable[..., object]) -> Rule:
    def rule(method: str, target: Target, notification: bool) -> bool:
        if _is_exempt(method):
            return False
        answer = judge(PolicyRequest(method, target(), notification))
        if isinstance(answer, bool):
            return answer
        # Its truth would be a guess: a coroutine is true, and after a forgotten `return` everything would pass.
        is_unfinished(answer)
        raise TypeError(f"the require= function must return True or False, not {type(answer).__name__}")

    return rule


def _by_method(rules: Iterable[tuple[object, object]]) -> tuple[Rule, Summary]:
    checked = {_method(method): names for method, names in rules}
    if not checked:
        raise ConfigurationError('require= names no method; write require="never" if nothing needs a session')
    wanted = {method: _names(method, names) for method, names in checked.items() if names is not False}

    def rule(method: str, target: Target, _notification: bool) -> bool:
        if method not in wanted:
            return False
        names = wanted[method]
        return names is None or (name := target()) is None or name in names

    return rule, "some" if wanted else "never"


def _method(method: object) -> str:
    """Return a method that a rule names, checked."""
    if not isinstance(method, str):
        raise ConfigurationError(f"require= names methods as strings, not {method!r}")
    if _is_exempt(method):
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


def _names(method: str, names: object) -> frozenset[str] | None:
    """Return the tools or prompts that a rule names, checked, or None if it is for all of them."""
    if names is True:
        return None
    if TARGETS.get(method) == "uri":  # a server reads one resource by many spellings
        raise ConfigurationError(f"require={{{method!r}: ...}}: rules by URI could be evaded; write True")
    wanted = [name for name in names if isinstance(name, str) and name] if isinstance(names, Collection) else []
    if isinstance(names, str) or not wanted or len(wanted) != len(cast(Collection[object], names)):
        raise ConfigurationError(
            f"require={{{method!r}: {names!r}}} must be a list of names, such as ['checkout']; "
            "write True for all of them, False for none"
        )
    if method not in TARGETS:
        raise ConfigurationError(
            f"require={{{method!r}: ...}} cannot go by name, only tools/call and prompts/get can; write True or use a "
            "function"
        )
    return frozenset(wanted)

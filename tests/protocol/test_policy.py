"""`require=`: which messages need a session, in each of its forms."""

from functools import partial
from typing import Any

import pytest

from mcp_sessions._errors import ConfigurationError
from mcp_sessions._protocol.policy import (
    DISCOVERY_METHODS,
    HANDSHAKE_METHODS,
    Policy,
    PolicyRequest,
    Require,
)

SESSION_METHODS = ["sessions/create", "sessions/delete", "sessions/anything"]
unread = partial(pytest.fail, "a rule read a name that it does not depend on")
OTHERS = ["tools/call", "prompts/get", "resources/read", "completion/complete", "tasks/get", "acme/own", ""]


def asks(require: Require, method: str, target: str | None = None, *, notification: bool = False) -> bool:
    return Policy(require).requires(method, lambda: target, notification)


CALLS = ["tools/call", "ping"]


@pytest.mark.parametrize(
    ("require", "methods", "asked"),
    [
        ("never", [*HANDSHAKE_METHODS, *DISCOVERY_METHODS, *SESSION_METHODS, *OTHERS], (False, False)),
        ("always", [*HANDSHAKE_METHODS, *DISCOVERY_METHODS, *SESSION_METHODS], (False, False)),
        # leaving out the id does not turn a call into a notification: some servers would run it
        ("always", OTHERS, (True, True)),
        ("always", ["notifications/cancelled", "notifications/acme"], (True, False)),
        *((require, CALLS, (True, True)) for require in ({*CALLS}, dict.fromkeys(CALLS, True))),
        ({"notifications/progress"}, ["notifications/progress"], (True, True)),
        # only what nearly spells a method of the protocol is a slip
        ({"acme/call", "tools/callback"}, ["acme/call", "tools/callback"], (True, True)),
        ({"tools/call": False, "prompts/get": True}, ["tools/call"], (False, False)),
        ({"tools/call": ["checkout"]}, ["tools/list"], (False, False)),
        # a function that always says yes would lock every client out
        (lambda _asked: True, [*HANDSHAKE_METHODS, *SESSION_METHODS], (False, False)),
    ],
)
def test_methods_need_a_session_or_none(require: Require, methods: list[str], asked: tuple[bool, bool]) -> None:
    """As requests, and as notifications; no name is read on which a rule does not depend."""
    policy = Policy(require)
    for method in methods:
        assert (policy.requires(method, unread, False), policy.requires(method, unread, True)) == asked, method


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
def test_a_rule_by_name_asks_for_those_names_and_for_what_it_cannot_read(method: str) -> None:
    """Names are compared exactly; a name that cannot be read may be any, so it counts as named."""
    targets = "pay", None, "search", "Pay", ""
    asked = [asks({method: ["checkout", "pay"]}, method, target) for target in targets]
    assert asked == [True, True, False, False, False]


def test_a_function_is_asked_about_the_message() -> None:
    """It sees the method, the name and whether there is an id; its answer or error counts, and must be a clear one."""
    answers: dict[PolicyRequest, Any] = {
        PolicyRequest("tools/call", "checkout", notification=False): True,
        PolicyRequest("notifications/progress", None, notification=True): False,
        PolicyRequest("tools/call", "forgotten return", notification=False): None,
        PolicyRequest("tools/call", "one", notification=False): 1,
    }
    assert asks(answers.__getitem__, "tools/call", "checkout")
    assert not asks(answers.__getitem__, "notifications/progress", notification=True)
    with pytest.raises(KeyError):
        asks(answers.__getitem__, "tools/call", "search")
    for name, kind in {"forgotten return": "NoneType", "one": "int"}.items():
        with pytest.raises(TypeError, match=f"must return True or False, not {kind}"):
            asks(answers.__getitem__, "tools/call", name)


def test_the_summary_says_how_much_needs_a_session() -> None:
    """It is advertised, so that a client knows whether to create a session first."""
    some: list[Require] = [["tools/call"], {"tools/call": ["checkout"]}, lambda _asked: False]
    assert [Policy(require).summary for require in some] == ["some"] * 3
    none: list[Require] = ["never", {"tools/call": False}]
    assert [Policy(require).summary for require in (*none, "always")] == ["never", "never", "always"]


async def judge_later(_asked: PolicyRequest) -> None:
    """A coroutine is true, whatever it would have returned."""


@pytest.mark.parametrize(
    ("require", "remedy"),
    [
        ("tools/call", r"require=\{'tools/call'\}"),
        *((wrong, r'"never", "always"') for wrong in ("Always", None)),
        (judge_later, r"takes a plain function; this one is async"),
        ([], r'^require= names no method; write require="never" if nothing needs a session$'),
        (b"never", r"methods as strings, not 110"),
        (["checkout"], r"\{'tools/call': \['checkout'\]\}"),
        (["tools/cal"], r"^require= names 'tools/cal', which is not a method; did you mean 'tools/call'\?$"),
        ([" Tools/Call"], r"did you mean 'tools/call'"),
        (["initialize"], r"cannot name 'initialize'.* take it out"),
        ({"sessions/create": True}, r"take it out"),
        ({"tools/call": "checkout"}, r"^require=\{'tools/call': 'checkout'\} must be .* \['checkout'\]; write True"),
        ({"tools/call": []}, r"True for all of them, False for none"),
        *(({"tools/call": wrong}, r"must be a list of names") for wrong in (["pay", ""], ["pay", {}], 1)),
        ({"tools/list": ["checkout"]}, r"by name, only tools/call and prompts/get can; write True or use a function"),
    ],
)
def test_a_wrong_option_is_refused_with_the_remedy(require: Any, remedy: str) -> None:
    """At construction, so that no server starts with a rule that is not the one its author meant."""
    with pytest.raises(ConfigurationError, match=remedy):
        Policy(require)


@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe", "resources/unsubscribe"])
@pytest.mark.parametrize("uri", ["res://cart/1", "res:a", "https://example.com/a"])
def test_rules_by_uri_are_refused(method: str, uri: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rules by URI could be evaded.* write True"):
        Policy({method: [uri]})

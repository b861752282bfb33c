"""Spellings of resource URIs: a rule on one must hold for each that the servers' templates take for the same."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from random import Random
from typing import Any, Final

from hypothesis import given
from mutations import TRIALS, chances, mutate
from pydantic import AnyUrl, ValidationError

from mcp_sessions._protocol.policy import Policy

NAMED: Final = ["tpl://cart/7", "tpl://cart/a%20b", "tpl://shop/cart/x.txt", "tpl:///cart", "http://cart/7", "res:7"]
TEMPLATES: Final = ["tpl://cart/{id}", "tpl://{shop}/cart/{+path}", "tpl:///{id}", "http://cart/{id}", "res:{id}"]
TAILS: Final = ["", *"? # ?x=1 #x ?# #? ?id=8 / // /. /.. %20 ; ;x=1 &x . %3F".split()]
POLICIES: Final = {uri: Policy({"resources/read": [uri]}) for uri in NAMED}

Match = Callable[[str, str], Any]


def _fastmcp() -> Match:
    match: Match = import_module("fastmcp.resources.template").match_uri_template
    return match


def _sdk() -> Match:
    template = import_module("mcp.shared.uri_template").UriTemplate
    parsed = {text: template.parse(text) for text in TEMPLATES}
    return lambda uri, text: parsed[text].match(uri)


def _parsed(uri: str, text: str) -> Any:
    """The URI as pydantic has it, which the servers are given."""
    try:
        return str(AnyUrl(uri))
    except ValidationError:
        return None


MATCHES: Final[dict[str, Match]] = {"parsed": _parsed}
for name, make in {"FastMCP": _fastmcp, "SDK": _sdk}.items():
    with suppress(ImportError, AttributeError):  # an older version
        MATCHES[name] = make()


def served_alike(named: str, uri: str) -> str | None:
    """Which server calls one handler with the same values for both, if any does."""
    for server, match in MATCHES.items():
        for template in TEMPLATES:
            expected = match(named, template)
            if expected is not None and match(uri, template) == expected:
                return server
    return None


@given(chances)
def test_no_spelling_that_a_server_takes_for_a_named_resource_passes(random: Random) -> None:
    for _ in TRIALS:
        named, tail = random.choice(NAMED), random.choice(TAILS)
        uri = named + tail if random.random() < 0.4 else mutate(random, named + tail)
        server = served_alike(named, uri)
        is_held = POLICIES[named].requires("resources/read", partial(str, uri), False)
        assert server is None or is_held, f"{server} serves {uri!r} as {named!r}, which needs a session"

"""Single options: what is right comes back in its plainest form, what is wrong is named with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from mcp_sessions._server import options as checks
from mcp_sessions._server.options import CENTURY
from mcp_sessions.errors import ConfigurationError


def test_what_is_wrapped_can_be_called() -> None:
    """It comes back as it is."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

    assert checks.application(app) is app


def test_a_server_s_own_object_is_no_application() -> None:
    """It has a method that makes one."""
    with pytest.raises(ConfigurationError, match=r"^object is no ASGI application; wrap what its streamable_http_app"):
        checks.application(object())


@pytest.mark.parametrize(("given", "kept"), [(None, None), ("/mcp", "/mcp"), ("/a/b/", "/a/b"), ("/", "")])
def test_a_path_loses_its_last_slash(given: Any, kept: str | None) -> None:
    """`None` is every path."""
    assert checks.path(given) == kept


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        *((path, "must begin with '/', as in path='/mcp'; None means every path") for path in ("mcp", "", 1, b"/mcp")),
        *((path, r"use add_sessions\(app, path=\.\.\.\) or path=None") for path in ("/{tenant}/mcp", "/mcp}", "{")),
    ],
)
def test_a_path_begins_with_a_slash_and_is_no_pattern(given: Any, remedy: str) -> None:
    """A router's pattern would never match."""
    with pytest.raises(ConfigurationError, match=remedy):
        checks.path(given)


def test_a_name_is_printable_ascii() -> None:
    """Tokens carry it, and other programs compare it."""
    assert checks.name("audience", "https://api.example/mcp") == "https://api.example/mcp"


@pytest.mark.parametrize("given", ["", "a\n", "ä", None, 1, b"a"])
def test_anything_else_is_no_name(given: Any) -> None:
    """The option is named."""
    with pytest.raises(ConfigurationError, match=r"audience=.* must be printable ASCII, as in audience='https://"):
        checks.name("audience", given)


@pytest.mark.parametrize("given", [90, 90.0, timedelta(seconds=90)])
def test_a_duration_becomes_seconds(given: Any) -> None:
    """Of whichever form."""
    seconds = checks.seconds("lifetime", given)
    assert (seconds, type(seconds)) == (90, float)


@pytest.mark.parametrize("given", [1, CENTURY])
def test_both_ends_of_the_range_are_in_it(given: int) -> None:
    """From the least that makes sense to a hundred years."""
    assert checks.seconds("lifetime", given, least=1) == given


@pytest.mark.parametrize("given", [0, 0.5, -1, CENTURY + 1, float("inf"), float("nan"), True, "60", None, timedelta(0)])
def test_anything_else_is_no_duration(given: Any) -> None:
    """The range is said."""
    with pytest.raises(ConfigurationError, match=r"lifetime=.* must be from 1 to 3155760000 seconds, a number or a"):
        checks.seconds("lifetime", given, least=1)


def test_a_whole_number_may_have_a_least() -> None:
    """Or none."""
    assert checks.whole("required_code", -31044) == -31044
    assert checks.whole("max_batch", 1, least=1) == 1


@pytest.mark.parametrize("given", [0, 1.0, True, "1", None])
def test_anything_else_is_no_number(given: Any) -> None:
    """The least is said where there is one."""
    with pytest.raises(ConfigurationError, match=r"max_batch=.* must be a whole number of at least 1"):
        checks.whole("max_batch", given, least=1)
    with pytest.raises(ConfigurationError, match=r"required_code=1\.5 must be a whole number$"):
        checks.whole("required_code", 1.5)


def test_a_word_is_one_of_those_that_are_known() -> None:
    """All of them are said where it is not."""
    assert checks.word("admission", "ask", ("ask", "own")) == "ask"
    for given in ("never", None, ["ask"], True):
        with pytest.raises(ConfigurationError, match=r"admission=.* must be one of 'ask', 'own'"):
            checks.word("admission", given, ("ask", "own"))


@pytest.mark.parametrize("given", [(), ["fork"], {"fork", "list"}])
def test_words_are_some_of_those_that_are_known(given: Any) -> None:
    """In any collection, or none of them."""
    assert sorted(checks.words("extensions", given, ("fork", "list"))) == sorted(given)


@pytest.mark.parametrize("given", ["fork", ("fork", "join"), None, True, [1]])
def test_anything_else_is_no_words(given: Any) -> None:
    """One text is not taken for several; all that are known are said."""
    with pytest.raises(ConfigurationError, match=r"extensions=.* must be a tuple of some of 'fork', 'list', or \(\)"):
        checks.words("extensions", given, ("fork", "list"))


@pytest.mark.parametrize("given", [True, False])
def test_yes_or_no_is_one_of_two(given: bool) -> None:
    """As it was given."""
    assert checks.yes_or_no("tracked", given) is given


@pytest.mark.parametrize("given", [1, 0, "yes", None])
def test_what_only_counts_as_true_is_neither(given: Any) -> None:
    """A word from a file of settings is always true."""
    with pytest.raises(ConfigurationError, match=r"tracked=.* must be True or False"):
        checks.yes_or_no("tracked", given)


@pytest.mark.parametrize("given", [None, print, dict])
def test_a_function_is_what_can_be_called(given: Callable[..., Any] | None) -> None:
    """`None` is none."""
    assert checks.function("on_end", given) is given


def test_a_name_of_a_function_is_no_function() -> None:
    """Its kind is said and not its text, which could be anything."""
    with pytest.raises(ConfigurationError, match="on_end= takes a function, not str"):
        checks.function("on_end", "print")

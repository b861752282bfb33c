"""Every option, right and wrong: a wrong one fails at construction and says what to write instead."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from inspect import signature
from typing import Any, get_type_hints

import pytest
from apps import SHORT, Server, sessions
from clients import SECRET, START

from mcp_sessions import (
    ConfigurationError,
    Limits,
    MCPSessionMiddleware,
    Principal,
    SEP1364Create,
    SEP1364Initialize,
)
from mcp_sessions._errors import DataTooLarge
from mcp_sessions._protocol.sep1364 import Dialect
from mcp_sessions._server.options import MEBIBYTE, EndpointOptions, MiddlewareOptions, Options
from mcp_sessions._server.principal import from_scope
from mcp_sessions._server.runtime import Runtime
from mcp_sessions.stores._memory import MemoryStore


def test_the_typed_keywords_are_the_options() -> None:
    """What `add_sessions` and `from_env` take has the names and types of the middleware's own keywords."""
    names = {"ASGI3Application": object, "Dialect": Dialect, "Principal": Principal}
    own = get_type_hints(MCPSessionMiddleware.__init__, localns=names)
    assert get_type_hints(MiddlewareOptions, localns=names) == {
        field.name: own[field.name] for field in fields(Options)
    }
    assert own.keys() - {field.name for field in fields(Options)} == {"app", "return"}
    assert MiddlewareOptions.__annotations__.keys() - EndpointOptions.__annotations__.keys() == {"path"}
    assert len(fields(Options)) <= 20


def options_of(**options: Any) -> Runtime:
    return sessions(Server(), **options)._runtime


def test_the_defaults_need_nothing_but_keys() -> None:
    options = options_of()
    assert (sessions(Server()).path, options.audience, options.lifetime) == ("/mcp", "mcp-sessions", 7 * 86400)
    assert (options.idle_timeout, options.rules.lists, options.preflight) == (None, None, True)
    assert (options.limits.body_bytes, options.limits.state_bytes, options.body_timeout) == (4 * MEBIBYTE, 4096, 30)
    assert (options.limits.batch, options.limits.nesting, options.create_limit) == (100, 1_000, None)
    assert isinstance(options.store, MemoryStore)
    assert (options.tracked, options.on_create, options.rules.fail_open) == (False, None, False)
    assert options.principal is from_scope


@pytest.mark.parametrize(
    ("option", "value", "kept"),
    [
        ("path", None, None),
        ("path", "/a/b/", "/a/b"),
        ("path", "/", ""),
        ("lifetime", timedelta(days=1), 86400.0),
        *(("idle_timeout", seconds, float(seconds)) for seconds in (60, 7 * 86400)),
        ("body_timeout", 0.5, 0.5),
        *(("lists", lists, lists) for lists in ("stable", "session", "untouched")),
        *((name, 1, 1) for name in ("max_body_bytes", "max_batch")),
        ("create_limit", None, None),
        ("audience", "https://api.example/mcp", "https://api.example/mcp"),
    ],
)
def test_a_right_value_is_kept(option: str, value: object, kept: object) -> None:
    """Durations become seconds, and a trailing slash makes no difference."""
    app, name = sessions(Server(), **{option: value}), option.removeprefix("max_")
    places = app, app._runtime, app._runtime.rules, app._runtime.limits, app._runtime.transport
    assert next(getattr(place, name) for place in places if hasattr(place, name)) == kept


async def test_data_has_the_limits_that_were_asked_for() -> None:
    data = options_of(max_data_bytes=20, max_value_bytes=10).data("ses_a", START + 60)
    await data.set("a", "x" * 8)
    with pytest.raises(DataTooLarge, match=r"Limits\.value_bytes"):
        await data.set("a", "x" * 9)
    with pytest.raises(DataTooLarge, match="the limit is 20"):
        await data.set("b", "x" * 8)


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        *(("path", value, "must begin with '/', as in path='/mcp'; None means every path") for value in ("mcp", 1)),
        *(
            ("path", value, r"a pattern never matches; use add_sessions\(app, path=\.\.\.\) or path=None")
            for value in ("/{tenant}/mcp", "/mcp}")
        ),
        *(("audience", value, "audience=.* must be printable ASCII") for value in ("", "a\n", "ä", None)),
        ("issuer", "\x00", "issuer=.* must be printable ASCII"),
        *(("bridge", value, "bridge=.* must be True or False") for value in ("yes", 1)),
        *(
            (name, value, f"{name}=.* must be from {least} to 3155760000 seconds, a number or a timedelta")
            for name, least in (
                *(("lifetime", 1), ("idle_timeout", 1), ("body_timeout", 0.001)),
                *(("store_timeout", 0.001), ("sweep_interval", 0.001)),
            )
            for value in (float("inf"), float("nan"), True, "60", timedelta(0), least / 2, 1e15)
        ),
        ("lifetime", None, "must be from 1 to 3155760000 seconds"),
        *(
            (name, value, f"{name}=.* must be a whole number of at least 1")
            for name in (
                *("max_body_bytes", "max_state_bytes", "max_event_bytes", "max_batch", "max_nesting"),
                *("max_data_bytes", "max_value_bytes"),
            )
            for value in (0, 1.5, True, "1", None)
        ),
        *(("max_token_bytes", value, "max_token_bytes=.* at least 512") for value in (511, None)),
        *(("token_cache", value, "token_cache=.* at least 0") for value in (-1, 1.5, None)),
        *(("create_limit", value, "create_limit=.* at least 1") for value in (0, 1.5, True)),
        *(("lists", value, "must be one of 'stable', 'session', 'untouched'") for value in ("all", ["stable"])),
        *(
            ("extensions", value, r"must be a tuple of some of 'fork', 'list', or \(\)")
            for value in list[Any](["fork", ("fork", "join"), None, True, [1]])
        ),
        *(
            ("inspector", value, "inspector=.* must be an IP address and a port")
            for value in ("", 8787, "127.0.0.1", "example.org:80", "127.0.0.1:0", "127.0.0.1:65536", "::1:80")
        ),
        *(("inspector_token", value, "inspector_token= must have at least 16") for value in ("short", "é" * 16, 1)),
        *(("limits", value, r"limits=.* must be Limits\(...\)") for value in (None, 1)),
        ("transport", "on", r"must be 'auto', 'off' or TransportSessions"),
        *(("admission", value, "must be one of 'ask', 'own'") for value in ("never", None)),
        *(("store", value, r"store= does not name a store; use 'memory:'") for value in ("memory", "x:")),
        ("store", object(), "store= is a object, which lacks add, claim_ended, close"),
        ("store", None, "store= takes a store, not None"),
        *(("on_store_error", value, "must be one of 'refuse', 'allow'") for value in ("ignore", True)),
        *(("tracked", value, "tracked=.* must be True, False or Tracking") for value in (1, "yes")),
        *((name, "print", f"{name}= takes a function") for name in ("listen", "on_create", "on_end", "redact")),
        *(("metrics", value, r"metrics= takes a SessionMetrics\(\), not ") for value in (True, print)),
        *(
            ("require", {typo: True}, f"which is not a method; did you mean '{meant}'")
            for typo, meant in (("tool/call", "tools/call"), ("Resource/Read ", "resources/read"))
        ),
        *(
            ("dialects", value, r"\[SEP1364Create\(\), SEP1364Initialize\(\)\]; the draft .* need no naming$")
            for value in list[Any](["draft", [SEP1364Create], [SEP1364Create()] * 2, [SEP1364Initialize()] * 2, [None]])
        ),
        ("idle_timeout", 7 * 86400 + 1, "idle_timeout=604801 is longer than lifetime=604800"),
        ("principal", "alice", "principal= takes a function"),
        ("require", "sometimes", "require="),
        ("keys", "short", "too short"),
    ],
)
def test_a_wrong_value_is_refused_with_the_remedy(option: str, value: object, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy.replace(f"{option}=", f"{SHORT.get(option, option)}=")):
        options_of(**{option: value})


def test_a_function_whose_signature_cannot_be_read_is_taken() -> None:
    """Some built-in ones have none; which ones differs between versions of Python."""
    unreadable = []
    for function in (getattr, iter, max, dict.pop):
        try:
            signature(function)
        except ValueError:
            unreadable.append(function)
    for function in unreadable:
        sessions(Server(), on_end=function)
    assert unreadable


def test_what_is_no_option_and_no_application_is_an_error() -> None:
    """A server's own object has a method that makes what can be called; what is nearly a key is a secret too."""
    with pytest.raises(FrozenInstanceError):
        Limits().batch = 0  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected keyword argument 'lifetim'"):
        sessions(Server(), lifetim=1)
    with pytest.raises(
        ConfigurationError, match=r"^object is not an ASGI application; wrap what its streamable_http_a"
    ):
        sessions(object())
    with pytest.raises(ConfigurationError) as refused:
        options_of(keys=[SECRET, "nearly-a-secret"])
    assert "nearly" not in str(refused.value)

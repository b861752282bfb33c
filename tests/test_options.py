"""Every option, right and wrong: a wrong one fails at construction and says what to write instead."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from apps import Server, sessions
from clients import SECRET
from mcp_sessions import ConfigurationError
from mcp_sessions.errors import InvalidParams, SessionExpired, SessionRequired
from mcp_sessions.events import Fact, SessionCreated
from mcp_sessions.options import MEBIBYTE, Options
from mcp_sessions.principals import from_scope
from mcp_sessions.stores.memory import MemoryStore


def options_of(**options: Any) -> Options:
    return sessions(Server(), **options)._options


def test_the_defaults_need_nothing_but_keys() -> None:
    """What the documentation promises."""
    options = options_of()
    assert (options.path, options.audience, options.lifetime) == ("/mcp", "mcp-sessions", 7 * 86400)
    assert (options.idle_timeout, options.lists, options.asks) == (None, None, True)
    assert (options.max_body_bytes, options.max_state_bytes, options.body_timeout) == (4 * MEBIBYTE, 4096, 30)
    assert (options.max_batch, options.max_nesting, options.create_limit) == (100, 1_000, None)
    assert isinstance(options.store, MemoryStore)
    assert options.principal is from_scope


@pytest.mark.parametrize(
    ("option", "value", "kept"),
    [
        ("path", None, None),
        ("path", "/a/b/", "/a/b"),
        ("path", "/", ""),
        ("lifetime", timedelta(days=1), 86400.0),
        ("idle_timeout", 60, 60.0),
        ("body_timeout", 0.5, 0.5),
        ("lists", "stable", "stable"),
        ("lists", "session", "session"),
        ("lists", "untouched", "untouched"),
        ("not_found_code", -40004, -40004),
        ("required_code", 1, 1),
        ("max_body_bytes", 1, 1),
        ("max_batch", 1, 1),
        ("create_limit", None, None),
        ("audience", "https://api.example/mcp", "https://api.example/mcp"),
    ],
)
def test_a_right_value_is_kept(option: str, value: object, kept: object) -> None:
    """Durations become seconds, and a trailing slash makes no difference."""
    assert getattr(options_of(**{option: value}), option) == kept


def test_admission_by_oneself_does_not_ask() -> None:
    """`"own"` trusts the guards outside of the middleware."""
    assert not options_of(admission="own").asks


def test_a_store_is_any_object_with_the_three_methods() -> None:
    """It is used as it is."""
    store = MemoryStore()
    assert options_of(store=store).store is store


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        *(("path", value, "must begin with '/', as in path='/mcp'; None means every path") for value in ("mcp", "", 1)),
        *(
            ("path", value, r"a pattern never matches; use add_sessions\(app, path=\.\.\.\) or path=None")
            for value in ("/{tenant}/mcp", "/{path:path}", "/mcp}", "{")
        ),
        *(("audience", value, "audience=.* must be printable ASCII") for value in ("", "a\n", "ä", None, 1)),
        *(("issuer", value, "issuer=.* must be printable ASCII") for value in ("", "\x00", None)),
        *(
            (name, value, f"{name}=.* must be from {least} to 3155760000 seconds, a number or a timedelta")
            for name, least in (("lifetime", 1), ("idle_timeout", 1), ("body_timeout", 0.001))
            for value in (0, -1, float("inf"), float("nan"), True, "60", timedelta(0), least / 2, 1e15)
        ),
        ("lifetime", None, "must be from 1 to 3155760000 seconds"),
        *(
            (name, value, f"{name}=.* must be a whole number of at least 1")
            for name in ("max_body_bytes", "max_state_bytes", "max_event_bytes", "max_batch", "max_nesting")
            for value in (0, -1, 1.5, True, "1", None)
        ),
        *(("max_token_bytes", value, "max_token_bytes=.* at least 512") for value in (511, 0, 1.5, None)),
        *(("token_cache", value, "token_cache=.* at least 0") for value in (-1, 1.5, None)),
        *(("create_limit", value, "create_limit=.* at least 1") for value in (0, -1, 1.5, True, "1")),
        *(
            (name, value, f"{name}=.* must be a whole number")
            for name in ("not_found_code", "required_code")
            for value in (1.5, True, "x")
        ),
        *(("lists", value, "must be one of 'stable', 'session', 'untouched'") for value in ("all", True, ["stable"])),
        *(("admission", value, "must be one of 'ask', 'own'") for value in ("never", None, False)),
        *(("store", value, "use 'memory:' or an object that is a Store") for value in ("memory", "redis://x", "")),
        ("store", object(), "store= lacks revoke, is_revoked, close"),
        ("store", None, "store= lacks revoke"),
        ("listen", "print", "listen= takes a function"),
        ("principal", "alice", "principal= takes a function"),
        ("require", "sometimes", "require="),
        ("keys", "short", "too short"),
    ],
)
def test_a_wrong_value_is_refused_with_the_remedy(option: str, value: object, remedy: str) -> None:
    """At construction, by name."""
    with pytest.raises(ConfigurationError, match=remedy):
        options_of(**{option: value})


def test_no_error_text_holds_a_key() -> None:
    """What is nearly a key is a secret too."""
    with pytest.raises(ConfigurationError) as refused:
        options_of(keys=[SECRET, "nearly-a-secret"])
    assert "nearly" not in str(refused.value)


def test_codes_are_the_deployment_s() -> None:
    """Two codes are options; all others are fixed."""
    options = options_of(not_found_code=-1, required_code=-2)
    assert options.code(SessionExpired()) == -1
    assert options.code(SessionRequired()) == -2
    assert options.code(InvalidParams()) == -32602


@pytest.mark.parametrize(
    ("require", "settings"),
    [
        ("never", b'{"required":"never"}'),
        ("always", b'{"required":"always"}'),
        ({"tools/call"}, b'{"required":"some"}'),
    ],
)
def test_clients_are_told_what_is_required(require: Any, settings: bytes) -> None:
    """In one word."""
    assert options_of(require=require).settings == settings


def test_a_listener_hears_every_fact_after_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """And with no listener, the log hears it all the same."""
    heard: list[Fact] = []
    fact = SessionCreated("ses_a", 60)
    with caplog.at_level("DEBUG", logger="mcp_sessions"):
        options_of(listen=heard.append).emit(fact)
        options_of().emit(fact)
    assert heard == [fact]
    assert len(caplog.messages) == 2

"""The two alternatives of SEP-1364 as rules: what a message says by them, and what servers of today get of it.

What they decide is in `test_decision`, and both on the wire in `tests/server/test_field_exchange.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from mcp_sessions import ConfigurationError, SEP1364Create, SEP1364Initialize
from mcp_sessions._protocol.draft import SessionMetadata
from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._protocol.sep1364 import Sep1364

BOTH = Sep1364(SEP1364Create(), SEP1364Initialize())
NEITHER = Sep1364(None, None)


def message(method: str, members: str = "", *, id: str = '"id":1,') -> Message:
    return parse(f'{{"jsonrpc":"2.0",{id}"method":"{method}"{members}}}'.encode())


@pytest.mark.parametrize(
    "method", ["sessions/create", "session/create", "sessions/delete", "session/delete", "terminate"]
)
def test_methods_about_sessions_may_name_one_in_their_params(method: str) -> None:
    assert BOTH.named_id(message(method, ',"params":{"sessionId":"a"}')) == "a"
    assert BOTH.named_id(message("tools/call", ',"params":{"sessionId":"a"}')) is None
    assert NEITHER.named_id(message(method, ',"params":{"sessionId":"a"}')) is None


TWICE = [[SEP1364Create(), SEP1364Create()], [SEP1364Initialize(), SEP1364Initialize()]]
REMEDY = r"dialects=\[SEP1364Create\(\), SEP1364Initialize\(\)\]; the draft and the transport header need no naming$"


@pytest.mark.parametrize("option", ["draft", [SEP1364Create], *TWICE, None, 7, [None]])
def test_a_wrong_option_says_what_to_write(option: Any) -> None:
    with pytest.raises(ConfigurationError, match=REMEDY):
        Sep1364.of(option)


@pytest.mark.parametrize(
    ("dialects", "method", "members", "body"),
    [
        (BOTH, "m", ',"sessionId":"a"', '{"jsonrpc":"2.0","id":1,"method":"m"}'),
        (BOTH, "m", "", None),
        (
            BOTH,
            "initialize",
            ',"params":{}',
            '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{}}}',
        ),
        (Sep1364(None, SEP1364Initialize()), "initialize", ',"params":{}', None),
    ],
)
def test_servers_of_today_get_what_they_can_read(
    dialects: Sep1364, method: str, members: str, body: str | None
) -> None:
    """Without the field, and with capabilities; what needs no change is the same object."""
    said = message(method, members)
    standard = dialects.outgoing(said)
    assert (standard is said) is (body is None)
    assert (standard.body, standard.field) == (said.body if body is None else body.encode(), None)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ("", None),
        (',"sessionId":null', None),
        (',"sessionId":"a"', "a"),
        (',"sess\\u0069onId":"\\u0061"', "a"),
        (',"sessionId":""', ""),
        (',"params":{"sessionId":"a"}', None),
    ],
)
def test_the_field_is_a_text_beside_the_method(members: str, said: str | None) -> None:
    named = BOTH.requested_session(message("m", members), None)
    assert named == (None if said is None else SessionMetadata(said, None))
    in_meta = SessionMetadata("a", "state")
    if said != "":
        assert BOTH.requested_session(message("m", members), in_meta) is in_meta

"""The top-level `sessionId`, where else it may stand, and the header that mirrors it."""

from __future__ import annotations

import pytest
from reasons import refused

from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._protocol.sep1364 import agreed, field, mirrors
from mcp_sessions._session.claims import COEXISTING, FIELD, SESSION, TRANSPORT, Kind


def message(members: str) -> Message:
    parsed = parse(b'{"jsonrpc":"2.0","id":1,"method":"m"%s}' % members.encode())
    assert isinstance(parsed, Message)
    return parsed


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
    assert field(message(members)) == said


def test_places_that_agree_name_one_session() -> None:
    assert agreed() is None
    assert agreed(None, None) is None
    assert agreed("a", None, "a") == "a"
    with refused("session_field_mismatch"):
        agreed("a", "b", None)


@pytest.mark.parametrize(
    ("kind", "header", "is_ours"),
    [
        (FIELD, "this", True),
        (TRANSPORT, "this", True),
        (SESSION, "this", True),
        (None, "this", False),
        (COEXISTING, "the server's", False),
    ],
)
def test_the_header_mirrors_the_field_or_is_the_server_s_own(kind: Kind | None, header: str, is_ours: bool) -> None:
    """The second for sessions alone that began beside a transport session of the server's."""
    assert mirrors("this", kind, header, is_ours=is_ours)


@pytest.mark.parametrize(
    ("kind", "header", "is_ours"),
    [
        (FIELD, "other", True),
        (FIELD, "the server's", False),
        (TRANSPORT, "other", True),
        (None, "other", False),
        (COEXISTING, "this", True),
        (COEXISTING, "other", True),
    ],
)
def test_any_other_header_contradicts(kind: Kind | None, header: str, is_ours: bool) -> None:
    assert not mirrors("this", kind, header, is_ours=is_ours)
    with refused("field_header_missing"):
        mirrors("this", kind, None, is_ours=False)

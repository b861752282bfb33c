"""The draft's metadata: where a session is named, how strictly it is read, how it is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasons import refused

from mcp_sessions._protocol.decision import requested_session
from mcp_sessions._protocol.draft import SessionMetadata, metadata, names_transport, speaks_draft
from mcp_sessions._protocol.jsonrpc import SESSION_KEY, Message, parse


def message(meta: str) -> Message:
    parsed = parse(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":%s}}' % meta.encode())
    assert isinstance(parsed, Message)
    return parsed


def named(message: Message) -> SessionMetadata | None:
    return requested_session(message, None)


def carrying(session: str) -> Message:
    return message(f'{{"{SESSION_KEY}":{session}}}')


@pytest.mark.parametrize("meta", ["null", "{}", '{"session":{"sessionId":"a"}}'])
def test_a_message_without_the_key_names_no_session(meta: str) -> None:
    assert named(message(meta)) is None


def test_a_session_inside_of_arguments_is_not_a_session() -> None:
    """What a model writes into a tool's arguments can never select one."""
    arguments = b'{"_meta":{"%s":{"sessionId":"a"}}}' % SESSION_KEY.encode()
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":%s}}' % arguments
    parsed = parse(body)
    assert isinstance(parsed, Message)
    assert named(parsed) is None


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        ('{"sessionId":"a"}', SessionMetadata("a", None)),
        ('{"sessionId":"a","state":"s"}', SessionMetadata("a", "s")),
        ('{"state":"","sessionId":"","later":[1]}', SessionMetadata("", "")),
        ('{"sessionId":"a","state":null}', SessionMetadata("a", None)),
        ('{"sess\\u0069onId":"\\u0061"}', SessionMetadata("a", None)),
    ],
)
def test_a_named_session_is_an_id_and_perhaps_a_state(session: str, expected: SessionMetadata) -> None:
    """Members that we do not know may stand beside them; an empty state is not an absent one, null is."""
    assert named(carrying(session)) == expected


@pytest.mark.parametrize(
    "session",
    [
        *("null", "[]", '"a"', "1", "true", "{}"),
        *('{"state":"s"}', '{"sessionId":null}', '{"sessionId":1}', '{"sessionId":["a"]}'),
        *('{"sessionId":"a","state":{}}', '{"sessionId":"a","state":1}'),
    ],
)
def test_anything_else_is_malformed(session: str) -> None:
    with refused("malformed_session"):
        named(carrying(session))


def test_what_two_parsers_read_differently_is_refused() -> None:
    for second in ("sessionId", "session\\u0049d"):
        with refused("duplicate_member"):
            named(carrying(f'{{"sessionId":"a","{second}":"b"}}'))
    for text in ('{"sessionid":"a"}', '{"sessionId":"a","State":"b"}'):
        with refused("member_case"):
            named(carrying(text))


def test_an_id_that_cannot_be_written_again_is_refused() -> None:
    """The error has to echo it."""
    with refused("lone_surrogate"):
        named(carrying('{"sessionId":"\\ud800"}'))


@given(st.text(), st.none() | st.text())
def test_ids_and_states_are_read_as_they_were_meant(session_id: str, state: str | None) -> None:
    session: dict[str, Any] = {"sessionId": session_id} if state is None else {"sessionId": session_id, "state": state}
    assert named(carrying(json.dumps(session, ensure_ascii=False))) == SessionMetadata(session_id, state)


def test_no_text_about_a_named_session_holds_its_id() -> None:
    assert repr(SessionMetadata("a-credential", "a-state")) == "<SessionMetadata>"


def test_metadata_says_when_the_session_ends_in_utc() -> None:
    plain = {"sessionId": "a", "expiresAt": "1970-01-01T00:00:00Z"}
    assert json.loads(metadata("a", 0)) == plain
    assert json.loads(metadata("a", 0, "s")) == {**plain, "state": "s"}


@pytest.mark.parametrize(
    ("params", "speaks"),
    [
        ({"capabilities": {"experimental": {"sessions": {}}}}, True),
        ({"capabilities": {"experimental": {"other": {}}}}, False),
        ({"capabilities": {"sessions": {}}}, False),
        ({"capabilities": {"experimental": None}}, False),
        ({"capabilities": []}, False),
        ({}, False),
        (None, False),
        ({"sessions": 1}, False),
    ],
)
def test_a_client_that_declares_sessions_speaks_the_draft(params: Any, speaks: bool) -> None:
    """It creates sessions itself, so it is given none by `initialize`."""
    parsed = parse(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode())
    assert isinstance(parsed, Message)
    assert speaks_draft(parsed) is speaks


@pytest.mark.parametrize(
    ("meta", "speaks"),
    [
        ("{}", False),
        ('{"io.modelcontextprotocol/clientCapabilities":{}}', False),
        ('{"io.modelcontextprotocol/clientCapabilities":{"experimental":{"sessions":{}}}}', True),
        ('{"io.modelcontextprotocol/clientCapabilities":{"experimental":{"se\\u0073sions":{}}}}', True),
        ('{"sessions":1}', False),
    ],
)
def test_a_client_of_the_modern_era_states_in_each_request_what_it_speaks(meta: str, speaks: bool) -> None:
    assert speaks_draft(message(meta)) is speaks
    assert not speaks_draft(parse(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":"sessions"}}'))


@pytest.mark.parametrize(
    ("metadata", "reads", "outcome"),
    [
        (SessionMetadata("a"), False, False),
        (SessionMetadata("a"), True, False),
        (SessionMetadata("b"), True, True),
        (None, True, True),
        (None, False, "session_header_alone"),
        (SessionMetadata("b"), False, "session_header_mismatch"),
    ],
)
def test_a_header_mirrors_the_body_or_names_a_transport_session(
    metadata: SessionMetadata | None, reads: bool, outcome: bool | str
) -> None:
    """Where none are read, it contradicts the body."""
    if isinstance(outcome, bool):
        assert names_transport("a", metadata, reads) is outcome
        return
    with refused(outcome):
        names_transport("a", metadata, reads)

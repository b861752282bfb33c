"""The draft's metadata: where a session is named, how strictly it is read, how it is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from reasons import refused

from mcp_sessions._protocol.decision import requested_session
from mcp_sessions._protocol.draft import SessionMetadata, metadata, speaks_draft
from mcp_sessions._protocol.jsonrpc import SESSION_KEY, parse


def carrying(session: str) -> SessionMetadata | None:
    body = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"_meta":{{"{SESSION_KEY}":{session}}}}}}}'
    return requested_session(parse(body.encode()), None)


@pytest.mark.parametrize(
    ("session", "reason"),
    [
        *((text, "malformed_session") for text in ("null", "[]", '"a"', "1", "true", "{}", '{"state":"s"}')),
        *((f'{{"sessionId":{value}}}', "malformed_session") for value in ("null", "1", '["a"]')),
        *((f'{{"sessionId":"a","state":{value}}}', "malformed_session") for value in ("{}", "1")),
        ('{"sessionId":"a","State":"b"}', "member_case"),
    ],
)
def test_metadata_that_cannot_be_read_is_refused(session: str, reason: str) -> None:
    with refused(reason):
        carrying(session)


@given(st.text(), st.none() | st.text())
@example("", "")
def test_ids_and_states_are_read_as_they_were_meant(session_id: str, state: str | None) -> None:
    session: dict[str, Any] = {"sessionId": session_id} if state is None else {"sessionId": session_id, "state": state}
    assert carrying(json.dumps(session, ensure_ascii=False)) == SessionMetadata(session_id, state)


def test_no_text_about_a_named_session_holds_its_id() -> None:
    assert repr(SessionMetadata("a-credential", "a-state")) == "<SessionMetadata>"


def test_metadata_says_when_the_session_ends_in_utc() -> None:
    plain = {"sessionId": "a", "expiresAt": "1970-01-01T00:00:00Z"}
    assert json.loads(metadata("a", 0)) == plain
    assert json.loads(metadata("a", 0, "s")) == {**plain, "state": "s"}


IN_ENVELOPE = '{"_meta":{"io.modelcontextprotocol/clientCapabilities":%s}}'


@pytest.mark.parametrize(
    ("method", "params", "speaks"),
    [
        ("initialize", '{"capabilities":{"experimental":{"sessions":{}}}}', True),
        ("initialize", '{"capabilities":{"experimental":{"other":{}},"sessions":{}}}', False),
        *(("initialize", f'{{"capabilities":{odd},"x":"sessions"}}', False) for odd in ('{"experimental":null}', "[]")),
        *(("initialize", params, False) for params in ("{}", "null", '{"sessions":1}')),
        ("m", IN_ENVELOPE % '{"experimental":{"sessions":{}}}', True),
        ("m", IN_ENVELOPE % '{"experimental":{"se\\u0073sions":{}}}', True),
        ("m", IN_ENVELOPE % "{}", False),
        *(("m", params, False) for params in ('{"_meta":{}}', '{"_meta":{"sessions":1}}', '{"x":"sessions"}')),
    ],
)
def test_a_client_that_declares_sessions_speaks_the_draft(method: str, params: str, speaks: bool) -> None:
    """In its handshake, or in each envelope of the modern era: it creates sessions itself, so it is given none."""
    text = f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}'
    assert speaks_draft(parse(text.encode())) is speaks

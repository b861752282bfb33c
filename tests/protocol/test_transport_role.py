"""dialects/transport.py: what a session header of ours is to a request, and who needs no transport session."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reasons import refused

from mcp_sessions._protocol.draft import SessionMetadata, names_transport, speaks_draft
from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._session.claims import SESSION, TRANSPORT, Kind

THIS = SessionMetadata("this", None)


@pytest.mark.parametrize(
    ("header", "named", "kind", "is_transport"),
    [
        ("this", THIS, SESSION, False),
        ("this", THIS, None, False),
        ("transport", None, TRANSPORT, True),
        ("forged", None, None, True),
        ("transport", THIS, TRANSPORT, True),
    ],
)
def test_a_header_mirrors_the_session_or_names_a_transport_session(
    header: str, named: SessionMetadata | None, kind: Kind | None, is_transport: bool
) -> None:
    """The two live side by side; what is not authentic goes the way of a dead transport session."""
    assert names_transport(header, named, kind) is is_transport


@pytest.mark.parametrize(
    ("header", "named", "kind", "reason"),
    [
        ("session", None, SESSION, "session_header_alone"),
        ("other", THIS, SESSION, "session_header_mismatch"),
        ("forged", THIS, None, "session_header_mismatch"),
    ],
)
def test_a_header_that_contradicts_the_body_is_refused(
    header: str, named: SessionMetadata | None, kind: Kind | None, reason: str
) -> None:
    """A session id never stands for a transport session, and two sessions are never guessed between."""
    with refused(reason):
        names_transport(header, named, kind)


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
    message = parse(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode())
    assert isinstance(message, Message)
    assert speaks_draft(message) is speaks

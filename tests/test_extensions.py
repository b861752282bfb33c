"""What is offered beyond the draft, and how it is advertised."""

from __future__ import annotations

import json

from clients import OFFERED
from mcp_sessions import extensions
from mcp_sessions.extensions import EXTENSIONS
from mcp_sessions.protocol import ABOUT_SESSIONS, SUBJECTS


def test_every_extension_is_a_method_about_sessions() -> None:
    """Which the draft has not."""
    for extension in EXTENSIONS.values():
        assert extension.method.startswith("sessions/")
        assert extension.method not in SUBJECTS
        assert extension.subject in ABOUT_SESSIONS


def test_what_is_offered_is_read_and_advertised() -> None:
    """Beside what the draft has."""
    offered = extensions.offered({"fork"}, tracked=True)
    assert extensions.subjects(offered) == {**SUBJECTS, "sessions/fork": EXTENSIONS["fork"].subject}
    assert json.loads(extensions.settings("some", offered)) == {"required": "some", **OFFERED}


def test_what_needs_records_is_offered_where_there_are_some() -> None:
    """A list of sessions that nobody wrote down would be empty."""
    every = [extensions.offered(EXTENSIONS, tracked=tracked) for tracked in (False, True)]
    assert [[one.method for one in offered] for offered in every] == [
        ["sessions/fork"],
        ["sessions/fork", "sessions/list", "sessions/end_all"],
    ]
    assert json.loads(extensions.settings("some", every[1])) == {
        "required": "some",
        **OFFERED,
        "list": True,
        "endAll": True,
    }


def test_what_is_not_offered_is_not_ours() -> None:
    """Its method is none that is read here."""
    assert extensions.offered((), tracked=True) == []
    assert extensions.subjects([]) == SUBJECTS
    assert extensions.settings("never", []) == b'{"required":"never"}'

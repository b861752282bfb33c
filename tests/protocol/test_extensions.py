"""What is offered beyond the draft, and how it is advertised."""

from __future__ import annotations

import json

from clients import OFFERED

from mcp_sessions._protocol import decision
from mcp_sessions._protocol.decision import ABOUT_SESSIONS, EXTENSIONS, SUBJECTS


def test_every_extension_is_a_method_about_sessions() -> None:
    for extension in EXTENSIONS.values():
        assert extension.method.startswith("sessions/")
        assert extension.method not in SUBJECTS
        assert extension.subject in ABOUT_SESSIONS


def test_what_is_offered_is_read_and_advertised() -> None:
    offered = decision.offered({"fork"}, tracked=True)
    assert decision.subjects(offered) == {**SUBJECTS, "sessions/fork": EXTENSIONS["fork"].subject}
    assert json.loads(decision.settings("some", offered)) == {"required": "some", **OFFERED}


def test_what_needs_records_is_offered_where_there_are_some() -> None:
    """A list of sessions that nobody wrote down would be empty."""
    every = [decision.offered(EXTENSIONS, tracked=tracked) for tracked in (False, True)]
    assert [[one.method for one in offered] for offered in every] == [
        ["sessions/fork"],
        ["sessions/fork", "sessions/list", "sessions/end_all"],
    ]
    assert json.loads(decision.settings("some", every[1])) == {
        "required": "some",
        **OFFERED,
        "list": True,
        "endAll": True,
    }


def test_what_is_not_offered_is_not_ours() -> None:
    assert decision.offered((), tracked=True) == []
    assert decision.subjects([]) == SUBJECTS
    assert decision.settings("never", []) == b'{"required":"never"}'

"""Rules and headers for tests of decisions."""

from __future__ import annotations

from typing import Any

from mcp_sessions._protocol.decision import SUBJECTS, Rules
from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._protocol.policy import Policy
from mcp_sessions._session.claims import Kind

KINDS: dict[str, Kind] = {"draft": "session", "transport": "transport", "field": "field", "beside": "beside"}
"""The ids of these tests that are authentic, and what their tokens may be used as."""
MODERN = (b"mcp-protocol-version", b"2026-07-28")


def rules(require: Any = "never", **given: Any) -> Rules:
    """The rules of a deployment that has these options, and the defaults."""
    usual = {
        "subjects": SUBJECTS,
        "lists": None,
        "legacy_only": False,
        "fail_open": False,
        "reads_transport": True,
        "bridges": False,
        "kind_of": KINDS.get,
        "sep1364": None,
    }
    return Rules(policy=Policy(require), **{**usual, **given})


def headers(session_id: str | None = None, *, modern: bool = False, cookie: str | None = None) -> RequestHeaders:
    """The headers of a request of an era, with a session header of ours or none."""
    named = [] if session_id is None else [(b"mcp-session-id", session_id.encode())]
    found = RequestHeaders([*named, *([MODERN] if modern else [])])
    found.session_id = session_id
    found.cookie = cookie
    return found

"""A session as its client holds it: opaque, checked, and shown by nothing."""

from __future__ import annotations

from datetime import datetime, timezone

import msgspec
import pytest

from mcp_sessions.client.session import Metadata, created

ID = "secret-session-id"
HELD = Metadata(ID, "secret-state", "2026-03-31T23:59:00Z")


def test_it_sends_the_id_and_the_state_and_keeps_the_hint() -> None:
    """A state goes along once there is one."""
    assert HELD.sent() == {"sessionId": ID, "state": "secret-state"}
    assert Metadata(ID).sent() == {"sessionId": ID}


def test_it_shows_no_credential() -> None:
    """The hint alone."""
    assert repr(HELD) == "<Metadata, expires at 2026-03-31T23:59:00Z>"


@pytest.mark.parametrize(
    ("echoed", "learned"),
    [
        ({"sessionId": ID}, HELD),
        ({"sessionId": ID, "state": "new"}, Metadata(ID, "new", HELD.expires_at)),
        ({"sessionId": ID, "expiresAt": "later"}, Metadata(ID, HELD.state, "later")),
        ({"sessionId": "another", "state": "new"}, HELD),
        ({"sessionId": ID, "state": 7}, HELD),
        ({"state": "new"}, HELD),
        (None, HELD),
        ("text", HELD),
    ],
)
def test_it_believes_what_is_said_of_its_own_session(echoed: object, learned: Metadata) -> None:
    """What has another form or is about another session changes nothing."""
    assert HELD.learned(echoed) == learned


def test_a_session_is_created_with_what_the_server_gave() -> None:
    """An id is visible ASCII; anything else is no session."""
    assert created({"session": {"sessionId": ID, "state": "secret-state", "expiresAt": HELD.expires_at}}) == HELD
    for bad in ("", " ", "a\n", "é", 7, None):
        with pytest.raises(msgspec.ValidationError):
            created({"session": {"sessionId": bad}})


@pytest.mark.parametrize(
    ("hint", "read"),
    [
        ("2026-03-31T23:59:00Z", datetime(2026, 3, 31, 23, 59, tzinfo=timezone.utc)),
        ("2026-04-01T01:59:00+02:00", datetime(2026, 3, 31, 23, 59, tzinfo=timezone.utc)),
        ("2026-03-31T23:59:00", datetime(2026, 3, 31, 23, 59, tzinfo=timezone.utc)),
        ("soon", None),
        (None, None),
    ],
)
def test_the_hint_is_read_where_it_can_be(hint: str | None, read: datetime | None) -> None:
    """A time without a zone is taken for UTC."""
    assert Metadata(ID, None, hint).expires == read

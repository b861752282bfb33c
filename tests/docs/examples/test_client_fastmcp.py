"""`client_fastmcp`: a session that is lost, and the two ways to go on."""

from __future__ import annotations

from client_runs import told_by


def test_a_lost_session_is_told_or_recreated() -> None:
    """Raised once and begun anew, or begun anew at once."""
    assert told_by("client_fastmcp") == [
        'on_lost="raise": the program learns that the notes are gone',
        'notebook A append("milk") -> ["milk"]',
        'notebook A append("eggs") -> ["milk", "eggs"]',
        "another program deletes the session",
        'notebook A append("bread") -> refused: -32043 Session not found',
        'notebook A append("butter") -> ["butter"]',
        'on_lost="recreate": the call goes into a new session',
        'notebook A append("milk") -> ["milk"]',
        'notebook A append("eggs") -> ["milk", "eggs"]',
        "another program deletes the session",
        'notebook A append("bread") -> ["bread"]',
        'notebook A append("butter") -> ["bread", "butter"]',
    ]

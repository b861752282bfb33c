"""`client_sdk`: a session that outlives the program and the server's process."""

from __future__ import annotations

from client_runs import told_by


def test_the_session_goes_on_until_it_is_deleted() -> None:
    """One count over two starts of the program and two of the server, and a new one afterwards."""
    assert told_by("client_sdk") == [
        "The first start: a session begins with the first call",
        "program starts: its jar is empty",
        "counter A count() -> 1",
        "counter A count() -> 2",
        "counter A count() -> 3",
        "program ends: the jar keeps the session",
        "The next start, of the server and of the program: the session goes on",
        "counter restarted",
        "program starts: its jar holds a session",
        "counter A count() -> 4",
        "counter A count() -> 5",
        "program ends: the jar keeps the session",
        "Deleted: the next start begins anew",
        "counter A sessions/delete -> deleted",
        "program starts: its jar is empty",
        "counter A count() -> 1",
        "program ends: the jar keeps the session",
    ]

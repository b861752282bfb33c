"""The steps of a SQLite store that the contract cannot show: the fence, and what a step leaves in the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from clients import START

from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions._session.data import Namespace
from mcp_sessions.errors import DataGone
from mcp_sessions.stores import sqlite as data
from mcp_sessions.stores import sqlite as steps
from mcp_sessions.stores import sqlite_file as schema
from mcp_sessions.stores.base import Ended, Record, Standing

LATER = START + 3600
ALICE = "alice".ljust(22, "A")


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        schema.create(made, fence=START)
        yield made


def session(name: str = "a", *, issued_at: int = START) -> Claims:
    return Claims(
        kind="session", kid="k", jti=name.ljust(22, "A"), issued_at=issued_at, expires_at=LATER, subject=ALICE
    )


def count(connection: sqlite3.Connection, table: str) -> int:
    rows: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return rows


def revoke(connection: sqlite3.Connection, claims: Claims) -> bool:
    return steps.revoke(connection, claims.ref, expires_at=claims.expires_at, reason="deleted", lease_until=START + 30)


def shelf(claims: Claims, *, until: int = LATER) -> Namespace:
    return Namespace(claims.ref, until, 1000)


@pytest.mark.parametrize("fenced", [True, False])
def test_what_was_issued_before_the_fence_is_lost(connection: sqlite3.Connection, fenced: bool) -> None:
    """In that second it is not; where the fence is not asked for, nothing is. What was ended is told as that."""
    standing = partial(steps.status, connection, fenced=fenced)
    before, ended = session("a", issued_at=START - 1), session("b", issued_at=START - 1)
    revoke(connection, ended)
    assert standing(session(issued_at=START)) is Standing.LIVE
    assert standing(before) is (Standing.LOST if fenced else Standing.LIVE)
    assert standing(ended) is Standing.ENDED
    for one in (before, ended):
        steps.add_record(connection, Record.of(one))
    seen, _ = steps.touch(connection, before, idle_timeout=None, fenced=fenced, now=START)
    assert seen is standing(before)


def test_no_fence_at_all_vouches_for_nothing(connection: sqlite3.Connection) -> None:
    """A table that lost a row is no leave to let everybody in."""
    connection.execute("DELETE FROM facts")
    assert steps.status(connection, session(), fenced=True) is Standing.LOST


def test_only_a_live_sessions_use_is_to_be_noted(connection: sqlite3.Connection) -> None:
    """And only when the last note is old enough; a note is never taken back."""
    seen = partial(steps.touch, connection, session(), idle_timeout=300, fenced=True)
    assert seen(now=START) == (Standing.LOST, False)
    steps.add_record(connection, Record.of(session()))
    assert seen(now=START + 1) == (Standing.LIVE, False)
    assert seen(now=START + 5) == (Standing.LIVE, True)
    steps.note(connection, session().ref, START + 5)
    steps.note(connection, session().ref, START + 2)
    assert seen(now=START + 9) == (Standing.LIVE, False)
    assert seen(now=START + 310) == (Standing.IDLE, False)
    revoke(connection, session())
    assert seen(now=START + 5) == (Standing.ENDED, False)


def test_an_ended_session_stays_ended_for_as_long_as_it_is_recorded(connection: sqlite3.Connection) -> None:
    """Also when its revocation was swept."""
    steps.add_record(connection, Record.of(session()))
    assert revoke(connection, session()) is True
    connection.execute("DELETE FROM revoked")
    assert steps.touch(connection, session(), idle_timeout=None, fenced=True, now=START)[0] is Standing.ENDED
    assert revoke(connection, session()) is False
    with pytest.raises(DataGone):
        data.write(connection, shelf(session()), "k", (b"1", None), leeway=60, now=START)


def test_a_session_that_ended_in_two_ways_is_told_as_expired(connection: sqlite3.Connection) -> None:
    """It is taken once."""
    steps.add_record(connection, Record.of(session()))
    take = partial(steps.claim_ended, connection, audience=AUDIENCE, idle_timeout=60, lease=30, limit=10)
    assert take(now=LATER) == [Ended(Record.of(session()), "expired")]
    assert take(now=LATER) == []
    assert count(connection, "revoked") == 1


def test_a_finished_session_leaves_nothing_but_its_revocation(connection: sqlite3.Connection) -> None:
    """No row of any table speaks of it."""
    steps.add_record(connection, Record.of(session()))
    data.write(connection, shelf(session()), "k", (b"1", None), leeway=60, now=START)
    revoke(connection, session())
    steps.purge(connection, session().ref)
    assert [count(connection, table) for table in ("revoked", "records", "shelves", "items")] == [1, 0, 0, 0]


# --- data ----------------------------------------------------------------------------------------


def test_values_whose_time_is_over_leave_the_table(connection: sqlite3.Connection) -> None:
    """With the next change of the same session's data."""
    write = partial(data.write, connection, shelf(session()), leeway=60)
    write("a", (b"1", START + 10), now=START)
    write("b", (b"1", None), now=START + 10)
    assert count(connection, "items") == 1


@pytest.mark.parametrize(
    "change",
    [
        partial(data.write, key="k", item=(b"2", None)),
        partial(data.compare_and_swap, key="k", old=b"1", new=b"2"),
        partial(data.add, key="k", by=1),
    ],
)
def test_data_of_a_session_that_is_over_cannot_be_changed(connection: sqlite3.Connection, change: Any) -> None:
    """Past its end and the leeway: what would be kept could be swept at once."""
    data.write(connection, shelf(session()), "k", (b"1", None), leeway=60, now=START)
    change(connection, shelf(session()), leeway=60, now=LATER + 59)
    with pytest.raises(DataGone):
        change(connection, shelf(session()), leeway=60, now=LATER + 60)


# --- sweeping ------------------------------------------------------------------------------------


def test_what_is_over_is_swept_in_small_steps(connection: sqlite3.Connection) -> None:
    """Each says whether there may be more; what is not over stays."""
    for n in range(450):
        over = START - n % 2
        steps.revoke(connection, f"r{n}", expires_at=over, reason="x", lease_until=0)
        steps.revoke_before(connection, START, audience=AUDIENCE, subject=f"s{n}", until=over)
    for n in range(50):
        data.write(connection, Namespace(f"o{n}", START - n % 2, 100), "k", (b"1", None), leeway=60, now=START)
    rows = []
    more = True
    while more:
        more = data.sweep(connection, START - 1)
        rows.append([count(connection, table) for table in ("revoked", "cut_offs", "shelves", "items")])
    assert rows == [[250, 250, 30, 30], [225, 225, 25, 25]]


def test_a_recorded_sessions_data_is_not_swept(connection: sqlite3.Connection) -> None:
    """Whether it was kept before the session was recorded or after."""
    write = partial(data.write, connection, leeway=60, now=START)
    write(shelf(session("before")), "k", (b"1", None))
    for name in ("before", "after"):
        steps.add_record(connection, Record.of(session(name)))
    for name in ("before", "after", "unrecorded"):
        write(shelf(session(name)), "l", (b"1", None))
    data.sweep(connection, LATER)
    assert [count(connection, table) for table in ("shelves", "items")] == [2, 3]

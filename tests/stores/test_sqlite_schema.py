"""The tables of a SQLite store, and the files in which they are not made."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from clients import START

from mcp_sessions.errors import ConfigurationError
from mcp_sessions.stores import sqlite_file as schema


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        yield made


def test_tables_are_made_once(connection: sqlite3.Connection) -> None:
    """Who comes second finds them, and the fence where it was."""
    assert not schema.is_made(connection)
    assert schema.create(connection, fence=START) is True
    assert schema.create(connection, fence=START + 10) is False
    assert schema.is_made(connection)
    assert schema.fenced_before(connection) == START


def test_a_fence_is_only_ever_raised(connection: sqlite3.Connection) -> None:
    """What is not vouched for never is again."""
    schema.create(connection, fence=START)
    schema.raise_fence(connection, START + 5)
    schema.raise_fence(connection, START - 5)
    assert schema.fenced_before(connection) == START + 5


class Watched(sqlite3.Connection):
    """A connection that says when it is about to look."""

    look: Callable[[], object]

    def execute(self, *said: Any) -> sqlite3.Cursor:
        self.look()
        return super().execute(*said)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_file_that_another_process_makes_meanwhile_is_ours(tmp_path: Path, before: int) -> None:
    """Workers start at once, so between any two looks at an empty file its tables may come to be."""
    path, looks = tmp_path / "sessions.db", count()
    with closing(sqlite3.connect(path, factory=Watched)) as one, closing(sqlite3.connect(path)) as other:

        def look() -> None:
            if next(looks) == before:
                schema.create(other, fence=START)
                other.commit()

        one.look = look
        for _ in range(before + 1):
            schema.check(one)
        assert schema.is_made(one)


def test_another_programs_file_is_refused(connection: sqlite3.Connection) -> None:
    """Told by its tables, its name or its version; an empty one is nobody's yet."""
    schema.check(connection)
    for statement in ("CREATE TABLE theirs (a)", "PRAGMA user_version = 1", "PRAGMA application_id = 5"):
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as other:
            other.execute(statement)
            with pytest.raises(ConfigurationError, match="belongs to another program; give the path"):
                schema.create(other, fence=START)
            assert not other.execute("SELECT 1 FROM sqlite_master WHERE name = 'revoked'").fetchall()


@pytest.mark.parametrize(
    ("more", "remedy"), [(1, "install that version, or give another path"), (-1, "give another path")]
)
def test_another_versions_file_is_refused(connection: sqlite3.Connection, more: int, remedy: str) -> None:
    """It may say that a session ended in a way that is not known here, or lack what is asked for."""
    schema.create(connection, fence=START)
    connection.execute(f"PRAGMA user_version = {schema.VERSION + more}")
    said = f"has format {schema.VERSION + more}, this one knows {schema.VERSION}\\); {remedy}$"
    with pytest.raises(ConfigurationError, match=said):
        schema.check(connection)


def test_every_question_about_what_is_over_has_an_index(connection: sqlite3.Connection) -> None:
    """No sweep reads a whole table."""
    schema.create(connection, fence=START)
    for question in (
        "SELECT ref FROM revoked WHERE expires_at <= 5 LIMIT 5",
        "SELECT subject, audience FROM cut_offs WHERE until <= 5 LIMIT 5",
        "SELECT owner FROM shelves WHERE until <= 5 LIMIT 5",
        "SELECT ref FROM records WHERE reason IS NULL AND audience = 'a' AND expires_at <= 5 ORDER BY expires_at",
        "SELECT ref FROM records WHERE reason IS NULL AND audience = 'a' AND seen_at <= 5 ORDER BY seen_at LIMIT 5",
        "SELECT ref FROM records WHERE reason IS NOT NULL AND audience = 'a' AND lease_until <= 5 ORDER BY lease_until",
        "SELECT ref FROM records WHERE subject = 'a' AND audience = 'a' ORDER BY created_at, ref",
    ):
        (plan,) = connection.execute(f"EXPLAIN QUERY PLAN {question}").fetchall()
        assert plan[3].startswith("SEARCH"), plan

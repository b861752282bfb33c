"""The tables of a SQLite store, and how a file comes to have them.

A file says what it is (`application_id`), in which version (`user_version`) and since when it has
remembered what it was told (the fence). Several processes may find a new file at once: one makes the
tables, in one transaction, and the others see them. A file that is not ours is refused untouched.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from ..errors import ConfigurationError

APPLICATION_ID: Final = 0x6D637073  # "mcps"
VERSION: Final = 2  # 1 knew no audiences

_TABLES: Final = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE revoked (ref TEXT PRIMARY KEY, expires_at INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX revoked_ends ON revoked (expires_at)",
    # Everybody's cut-off stands under the subject ''.
    """CREATE TABLE cut_offs (
        subject TEXT NOT NULL, audience TEXT NOT NULL, moment INTEGER NOT NULL, until INTEGER NOT NULL,
        PRIMARY KEY (subject, audience)
    ) WITHOUT ROWID""",
    "CREATE INDEX cut_offs_ends ON cut_offs (until)",
    """CREATE TABLE records (
        ref TEXT PRIMARY KEY, subject TEXT, created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
        seen_at REAL NOT NULL, root TEXT, trace TEXT, audience TEXT NOT NULL, reason TEXT, lease_until REAL
    ) WITHOUT ROWID""",
    "CREATE INDEX records_of ON records (subject, audience, created_at) WHERE subject IS NOT NULL",
    "CREATE INDEX records_forks ON records (root, created_at) WHERE root IS NOT NULL",
    "CREATE INDEX records_ends ON records (audience, expires_at) WHERE reason IS NULL",
    "CREATE INDEX records_seen ON records (audience, seen_at) WHERE reason IS NULL",
    "CREATE INDEX records_leases ON records (audience, lease_until) WHERE reason IS NOT NULL",
    # A recorded session's data stays until it is finished: its `until` is NULL, which no sweep finds.
    "CREATE TABLE shelves (owner TEXT PRIMARY KEY, until INTEGER) WITHOUT ROWID",
    "CREATE INDEX shelves_ends ON shelves (until) WHERE until IS NOT NULL",
    """CREATE TABLE items (
        owner TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, expires_at REAL, PRIMARY KEY (owner, key)
    ) WITHOUT ROWID""",
    "CREATE TABLE leaders (audience TEXT PRIMARY KEY, worker TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID",
)

# In one statement, which sees one moment: between two of them another process may make the tables.
_WHOSE: Final = """SELECT application_id, user_version, NOT EXISTS (SELECT 1 FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version"""


def check(connection: sqlite3.Connection) -> None:
    """Refuse a file that is not ours to write.

    Raises:
        ConfigurationError: It is another program's, or was written by another version of this one.
        sqlite3.Error: It cannot be read.
    """
    application, version, empty = connection.execute(_WHOSE).fetchone()
    if application == APPLICATION_ID and version != VERSION:
        age, remedy = ("a newer", "install that version, or ") if version > VERSION else ("an older", "")
        raise ConfigurationError(
            f"the SQLite file was written by {age} version (it has format {version}, this one knows {VERSION}); "
            f"{remedy}give another path"
        )
    if application != APPLICATION_ID and not (application == 0 and version == 0 and empty):
        raise ConfigurationError("the SQLite file belongs to another program; give the path of a file of its own")


def create(connection: sqlite3.Connection, *, fence: int) -> bool:
    """Make the tables where there are none. Inside a transaction that has begun to write.

    Args:
        connection: To the file.
        fence: Sessions issued before this moment cannot be vouched for, Unix seconds.

    Returns:
        Whether this call made them.
    """
    check(connection)
    if is_made(connection):  # by another process, just now
        return False
    for table in _TABLES:
        connection.execute(table)
    raise_fence(connection, fence)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    return True


def is_made(connection: sqlite3.Connection) -> bool:
    """Whether the tables are there."""
    return _number(connection, "user_version") == VERSION


def fenced_before(connection: sqlite3.Connection) -> int:
    """Since when the file has remembered what it was told, Unix seconds."""
    moment: int = connection.execute("SELECT value FROM facts WHERE name = 'fence'").fetchone()[0]
    return moment


def raise_fence(connection: sqlite3.Connection, moment: int) -> None:
    """Vouch for no session issued before a moment."""
    connection.execute(
        "INSERT INTO facts VALUES ('fence', ?) ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
        (moment,),
    )


def touch(connection: sqlite3.Connection) -> None:
    """Write something that changes nothing, or fail."""
    connection.execute("UPDATE facts SET value = value")


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    number: int = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    return number

"""What a SQLite store reads and changes of session data, and how it forgets what is over.

Each function is one step within one transaction, at a time that is passed in. A recorded session's data
stays until `finish`, since its `on_end` may read it; all other data goes when its session has ended.
"""

from __future__ import annotations

from sqlite3 import Connection
from typing import Final

from ..data import Shelf
from ..errors import DataGone
from .rules import added, check_size, size_of

Item = tuple[bytes | None, float | None]
"""A value's JSON, and when its time is over; None and None where there is none."""

_ENDED: Final = """
    SELECT EXISTS (SELECT 1 FROM revoked WHERE ref = ?1)
        OR EXISTS (SELECT 1 FROM records WHERE ref = ?1 AND reason IS NOT NULL)
"""
_ROWS_AT_ONCE: Final = 200  # that one sweep deletes of a table
_SHELVES_AT_ONCE: Final = 20  # of which each has many rows
_FORGET: Final = (
    "DELETE FROM revoked WHERE ref IN (SELECT ref FROM revoked WHERE expires_at <= ? LIMIT ?)",
    """DELETE FROM cut_offs WHERE (subject, audience) IN (
        SELECT subject, audience FROM cut_offs WHERE until <= ? LIMIT ?
    )""",
)


def read(connection: Connection, owner: str, key: str, now: float) -> Item:
    """A value and its end."""
    row: Item | None = connection.execute(
        "SELECT value, expires_at FROM items WHERE owner = ? AND key = ? AND (expires_at IS NULL OR expires_at > ?)",
        (owner, key, now),
    ).fetchone()
    return (None, None) if row is None else row


def write(connection: Connection, shelf: Shelf, key: str, item: Item, *, leeway: float, now: float) -> None:
    """Keep a value, or none."""
    _begin(connection, shelf, leeway=leeway, now=now)
    _keep(connection, shelf, key, item, now)


def swap(
    connection: Connection, shelf: Shelf, key: str, old: bytes | None, new: bytes | None, *, leeway: float, now: float
) -> bool:
    """Replace a value if it is still the old one; whether it was."""
    _begin(connection, shelf, leeway=leeway, now=now)
    value, expires_at = read(connection, shelf.owner, key, now)
    if value != old:
        return False
    _keep(connection, shelf, key, (new, expires_at), now)
    return True


def add(connection: Connection, shelf: Shelf, key: str, by: int, *, leeway: float, now: float) -> int:
    """Add to a value; the sum."""
    _begin(connection, shelf, leeway=leeway, now=now)
    value, expires_at = read(connection, shelf.owner, key, now)
    total = added(value, by)
    _keep(connection, shelf, key, (b"%d" % total, expires_at), now)
    return total


def copy(connection: Connection, shelf: Shelf, target: Shelf, *, leeway: float, now: float) -> None:
    """Put what lies on a shelf onto a new one."""
    _begin(connection, target, leeway=leeway, now=now)
    rows = connection.execute(
        "SELECT key, value, expires_at FROM items WHERE owner = ? AND (expires_at IS NULL OR expires_at > ?)",
        (shelf.owner, now),
    )
    for key, *item in rows.fetchall():
        _keep(connection, target, key, (item[0], item[1]), now)


def _begin(connection: Connection, shelf: Shelf, *, leeway: float, now: float) -> None:
    """Refuse where the session has ended; else drop what counts for nothing."""
    ended = connection.execute(_ENDED, (shelf.owner,)).fetchone()[0]
    if ended or shelf.until + leeway <= now:
        raise DataGone("the session has ended; its data can no longer be changed")
    connection.execute("DELETE FROM items WHERE owner = ? AND expires_at <= ?", (shelf.owner, now))


def _keep(connection: Connection, shelf: Shelf, key: str, item: Item, now: float) -> None:
    value, expires_at = item
    connection.execute("DELETE FROM items WHERE owner = ? AND key = ?", (shelf.owner, key))
    if value is None or (expires_at is not None and not now < expires_at):
        return
    others = connection.execute(
        "SELECT total(length(CAST(key AS BLOB)) + length(value)) FROM items WHERE owner = ?", (shelf.owner,)
    ).fetchone()[0]
    check_size(shelf, int(others) + size_of(key, value))
    connection.execute(
        "INSERT OR IGNORE INTO shelves SELECT ?1, iif(EXISTS (SELECT 1 FROM records WHERE ref = ?1), NULL, ?2)",
        (shelf.owner, shelf.until),
    )
    connection.execute("INSERT INTO items VALUES (?, ?, ?, ?)", (shelf.owner, key, value, expires_at))


def sweep(connection: Connection, over: float) -> bool:
    """Delete some of what ended by a moment, Unix seconds; whether there may be more."""
    counts = [connection.execute(forget, (over, _ROWS_AT_ONCE)).rowcount for forget in _FORGET]
    shelves = connection.execute("SELECT owner FROM shelves WHERE until <= ? LIMIT ?", (over, _SHELVES_AT_ONCE))
    owners = shelves.fetchall()
    for table in ("items", "shelves"):
        connection.executemany(f"DELETE FROM {table} WHERE owner = ?", owners)  # noqa: S608  # names from above
    return _ROWS_AT_ONCE in counts or len(owners) == _SHELVES_AT_ONCE

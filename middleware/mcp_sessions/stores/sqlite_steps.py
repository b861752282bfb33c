"""What a SQLite store reads and changes of sessions, one function for each step.

Each runs within one transaction, at a time that is passed in, and knows neither threads nor files. The
rules are those of `stores/base.py`: what was ended stays ended, and what is not known for certain is lost.
"""

from __future__ import annotations

from dataclasses import astuple
from sqlite3 import Connection
from typing import Final

from ..tokens import Claims
from .base import Ended, Record, Standing
from .rules import idle_at, is_due_again, seen_by

EVERYBODY: Final = ""  # no subject: a keyed hash is never empty

_STANDING: Final = """
    SELECT EXISTS (SELECT 1 FROM revoked WHERE ref = :ref)
        OR EXISTS (
            SELECT 1 FROM cut_offs WHERE subject IN ('', :subject) AND audience = :audience AND moment > :issued_at
        ),
    (SELECT value FROM facts WHERE name = 'fence')
"""
_RECORD: Final = (
    "SELECT ref, subject, created_at, expires_at, CAST(seen_at AS INTEGER), root, trace, audience, reason "
    "FROM records AS kept "
)
_ALIVE: Final = """
    WHERE reason IS NULL AND expires_at > :now
        AND NOT EXISTS (SELECT 1 FROM revoked WHERE ref = kept.ref)
        AND NOT EXISTS (
            SELECT 1 FROM cut_offs
            WHERE subject IN ('', ifnull(kept.subject, '')) AND audience = kept.audience AND moment > kept.created_at
        )
"""
_ENDED: Final = (
    # Whose `on_end` is to be run, and why if that is not on record: an expired session counts as that, even if idle.
    ("WHERE reason IS NOT NULL AND audience = :audience AND lease_until <= :now ORDER BY lease_until LIMIT :limit", ""),
    (
        "WHERE reason IS NULL AND audience = :audience AND expires_at <= :now ORDER BY expires_at LIMIT :limit",
        "expired",
    ),
    ("WHERE reason IS NULL AND audience = :audience AND seen_at <= :seen_by ORDER BY seen_at LIMIT :limit", "idle"),
)


def standing(connection: Connection, claims: Claims, *, fenced: bool) -> Standing:
    """Whether a session was ended, or, where that is asked, was issued before the fence."""
    ended, fence = connection.execute(
        _STANDING,
        {
            "ref": claims.ref,
            "subject": claims.subject or EVERYBODY,
            "audience": claims.audience,
            "issued_at": claims.issued_at,
        },
    ).fetchone()
    if ended:
        return Standing.ENDED
    known = not fenced or (fence is not None and fence <= claims.issued_at)
    return Standing.LIVE if known else Standing.LOST


def seen(
    connection: Connection, claims: Claims, *, idle_timeout: int | None, fenced: bool, now: float
) -> tuple[Standing, bool]:
    """As `standing`, of a recorded session, and whether this use of it must be noted."""
    general = standing(connection, claims, fenced=fenced)
    if general is not Standing.LIVE:
        return general, False
    row = connection.execute("SELECT seen_at, reason FROM records WHERE ref = ?", (claims.ref,)).fetchone()
    if row is None:
        return Standing.LOST, False
    seen_at, reason = row
    if reason is not None:
        return Standing.ENDED, False
    if now < idle_at(seen_at, idle_timeout):
        return Standing.LIVE, is_due_again(seen_at, now, idle_timeout)
    return Standing.IDLE, False


def note(connection: Connection, ref: str, now: float) -> None:
    """A session was used."""
    connection.execute("UPDATE records SET seen_at = max(seen_at, ?) WHERE ref = ?", (now, ref))


def revoke(connection: Connection, ref: str, *, expires_at: int, reason: str, lease_until: float) -> bool:
    """End a session by its name; whether this did it."""
    row = connection.execute("SELECT reason FROM records WHERE ref = ?", (ref,)).fetchone()
    if row is not None and row[0] is not None:
        return False
    new = connection.execute("INSERT OR IGNORE INTO revoked VALUES (?, ?)", (ref, expires_at)).rowcount == 1
    if new:
        _lease(connection, ref, reason, lease_until)
    return new


def revoke_before(connection: Connection, moment: int, *, audience: str, subject: str, until: int) -> None:
    """End what was issued before a moment; of several the latest counts."""
    connection.execute(
        "INSERT INTO cut_offs VALUES (?, ?, ?, ?) ON CONFLICT (subject, audience) DO UPDATE "
        "SET moment = max(moment, excluded.moment), until = max(until, excluded.until)",
        (subject, audience, moment, until),
    )


def record(connection: Connection, noted: Record) -> None:
    """Note a session; one that is known already, or was revoked, stays as it is."""
    connection.execute(
        "INSERT OR IGNORE INTO records SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, NULL, NULL "
        "WHERE NOT EXISTS (SELECT 1 FROM revoked WHERE ref = ?1)",
        astuple(noted),
    )
    connection.execute("UPDATE shelves SET until = NULL WHERE owner = ?", (noted.ref,))


def sessions(connection: Connection, subject: str, audience: str, now: float) -> list[Record]:
    """A principal's sessions that have not ended, oldest first."""
    return _listed(connection, "subject = :subject AND audience = :audience", now, subject=subject, audience=audience)


def forks(connection: Connection, root: str, now: float) -> list[Record]:
    """A lineage's forks that have not ended, oldest first."""
    return _listed(connection, "root = :root", now, root=root)


def _listed(connection: Connection, which: str, now: float, **of: str) -> list[Record]:
    rows = connection.execute(f"{_RECORD} {_ALIVE} AND {which} ORDER BY created_at, ref", {"now": now, **of})
    return [Record(*kept) for *kept, _ in rows]


def find(connection: Connection, ref: str, now: float) -> Record | None:
    """A session that has not ended."""
    row = connection.execute(f"{_RECORD} {_ALIVE} AND ref = :ref", {"now": now, "ref": ref}).fetchone()
    return None if row is None else Record(*row[:-1])


def take_ended(
    connection: Connection, *, audience: str, idle_timeout: int | None, lease: float, limit: int, now: float
) -> list[Ended]:
    """Sessions that ended and whose `on_end` is the caller's to run: ended for good, and leased."""
    taken: list[Ended] = []
    for where, why in _ENDED:
        bounds = {
            "audience": audience,
            "now": now,
            "seen_by": seen_by(now, idle_timeout),
            "limit": limit - len(taken),
        }
        for *kept, reason in connection.execute(_RECORD + where, bounds).fetchall():
            ended = Ended(Record(*kept), reason or why)
            connection.execute(
                "INSERT OR IGNORE INTO revoked VALUES (?, ?)", (ended.record.ref, ended.record.expires_at)
            )
            _lease(connection, ended.record.ref, ended.reason, now + lease)
            taken.append(ended)
    return taken


def _lease(connection: Connection, ref: str, reason: str, until: float) -> None:
    connection.execute("UPDATE records SET reason = ?, lease_until = ? WHERE ref = ?", (reason, until, ref))


def finish(connection: Connection, ref: str) -> None:
    """Forget a session's record and its data."""
    for table, column in (("records", "ref"), ("shelves", "owner"), ("items", "owner")):
        connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (ref,))  # noqa: S608  # names from above


def lead(connection: Connection, worker: str, *, audience: str, until: float, now: float) -> bool:
    """Whether a worker leads from now on, of those that sweep for an audience."""
    changed = connection.execute(
        "INSERT INTO leaders VALUES (:audience, :worker, :until) ON CONFLICT (audience) DO UPDATE "
        "SET worker = :worker, until = :until WHERE worker = :worker OR until <= :now",
        {"audience": audience, "worker": worker, "until": until, "now": now},
    )
    return changed.rowcount == 1

"""The tables of a SQLite store, and the contract's methods in SQL.

A file says what it is (`application_id`), in which version (`user_version`) and since when it has forgotten nothing
(its epoch). Several processes may find a new file at once: one makes the tables, in one transaction, and the others
see them. A file that is not ours is refused untouched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from sqlite3 import Connection
from typing import Final

from .._errors import ConfigurationError
from .._refusals import refusal
from .._session.claims import Claims
from .._session.data import Namespace
from . import _base as base
from ._base import FIRST, LIVE, VALUE_COST, Ended, Position, Record, Standing
from ._sql import Item, SQLTransaction

APPLICATION_ID: Final = 0x6D637073  # "mcps"
VERSION: Final = 6
"""1 knew no audiences, 2 did not move the counters beside the file, 3 and 4 did not count for all, or not fast."""

_COST: Final = f"(length(CAST({{0}}.key AS BLOB)) + length({{0}}.value) + {VALUE_COST})"
# Recorded sessions without a principal, by the hour of their beginning, as those that were cut off do not count.
_COUNTED: Final = """CREATE TRIGGER records_{name} AFTER {what} ON records WHEN {row}.subject IS NULL BEGIN
        INSERT OR IGNORE INTO anonymous VALUES ({row}.audience, CAST({row}.created_at / 3600 AS INTEGER), 0);
        UPDATE anonymous SET sessions = sessions {by}
            WHERE audience = {row}.audience AND hour = CAST({row}.created_at / 3600 AS INTEGER);
        DELETE FROM anonymous
            WHERE audience = {row}.audience AND hour = CAST({row}.created_at / 3600 AS INTEGER) AND sessions = 0;
    END"""
_TABLES: Final = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE revoked (ref TEXT PRIMARY KEY, expires_at INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX revoked_ends ON revoked (expires_at)",
    # A cut-off of all principals has the subject ''.
    """CREATE TABLE cut_offs (
        subject TEXT NOT NULL, audience TEXT NOT NULL, moment REAL NOT NULL, until INTEGER NOT NULL,
        PRIMARY KEY (subject, audience)
    ) WITHOUT ROWID""",
    "CREATE INDEX cut_offs_ends ON cut_offs (until)",
    """CREATE TABLE records (
        ref TEXT PRIMARY KEY, subject TEXT, created_at REAL NOT NULL, expires_at INTEGER NOT NULL,
        seen_at REAL NOT NULL, trace TEXT, audience TEXT NOT NULL, parts TEXT, reason TEXT, lease_until REAL
    ) WITHOUT ROWID""",
    # With the reason, though it is NULL: else SQLite looks into each row that it counts, for 3 us instead of 0.1.
    """CREATE INDEX records_of ON records (subject, audience, created_at, ref, reason)
        WHERE subject IS NOT NULL AND reason IS NULL""",
    "CREATE INDEX records_ends ON records (audience, expires_at) WHERE reason IS NULL",
    "CREATE INDEX records_seen ON records (audience, seen_at) WHERE reason IS NULL",
    "CREATE INDEX records_leases ON records (audience, lease_until) WHERE reason IS NOT NULL",
    """CREATE TABLE anonymous (
        audience TEXT NOT NULL, hour INTEGER NOT NULL, sessions INTEGER NOT NULL, PRIMARY KEY (audience, hour)
    ) WITHOUT ROWID""",
    _COUNTED.format(name="in", what="INSERT", row="new", by="+ 1"),
    _COUNTED.format(name="out", what="DELETE", row="old", by="- 1"),
    # Namespaces. A recorded session's data stays until it is purged: its `until` is NULL, which no sweep finds.
    "CREATE TABLE shelves (owner TEXT PRIMARY KEY, until INTEGER, subject TEXT) WITHOUT ROWID",
    "CREATE INDEX shelves_ends ON shelves (until) WHERE until IS NOT NULL",
    """CREATE TABLE items (
        owner TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, expires_at REAL, PRIMARY KEY (owner, key)
    ) WITHOUT ROWID""",
    # What the data of a principal takes: the triggers see every way in which an item comes or goes.
    "CREATE TABLE accounts (subject TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID",
    f"""CREATE TRIGGER items_in AFTER INSERT ON items BEGIN
        INSERT INTO accounts SELECT subject, {_COST.format("new")} FROM shelves
            WHERE owner = new.owner AND subject IS NOT NULL
            ON CONFLICT (subject) DO UPDATE SET bytes = bytes + excluded.bytes;
    END""",  # from above
    f"""CREATE TRIGGER items_out AFTER DELETE ON items BEGIN
        UPDATE accounts SET bytes = bytes - {_COST.format("old")}
            WHERE subject = (SELECT subject FROM shelves WHERE owner = old.owner);
        DELETE FROM accounts WHERE bytes <= 0
            AND subject = (SELECT subject FROM shelves WHERE owner = old.owner);
    END""",  # from above
    "CREATE TABLE leaders (audience TEXT PRIMARY KEY, worker TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID",
)
# One statement, which sees one moment: between two of them another process may make the tables.
_OWNER: Final = """SELECT application_id, user_version, NOT EXISTS (SELECT 1 FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version"""


def check(connection: Connection) -> bool:
    """Return whether the tables are there; refuse with `ConfigurationError` a file that is not ours to write."""
    application, version, empty = connection.execute(_OWNER).fetchone()
    if application == APPLICATION_ID and version != VERSION:
        age, remedy = ("a newer", "install that version, or ") if version > VERSION else ("an older", "")
        raise ConfigurationError(
            f"the SQLite file was written by {age} version (it has format {version}, this one knows {VERSION}); "
            f"{remedy}give another path"
        )
    if application != APPLICATION_ID and not (application == 0 and version == 0 and empty):
        raise ConfigurationError("the SQLite file belongs to another program; give the path of a file of its own")
    return bool(application == APPLICATION_ID)


def create(connection: Connection, *, epoch: int) -> bool:
    """Make the tables where there are none, in a transaction that has begun to write; whether this call made them."""
    if check(connection):  # made by another process, just now
        return False
    for table in _TABLES:
        connection.execute(table)
    raise_epoch(connection, epoch)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    return True


def epoch_of(connection: Connection) -> int:
    """Return since when the file has forgotten nothing, Unix seconds."""
    return int(connection.execute("SELECT value FROM facts WHERE name = 'fence'").fetchone()[0])


def raise_epoch(connection: Connection, moment: int) -> None:
    """Vouch for no session issued before a moment."""
    sql = "INSERT INTO facts VALUES ('fence', ?) ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)"
    connection.execute(sql, (moment,))
    connection.execute(f"DELETE FROM facts WHERE {_IS_ADMITTED}")


_ADMITTED: Final = "admitted "  # begins the names of facts about sessions of the epoch's own second
_IS_ADMITTED: Final = "name > 'admitted ' AND name < 'admitted!'"
_IS_CUT_OFF: Final = """EXISTS (
        SELECT 1 FROM cut_offs
        WHERE subject IN ('', {subject}) AND audience = {audience} AND moment > {issued_at}
    )"""
_STATUS: Final = f"""
    SELECT EXISTS (SELECT 1 FROM revoked WHERE ref = ?1)
        OR {_IS_CUT_OFF.format(subject="?2", audience="?3", issued_at="?4")},
    (
        SELECT value <= ?4 OR EXISTS (SELECT 1 FROM facts WHERE name = '{_ADMITTED}' || ?1)
        FROM facts WHERE name = 'fence'
    )
"""
_RECORD: Final = """
    SELECT ref, subject, created_at, expires_at, CAST(seen_at AS INTEGER), trace, audience, parts, reason
    FROM records AS kept
"""
_ALIVE: Final = f"""
    {_RECORD} WHERE reason IS NULL AND expires_at > ? AND NOT EXISTS (SELECT 1 FROM revoked WHERE ref = kept.ref)
"""
_NOT_CUT_OFF: Final = "NOT " + _IS_CUT_OFF.format(
    subject="ifnull(kept.subject, '')", audience="kept.audience", issued_at="kept.created_at"
)
_CUT_OFF: Final = "SELECT ifnull(max(moment), 0) FROM cut_offs WHERE subject IN ('', ?) AND audience = ?"
_COUNT: Final = "SELECT count(*) FROM records WHERE audience = ? AND reason IS NULL AND expires_at > ?"
# Which `on_end` may be claimed, and why if that is not on record: an expired session counts as that, even if idle.
_CLAIMABLE: Final = {
    why: f"{_RECORD} WHERE reason IS {reason} AND audience = :audience AND {moment} ORDER BY {by} LIMIT :limit"
    for why, reason, by, moment in (
        ("", "NOT NULL", "lease_until", "lease_until <= :now"),
        ("expired", "NULL", "expires_at", "expires_at <= :now"),
        ("idle", "NULL", "seen_at", "seen_at <= :seen_by"),
    )
}
# The offset makes SQLite step over so many entries of an index, and look into no row.
_HAS_MANY: Final = """
    SELECT 1 FROM records WHERE subject = ? AND audience = ? AND reason IS NULL AND created_at >= ?
        AND NOT EXISTS (SELECT 1 FROM records WHERE ref = ?) LIMIT 1 OFFSET max(0, ? - 1)
"""
_HAS_MANY_ANONYMOUS: Final = """
    SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM records WHERE ref = ?3)
        AND (SELECT total(sessions) FROM anonymous WHERE audience = ?1 AND hour >= CAST(?2 / 3600 AS INTEGER)) >= ?4
"""
_FILLING: Final = """
    SELECT (SELECT count(*) FROM records), (SELECT ifnull(max(of_one), 0) FROM (
            SELECT count(*) AS of_one FROM records WHERE subject IS NOT NULL AND reason IS NULL GROUP BY subject
        )), (SELECT CAST(total(length(value)) AS INTEGER) FROM items), (SELECT ifnull(max(bytes), 0) FROM accounts)
"""
_ACCOUNT: Final = "SELECT bytes FROM accounts WHERE subject = (SELECT subject FROM shelves WHERE owner = ?)"
_ITEMS: Final = "SELECT key, value, expires_at FROM items WHERE owner = ? AND (expires_at IS NULL OR expires_at > ?)"
_OTHERS: Final = "SELECT total(length(CAST(key AS BLOB)) + length(value)) FROM items WHERE owner = ? AND key <> ?"
_ELECT: Final = """
    INSERT INTO leaders VALUES (?1, ?2, ?3)
    ON CONFLICT (audience) DO UPDATE SET worker = ?2, until = ?3 WHERE worker = ?2 OR until <= ?4
"""
_DATA_GONE: Final = """
    SELECT EXISTS (SELECT 1 FROM revoked WHERE ref = ?1)
        OR EXISTS (SELECT 1 FROM records WHERE ref = ?1 AND reason IS NOT NULL)
"""
_FORGET: Final = (
    f"DELETE FROM facts WHERE name IN (SELECT name FROM facts WHERE {_IS_ADMITTED} AND value <= ? LIMIT ?)",
    "DELETE FROM revoked WHERE ref IN (SELECT ref FROM revoked WHERE expires_at <= ? LIMIT ?)",
    """DELETE FROM cut_offs WHERE (subject, audience) IN (
        SELECT subject, audience FROM cut_offs WHERE until <= ? LIMIT ?
    )""",
)
_OF_ONE: Final = (("records", "ref"), ("items", "owner"), ("shelves", "owner"))  # where items are counted
_ROWS_OF_ONE: Final = 10  # that a session may have in a table, where a sweep deletes whole sessions


class Transaction(SQLTransaction):
    """The contract's methods in SQL, within one transaction and at one moment.

    A recorded session's data stays until `purge`, since its `on_end` may read it; other data goes with its session.
    """

    def __init__(
        self,
        leeway: float,
        vouches_always: bool,
        connection: Connection,
        now: float,
        *,
        move: Callable[[str | None], object],
    ) -> None:
        """`move` is called before anything is changed that ends sessions: of a `ref`, of a subject, or None for all."""
        super().__init__(leeway, vouches_always)
        self.now = now
        self._execute = connection.execute
        self._move = move

    def status(self, claims: Claims) -> Standing:
        of = (claims.ref, claims.subject or "", claims.audience, claims.issued_at)
        return self._standing(*self._execute(_STATUS, of).fetchone())

    def admit(self, claims: Claims) -> None:
        self._execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (_ADMITTED + claims.ref, claims.expires_at))

    def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        return [self.status(one) for one in claims]

    def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:  # noqa: ARG002  # a record knows it
        row = self._execute("SELECT reason FROM records WHERE ref = ?", (ref,)).fetchone()
        if row is not None and row[0] is not None:
            return False
        new = self._revoke(ref, expires_at)
        if new:
            self._lease(ref, reason, lease)
        return new

    def revoke_before(self, moment: float, *, audience: str, subject: str | None, until: int) -> None:
        self._move(subject)
        self._execute(
            "INSERT INTO cut_offs VALUES (?, ?, ?, ?) ON CONFLICT (subject, audience) DO UPDATE "
            "SET moment = max(moment, excluded.moment), until = max(until, excluded.until)",
            (subject or "", audience, moment, until),
        )

    def register(self, record: Record, *, of_subject: int | None = None) -> None:
        if of_subject is not None:
            (moment,) = self._execute(_CUT_OFF, (record.subject or "", record.audience)).fetchone()
            crowd: tuple[str | float, ...] = (record.audience, moment, record.ref, of_subject)
            sql = _HAS_MANY_ANONYMOUS
            if record.subject is not None:
                sql, crowd = _HAS_MANY, (record.subject, *crowd)
            if self._execute(sql, crowd).fetchone():
                raise refusal("sessions_full")
        self._execute(
            "INSERT OR IGNORE INTO records SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, NULL, NULL "
            "WHERE NOT EXISTS (SELECT 1 FROM revoked WHERE ref = ?1)",
            astuple(record),
        )
        self._execute("UPDATE shelves SET until = NULL WHERE owner = ?", (record.ref,))

    def look(self, claims: Claims, *, idle_timeout: int | None) -> tuple[Standing, float]:
        """Return a recorded session's status, and from when on a use of it must be noted, Unix seconds."""
        row = self._execute("SELECT seen_at, reason FROM records WHERE ref = ?", (claims.ref,)).fetchone()
        seen_at, reason = row or (None, None)
        general = self.status(claims)
        known = Standing.ENDED if general is LIVE and reason is not None else general
        standing = base.standing_in_use(known, seen_at, self.now, idle_timeout)
        return standing, (math.inf if standing is not LIVE else row[0] + base.resolution(idle_timeout))

    def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        standing, _ = self.look(claims, idle_timeout=idle_timeout)
        if standing is LIVE:
            self._execute("UPDATE records SET seen_at = max(seen_at, ?) WHERE ref = ?", (self.now, claims.ref))
        return standing

    def sessions(
        self, subject: str, *, audience: str, after: Position = FIRST, limit: int | None = None, cut_off: bool = False
    ) -> list[Record]:
        which = "subject = ? AND audience = ? AND (created_at, ref) > (?, ?)"
        if cut_off:
            return self._alive(which, subject, audience, *after, limit=limit)
        (moment,) = self._execute(_CUT_OFF, (subject, audience)).fetchone()
        after = max(after, (moment, ""))  # what comes before need not be read
        return self._alive(f"{which} AND {_NOT_CUT_OFF}", subject, audience, *after, limit=limit)

    def find(self, ref: str) -> Record | None:
        return next(iter(self._alive(f"ref = ? AND {_NOT_CUT_OFF}", ref)), None)

    def roster(self, *, audience: str, cursor: str = "", limit: int) -> tuple[list[Record], str]:
        which = f"audience = ? AND ref > ? AND {_NOT_CUT_OFF}"
        found = self._alive(which, audience, cursor, limit=limit, order="ref")
        return found, found[-1].ref if len(found) == limit else ""

    def count(self, *, audience: str) -> int:
        (moment,) = self._execute(_CUT_OFF, ("", audience)).fetchone()
        since = f" AND created_at >= {moment}" if moment else ""  # for which each row has to be read
        (count,) = self._execute(_COUNT + since, (audience, self.now)).fetchone()
        return int(count)

    def _alive(
        self, which: str, *values: str | float, limit: int | None = None, order: str = "created_at, ref"
    ) -> list[Record]:
        sql = f"{_ALIVE} AND {which} ORDER BY {order} LIMIT ?"
        rows = self._execute(sql, (self.now, *values, -1 if limit is None else limit))
        return [Record(*kept) for *kept, _ in rows]

    def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        taken: list[Ended] = []
        bounds = {"audience": audience, "now": self.now, "seen_by": base.idle_since(self.now, idle_timeout)}
        for why, sql in _CLAIMABLE.items():
            for *kept, reason in self._execute(sql, {**bounds, "limit": limit - len(taken)}).fetchall():
                ended = Ended(Record(*kept), reason or why)
                self._revoke(ended.record.ref, ended.record.expires_at)
                self._lease(ended.record.ref, ended.reason, lease)
                taken.append(ended)
        return taken

    def _revoke(self, ref: str, expires_at: int) -> bool:
        self._move(ref)
        return self._execute("INSERT OR IGNORE INTO revoked VALUES (?, ?)", (ref, expires_at)).rowcount == 1

    def _lease(self, ref: str, reason: str, lease: float) -> None:
        self._execute("UPDATE records SET reason = ?, lease_until = ? WHERE ref = ?", (reason, self.now + lease, ref))

    def purge(self, *refs: str) -> None:
        for ref in refs:
            self._move(ref)
            for table, column in _OF_ONE:
                self._execute(f"DELETE FROM {table} WHERE {column} = ?", (ref,))

    def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        values = (audience, worker, self.now + seconds, self.now)
        return self._execute(_ELECT, values).rowcount == 1

    def read(self, namespace: Namespace, key: str) -> bytes | None:
        return self._found(namespace, key)[0]

    def copy(self, namespace: Namespace, target: Namespace) -> None:
        self._prepare(target)
        for key, value, expires_at in self._execute(_ITEMS, (namespace.owner, self.now)).fetchall():
            self._save(self._item(target, key), value, expires_at)

    @contextmanager
    def _changing(self, namespace: Namespace, key: str) -> Iterator[Item]:
        self._prepare(namespace)
        yield self._item(namespace, key)

    def _prepare(self, namespace: Namespace) -> None:
        """Refuse where the session has ended; else drop what is over."""
        has_ended = self._execute(_DATA_GONE, (namespace.owner,)).fetchone()[0]
        base.check_changeable(namespace, self.now, self._leeway, has_ended=has_ended)
        self._execute("DELETE FROM items WHERE owner = ? AND expires_at <= ?", (namespace.owner, self.now))

    def _found(self, namespace: Namespace, key: str) -> tuple[bytes | None, float | None]:
        row = self._execute(_ITEMS + " AND key = ?", (namespace.owner, self.now, key)).fetchone()
        return row[1:] if row else (None, None)

    def _item(self, namespace: Namespace, key: str) -> Item:
        (others,) = self._execute(_OTHERS, (namespace.owner, key)).fetchone()
        return Item(namespace, key, *self._found(namespace, key), int(others))

    def _replace(self, item: Item, value: bytes | None, expires_at: float | None) -> None:
        owner, until, subject = item.namespace.owner, item.namespace.until, item.namespace.subject
        before = self._account(owner)
        self._execute("DELETE FROM items WHERE owner = ? AND key = ?", (owner, item.key))
        if value is not None:
            is_recorded = "EXISTS (SELECT 1 FROM records WHERE ref = ?1)"
            sql = f"INSERT OR IGNORE INTO shelves SELECT ?1, iif({is_recorded}, NULL, ?2), ?3"
            self._execute(sql, (owner, until, subject))
            self._execute("INSERT INTO items VALUES (?, ?, ?, ?)", (owner, item.key, value, expires_at))
            base.check_principal(item.namespace, before, self._account(owner) - before)

    def filling(self) -> base.Filling:
        return base.Filling(*self._execute(_FILLING).fetchone())

    def _account(self, owner: str) -> int:
        """Return the bytes of all data of a session's principal."""
        found = self._execute(_ACCOUNT, (owner,)).fetchone()
        return 0 if found is None else int(found[0])


def sweep(connection: Connection, now: float, rows: int, *, leeway: float) -> bool:
    """Delete so many rows of each table that are over by the leeway, and return whether there may be more."""
    over = now - leeway
    counts = [connection.execute(forget, (over, rows)).rowcount for forget in _FORGET]
    ended, at_once = "SELECT owner FROM shelves WHERE until <= ? LIMIT ?", max(1, rows // _ROWS_OF_ONE)
    owners = connection.execute(ended, (over, at_once)).fetchall()
    for table in ("items", "shelves"):
        connection.executemany(f"DELETE FROM {table} WHERE owner = ?", owners)
    return rows in counts or len(owners) == at_once

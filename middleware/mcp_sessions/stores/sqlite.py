"""What a SQLite store reads and changes of sessions, one function for each step.

Each runs within one transaction, at a time that is passed in, and knows neither threads nor files. The
rules are those of `stores/base.py`: what was ended stays ended, and what is not known for certain is lost.

What a SQLite store reads and changes of session data, and how it forgets what is over.

Each function is one step within one transaction, at a time that is passed in. A recorded session's data
stays until `finish`, since its `on_end` may read it; all other data goes when its session has ended.

A store in a file: for all processes of one machine, and through restarts.

What is said to be kept is on the disk. Reads and changes have a thread each, so that no request waits
for another's lock, and no call blocks the event loop. The file must lie on a local disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import astuple
from functools import partial
from os import PathLike
from sqlite3 import Connection
from typing import Final, Literal, TypeVar, get_args

from .._session.claims import Claims
from .._session.data import Namespace
from ..errors import ConfigurationError, DataGone
from .base import Ended, Reach, Record, Standing, added, check_size, idle_at, idle_since, is_touch_due, size_of
from .sqlite_file import Job, Lane, Setting, SQLiteFile, checked

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
_STATUS_ENDED: Final = (
    # Whose `on_end` is to be run, and why if that is not on record: an expired session counts as that, even if idle.
    ("WHERE reason IS NOT NULL AND audience = :audience AND lease_until <= :now ORDER BY lease_until LIMIT :limit", ""),
    (
        "WHERE reason IS NULL AND audience = :audience AND expires_at <= :now ORDER BY expires_at LIMIT :limit",
        "expired",
    ),
    ("WHERE reason IS NULL AND audience = :audience AND seen_at <= :seen_by ORDER BY seen_at LIMIT :limit", "idle"),
)


def status(connection: Connection, claims: Claims, *, fenced: bool) -> Standing:
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


def touch(
    connection: Connection, claims: Claims, *, idle_timeout: int | None, fenced: bool, now: float
) -> tuple[Standing, bool]:
    """As `standing`, of a recorded session, and whether this use of it must be noted."""
    general = status(connection, claims, fenced=fenced)
    if general is not Standing.LIVE:
        return general, False
    row = connection.execute("SELECT seen_at, reason FROM records WHERE ref = ?", (claims.ref,)).fetchone()
    if row is None:
        return Standing.LOST, False
    seen_at, reason = row
    if reason is not None:
        return Standing.ENDED, False
    if now < idle_at(seen_at, idle_timeout):
        return Standing.LIVE, is_touch_due(seen_at, now, idle_timeout)
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


def add_record(connection: Connection, noted: Record) -> None:
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


def claim_ended(
    connection: Connection, *, audience: str, idle_timeout: int | None, lease: float, limit: int, now: float
) -> list[Ended]:
    """Sessions that ended and whose `on_end` is the caller's to run: ended for good, and leased."""
    taken: list[Ended] = []
    for where, why in _STATUS_ENDED:
        bounds = {
            "audience": audience,
            "now": now,
            "seen_by": idle_since(now, idle_timeout),
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


def purge(connection: Connection, ref: str) -> None:
    """Forget a session's record and its data."""
    for table, column in (("records", "ref"), ("shelves", "owner"), ("items", "owner")):
        connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (ref,))  # noqa: S608  # names from above


def elect(connection: Connection, worker: str, *, audience: str, until: float, now: float) -> bool:
    """Whether a worker leads from now on, of those that sweep for an audience."""
    changed = connection.execute(
        "INSERT INTO leaders VALUES (:audience, :worker, :until) ON CONFLICT (audience) DO UPDATE "
        "SET worker = :worker, until = :until WHERE worker = :worker OR until <= :now",
        {"audience": audience, "worker": worker, "until": until, "now": now},
    )
    return changed.rowcount == 1


Item = tuple[bytes | None, float | None]
"""A value's JSON, and when its time is over; None and None where there is none."""

_DATA_ENDED: Final = """
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


def write(connection: Connection, shelf: Namespace, key: str, item: Item, *, leeway: float, now: float) -> None:
    """Keep a value, or none."""
    _begin(connection, shelf, leeway=leeway, now=now)
    _keep(connection, shelf, key, item, now)


def compare_and_swap(
    connection: Connection,
    shelf: Namespace,
    key: str,
    old: bytes | None,
    new: bytes | None,
    *,
    leeway: float,
    now: float,
) -> bool:
    """Replace a value if it is still the old one; whether it was."""
    _begin(connection, shelf, leeway=leeway, now=now)
    value, expires_at = read(connection, shelf.owner, key, now)
    if value != old:
        return False
    _keep(connection, shelf, key, (new, expires_at), now)
    return True


def add(connection: Connection, shelf: Namespace, key: str, by: int, *, leeway: float, now: float) -> int:
    """Add to a value; the sum."""
    _begin(connection, shelf, leeway=leeway, now=now)
    value, expires_at = read(connection, shelf.owner, key, now)
    total = added(value, by)
    _keep(connection, shelf, key, (b"%d" % total, expires_at), now)
    return total


def copy(connection: Connection, shelf: Namespace, target: Namespace, *, leeway: float, now: float) -> None:
    """Put what lies on a shelf onto a new one."""
    _begin(connection, target, leeway=leeway, now=now)
    rows = connection.execute(
        "SELECT key, value, expires_at FROM items WHERE owner = ? AND (expires_at IS NULL OR expires_at > ?)",
        (shelf.owner, now),
    )
    for key, *item in rows.fetchall():
        _keep(connection, target, key, (item[0], item[1]), now)


def _begin(connection: Connection, shelf: Namespace, *, leeway: float, now: float) -> None:
    """Refuse where the session has ended; else drop what counts for nothing."""
    ended = connection.execute(_DATA_ENDED, (shelf.owner,)).fetchone()[0]
    if ended or shelf.until + leeway <= now:
        raise DataGone("the session has ended; its data can no longer be changed")
    connection.execute("DELETE FROM items WHERE owner = ? AND expires_at <= ?", (shelf.owner, now))


def _keep(connection: Connection, shelf: Namespace, key: str, item: Item, now: float) -> None:
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


T = TypeVar("T")
Forgotten = Literal["refuse", "accept"]

_HOUR: Final = 3600  # seconds
_LEAST_BYTES: Final = 1 << 18


class SQLiteStore:
    """Sessions of one machine, in one file, with its log (`-wal`) and an index (`-shm`) beside it.

    A file that is made anew remembers nothing of what came before: a session that had been ended would work
    again. So sessions that were issued before it was made are refused (`Standing.LOST`), as if not found. That
    concerns you twice: **when you add this store to a deployment that has sessions, they end**, and when you
    delete the file, those end that it knew. `forgotten="accept"` is for who would rather let both in.

    The same holds for a file that is deleted or replaced while it is in use, which is noticed. A backup that is
    put back while nobody uses it is not: what was ended since then works again, so delete the file instead.
    Never delete the log or the index alone.

    The file and what is beside it can be read by its owner alone (mode 0600) where this made it. It does not
    shrink: the room of what is over is used again. In a process that forks, the child gets connections of its own.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        leeway: float = 60,  # seconds
        busy_timeout: float = 5,  # seconds
        max_bytes: int = 1 << 30,
        forgotten: Forgotten = "refuse",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Args:
            path: The file; its folder must exist. `~` is not expanded.
            leeway: Seconds for which what is kept outlives its token, for clocks that disagree.
            busy_timeout: Seconds to wait for a lock that another process holds.
            max_bytes: How large the file may grow. A full one refuses what is new, and evicts nothing.
            forgotten: What becomes of sessions that were issued before the file was made: `"refuse"` or `"accept"`.
            clock: Unix seconds; a test passes its own.

        Raises:
            ConfigurationError: An option is wrong, or the path cannot be one of a file; the message says the remedy.
        """
        if forgotten not in get_args(Forgotten):
            raise ConfigurationError(f"forgotten={forgotten!r} must be 'refuse' or 'accept'")
        if not leeway >= 0:
            raise ConfigurationError(f"leeway={leeway!r} must be a number of seconds, 0 or more")
        if not 0 < busy_timeout <= _HOUR:
            raise ConfigurationError(f"busy_timeout={busy_timeout!r} must be a number of seconds, more than 0")
        if not max_bytes >= _LEAST_BYTES:
            raise ConfigurationError(f"max_bytes={max_bytes!r} must be {_LEAST_BYTES} or more")
        self._fenced = forgotten == "refuse"
        self._leeway = leeway
        self._path = checked(path)
        setting = Setting(
            path=self._path,
            clock=clock,
            busy_timeout=busy_timeout,
            max_bytes=max_bytes,
            sweep=partial(_sweep, leeway),
        )
        self._reads = Lane("mcp-sessions-sqlite-reads", lambda: closing(SQLiteFile(setting)))
        self._changes = Lane("mcp-sessions-sqlite-changes", lambda: closing(SQLiteFile(setting)))

    @property
    def reach(self) -> Reach:
        """Every process that opens the same file."""
        return Reach.MACHINE

    async def open(self) -> None:
        """Open the file, make it where there is none, and delete what is over.

        Raises:
            ConfigurationError: The file is not one that we may write; the message says the remedy.
            StoreUnavailable: It cannot be opened now.
        """
        await self._changes.run(SQLiteFile.open)
        await self._reads.run(SQLiteFile.open)
        while await self._change(partial(_sweep, self._leeway)):
            """In small steps, between which other calls have their turn."""

    async def close(self) -> None:
        """Close the file, after what was asked of it so far. A later call would open it again."""
        for lane in (self._reads, self._changes):
            try:
                await lane.run(SQLiteFile.close)
            finally:
                lane.stop()

    async def _read(self, job: Job[T]) -> T:
        return await self._reads.run(lambda file: file.read(job))

    async def _change(self, job: Job[T]) -> T:
        asked_at = time.monotonic()
        return await self._changes.run(lambda file: file.change(job, asked_at=asked_at))

    # --- standing and revocation -------------------------------------------------------------

    async def status(self, claims: Claims) -> Standing:
        """Whether the session was ended, or cannot be vouched for."""
        return await self._read(lambda file, _: status(file, claims, fenced=self._fenced))

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        """As `standing`, for many."""
        return await self._read(lambda file, _: [status(file, one, fenced=self._fenced) for one in claims])

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:  # noqa: ARG002  # a record knows it
        """Keep a revocation until its token has expired."""
        return await self._change(
            lambda file, now: revoke(file, ref, expires_at=expires_at, reason=reason, lease_until=now + lease)
        )

    async def revoke_before(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        """Keep a cut-off until the last session that it concerns has expired."""
        cut = partial(revoke_before, audience=audience, subject=subject or EVERYBODY, until=until)
        await self._change(lambda file, _: cut(file, moment))

    # --- records -----------------------------------------------------------------------------

    async def register(self, record: Record) -> None:
        """Note a session; one that is known already, or was revoked, stays as it is."""
        await self._change(lambda file, _: add_record(file, record))

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        """Whether the session lives, and if so, that it was used now."""
        look = partial(touch, claims=claims, idle_timeout=idle_timeout, fenced=self._fenced)
        standing, due = await self._read(lambda file, now: look(file, now=now))
        return await self._change(partial(_note, look, claims.ref)) if due else standing

    async def sessions(self, subject: str, *, audience: str) -> list[Record]:
        """The records of a principal's sessions that have not ended, oldest first."""
        return await self._read(lambda file, now: sessions(file, subject, audience, now))

    async def forks(self, root: str) -> list[Record]:
        """The records of a lineage's forks that have not ended, oldest first."""
        return await self._read(lambda file, now: forks(file, root, now))

    async def find(self, ref: str) -> Record | None:
        """The record of a session that has not ended."""
        return await self._read(lambda file, now: find(file, ref, now))

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        """Records of sessions that ended and whose `on_end` is the caller's to run."""
        take = partial(claim_ended, audience=audience, idle_timeout=idle_timeout, lease=lease, limit=limit)
        return await self._change(lambda file, now: take(file, now=now))

    async def purge(self, ref: str) -> None:
        """Forget a record and the session's data."""
        await self._change(lambda file, _: purge(file, ref))

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        """Whether this worker leads."""
        lead = partial(elect, audience=audience)
        return await self._change(lambda file, now: lead(file, worker, until=now + seconds, now=now))

    # --- data --------------------------------------------------------------------------------

    async def read(self, shelf: Namespace, key: str) -> bytes | None:
        """A value's JSON, or None."""
        return await self._read(lambda file, now: read(file, shelf.owner, key, now)[0])

    async def write(self, shelf: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None) -> None:
        """Keep a value, or None to keep none."""
        item = (value, expires_at)
        await self._change(lambda file, now: write(file, shelf, key, item, leeway=self._leeway, now=now))

    async def compare_and_swap(self, shelf: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace a value if it is still the old one."""
        return await self._change(
            lambda file, now: compare_and_swap(file, shelf, key, old, new, leeway=self._leeway, now=now)
        )

    async def add(self, shelf: Namespace, key: str, by: int) -> int:
        """Add to a value."""
        return await self._change(lambda file, now: add(file, shelf, key, by, leeway=self._leeway, now=now))

    async def copy(self, shelf: Namespace, target: Namespace) -> None:
        """Put what lies on a shelf onto a new one."""
        await self._change(lambda file, now: copy(file, shelf, target, leeway=self._leeway, now=now))

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path}>"


def _note(look: Callable[..., tuple[Standing, bool]], ref: str, file: Connection, now: float) -> Standing:
    """Look again, since the session may have ended in between, and note that it was used."""
    standing, _ = look(file, now=now)
    if standing is Standing.LIVE:
        note(file, ref, now)
    return standing


def _sweep(leeway: float, file: Connection, now: float) -> bool:
    return sweep(file, now - leeway)

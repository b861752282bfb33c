"""The tables and statements of the SQL stores, in what SQLite and PostgreSQL have in common.

A row of `sessions` exists for what has a record (`created_at`), has ended (`reason`), has data (`bytes`) or began while
the store lost data (`at_epoch`). Values are `:name`; what differs is in braces, and each store's `Dialect` fills it in.
Changes of one session meet at its row, which each of them writes or locks first.

A table that was emptied must not read as "nothing has ended": `sessions` and `cutoffs` have a row each that marks them
as complete, and without both the store has no epoch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ._base import VALUE_COST, Record

FORMAT: Final = 8  # of the tables; a change of it needs an entry in `MIGRATIONS`
APPLICATION_ID: Final = 0x6D637073  # "mcps": tells a file of this package from others


class Dialect(NamedTuple):
    """The fragments in which databases differ."""

    sorted_text: str  # the type of text that is compared byte by byte
    blob: str  # the type of bytes
    asked: str  # the table of what `:asked` asks for, a JSON array of [ref, subject, audience]
    refs: str  # the names in `:refs`, a JSON array
    sum: str  # the sum of `old.value` and `:by` as JSON; NULL where they have none of 64 bits
    lock: str  # locks the rows of a query
    skip_locked: str  # locks the rows of a query that no other transaction has locked
    is_in: str  # with `end`, encloses a query to which a column is compared, which is to run once
    end: str
    lock_store: str  # waits until no other worker creates, upgrades or repairs the tables

    def render(self, text: str) -> str:
        """Return a statement of this file in this dialect."""
        for name, fragment in self._asdict().items():
            text = text.replace(f"{{{name}}}", fragment)
        return text


_RECORDED: Final = "created_at IS NOT NULL AND reason IS NULL"
_DUE_AT: Final = "coalesce(lease_until, expires_at)"  # an ended session is due for `on_end` when its lease ends
_DUE_INDEX: Final = f"CREATE INDEX sessions_due ON sessions (audience, {_DUE_AT}) WHERE created_at IS NOT NULL"
_EMPTY_INDEX: Final = "CREATE INDEX amounts_empty ON amounts (hour) WHERE amount <= 0"
_MARKERS: Final = (
    "INSERT INTO sessions (ref, expires_at, part) VALUES ('', 9223372036854775807, 0) ON CONFLICT (ref) DO NOTHING",
    """INSERT INTO cutoffs (audience, subject, cutoff_time, expires_at) VALUES ('', '', 0, 9223372036854775807)
        ON CONFLICT (audience, subject) DO NOTHING""",
)
TABLES: Final = (
    # SQLite counts `changes` to notice an older copy of its file; the other columns are of `MachineClock`.
    """CREATE TABLE store (
        format bigint NOT NULL, epoch double precision NOT NULL, changes bigint NOT NULL DEFAULT 0,
        boot {sorted_text}, ahead_of_steady double precision, confirmed_at double precision
    )""",
    """CREATE TABLE sessions (
        ref {sorted_text} NOT NULL PRIMARY KEY, audience {sorted_text}, subject {sorted_text},
        created_at double precision, expires_at bigint NOT NULL, seen_at double precision, trace {sorted_text},
        principal_hashes {sorted_text}, at_epoch double precision, reason {sorted_text}, lease_until double precision,
        token bigint, account {sorted_text}, part bigint NOT NULL, hour bigint, bytes bigint NOT NULL DEFAULT 0
    )""",
    f"CREATE INDEX sessions_of_all ON sessions (audience, created_at, ref) WHERE {_RECORDED}",
    f"CREATE INDEX sessions_of_one ON sessions (subject, audience, created_at, ref) WHERE {_RECORDED}",
    f"CREATE INDEX sessions_seen ON sessions (audience, seen_at) WHERE {_RECORDED}",
    _DUE_INDEX,
    "CREATE INDEX sessions_swept ON sessions (expires_at) WHERE created_at IS NULL",
    # A cutoff of all principals has the subject ''.
    """CREATE TABLE cutoffs (
        audience {sorted_text} NOT NULL, subject {sorted_text} NOT NULL, cutoff_time double precision NOT NULL,
        expires_at bigint NOT NULL, PRIMARY KEY (audience, subject)
    )""",
    "CREATE INDEX cutoffs_swept ON cutoffs (expires_at)",
    """CREATE TABLE items (
        owner {sorted_text} NOT NULL, key {blob} NOT NULL, value {blob} NOT NULL, expires_at double precision,
        PRIMARY KEY (owner, key)
    )""",
    # 'data ACCOUNT': bytes of the data of a principal in an audience. 'sessions AUDIENCE' and 'named AUDIENCE': the
    # recorded sessions without and with a principal, by the hour of their creation. In parts, so that transactions
    # seldom wait for each other's commits.
    """CREATE TABLE amounts (
        name {sorted_text} NOT NULL, hour bigint NOT NULL, part bigint NOT NULL, amount bigint NOT NULL,
        PRIMARY KEY (name, hour, part)
    )""",
    _EMPTY_INDEX,
    *_MARKERS,
)
MIGRATIONS: Final = {  # by the format before; each leads to the next
    7: (
        # Servers that know only the older format fail from here on: what they record would not be counted.
        "ALTER TABLE usage RENAME TO amounts",
        """INSERT INTO amounts (name, hour, part, amount) SELECT 'named ' || audience, hour, part, count(*)
            FROM sessions WHERE created_at IS NOT NULL AND subject IS NOT NULL GROUP BY audience, hour, part""",
        "DROP INDEX sessions_expiring",
        "DROP INDEX sessions_leased",
        _DUE_INDEX,
        _EMPTY_INDEX,
        "ALTER TABLE store ADD COLUMN changes bigint NOT NULL DEFAULT 0",
        "ALTER TABLE store ADD COLUMN boot {sorted_text}",
        "ALTER TABLE store ADD COLUMN ahead_of_steady double precision",
        "ALTER TABLE store ADD COLUMN confirmed_at double precision",
        *_MARKERS,
    ),
}
FOUND: Final = "INSERT INTO store (format, epoch) VALUES (:format, :epoch)"
FORMAT_OF: Final = "SELECT format FROM store"
_SET_FORMAT: Final = "UPDATE store SET format = :format"
RAISE_EPOCH: Final = "UPDATE store SET epoch = :epoch WHERE epoch < :epoch"
ANCHOR: Final = "SELECT boot, ahead_of_steady, confirmed_at FROM store"
SET_ANCHOR: Final = """
    UPDATE store SET boot = :boot, ahead_of_steady = :ahead_of_steady, confirmed_at = :confirmed_at
"""
_EPOCH: Final = """(SELECT epoch FROM store WHERE EXISTS (SELECT 1 FROM sessions WHERE ref = '')
    AND EXISTS (SELECT 1 FROM cutoffs WHERE audience = '' AND subject = ''))"""
REPAIR: Final = (
    "{lock_store}",  # another worker may have repaired the tables before
    f"DELETE FROM store WHERE {_EPOCH} IS NULL",
    "INSERT INTO store (format, epoch) SELECT :format, :epoch WHERE NOT EXISTS (SELECT 1 FROM store)",
    *_MARKERS,
)


UPGRADED: Final = (
    "upgraded the session store from format %d to %d (%s): all sessions go on; restart servers of the older version, "
    "which can create no more sessions"
)


def upgrade(found: int) -> list[str]:
    """Return the statements that lead from another format to the present one; none if that is not known."""
    if found not in MIGRATIONS:
        return []
    return [*(text for known in range(found, FORMAT) for text in MIGRATIONS[known]), _SET_FORMAT]


# --- revocations ----------------------------------------------------------------------------------

_CUTOFF: Final = """coalesce((
        SELECT max(cutoff_time) FROM cutoffs WHERE audience = {audience} AND subject IN ('', {subject})
    ), 0)"""


def _cutoff(audience: str, subject: str) -> str:
    return _CUTOFF.replace("{audience}", audience).replace("{subject}", subject)


def look_up(*, state: bool) -> str:
    """Return what finds the facts of sessions, for each name of their principals, and their states if asked for."""
    value = "(SELECT value FROM items WHERE owner = asked.ref AND key = :state_key)" if state else "NULL"
    return f"""
        SELECT kept.reason IS NOT NULL, {_cutoff("asked.audience", "asked.subject")},
            {_EPOCH}, coalesce(kept.at_epoch = (SELECT epoch FROM store), 1 = 0),
            CASE WHEN kept.created_at IS NOT NULL THEN kept.seen_at END, {value}
        FROM {{asked}} AS asked LEFT JOIN sessions AS kept ON kept.ref = asked.ref ORDER BY asked.place
    """


TOUCH: Final = """
    UPDATE sessions SET seen_at = :now WHERE ref IN {refs} AND created_at IS NOT NULL AND reason IS NULL
        AND seen_at <= :touched_by AND seen_at > :idle_since
"""
REGISTER_AT_EPOCH: Final = """
    INSERT INTO sessions (ref, expires_at, part, at_epoch) SELECT :ref, :expires_at, 0, epoch FROM store
        WHERE epoch > :issued_at
    ON CONFLICT (ref) DO UPDATE SET at_epoch = excluded.at_epoch
"""
REVOKE: Final = """
    INSERT INTO sessions (ref, audience, expires_at, part, reason, token)
        VALUES (:ref, :audience, :expires_at, :part, :reason, :token)
    ON CONFLICT (ref) DO UPDATE SET reason = excluded.reason, token = excluded.token, lease_until = :lease_until
        WHERE sessions.reason IS NULL
"""
IS_REVOKED_BY: Final = "SELECT 1 FROM sessions WHERE ref = :ref AND token = :token"
REVOKE_BEFORE: Final = """
    INSERT INTO cutoffs (audience, subject, cutoff_time, expires_at)
        VALUES (:audience, :subject, :cutoff_time, :expires_at)
    ON CONFLICT (audience, subject) DO UPDATE SET
        cutoff_time = CASE WHEN excluded.cutoff_time > cutoffs.cutoff_time
            THEN excluded.cutoff_time ELSE cutoffs.cutoff_time END,
        expires_at = CASE WHEN excluded.expires_at > cutoffs.expires_at
            THEN excluded.expires_at ELSE cutoffs.expires_at END
"""

# --- records --------------------------------------------------------------------------------------

_COUNT_ONE: Final = f"""(
    SELECT count(*) FROM (
        SELECT 1 FROM sessions WHERE subject = :subject AND audience = :audience AND {_RECORDED}
            AND created_at >= {_cutoff(":audience", ":subject")} LIMIT :max_sessions
    ) AS counted)"""
_COUNT_ANONYMOUS: Final = f"""(
    SELECT coalesce(sum(amount), 0) FROM amounts
        WHERE name = :usage AND hour > {_cutoff(":audience", "''")} / 3600 - 1)"""


def register(*, anonymous: bool, limited: bool) -> str:
    """Return what records a session, where there are not too many."""
    counted = _COUNT_ANONYMOUS if anonymous else _COUNT_ONE
    condition = f"{counted} < :max_sessions" if limited else "1 = 1"
    return f"""
        INSERT INTO sessions (ref, audience, subject, created_at, expires_at, seen_at, trace, principal_hashes,
            at_epoch, token, part, hour)
        SELECT :ref, :audience, :subject, :created_at, :expires_at, :seen_at, :trace, :principal_hashes,
            epoch, :token, :part, :hour FROM store WHERE {_EPOCH} IS NOT NULL AND {condition}
        ON CONFLICT (ref) DO UPDATE SET audience = excluded.audience, subject = excluded.subject,
            created_at = excluded.created_at, seen_at = excluded.seen_at, trace = excluded.trace,
            principal_hashes = excluded.principal_hashes, at_epoch = excluded.at_epoch, token = excluded.token,
            part = CASE WHEN sessions.bytes > 0 THEN sessions.part ELSE excluded.part END, hour = excluded.hour
            WHERE sessions.created_at IS NULL AND sessions.reason IS NULL
    """


COUNT_REGISTERED: Final = """
    INSERT INTO amounts (name, hour, part, amount) SELECT :usage, hour, part, 1 FROM sessions
        WHERE ref = :ref AND token = :token
    ON CONFLICT (name, hour, part) DO UPDATE SET amount = amounts.amount + 1
"""
IS_KNOWN: Final = f"""
    SELECT EXISTS (SELECT 1 FROM sessions WHERE ref = :ref AND (created_at IS NOT NULL OR reason IS NOT NULL)),
        {_EPOCH} IS NOT NULL
"""
_COLUMNS: Final = ", ".join(Record.__slots__)
_LIVE: Final = f"SELECT {_COLUMNS} FROM sessions AS kept WHERE {_RECORDED} AND expires_at > :now"
_NOT_CUT_OFF: Final = f"created_at >= {_cutoff('kept.audience', 'kept.subject')}"
GET: Final = f"{_LIVE} AND ref = :ref AND {_NOT_CUT_OFF}"


def list_sessions(*, of_one: bool, with_cut_off: bool) -> str:
    """Return what lists the sessions of an audience, or of one principal in it."""
    conditions = ["audience = :audience", "(created_at, ref) > (:after_time, :after_ref)"]
    if of_one:
        conditions.append("subject = :subject")
    if not with_cut_off:  # the first is the same for all rows, and begins the scan of an index
        conditions += [f"created_at >= {_cutoff(':audience', ':subject' if of_one else chr(39) * 2)}", _NOT_CUT_OFF]
    return f"{_LIVE} AND {' AND '.join(conditions)} ORDER BY created_at, ref LIMIT :limit"


# Whole hours are counted already; of the hour of a cut-off, the sessions since then are.
COUNT: Final = f"""
    SELECT (SELECT coalesce(sum(amount), 0) FROM amounts
            WHERE name IN (:with_subject, :without_subject) AND hour > {_cutoff(":audience", "''")} / 3600)
        + (SELECT count(*) FROM sessions WHERE audience = :audience AND {_RECORDED}
            AND created_at >= {_cutoff(":audience", "''")} AND created_at < {_cutoff(":audience", "''")} + 3600
            AND hour <= {_cutoff(":audience", "''")} / 3600)
"""


def _claim(which: str, due_at: str, reason: str) -> str:
    """Return what ends the sessions that are due, first those that have waited longest, and leases them."""
    return f"""
        UPDATE sessions SET reason = coalesce(reason, '{reason}'), lease_until = :lease_until, token = :token
        WHERE ref {{is_in}} (
            SELECT ref FROM sessions WHERE audience = :audience AND {which}
            ORDER BY {due_at} LIMIT :limit {{skip_locked}}
        ){{end}}
    """


CLAIM_DUE: Final = _claim(f"created_at IS NOT NULL AND {_DUE_AT} <= :now", _DUE_AT, "expired")
CLAIM_IDLE: Final = _claim(f"{_RECORDED} AND seen_at <= :idle_since", "seen_at", "idle")
CLAIMED: Final = f"""
    SELECT {_COLUMNS}, reason FROM sessions WHERE audience = :audience AND created_at IS NOT NULL
        AND {_DUE_AT} = :lease_until AND token = :token
"""


def purge(which: str) -> tuple[str, ...]:
    """Return what deletes the records and the data of sessions, of which only that they ended is kept."""
    add = "ON CONFLICT (name, hour, part) DO UPDATE SET amount = amounts.amount + excluded.amount"
    return (
        f"SELECT ref FROM sessions WHERE ref IN {which} ORDER BY ref {{lock}}",
        f"""INSERT INTO amounts (name, hour, part, amount) SELECT 'data ' || account, 0, part, -sum(bytes) FROM sessions
            WHERE ref IN {which} AND account IS NOT NULL AND bytes > 0 GROUP BY account, part ORDER BY 1, 3 {add}""",
        f"""INSERT INTO amounts (name, hour, part, amount)
            SELECT CASE WHEN subject IS NULL THEN 'sessions ' ELSE 'named ' END || audience, hour, part, -count(*)
            FROM sessions WHERE ref IN {which} AND created_at IS NOT NULL
            GROUP BY 1, hour, part ORDER BY 1, 2, 3 {add}""",
        f"DELETE FROM items WHERE owner IN {which}",
        f"DELETE FROM sessions WHERE ref IN {which} AND (reason IS NULL OR expires_at <= :expired_before)",
        f"""UPDATE sessions SET created_at = NULL, subject = NULL, seen_at = NULL, trace = NULL,
            principal_hashes = NULL, lease_until = NULL, account = NULL, bytes = 0 WHERE ref IN {which}""",
    )


PURGE: Final = purge("{refs}")
PURGE_REVOKED: Final = purge("(SELECT ref FROM sessions WHERE ref = :ref AND token = :token)")
EXPIRED: Final = """
    SELECT ref FROM sessions WHERE created_at IS NULL AND expires_at <= :expired_before ORDER BY expires_at LIMIT :rows
"""
SWEEP: Final = (
    # Looked at again: a change may have prolonged some of them meanwhile.
    *purge("(SELECT ref FROM sessions WHERE ref IN {refs} AND created_at IS NULL AND expires_at <= :expired_before)"),
    "DELETE FROM cutoffs WHERE expires_at <= :expired_before",
    "DELETE FROM amounts WHERE amount <= 0 AND hour < :current_hour - 2",
)

# --- data -----------------------------------------------------------------------------------------

_NOW: Final = "(expires_at IS NULL OR expires_at > :now)"
READ: Final = f"SELECT value FROM items WHERE owner = :owner AND key = :key AND {_NOW}"
LOCK_OWNER: Final = """
    INSERT INTO sessions (ref, expires_at, account, part) VALUES (:owner, :expires_at, :account, :part)
    ON CONFLICT (ref) DO UPDATE SET account = coalesce(sessions.account, excluded.account),
        expires_at = CASE WHEN excluded.expires_at > sessions.expires_at
            THEN excluded.expires_at ELSE sessions.expires_at END
"""
DROP_EXPIRED: Final = "DELETE FROM items WHERE owner = :owner AND expires_at <= :now"
_SIZE: Final = "SELECT coalesce(sum(length(key) + length(value)), 0) FROM items WHERE"
_NUMBER: Final = "SELECT count(*) FROM items WHERE"
_HELD: Final = f"(SELECT coalesce(sum(length(key) + length(value) + {VALUE_COST}), 0) FROM items WHERE owner = :owner)"
_OF_OTHERS: Final = "(SELECT coalesce(sum(amount), 0) FROM amounts WHERE name = :usage) - owner.bytes"
_OLD: Final = "sessions AS owner LEFT JOIN items AS old ON old.owner = owner.ref AND old.key = :key"
_OWNER_LIVES: Final = "EXISTS (SELECT 1 FROM sessions AS owner WHERE ref = :owner AND reason IS NULL{})"


def _fits(size: str, number: str) -> str:
    """Return whether the owner lives, and there is room for so many bytes and values in all."""
    cost = f"{size} + {number} * {VALUE_COST}"
    return _OWNER_LIVES.format(f""" AND {size} <= :max_bytes AND (CAST(:max_subject_bytes AS bigint) IS NULL
        OR {cost} <= {_HELD} OR {_OF_OTHERS} + {cost} <= :max_subject_bytes)""")


_OTHERS: Final = "owner = :owner AND key <> :key"
ITEM: Final = f"""
    SELECT owner.reason IS NOT NULL, {_OF_OTHERS}, {_HELD}, ({_SIZE} {_OTHERS}), ({_NUMBER} {_OTHERS}), old.value
    FROM {_OLD} WHERE owner.ref = :owner
"""


def put(value: str = ":value", condition: str = "1 = 1", ends: str = "old.expires_at") -> str:
    """Return what keeps a value, where the session lives, a condition is met and there is room for it."""
    return f"""
        INSERT INTO items (owner, key, value, expires_at) SELECT :owner, :key, new.value, new.ends
        FROM (SELECT {value} AS value, {ends} AS ends FROM {_OLD} WHERE owner.ref = :owner AND {condition}) AS new
        WHERE new.value IS NOT NULL
            AND {_fits(f"({_SIZE} {_OTHERS}) + length(:key) + length(new.value)", f"(({_NUMBER} {_OTHERS}) + 1)")}
        ON CONFLICT (owner, key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at
    """


ADD: Final = put("{sum}")
WRITE: Final = put(ends="CAST(:ends AS double precision)")
SWAP: Final = {  # is there an old one?
    False: put(condition="old.value IS NULL"),
    True: put(condition="old.value = :old"),
}
REMOVE: Final = f"DELETE FROM items WHERE owner = :owner AND key = :key AND {_OWNER_LIVES.format('')}"
REMOVE_SAME: Final = f"{REMOVE} AND value = :old"
_SOURCE: Final = f"owner = :source AND {_NOW}"
_MERGED: Final = f"{_SOURCE} OR owner = :owner AND key NOT IN (SELECT key FROM items WHERE {_SOURCE})"
MERGE: Final = f"""
    SELECT owner.reason IS NOT NULL, {_OF_OTHERS}, {_HELD}, ({_SIZE} {_MERGED}), ({_NUMBER} {_MERGED}), NULL
    FROM sessions AS owner WHERE owner.ref = :owner
"""
COPY: Final = f"""
    INSERT INTO items (owner, key, value, expires_at) SELECT :owner, key, value, expires_at FROM items
    WHERE {_SOURCE} AND {_fits(f"({_SIZE} {_MERGED})", f"({_NUMBER} {_MERGED})")}
    ON CONFLICT (owner, key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at
"""
UPDATE_USAGE: Final = (
    f"""INSERT INTO amounts (name, hour, part, amount) SELECT :usage, 0, part, {_HELD} - bytes FROM sessions
        WHERE ref = :owner AND account IS NOT NULL AND bytes <> {_HELD}
        ON CONFLICT (name, hour, part) DO UPDATE SET amount = amounts.amount + excluded.amount""",
    f"UPDATE sessions SET bytes = {_HELD} WHERE ref = :owner AND bytes <> {_HELD}",
)

"""The tables of a PostgreSQL store, and the contract's methods in SQL.

What changes a session holds an advisory lock on its name until it commits, and looks at it only then: in READ COMMITTED
each statement sees what was committed before it began. Statements that need no answer in between share a round trip.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from .._errors import ConfigurationError
from .._refusals import refusal
from .._session.claims import Claims
from .._session.data import Namespace
from . import _base as base
from ._base import FIRST, LIVE, VALUE_COST, Ended, Position, Record, Standing, size_of
from ._sql import Item, SQLTransaction

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

_COST: Final = f"(length({{0}}.key) + length({{0}}.value) + {VALUE_COST})"
# The account of a principal is in parts, so that its sessions seldom wait for each other's commits.
_PART: Final = "(hashtextextended({0}.owner, 0) & 15)::int"
# In all SQL here `~` is the schema. Statements name their columns, so that they fit when a later version adds some.
MIGRATIONS: tuple[tuple[int, str], ...] = (
    (
        1,
        """
        CREATE TABLE ~.facts (version int NOT NULL, oldest int NOT NULL, fence bigint NOT NULL);
        CREATE TABLE ~.revoked (ref text PRIMARY KEY, expires_at bigint NOT NULL, mark bigint NOT NULL);
        CREATE INDEX ON ~.revoked (expires_at);
        CREATE TABLE ~.cut_offs (
            subject text, audience text, moment float8 NOT NULL, until bigint NOT NULL, PRIMARY KEY (subject, audience)
        );
        CREATE TABLE ~.records (
            ref text COLLATE "C" PRIMARY KEY, subject text, created_at float8 NOT NULL, expires_at bigint NOT NULL,
            seen_at float8 NOT NULL, trace text, audience text NOT NULL, parts text,
            reason text, lease_until float8
        );
        CREATE INDEX ON ~.records (subject, audience, created_at, ref) WHERE subject IS NOT NULL;
        CREATE INDEX ON ~.records (audience, expires_at) WHERE reason IS NULL;
        CREATE INDEX ON ~.records (audience, seen_at) WHERE reason IS NULL;
        CREATE INDEX ON ~.records (audience, lease_until) WHERE reason IS NOT NULL;
        CREATE TABLE ~.items (
            owner text, key bytea, value bytea NOT NULL, expires_at float8, until bigint NOT NULL,
            PRIMARY KEY (owner, key)
        );
        CREATE INDEX ON ~.items (until);
        CREATE TABLE ~.leaders (audience text PRIMARY KEY, worker text NOT NULL, until float8 NOT NULL);
        """,
    ),
    (
        1,  # what its workers write meanwhile has no subject, and is not counted
        f"""
        ALTER TABLE ~.items ADD COLUMN subject text;
        CREATE TABLE ~.accounts (
            subject text, part int, bytes bigint NOT NULL, PRIMARY KEY (subject, part)
        ) WITH (fillfactor = 50);
        CREATE FUNCTION ~.count_item() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF TG_OP <> 'INSERT' AND OLD.subject IS NOT NULL THEN
                UPDATE ~.accounts SET bytes = bytes - {_COST.format("OLD")}
                    WHERE subject = OLD.subject AND part = {_PART.format("OLD")};
                DELETE FROM ~.accounts WHERE bytes <= 0 AND subject = OLD.subject AND part = {_PART.format("OLD")};
            END IF;
            IF TG_OP <> 'DELETE' AND NEW.subject IS NOT NULL THEN
                INSERT INTO ~.accounts AS account VALUES (NEW.subject, {_PART.format("NEW")}, {_COST.format("NEW")})
                    ON CONFLICT (subject, part) DO UPDATE SET bytes = account.bytes + excluded.bytes;
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER counted AFTER INSERT OR UPDATE OR DELETE ON ~.items
            FOR EACH ROW EXECUTE FUNCTION ~.count_item();
        """,
    ),
    (
        1,  # sessions without a principal, by the hour of their beginning, as those that were cut off do not count
        """
        CREATE TABLE ~.anonymous (
            audience text, hour bigint, part int, sessions bigint NOT NULL, PRIMARY KEY (audience, hour, part)
        ) WITH (fillfactor = 50);
        CREATE FUNCTION ~.count_anonymous() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO ~.anonymous AS known
                SELECT audience, floor(created_at / 3600)::bigint, hashtextextended(ref, 0) & 15,
                    TG_ARGV[0]::int * count(*)
                FROM changed WHERE subject IS NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
                ON CONFLICT (audience, hour, part) DO UPDATE SET sessions = known.sessions + excluded.sessions;
            RETURN NULL;
        END $$;
        CREATE TRIGGER recorded AFTER INSERT ON ~.records REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION ~.count_anonymous(1);
        CREATE TRIGGER purged AFTER DELETE ON ~.records REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION ~.count_anonymous('-1');
        INSERT INTO ~.anonymous SELECT audience, floor(created_at / 3600)::bigint, 0, count(*) FROM ~.records
            WHERE subject IS NULL GROUP BY 1, 2;
        """,
    ),
    (1, "CREATE TABLE ~.admitted (ref text PRIMARY KEY, expires_at bigint NOT NULL)"),
)
"""Of each version of the tables the oldest one whose code can use them, too, and how they are made from those before.

Workers of that older version go on during and after a migration, which therefore only adds.
"""

# In one order, so that two that want several do not wait for each other.
_LOCK: Final = """SELECT pg_advisory_xact_lock(hashtextextended('~.' || name, 0))
    FROM (SELECT unnest(%s::text[]) AS name ORDER BY 1) AS names"""
# The catalog itself is asked, since what functions such as `to_regclass` know may be from before the lock.
_HAS_TABLES: Final = """SELECT 1 FROM pg_class JOIN pg_namespace AS space ON space.oid = relnamespace
    WHERE nspname = '~' AND relname = 'facts'"""
_LOOK: Final = """
    SELECT EXISTS (SELECT FROM ~.revoked WHERE ref = asked.ref) OR EXISTS (
            SELECT FROM ~.cut_offs AS cut
            WHERE cut.subject IN ('', asked.subject) AND cut.audience = asked.audience AND moment > asked.issued_at
        ) OR reason IS NOT NULL, (
            SELECT fence <= asked.issued_at OR EXISTS (SELECT FROM ~.admitted WHERE ref = asked.ref) FROM ~.facts
        ), seen_at
    FROM unnest(%s::text[], %s::text[], %s::text[], %s::float8[]) WITH ORDINALITY
        AS asked (ref, subject, audience, issued_at, place) LEFT JOIN ~.records AS kept USING (ref) ORDER BY place
"""
_REVOKE: Final = """WITH fresh AS (
        INSERT INTO ~.revoked (ref, expires_at, mark) SELECT %(ref)s, %(expires_at)s, %(mark)s
        WHERE NOT EXISTS (SELECT FROM ~.records WHERE ref = %(ref)s AND reason IS NOT NULL)
        ON CONFLICT DO NOTHING RETURNING ref
    ) UPDATE ~.records SET reason = %(reason)s, lease_until = %(until)s WHERE ref IN (SELECT ref FROM fresh)
"""
_REVOKE_BEFORE: Final = """INSERT INTO ~.cut_offs AS cut (subject, audience, moment, until) VALUES (%s, %s, %s, %s)
    ON CONFLICT (subject, audience)
        DO UPDATE SET moment = greatest(cut.moment, excluded.moment), until = greatest(cut.until, excluded.until)"""
_REGISTER: Final = """
    INSERT INTO ~.records (ref, subject, created_at, expires_at, seen_at, trace, audience, parts)
    SELECT %s, %s, %s, %s, %s, %s, %s, %s WHERE NOT EXISTS (SELECT FROM ~.revoked WHERE ref = %s)
    ON CONFLICT DO NOTHING"""
_CROWDED: Final = """
    SELECT why FROM ((SELECT 'sessions_full' AS why FROM ~.records WHERE %(of_subject)s::int IS NOT NULL
            AND subject = %(subject)s AND audience = %(audience)s AND reason IS NULL AND created_at >= (SELECT
            coalesce(max(moment), 0) FROM ~.cut_offs WHERE subject IN ('', %(subject)s) AND audience = %(audience)s
            ) OFFSET greatest(%(of_subject)s::int - 1, 0) LIMIT 1)
        UNION ALL (SELECT 'sessions_full' WHERE %(subject)s::text IS NULL AND %(of_subject)s::int <= (
            SELECT coalesce(sum(sessions), 0) FROM ~.anonymous WHERE audience = %(audience)s AND hour >= (
            SELECT floor(coalesce(max(moment), 0) / 3600)::bigint FROM ~.cut_offs
            WHERE subject = '' AND audience = %(audience)s)))
    ) AS crowd WHERE NOT EXISTS (SELECT FROM ~.records WHERE ref = %(ref)s)
"""
_RECORD: Final = "ref, subject, created_at, expires_at, floor(seen_at)::bigint, trace, audience, parts"
_ALIVE: Final = f"""SELECT {_RECORD} FROM ~.records AS kept
    WHERE {{which}} AND (created_at, ref) > (%(created_at)s, %(ref)s) AND reason IS NULL AND expires_at > %(second)s
        AND NOT EXISTS (SELECT FROM ~.revoked WHERE ref = kept.ref) AND (%(cut_off)s OR NOT EXISTS (
            SELECT FROM ~.cut_offs AS cut
            WHERE cut.subject IN ('', kept.subject) AND cut.audience = kept.audience AND moment > kept.created_at
        )) ORDER BY {{order}} LIMIT %(limit)s
"""
_COUNT: Final = """
    SELECT count(*) FROM ~.records
        WHERE audience = %(audience)s AND reason IS NULL AND expires_at > %(second)s AND created_at >= (
            SELECT coalesce(max(moment), 0) FROM ~.cut_offs WHERE subject = '' AND audience = %(audience)s)
"""
_FIRST_OF: Final = "(SELECT ref FROM ~.records WHERE audience = %(audience)s AND {} ORDER BY {} LIMIT %(limit)s)"
_DUE: Final = f"""
    SELECT ref FROM (
        {_FIRST_OF.format("reason IS NOT NULL AND lease_until <= %(now)s", "lease_until")}
        UNION {_FIRST_OF.format("reason IS NULL AND expires_at <= %(second)s", "expires_at")}
        UNION {_FIRST_OF.format("reason IS NULL AND seen_at <= %(seen_by)s", "seen_at")} LIMIT %(limit)s
    ) AS due WHERE pg_try_advisory_xact_lock(hashtextextended('~.' || ref, 0))
"""
_CLAIM: Final = f"""
    WITH taken AS (
        UPDATE ~.records SET lease_until = %(until)s,
            reason = coalesce(reason, CASE WHEN expires_at <= %(second)s THEN 'expired' ELSE 'idle' END)
        WHERE ref = ANY(%(refs)s) AND CASE WHEN reason IS NOT NULL THEN lease_until <= %(now)s
            ELSE expires_at <= %(second)s OR seen_at <= %(seen_by)s END
        RETURNING *
    ), ended AS (
        INSERT INTO ~.revoked (ref, expires_at, mark) SELECT ref, expires_at, 0 FROM taken ON CONFLICT DO NOTHING
    ) SELECT {_RECORD}, reason FROM taken
"""
_ELECT: Final = """INSERT INTO ~.leaders AS leader (audience, worker, until) VALUES (%s, %s, %s)
    ON CONFLICT (audience) DO UPDATE SET worker = excluded.worker, until = excluded.until
        WHERE leader.worker = excluded.worker OR leader.until <= %s"""
_CURRENT: Final = "owner = %(owner)s AND (expires_at IS NULL OR expires_at > %(now)s)"
_SIZE: Final = f"SELECT coalesce(sum(length(key) + length(value)), 0) FROM ~.items WHERE {_CURRENT}"
_ACCOUNT: Final = "SELECT coalesce(sum(bytes), 0)::bigint FROM ~.accounts WHERE subject = %(subject)s"
_ITEM: Final = f"""
    SELECT EXISTS (SELECT FROM ~.revoked WHERE ref = %(owner)s)
        OR EXISTS (SELECT FROM ~.records WHERE ref = %(owner)s AND reason IS NOT NULL),
        value, expires_at, ({_SIZE} AND key <> %(key)s), ({_ACCOUNT}) - (
            SELECT coalesce(sum{_COST.format("item")}, 0) FROM ~.items AS item
            WHERE owner = %(owner)s AND subject IS NOT NULL AND expires_at <= %(now)s)
    FROM (SELECT) AS one LEFT JOIN ~.items ON {_CURRENT} AND key = %(key)s
"""
_SAVE: Final = "INSERT INTO ~.items (owner, until, key, value, expires_at, subject) VALUES (%s, %s, %s, %s, %s, %s)"
_COPY: Final = f"""
    INSERT INTO ~.items (owner, until, key, value, expires_at, subject)
    SELECT %(target)s, %(until)s, key, value, expires_at, %(subject)s FROM ~.items WHERE {_CURRENT}
    ON CONFLICT (owner, key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at
"""
_FILLING: Final = """
    SELECT (SELECT count(*) FROM ~.records), (SELECT coalesce(max(of_one), 0) FROM (
            SELECT count(*) AS of_one FROM ~.records WHERE subject IS NOT NULL AND reason IS NULL GROUP BY subject
        ) AS each), (SELECT coalesce(sum(length(value)), 0)::bigint FROM ~.items),
        (SELECT coalesce(max(of_one), 0)::bigint FROM (
            SELECT sum(bytes) AS of_one FROM ~.accounts GROUP BY subject
        ) AS each)
"""


def migrate(connection: Connection[Any], schema: str, *, fence: int) -> bool:
    """Bring the tables up to date, and return whether this made them: in one transaction, one worker at a time.

    New tables vouch for no session from before `fence`, Unix seconds. Tables of a later version that this one cannot
    use are a `ConfigurationError`.
    """

    def run(sql: str, *values: Any) -> Cursor[Any]:
        return connection.execute(sql.replace("~", schema).encode(), values or None)

    def versions() -> tuple[int, int]:
        found = run("SELECT version, oldest FROM ~.facts").fetchone() if run(_HAS_TABLES).fetchone() else None
        return found or (0, 0)

    known, (version, oldest) = len(MIGRATIONS), versions()
    if version < known:
        with connection.transaction():
            run("SET LOCAL statement_timeout = 0")
            run(_LOCK, ["facts"])
            version, oldest = versions()  # another worker may have migrated meanwhile
            run("SET LOCAL lock_timeout = '200ms'")  # one that waits keeps others from the tables that it has
            if run("SELECT 1 FROM pg_namespace WHERE nspname = '~'").fetchone() is None:
                run("CREATE SCHEMA ~")
            for still_fits, sql in MIGRATIONS[version:]:
                run(sql)
                oldest = max(oldest, still_fits)
            run("INSERT INTO ~.facts SELECT 0, 0, %s WHERE NOT EXISTS (SELECT FROM ~.facts)", fence)
            run("UPDATE ~.facts SET version = greatest(version, %s), oldest = greatest(oldest, %s)", known, oldest)
    if oldest > known:
        raise ConfigurationError(
            f"the PostgreSQL schema {schema} was made by a newer version (it has format {version}, this one knows "
            f"{known}); install that version, or give another schema"
        )
    return version == 0


class Transaction(SQLTransaction):
    """One call of the contract's methods, at one moment; it may be made again on another connection."""

    connection: Connection[Any]

    def __init__(self, schema: str, leeway: float, vouches_always: bool) -> None:
        super().__init__(leeway, vouches_always)
        self.is_changing: bool = False  # has it sent a change that must not be made twice?
        self._schema = schema

    def _run(self, sql: str, values: Sequence[Any] | Mapping[str, Any]) -> Cursor[Any]:
        return self.connection.execute(sql.replace("~", self._schema).encode(), values)

    @contextmanager
    def _alone_with(self, *refs: str) -> Iterator[None]:
        """Be the only one that changes some sessions until what was changed is committed."""
        with self.connection.pipeline(), self.connection.transaction():
            self._run(_LOCK, (list(refs),))
            yield

    def status(self, claims: Claims) -> Standing:
        return self.statuses((claims,))[0]

    def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        return [standing for standing, _ in self._look(claims)]

    def _look(self, claims: Sequence[Claims]) -> list[tuple[Standing, Any]]:
        """Return the statuses, and the last use of those that are recorded."""
        asked = zip(*((one.ref, one.subject, one.audience, one.issued_at) for one in claims), strict=True)
        rows = self._run(_LOOK, [list(column) for column in asked]).fetchall() if claims else []
        return [(self._standing(ended, is_known), seen_at) for ended, is_known, seen_at in rows]

    def admit(self, claims: Claims) -> None:
        sql = "INSERT INTO ~.admitted (ref, expires_at) VALUES (%s, %s) ON CONFLICT DO NOTHING"
        self._run(sql, (claims.ref, claims.expires_at))

    def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:  # noqa: ARG002  # a record knows it
        values = {"ref": ref, "expires_at": expires_at, "mark": self._mark, "reason": reason}
        with self._alone_with(ref):
            self._run(_REVOKE, {**values, "until": self.now + lease})
            marked = self._run("SELECT mark FROM ~.revoked WHERE ref = %s", (ref,))
        return marked.fetchone() == (self._mark,)

    @cached_property
    def _mark(self) -> int:
        """What tells this call's revocation from another's, though it was made again since its reply was lost."""
        return secrets.randbelow(1 << 63)

    def revoke_before(self, moment: float, *, audience: str, subject: str | None, until: int) -> None:
        self._run(_REVOKE_BEFORE, (subject or "", audience, moment, until))

    def register(self, record: Record, *, of_subject: int | None = None) -> None:
        of = {**asdict(record), "of_subject": of_subject}
        for (reason,) in self._run(_CROWDED, of):
            raise refusal(reason)
        with self._alone_with(record.ref):
            self._run(_REGISTER, (*astuple(record), record.ref))

    def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        ((standing, seen_at),) = self._look((claims,))
        standing = base.standing_in_use(standing, seen_at, self.now, idle_timeout)
        if standing is LIVE and base.is_touch_due(seen_at, self.now, idle_timeout):
            sql = "UPDATE ~.records SET seen_at = greatest(seen_at, %s) WHERE ref = %s AND reason IS NULL"
            self._run(sql, (self.now, claims.ref))
        return standing

    def sessions(
        self, subject: str, *, audience: str, after: Position = FIRST, limit: int | None = None, cut_off: bool = False
    ) -> list[Record]:
        which = "subject = %(subject)s AND audience = %(audience)s"
        return self._alive(which, after, limit, cut_off=cut_off, subject=subject, audience=audience)

    def roster(self, *, audience: str, cursor: str = "", limit: int) -> tuple[list[Record], str]:
        which = "audience = %(audience)s AND kept.ref > %(cursor)s"
        found = self._alive(which, limit=limit, order="ref", audience=audience, cursor=cursor)
        return found, found[-1].ref if len(found) == limit else ""

    def count(self, *, audience: str) -> int:
        ((count,),) = self._run(_COUNT, {"audience": audience, "second": math.floor(self.now)})
        return int(count)

    def find(self, ref: str) -> Record | None:
        return next(iter(self._alive("ref = %(of)s", of=ref)), None)

    def _alive(
        self, which: str, after: Position = FIRST, limit: int | None = None, *, cut_off: bool = False, **of: str
    ) -> list[Record]:
        sql = _ALIVE.format(which=which, order=of.pop("order", "created_at, ref"))
        page = {"created_at": after[0], "ref": after[1], "limit": limit, "cut_off": cut_off}
        return [Record(*row) for row in self._run(sql, {**of, **page, "second": math.floor(self.now)})]

    def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        bounds = {"now": self.now, "second": math.floor(self.now), "seen_by": base.idle_since(self.now, idle_timeout)}
        with self.connection.transaction():
            due = self._run(_DUE, {**bounds, "audience": audience, "limit": limit}).fetchall()
            self.is_changing = True  # what was claimed would look like another's
            taken = self._run(_CLAIM, {**bounds, "until": self.now + lease, "refs": [ref for (ref,) in due]}).fetchall()
        return [Ended(Record(*record), reason) for *record, reason in taken]

    def purge(self, *refs: str) -> None:
        with self._alone_with(*refs):
            self._run("DELETE FROM ~.records WHERE ref = ANY(%s)", (list(refs),))
            self._run("DELETE FROM ~.items WHERE owner = ANY(%s)", (list(refs),))

    def elect(self, worker: str, *, audience: str, seconds: float) -> bool:
        return self._run(_ELECT, (audience, worker, self.now + seconds, self.now)).rowcount == 1

    # A name may hold NUL, which PostgreSQL's text may not, so names are kept as bytes.

    def read(self, namespace: Namespace, key: str) -> bytes | None:
        of = {"owner": namespace.owner, "now": self.now, "key": key.encode()}
        found = self._run(f"SELECT value FROM ~.items WHERE {_CURRENT} AND key = %(key)s", of).fetchone()
        return found and bytes(found[0])

    def copy(self, namespace: Namespace, target: Namespace) -> None:
        with self._alone_with(target.owner):
            before = self._item(target, "").account
            self.is_changing = True
            of = {"now": self.now, "target": target.owner, "until": target.until, "subject": target.subject}
            self._run(_COPY, {**of, "owner": namespace.owner})
            ((size, account),) = self._run(f"SELECT ({_SIZE}), ({_ACCOUNT})", {**of, "owner": target.owner})
            base.check_size(target, size)
            base.check_principal(target, before, account - before)

    @contextmanager
    def _changing(self, namespace: Namespace, key: str) -> Iterator[Item]:
        with self._alone_with(namespace.owner):
            yield self._item(namespace, key)

    def _item(self, namespace: Namespace, key: str) -> Item:
        of = {"owner": namespace.owner, "now": self.now, "key": key.encode(), "subject": namespace.subject}
        ((has_ended, *found),) = self._run(_ITEM, of)
        base.check_changeable(namespace, self.now, self._leeway, has_ended=has_ended)
        return Item(namespace, key, *found)

    def _replace(self, item: Item, value: bytes | None, expires_at: float | None) -> None:
        if value is not None:
            old = 0 if item.value is None else size_of(item.key, item.value) + VALUE_COST
            base.check_principal(item.namespace, item.account, size_of(item.key, value) + VALUE_COST - old)
        self.is_changing = True
        owner, key = item.namespace.owner, item.key.encode()
        over = "DELETE FROM ~.items WHERE owner = %s AND (key = %s OR expires_at <= %s)"
        self._run(over, (owner, key, self.now))
        if value is not None:
            self._run(_SAVE, (owner, item.namespace.until, key, value, expires_at, item.namespace.subject))

    def filling(self) -> base.Filling:
        return base.Filling(*self._run(_FILLING, ()).fetchall()[0])

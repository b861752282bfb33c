"""A store in SQL: each method is one transaction of a few statements, sent in one round trip.

The statements refuse by themselves what may not be changed, and report what they found, from which the reason follows.
"""

from __future__ import annotations

import json
import math
import secrets
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .._refusals import refusal
from .._session.claims import Claims
from .._session.data import Namespace
from .._session.functions import check_clock
from . import _base as base
from . import _sql_text as sql
from ._base import FIRST, STATE_KEY, VALUE_COST, Ended, Facts, Found, Position, Record, logger
from ._clocks import MachineClock, ServerClock

Statement = tuple[str, Mapping[str, Any]]
Rows = list[tuple[Any, ...]]

_PARTS: Final = 16
_HOUR: Final = 3600  # seconds
CUTOFF_TIME, EPOCH, SEEN_AT = 1, 2, 4  # columns of what `look_up` finds
SWEEP_EVERY: Final = 60  # seconds
SWEPT_ROWS: Final = 200  # at once


class _Before(NamedTuple):
    """What a change of data found."""

    ended: bool
    of_others: int  # bytes of the data of the principal's other sessions
    of_owner: int  # of this session's
    size: int  # bytes of the names and values that stay
    number: int  # of those values
    value: bytes | None  # the old one

    def __repr__(self) -> str:
        return "<_Before>"  # tracebacks and error reporters print it

    def check_room(self, namespace: Namespace, *new: bytes) -> None:
        """Raise if these have no room, a name and its value; what the statements decide is the same."""
        size = self.size + sum(map(len, new))
        cost = size + (self.number + bool(new)) * VALUE_COST
        base.check_size(namespace, size)
        base.check_principal(namespace, self.of_others + self.of_owner, cost - self.of_owner)


class SQLStore(ABC):
    """The methods of a store in SQL.

    Args:
        leeway: Seconds to keep entries after their token expires, for clocks that disagree.
        clock: This worker's; returns Unix seconds.
        store_clock: The clock that ends and deletes what all workers share.
        accept_older: Whether sessions from before the store's epoch are accepted.
    """

    location: str  # for the log

    def __init__(
        self, *, leeway: float, clock: Callable[[], float], store_clock: ServerClock | MachineClock, accept_older: bool
    ) -> None:
        self._leeway = leeway
        self._clock = check_clock(clock)
        self._store_clock = store_clock
        self._accept_older = accept_older
        self._swept_at = -math.inf

    async def _read(self, *statements: Statement) -> list[Rows]:
        """Return the rows of statements that change nothing, in one round trip."""
        return await self._change(*statements)

    @abstractmethod
    async def _change(self, *statements: Statement, repeatable: bool = True, frees: bool = False) -> list[Rows]:
        """Return the rows of statements that are one transaction and one round trip, when it is durable.

        Args:
            statements: Of `_sql_text`, with their values.
            repeatable: Whether it may be made twice if it is unknown whether it was made.
            frees: Whether it makes room, and may take what is reserved for that.
        """

    @abstractmethod
    async def _ask_time(self) -> None:
        """Ask what time it is by the clock of the store, which ends and deletes what all workers share."""

    async def _store_time(self, *, ask: bool = False) -> float:
        """Return the time by the clock of the store."""
        if ask or not self._store_clock.is_known:
            await self._ask_time()
        return self._store_clock()

    async def _data_time(self) -> float:
        """Return when a value expires: neither this worker's clock nor the store's may end it early."""
        return min(self._clock(), await self._store_time())

    # --- revocations ------------------------------------------------------------------------------

    async def look_up(
        self, *claims: Claims, state: bool = False, touch: bool = False, idle_timeout: int | None = None
    ) -> list[Found]:
        look, now = asking(claims, state=state), self._clock()
        if touch:
            now = await self._store_time()
            rows, _ = await self._change(look, touching(claims, now, idle_timeout))
        else:
            (rows,) = await self._read(look)
        if any(row[EPOCH] is None for row in rows):
            await self._repair()
            return await self.look_up(*claims, state=state, touch=touch, idle_timeout=idle_timeout)
        return self._found(claims, rows, now, touch=touch, idle_timeout=idle_timeout)

    def _found(
        self, claims: Sequence[Claims], rows: Rows, now: float, *, touch: bool, idle_timeout: int | None
    ) -> list[Found]:
        found, accept, answers = [], self._accept_older, iter(rows)
        for one in claims:
            mine = [next(answers) for _ in one.owners]  # one for each name of its principal
            *values, state = mine[0]
            facts = Facts(*values)._replace(cutoff_time=max(row[CUTOFF_TIME] for row in mine))
            if touch:
                status = base.status_with_idle(
                    one.issued_at, facts, now=now, idle_timeout=idle_timeout, accept_older=accept
                )
            else:
                status = base.status_of(one.issued_at, facts, accept_older=accept)
            found.append(Found(status, state))
        return found

    async def _repair(self) -> None:
        """Vouch for no session of this second or before: a table was emptied, and with it what had ended."""
        epoch = math.floor(self._clock()) + 1
        await self._change(*((text, {"format": sql.FORMAT, "epoch": epoch}) for text in sql.REPAIR), repeatable=False)
        logger.error(
            "the session store's tables were emptied (%s): sessions from before are refused, since some of them may "
            "have ended",
            self.location,
        )

    async def revoke(self, record: Record, *, reason: str, lease: float | None) -> bool:
        now = await self._store_time()
        values = {
            "ref": record.ref,
            "audience": record.audience,
            "expires_at": record.expires_at,
            "expired_before": -1,  # the revocation has to stay
            "part": _part(record.ref),
            "reason": reason,
            "lease_until": now + (lease or 0),
            "token": _token(),
        }
        statements = (sql.REVOKE, sql.IS_REVOKED_BY, *(sql.PURGE_REVOKED if lease is None else ()))
        _, found, *_ = await self._change(*((text, values) for text in statements), frees=lease is None)
        self._sweep_if_due(now)
        return bool(found)

    async def revoke_before(self, cutoff_time: float, *, audience: str, subject: str | None, expires_at: int) -> None:
        scope = {"audience": audience, "subject": subject or ""}
        await self._change((sql.REVOKE_BEFORE, {**scope, "cutoff_time": cutoff_time, "expires_at": expires_at}))

    async def register_at_epoch(self, claims: Claims) -> None:
        values = {"ref": claims.ref, "expires_at": claims.expires_at, "issued_at": claims.issued_at}
        await self._change((sql.REGISTER_AT_EPOCH, values))

    # --- records ----------------------------------------------------------------------------------

    async def register(self, record: Record, *, max_sessions: int | None = None) -> None:
        statements = registering(record, max_sessions)
        *_, ((is_known, has_epoch),) = await self._change(*statements, repeatable=False)
        if not has_epoch:
            await self._repair()
            return await self.register(record, max_sessions=max_sessions)
        self._sweep_if_due(self._clock())
        if not is_known:
            raise refusal("sessions_full")
        return None

    async def get(self, ref: str) -> Record | None:
        (rows,) = await self._read((sql.GET, {"ref": ref, "now": self._clock()}))
        return Record(*rows[0]) if rows else None

    async def list_sessions(
        self,
        *,
        audience: str,
        subject: str | None = None,
        after: Position = FIRST,
        limit: int,
        with_cut_off: bool = False,
    ) -> list[Record]:
        text = sql.list_sessions(of_one=subject is not None, with_cut_off=with_cut_off)
        page = {"after_time": after[0], "after_ref": after[1], "limit": limit}
        scope = {"audience": audience, "subject": subject, "now": self._clock()}
        (rows,) = await self._read((text, {**scope, **page}))
        return [Record(*row) for row in rows]

    async def count(self, *, audience: str) -> int:
        names = {"with_subject": f"named {audience}", "without_subject": f"sessions {audience}"}
        ((row,),) = await self._read((sql.COUNT, {"audience": audience, **names}))
        return int(row[0])

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        now = await self._store_time(ask=True)
        values = {"audience": audience, "now": now, "lease_until": now + lease}
        ended = await self._claim(sql.CLAIM_DUE, {**values, "limit": limit})
        if idle_timeout is not None and len(ended) < limit:
            values["idle_since"] = base.idle_since(now, idle_timeout)
            ended += await self._claim(sql.CLAIM_IDLE, {**values, "limit": limit - len(ended)})
        self._sweep_if_due(now)
        return ended

    async def _claim(self, text: str, values: Mapping[str, Any]) -> list[Ended]:
        values = {**values, "token": _token()}
        _, rows = await self._change((text, values), (sql.CLAIMED, values), repeatable=False, frees=True)
        return [Ended(Record(*row), reason) for *row, reason in rows]

    async def purge(self, *refs: str) -> None:
        expired_before = math.floor(await self._store_time() - self._leeway)
        values = {"refs": json.dumps(refs), "expired_before": expired_before}
        await self._change(*((text, values) for text in sql.PURGE), frees=True)

    def _sweep_if_due(self, now: float) -> None:
        if not self._swept_at <= now < self._swept_at + SWEEP_EVERY:
            self._swept_at = now
            self._sweep_soon()

    @abstractmethod
    def _sweep_soon(self) -> None:
        """Sweep in the background until nothing is left."""

    # --- data -------------------------------------------------------------------------------------

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        values = {"owner": namespace.owner, "key": key.encode(), "now": await self._data_time()}
        (rows,) = await self._read((sql.READ, values))
        return rows[0][0] if rows else None

    async def write(
        self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None
    ) -> None:
        name = key.encode()
        if value is None or (expires_at is not None and expires_at <= await self._data_time()):
            await self._change_data(namespace, sql.ITEM, sql.REMOVE, key=name)
        else:
            found = await self._change_data(namespace, sql.ITEM, sql.WRITE, key=name, value=value, ends=expires_at)
            found.check_room(namespace, name, value)

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        text, name = (sql.REMOVE_SAME if new is None else sql.SWAP[old is not None]), key.encode()
        values = {"key": name, "value": new, "old": old}
        found = await self._change_data(namespace, sql.ITEM, text, repeatable=False, **values)
        if found.value == old and new is not None:
            found.check_room(namespace, name, new)
        return found.value == old

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        name = key.encode()
        found = await self._change_data(namespace, sql.ITEM, sql.ADD, repeatable=False, key=name, by=by)
        total = base.checked_add(found.value, by)
        found.check_room(namespace, name, b"%d" % total)
        return total

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        found = await self._change_data(target, sql.MERGE, sql.COPY, source=namespace.owner)
        found.check_room(target)

    async def _change_data(
        self, namespace: Namespace, look: str, change: str, *, repeatable: bool = True, **given: Any
    ) -> _Before:
        """Change what a session holds, and return what a look found just before."""
        now = self._clock()
        base.check_changeable(namespace, now, self._leeway, has_ended=False)
        values = {
            **given,
            "now": await self._data_time(),
            "owner": namespace.owner,
            "expires_at": namespace.expires_at,
            "account": namespace.account,
            "part": _part(namespace.owner),
            "usage": f"data {namespace.account}",
            "max_bytes": namespace.max_bytes,
            "max_subject_bytes": None if namespace.subject is None else namespace.max_subject_bytes,
        }
        statements = (sql.LOCK_OWNER, sql.DROP_EXPIRED, look, change, *sql.UPDATE_USAGE)
        results = await self._change(*((text, values) for text in statements), repeatable=repeatable)
        self._sweep_if_due(now)
        found = _Before(*results[2][0])
        base.check_changeable(namespace, now, self._leeway, has_ended=found.ended)
        return found


def sweep(*, now: float, leeway: float) -> tuple[Statement, Callable[[Rows], list[Statement]]]:
    """Return what finds some sessions that have expired, and what deletes them, if they still have."""
    expired_before = math.floor(now - leeway)  # a whole number, as in the column, or PostgreSQL uses no index
    values = {"expired_before": expired_before, "rows": SWEPT_ROWS, "current_hour": int(now // _HOUR)}

    def delete(rows: Rows) -> list[Statement]:
        refs = {"refs": json.dumps([ref for (ref,) in rows])}
        return [(text, {**values, **refs}) for text in sql.SWEEP]

    return (sql.EXPIRED, values), delete


def asking(claims: Sequence[Claims], *, state: bool) -> Statement:
    """Return the question for the facts of sessions, under each name of their principals."""
    asked = [(named.ref, named.subject, named.audience) for one in claims for named in one.by_owner()]
    return sql.look_up(state=state), {"asked": json.dumps(asked), "state_key": STATE_KEY.encode()}


def registering(record: Record, max_sessions: int | None) -> list[Statement]:
    """Return what records a session, if there are not too many, and tells whether it is recorded."""
    is_anonymous = record.subject is None
    values = {
        **{name: getattr(record, name) for name in Record.__slots__},
        "hour": int(record.created_at // _HOUR),
        "part": _part(record.ref),
        "token": _token(),
        "max_sessions": max_sessions,
        "usage": f"{'sessions' if is_anonymous else 'named'} {record.audience}",
    }
    insert = sql.register(anonymous=is_anonymous, limited=max_sessions is not None)
    return [(text, values) for text in (insert, sql.COUNT_REGISTERED, sql.IS_KNOWN)]


def touching(claims: Sequence[Claims], now: float, idle_timeout: int | None) -> Statement:
    """Return what records that sessions are used, if that must be recorded."""
    times = {"touched_by": now - base.resolution(idle_timeout), "idle_since": base.idle_since(now, idle_timeout)}
    return sql.TOUCH, {"refs": json.dumps([one.ref for one in claims]), "now": now, **times}


def _token() -> int:
    """Return what marks the rows that one call changed."""
    return secrets.randbelow(1 << 62)


def _part(ref: str) -> int:
    return zlib.crc32(ref.encode()) % _PARTS

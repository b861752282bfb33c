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
from ._base import FIRST, VALUE_COST, Ended, Facts, Position, Record, SessionStatus, StoreUsage, marked
from ._clocks import MachineClock, ServerClock
from ._stepwise import StepwiseLookUp

Statement = tuple[str, Mapping[str, Any]]
Rows = list[tuple[Any, ...]]

_PARTS: Final = 16
SWEEP_EVERY: Final = 60  # seconds
SWEPT_ROWS: Final = 200  # at once


class _Found(NamedTuple):
    """What a change of data found."""

    ended: bool
    of_others: int  # bytes of the data of the principal's other sessions
    of_owner: int  # of this session's
    size: int  # bytes of the names and values that stay
    number: int  # of those values
    value: bytes | None  # the old one

    def check_room(self, namespace: Namespace, *new: bytes) -> None:
        """Raise where these have no room, a name and its value; what the statements decide is the same."""
        size = self.size + sum(map(len, new))
        cost = size + (self.number + bool(new)) * VALUE_COST
        base.check_size(namespace, size)
        base.check_principal(namespace, self.of_others + self.of_owner, cost - self.of_owner)


class SQLStore(StepwiseLookUp, ABC):
    """The methods of a store in SQL.

    Args:
        leeway: Seconds to keep entries after their token expires, for clocks that disagree.
        clock: This worker's; returns Unix seconds.
        store_clock: By which is ended and deleted what all workers share.
        accept_older: Whether sessions from before the store's epoch are accepted.
    """

    def __init__(
        self, *, leeway: float, clock: Callable[[], float], store_clock: ServerClock | MachineClock, accept_older: bool
    ) -> None:
        self._leeway = leeway
        self._clock = check_clock(clock)
        self._store_clock = store_clock
        self._accept_older = accept_older
        self._swept_at = -math.inf
        self._unsure: dict[str, int] = {}  # the marks of revocations whose outcome is unknown, by what they revoke

    async def _read(self, *statements: Statement) -> list[Rows]:
        """Return the rows of statements that change nothing, in one round trip."""
        return await self._change(*statements)

    @abstractmethod
    async def _change(self, *statements: Statement, repeatable: bool = True, frees: bool = False) -> list[Rows]:
        """Return the rows of statements that are one transaction and one round trip, when it is durable.

        Args:
            statements: Of `_sql_text`, with their values.
            repeatable: Whether it may be made twice, where it is unknown whether it was made.
            frees: Whether it makes room, and may take what is reserved for that.
        """

    @abstractmethod
    async def _ask_time(self) -> None:
        """Ask the store what time it is, if it has a clock of its own."""

    async def _store_time(self, *, ask: bool = False) -> float:
        """Return the time by which is ended and deleted what all workers share."""
        if ask or not self._store_clock.is_known:
            await self._ask_time()
        return self._store_clock()

    async def _data_time(self) -> float:
        """Return when a value is over: neither this worker's clock nor the store's may end it early."""
        return min(self._clock(), await self._store_time())

    # --- revocations ------------------------------------------------------------------------------

    async def status(self, claims: Claims) -> SessionStatus:
        return (await self.statuses((claims,)))[0]

    async def statuses(self, claims: Sequence[Claims]) -> list[SessionStatus]:
        (rows,) = await self._read(asking(claims))
        accept = self._accept_older
        asked = zip(claims, rows, strict=True)
        return [base.status_of(one.issued_at, Facts(*row), accept_older=accept) for one, row in asked]

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> SessionStatus:
        now = await self._store_time()
        times = {"touched_by": now - base.resolution(idle_timeout), "idle_since": base.idle_since(now, idle_timeout)}
        rows, _ = await self._change(asking(claims.by_owner()), (sql.TOUCH, {"ref": claims.ref, "now": now, **times}))
        return self._status_with_idle(claims, facts_of(rows), now, idle_timeout)

    def _status_with_idle(self, claims: Claims, facts: Facts, now: float, idle_timeout: int | None) -> SessionStatus:
        accept = self._accept_older
        return base.status_with_idle(claims.issued_at, facts, now=now, idle_timeout=idle_timeout, accept_older=accept)

    async def revoke(self, record: Record, *, reason: str, lease: float | None) -> bool:
        now = await self._store_time()
        values = {
            "ref": record.ref,
            "audience": record.audience,
            "expires_at": record.expires_at,
            "expired_before": -1,  # whose revocation has to stay
            "part": _part(record.ref),
            "reason": reason,
            "lease_until": now + (lease or 0),
        }
        statements = (sql.REVOKE, sql.IS_REVOKED_BY, *(sql.PURGE_REVOKED if lease is None else ()))
        with marked(self._unsure, record.ref) as token:
            changes = ((text, {**values, "token": token}) for text in statements)
            _, found, *_ = await self._change(*changes, frees=lease is None)
        self._sweep_if_due(now)
        return bool(found)

    async def revoke_before(self, cutoff_time: float, *, audience: str, subject: str | None, expires_at: int) -> None:
        of = {"audience": audience, "subject": subject or ""}
        await self._change((sql.REVOKE_BEFORE, {**of, "cutoff_time": cutoff_time, "expires_at": expires_at}))

    async def register_at_epoch(self, claims: Claims) -> None:
        values = {"ref": claims.ref, "expires_at": claims.expires_at, "issued_at": claims.issued_at}
        await self._change((sql.REGISTER_AT_EPOCH, values))

    # --- records ----------------------------------------------------------------------------------

    async def register(self, record: Record, *, max_sessions: int | None = None) -> None:
        values = {
            **{name: getattr(record, name) for name in Record.__slots__},
            "hour": int(record.created_at // 3600),
            "part": _part(record.ref),
            "token": secrets.randbelow(1 << 62),
            "max_sessions": max_sessions,
            "usage": f"sessions {record.audience}",
        }
        made = sql.register(anonymous=record.subject is None, limited=max_sessions is not None)
        statements = (made, sql.COUNT_REGISTERED, sql.IS_KNOWN)
        *_, known = await self._change(*((text, values) for text in statements), repeatable=False)
        self._sweep_if_due(self._clock())
        if not known:
            raise refusal("sessions_full")

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
        of = {"audience": audience, "subject": subject, "now": self._clock()}
        (rows,) = await self._read((text, {**of, **page}))
        return [Record(*row) for row in rows]

    async def count(self, *, audience: str) -> int:
        ((row,),) = await self._read((sql.COUNT, {"audience": audience}))
        return int(row[0])

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        now = await self._store_time(ask=True)
        values = {
            "audience": audience,
            "now": now,
            "expired_by": math.floor(now),  # a whole number, as in the column, or PostgreSQL uses no index
            "idle_since": base.idle_since(now, idle_timeout),
            "limit": limit,
            "lease_until": now + lease,
            "token": secrets.randbelow(1 << 62),
        }
        claim, found = (sql.CLAIM, values), (sql.CLAIMED, values)
        _, rows = await self._change(claim, found, repeatable=False, frees=True)
        self._sweep_if_due(now)
        return [Ended(Record(*row), reason) for *row, reason in rows]

    async def purge(self, *refs: str) -> None:
        expired_before = math.floor(await self._store_time() - self._leeway)
        values = {"refs": json.dumps(refs), "expired_before": expired_before}
        await self._change(*((text, values) for text in sql.PURGE), frees=True)

    async def usage(self) -> StoreUsage:
        """Return what fills this store."""
        ((row,),) = await self._read((sql.USAGE, {}))
        return StoreUsage(*map(int, row))

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
    ) -> _Found:
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
        statements = (sql.LOCK_OWNER, sql.DROP_EXPIRED, look, change, *sql.SETTLE)
        results = await self._change(*((text, values) for text in statements), repeatable=repeatable)
        self._sweep_if_due(now)
        found = _Found(*results[2][0])
        base.check_changeable(namespace, now, self._leeway, has_ended=found.ended)
        return found


def sweep(run: Callable[..., list[Rows]], *, now: float, leeway: float) -> bool:
    """Delete some of what has expired, by a function that runs statements; whether there may be more."""
    values = {"expired_before": math.floor(now - leeway), "rows": SWEPT_ROWS, "now": now}
    (rows,) = run((sql.EXPIRED, values))
    refs = {"refs": json.dumps([ref for (ref,) in rows])}
    run(*((text, {**values, **refs}) for text in sql.SWEEP))
    return len(rows) == SWEPT_ROWS


def asking(claims: Sequence[Claims]) -> Statement:
    """Return the question for the facts of sessions."""
    asked = [(one.ref, one.subject, one.audience) for one in claims]
    return sql.FACTS, {"asked": json.dumps(asked)}


def facts_of(rows: Rows) -> Facts:
    """Return the facts of one session, which was asked for under each name of its principal."""
    cutoff_time = max(Facts(*row).cutoff_time for row in rows)
    return Facts(*rows[0])._replace(cutoff_time=cutoff_time)


def _part(ref: str) -> int:
    return zlib.crc32(ref.encode()) % _PARTS

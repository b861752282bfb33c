"""A minimal store of your own: dicts in one process, searched from end to end.

Between two `await`s nothing else runs, so each method here is one atomic step. With a database it is a transaction that
locks the session. `mcp_sessions.testing` is what it has to pass:

    class TestDictStore(StoreContract):
        @pytest.fixture
        def make_store(self, clock):
            return lambda: DictStore(clock=clock)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcp_sessions import Claims, DataGone, stores
from mcp_sessions.stores import FIRST, Ended, Namespace, Position, Reach, Record, Standing, refusal


@dataclass
class Kept:
    """A recorded session; once it has ended, also the reason and the lease of its `on_end`."""

    record: Record
    seen_at: float
    reason: str | None = None
    leased_until: float = 0

    def current(self) -> Record:
        return replace(self.record, seen_at=int(self.seen_at))


class DictStore:
    """A store that never deletes expired entries, which a real one should, some leeway after they expire."""

    reach = Reach.PROCESS

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.revoked: set[str] = set()
        self.cut_offs: dict[tuple[str, str | None], float] = {}
        self.records: dict[str, Kept] = {}
        self.data: dict[str, dict[str, tuple[bytes, float | None]]] = {}
        self.subjects: dict[str, str | None] = {}  # the owner of the data

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to release."""

    def _is_cut_off(self, one: Claims | Record, issued_at: float) -> bool:
        return any(issued_at < self.cut_offs.get((one.audience, subject), 0) for subject in (None, one.subject))

    async def admit(self, claims: Claims) -> None:
        """Nothing to note: this process loses either everything or nothing."""

    async def status(self, claims: Claims) -> Standing:
        ended = claims.ref in self.revoked or self._is_cut_off(claims, claims.issued_at)
        return Standing.ENDED if ended else Standing.LIVE

    async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
        return [await self.status(one) for one in claims]

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:  # noqa: ARG002
        if ref in self.revoked:
            return False
        self.revoked.add(ref)
        if ref in self.records:
            kept = self.records[ref]
            kept.reason, kept.leased_until = reason, self.clock() + lease
        return True

    async def revoke_before(self, moment: float, *, audience: str, subject: str | None, until: int) -> None:  # noqa: ARG002
        self.cut_offs[audience, subject] = max(moment, self.cut_offs.get((audience, subject), 0))

    async def register(self, record: Record, *, of_subject: int | None = None) -> None:
        if record.ref in self.revoked or record.ref in self.records:
            return
        of = (record.subject, record.audience)
        sessions = self._alive(lambda one: (one.subject, one.audience) == of)
        if of_subject is not None and len(sessions) >= of_subject:
            raise refusal("sessions_full")
        self.records[record.ref] = Kept(record, record.seen_at)

    async def touch(self, claims: Claims, *, idle_timeout: int | None) -> Standing:
        standing, kept, now = await self.status(claims), self.records.get(claims.ref), self.clock()
        if standing is Standing.ENDED:
            return standing
        if kept is None:
            return Standing.LOST
        if not now < stores.idle_at(kept.seen_at, idle_timeout):
            return Standing.IDLE
        if stores.is_touch_due(kept.seen_at, now, idle_timeout):
            kept.seen_at = now
        return Standing.LIVE

    def _alive(self, fits: Callable[[Record], bool], *, cut_off: bool = False) -> list[Record]:
        records = [
            kept.current()
            for kept in self.records.values()
            if kept.reason is None and self.clock() < kept.record.expires_at and fits(kept.record)
        ]
        alive = [one for one in records if cut_off or not self._is_cut_off(one, one.created_at)]
        return sorted(alive, key=lambda one: one.position)

    async def sessions(
        self, subject: str, *, audience: str, after: Position = FIRST, limit: int | None = None, cut_off: bool = False
    ) -> list[Record]:
        of = (subject, audience)
        found = self._alive(lambda one: (one.subject, one.audience) == of and one.position > after, cut_off=cut_off)
        return found[:limit]

    async def roster(self, *, audience: str, cursor: str = "", limit: int) -> tuple[list[Record], str]:
        found = self._alive(lambda one: one.audience == audience and one.ref > cursor)
        page = sorted(found, key=lambda one: one.ref)[:limit]
        return page, page[-1].ref if len(page) == limit else ""

    async def count(self, *, audience: str) -> int:
        return len(self._alive(lambda one: one.audience == audience))

    async def find(self, ref: str) -> Record | None:
        return next(iter(self._alive(lambda one: one.ref == ref)), None)

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        now, claimed = self.clock(), list[Ended]()
        for kept in self.records.values():
            if kept.reason is None and kept.record.expires_at <= now:
                reason, is_due = "expired", True
            elif kept.reason is None:
                reason, is_due = "idle", stores.idle_at(kept.seen_at, idle_timeout) <= now
            else:
                reason, is_due = kept.reason, kept.leased_until <= now
            if is_due and kept.record.audience == audience and len(claimed) < limit:
                self.revoked.add(kept.record.ref)
                kept.reason, kept.leased_until = reason, now + lease
                claimed.append(Ended(kept.current(), reason))
        return claimed

    async def purge(self, *refs: str) -> None:
        for ref in refs:
            self.records.pop(ref, None)
            self.data.pop(ref, None)

    async def elect(self, worker: str, *, audience: str, seconds: float) -> bool:  # noqa: ARG002
        return True  # there is one process

    def _items(self, namespace: Namespace) -> dict[str, tuple[bytes, float | None]]:
        items = self.data.get(namespace.owner, {})
        return {key: item for key, item in items.items() if item[1] is None or self.clock() < item[1]}

    async def read(self, namespace: Namespace, key: str) -> bytes | None:
        return self._items(namespace).get(key, (None, None))[0]

    async def write(
        self, namespace: Namespace, key: str, value: bytes | None, *, expires_at: float | None = None
    ) -> None:
        self._change(namespace, {**self._items(namespace), key: (value, expires_at)})

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        items = self._items(namespace)
        value, expires_at = items.get(key, (None, None))
        self._change(namespace, {**items, key: (new, expires_at)} if value == old else items)
        return value == old

    async def add(self, namespace: Namespace, key: str, by: int) -> int:
        items = self._items(namespace)
        value, expires_at = items.get(key, (None, None))
        self._change(namespace, items)
        total = stores.added(value, by)
        self._change(namespace, {**items, key: (b"%d" % total, expires_at)})
        return total

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        self._change(target, {**self._items(target), **self._items(namespace)})

    def _change(self, namespace: Namespace, items: dict[str, Any]) -> None:
        """Refuse where the session has ended, or would hold too much."""
        if namespace.owner in self.revoked or namespace.until <= self.clock():
            raise DataGone("the session has ended; its data can no longer be changed")
        kept = {key: item for key, item in items.items() if item[0] is not None}
        size = _size(kept)
        stores.check_size(namespace, size)
        self.subjects[namespace.owner] = namespace.subject
        if namespace.subject is not None:
            of = [items for owner, items in self.data.items() if self.subjects[owner] == namespace.subject]
            before = sum(_size(items) + len(items) * stores.VALUE_COST for items in of)
            own = self.data.get(namespace.owner, {})
            more = size - _size(own) + (len(kept) - len(own)) * stores.VALUE_COST
            stores.check_principal(namespace, before, more)
        self.data[namespace.owner] = kept


def _size(items: dict[str, Any]) -> int:
    return sum(stores.size_of(key, value) for key, (value, _) in items.items())

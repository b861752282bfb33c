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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mcp_sessions import stores
from mcp_sessions.errors import DataGone
from mcp_sessions.stores import (
    FIRST,
    Claims,
    Ended,
    Facts,
    Found,
    Namespace,
    Position,
    Record,
    SessionStatus,
    StoreScope,
    refusal,
)


@dataclass
class Entry:
    """A recorded session; once it has ended, also the reason and the lease of its `on_end`."""

    record: Record
    reason: str | None = None
    leased_until: float = 0


class DictStore:
    """A store that never deletes expired entries, which a real one should, some leeway after they expire."""

    scope = StoreScope.PROCESS

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.revoked: set[str] = set()
        self.cutoffs: dict[tuple[str, str | None], float] = {}
        self.records: dict[str, Entry] = {}
        self.data: dict[str, dict[str, tuple[bytes, float | None]]] = {}
        self.accounts: dict[str, str | None] = {}  # whose data it is: a principal's, in one deployment

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to release."""

    def facts(self, one: Claims | Record) -> Facts:
        entry = self.records.get(one.ref)
        owners = one.owners if isinstance(one, Claims) else [one.subject]  # all names of the principal
        cutoff_time = max(self.cutoffs.get((one.audience, owner), 0) for owner in (None, *owners))
        seen_at = None if entry is None else entry.record.seen_at
        return Facts(one.ref in self.revoked, cutoff_time, epoch=0, registered=False, seen_at=seen_at)

    async def look_up(
        self, *claims: Claims, state: bool = False, touch: bool = False, idle_timeout: int | None = None
    ) -> list[Found]:
        found = []
        for one in claims:
            status = self._touch(one, idle_timeout) if touch else stores.status_of(one.issued_at, self.facts(one))
            items = self.data.get(one.ref, {}) if state else {}
            found.append(Found(status, items.get(stores.STATE_KEY, (None, None))[0]))
        return found

    def _touch(self, claims: Claims, idle_timeout: int | None) -> SessionStatus:
        now = self.clock()
        status = stores.status_with_idle(claims.issued_at, self.facts(claims), now=now, idle_timeout=idle_timeout)
        entry = self.records.get(claims.ref)
        if entry and status is SessionStatus.LIVE and stores.is_touch_due(entry.record.seen_at, now, idle_timeout):
            entry.record = replace(entry.record, seen_at=now)
        return status

    async def revoke(self, record: Record, *, reason: str, lease: float | None) -> bool:
        if record.ref in self.revoked:
            return False
        self.revoked.add(record.ref)
        if lease is None:
            await self.purge(record.ref)
        elif record.ref in self.records:
            entry = self.records[record.ref]
            entry.reason, entry.leased_until = reason, self.clock() + lease
        return True

    async def revoke_before(self, cutoff_time: float, *, audience: str, subject: str | None, expires_at: int) -> None:  # noqa: ARG002
        self.cutoffs[audience, subject] = max(cutoff_time, self.cutoffs.get((audience, subject), 0))

    async def register_at_epoch(self, claims: Claims) -> None:
        """Nothing to note: this process loses either everything or nothing."""

    async def register(self, record: Record, *, max_sessions: int | None = None) -> None:
        if record.ref in self.revoked or record.ref in self.records:
            return
        same = [one for one in self._live(record.audience) if one.subject == record.subject]
        if max_sessions is not None and len(same) >= max_sessions:
            raise refusal("sessions_full")
        self.records[record.ref] = Entry(record)

    def _live(self, audience: str, *, with_cut_off: bool = False) -> list[Record]:
        found = [
            entry.record
            for entry in self.records.values()
            if entry.reason is None and entry.record.audience == audience and self.clock() < entry.record.expires_at
        ]
        live = [one for one in found if with_cut_off or one.created_at >= self.facts(one).cutoff_time]
        return sorted(live, key=lambda one: one.position)

    async def get(self, ref: str) -> Record | None:
        entry = self.records.get(ref)
        found = [] if entry is None else self._live(entry.record.audience)
        return next((record for record in found if record.ref == ref), None)

    async def list_sessions(
        self,
        *,
        audience: str,
        subject: str | None = None,
        after: Position = FIRST,
        limit: int,
        with_cut_off: bool = False,
    ) -> list[Record]:
        live = self._live(audience, with_cut_off=with_cut_off)
        return [one for one in live if subject in {None, one.subject} and one.position > after][:limit]

    async def count(self, *, audience: str) -> int:
        return len(self._live(audience))

    async def claim_ended(self, *, audience: str, idle_timeout: int | None, lease: float, limit: int) -> list[Ended]:
        now, claimed = self.clock(), list[Ended]()
        for entry in self.records.values():
            record = entry.record
            if entry.reason is not None:
                reason, is_due = entry.reason, entry.leased_until <= now
            elif record.expires_at <= now:
                reason, is_due = "expired", True
            else:
                reason, is_due = "idle", stores.idle_at(record.seen_at, idle_timeout) <= now
            if is_due and record.audience == audience and len(claimed) < limit:
                self.revoked.add(record.ref)
                entry.reason, entry.leased_until = reason, now + lease
                claimed.append(Ended(record, reason))
        return claimed

    async def purge(self, *refs: str) -> None:
        for ref in refs:
            self.records.pop(ref, None)
            self.data.pop(ref, None)

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
        total = stores.checked_add(value, by)
        self._change(namespace, {**items, key: (b"%d" % total, expires_at)})
        return total

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        self._change(target, {**self._items(target), **self._items(namespace)})

    def _change(self, namespace: Namespace, items: dict[str, Any]) -> None:
        """Refuse where the session has ended, or would hold too much."""
        if namespace.owner in self.revoked or namespace.expires_at <= self.clock():
            raise DataGone("the session has ended; its data can no longer be changed")
        kept = {key: item for key, item in items.items() if item[0] is not None}
        size = _size(kept)
        stores.check_size(namespace, size)
        self.accounts[namespace.owner] = namespace.account
        if namespace.account is not None:
            of = [items for owner, items in self.data.items() if self.accounts[owner] == namespace.account]
            before = sum(_size(items) + len(items) * stores.VALUE_COST for items in of)
            own = self.data.get(namespace.owner, {})
            more = size - _size(own) + (len(kept) - len(own)) * stores.VALUE_COST
            stores.check_principal(namespace, before, more)
        self.data[namespace.owner] = kept


def _size(items: dict[str, Any]) -> int:
    return sum(stores.entry_size(key, value) for key, (value, _) in items.items())

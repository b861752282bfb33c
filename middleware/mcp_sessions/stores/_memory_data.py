"""What `MemoryStore` keeps of all sessions' data, and the deadlines of what expires."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from .._errors import StoreFull
from .._session.data import Namespace
from ._base import ANONYMOUS, VALUE_COST, check_principal, check_size, entry_size

_DROPPED: Final = 250  # sessions whose data is dropped at once
_RECHECK_AFTER: Final = 60  # seconds, where expired data is still needed
_SLACK: Final = 1000  # outdated entries of a heap that are not worth a compaction


class Deadlines:
    """Names, each with the moment at which to look at it, in Unix seconds."""

    def __init__(self) -> None:
        self._moments: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # with outdated entries

    def put(self, name: str, moment: float) -> None:
        self._moments[name] = moment
        heappush(self._heap, (moment, name))
        if len(self._heap) > 2 * len(self._moments) + _SLACK:
            self._heap = [(moment, name) for name, moment in self._moments.items()]
            heapify(self._heap)

    def prolong(self, name: str, moment: float) -> None:
        if moment > self._moments.get(name, 0):
            self.put(name, moment)

    def remove(self, name: str) -> None:
        self._moments.pop(name, None)

    def first_due(self, now: float) -> str | None:
        """Return the name whose moment came first, or None where none has come. It stays until it is moved."""
        while self._heap and self._heap[0][0] <= now:
            moment, name = self._heap[0]
            if self._moments.get(name) == moment:
                return name
            heappop(self._heap)
        return None


class _Values(msgspec.Struct, gc=False):
    items: dict[str, bytes] = msgspec.field(default_factory=dict)
    ends: dict[str, float] = msgspec.field(default_factory=dict)  # of those values that end before the session
    size: int = 0
    subject: str | None = None

    @property
    def cost(self) -> int:
        return self.size + len(self.items) * VALUE_COST


class SessionDataTable:
    """The data of all sessions. Expired values are not read, and are dropped before anything is measured.

    A quarter of the room is kept from sessions without a principal, who have one account together.
    """

    def __init__(self, max_bytes: int, full: Callable[[], StoreFull]) -> None:
        self._full = full
        self._max_bytes = max_bytes
        self.bytes: int = 0
        self._of_subjects: dict[str, int] = {}
        self._values: dict[str, _Values] = {}
        self._deadlines = Deadlines()

    @property
    def max_of_one(self) -> int:
        """The bytes that the data of the principal takes that has most."""
        return max(self._of_subjects.values(), default=0)

    def read(self, owner: str, key: str, now: float) -> bytes | None:
        values = self._values.get(owner)
        return None if values is None or not now < values.ends.get(key, math.inf) else values.items.get(key)

    def items(self, owner: str, now: float) -> list[tuple[str, bytes, float | None]]:
        values = self._values.get(owner, _Values())
        found = ((key, value, values.ends.get(key)) for key, value in values.items.items())
        return [item for item in found if item[2] is None or now < item[2]]

    def replace(self, namespace: Namespace, key: str, value: bytes | None, now: float) -> None:
        """Keep another value, or none, and the end that the old one had."""
        values = self._values.get(namespace.owner) or _Values(subject=namespace.subject)
        for expired in [name for name, end in values.ends.items() if not now < end]:
            self._remove(values, expired)
        if value is None:
            self._remove(values, key)
        else:
            old = values.items.get(key)
            more = entry_size(key, value) - (0 if old is None else entry_size(key, old))
            check_size(namespace, values.size + more)
            self._check_room(namespace, values.subject, cost := more + (VALUE_COST if old is None else 0))
            values.items[key] = value
            values.size += more
            self._account(values.subject, cost)
        if not values.items:
            self.drop(namespace.owner)
        else:
            self._values[namespace.owner] = values
            self._deadlines.prolong(namespace.owner, namespace.expires_at)

    def _check_room(self, namespace: Namespace, subject: str | None, cost: int) -> None:
        if subject is not None:
            of_all = self._of_subjects.get(subject, 0)
            check_principal(namespace, of_all, cost)
            if subject == ANONYMOUS and of_all + cost > self._max_bytes // 4 * 3:
                raise self._full()
        if self.bytes + cost > self._max_bytes:
            raise self._full()

    def set_end(self, owner: str, key: str, expires_at: float | None) -> None:
        self._values[owner].ends.pop(key, None)
        if expires_at is not None:
            self._values[owner].ends[key] = expires_at

    def drop(self, owner: str) -> None:
        values = self._values.pop(owner, None)
        if values is not None:
            self._account(values.subject, -values.cost)
            self._deadlines.remove(owner)

    def drop_expired(self, expired_before: float, *, is_needed: Callable[[str], object]) -> bool:
        """Drop the data of some sessions that expired before a moment, except what is needed; whether it was all."""
        for _ in range(_DROPPED):
            if (owner := self._deadlines.first_due(expired_before)) is None:
                return True
            if is_needed(owner):
                self._deadlines.put(owner, expired_before + _RECHECK_AFTER)
            else:
                self.drop(owner)
        return False

    def _remove(self, values: _Values, key: str) -> None:
        values.ends.pop(key, None)
        old = values.items.pop(key, None)
        if old is not None:
            values.size -= entry_size(key, old)
            self._account(values.subject, -entry_size(key, old) - VALUE_COST)

    def _account(self, subject: str | None, cost: int) -> None:
        self.bytes += cost
        if subject is not None:
            total = self._of_subjects.pop(subject, 0) + cost
            if total:
                self._of_subjects[subject] = total

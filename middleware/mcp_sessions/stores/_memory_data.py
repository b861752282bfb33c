"""What `MemoryStore` keeps of all sessions' data, and the index by which what is over is found without a scan."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Final

import msgspec

from .._errors import StoreFull
from .._session.data import Namespace
from ._base import ANONYMOUS, VALUE_COST, check_principal, check_size, size_of

MINUTE: Final = 60  # seconds between two times of forgetting
_SLACK: Final = 1000  # entries that an index may hold in vain


class ExpiryIndex:
    """Names, each with the moment at which to look at it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._moments: dict[str, float] = {}

    def put(self, name: str, moment: float) -> None:
        before = self._moments.get(name)
        self._moments[name] = moment
        if before is not None and before <= moment:
            return  # the entry that is there is moved when its moment comes
        heapq.heappush(self._heap, (moment, name))
        if len(self._heap) > 2 * len(self._moments) + _SLACK:
            self._heap = [(moment, name) for name, moment in self._moments.items()]
            heapq.heapify(self._heap)

    def remove(self, name: str) -> None:
        del self._moments[name]  # what the heap holds of it is passed over

    def expired(self, now: float) -> str | None:
        """Return a name whose moment has come, an early one, or None. It stays until it is moved."""
        while self._heap and self._heap[0][0] <= now:
            name = self._heap[0][1]
            moment = self._moments.get(name)
            if moment is None:
                heapq.heappop(self._heap)
            elif moment <= now:
                return name
            else:
                heapq.heapreplace(self._heap, (moment, name))
        return None


class _Values(msgspec.Struct):
    items: dict[str, bytes] = msgspec.field(default_factory=dict)
    ends: dict[str, float] = msgspec.field(default_factory=dict)  # of those values that end before the session
    size: int = 0
    subject: str | None = None

    @property
    def cost(self) -> int:
        return self.size + len(self.items) * VALUE_COST


class DataOfAll:
    """The data of all sessions. What is over is not read, and it is dropped before anything is measured.

    A quarter of the room is kept from sessions without a principal, who have one account together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.bytes: int = 0
        self._of_subjects: dict[str, int] = {}
        self._values: dict[str, _Values] = {}
        self._ends = ExpiryIndex()

    @property
    def most(self) -> int:
        """The bytes that the data of the principal takes that has most."""
        return max(self._of_subjects.values(), default=0)

    def read(self, owner: str, key: str, now: float) -> bytes | None:
        values = self._values.get(owner, _Values())
        return values.items.get(key) if now < values.ends.get(key, math.inf) else None

    def items(self, owner: str, now: float) -> list[tuple[str, bytes, float | None]]:
        values = self._values.get(owner, _Values())
        there = ((key, value, values.ends.get(key)) for key, value in values.items.items())
        return [item for item in there if item[2] is None or now < item[2]]

    def replace(self, namespace: Namespace, key: str, value: bytes | None, now: float) -> None:
        """Keep another value, or none, and the end that the old one had."""
        values = self._values.get(namespace.owner) or _Values(subject=namespace.subject)
        for over in [name for name, end in values.ends.items() if not now < end]:
            self._remove(values, over)
        if value is None:
            self._remove(values, key)
        else:
            old = values.items.get(key)
            count, more = int(old is None), size_of(key, value) - (0 if old is None else size_of(key, old))
            check_size(namespace, values.size + more)
            cost = more + count * VALUE_COST
            if values.subject is not None:
                of_all = self._of_subjects.get(values.subject, 0)
                check_principal(namespace, of_all, cost)
                if values.subject == ANONYMOUS and of_all + cost > self._max_bytes // 4 * 3:
                    raise StoreFull
            if self.bytes + cost > self._max_bytes:
                raise StoreFull
            values.items[key] = value
            values.size += more
            self._add(values.subject, cost)
        if not values.items:
            self.drop(namespace.owner)
        elif namespace.owner not in self._values:
            self._values[namespace.owner] = values
            self._ends.put(namespace.owner, namespace.until)

    def set_end(self, owner: str, key: str, expires_at: float | None) -> None:
        self._values[owner].ends.pop(key, None)
        if expires_at is not None:
            self._values[owner].ends[key] = expires_at

    def drop(self, owner: str) -> None:
        values = self._values.pop(owner, None)
        if values is not None:
            self._add(values.subject, -values.cost)
            self._ends.remove(owner)

    def forget(self, over: float, *, keep: Callable[[str], object]) -> None:
        """Drop the data of sessions that ended by themselves before a moment, but those that are to be kept."""
        while (owner := self._ends.expired(over)) is not None:
            if keep(owner):
                self._ends.put(owner, over + MINUTE)
            else:
                self.drop(owner)

    def _remove(self, values: _Values, key: str) -> None:
        values.ends.pop(key, None)
        old = values.items.pop(key, None)
        if old is not None:
            values.size -= size_of(key, old)
            self._add(values.subject, -size_of(key, old) - VALUE_COST)

    def _add(self, subject: str | None, cost: int) -> None:
        self.bytes += cost
        if subject is not None:
            total = self._of_subjects.pop(subject, 0) + cost
            if total:
                self._of_subjects[subject] = total

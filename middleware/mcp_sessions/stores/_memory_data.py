"""The indexes of `MemoryStore`, and what it keeps of all sessions' data.

The garbage collector stops the event loop to walk over containers, but not over what holds only atoms: tuples of
strings, dicts of strings and numbers, structs with `gc=False`. All that is kept for each session is of these.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import chain, dropwhile, takewhile
from operator import itemgetter
from typing import Final

import msgspec

from .._errors import StoreFull
from .._session.data import Namespace
from ._base import ANONYMOUS, VALUE_COST, check_principal, check_size, size_of

MINUTE: Final = 60  # seconds between two times of forgetting
FORGOTTEN: Final = 1000  # sessions whose data is dropped at once
_BLOCK: Final = 64  # names that a change copies at the most


class SortedNames:
    """Names in order, in tuples of a few dozen."""

    def __init__(self) -> None:
        self._blocks: list[tuple[str, ...]] = []  # none is empty

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """Return the names in blocks, as they are now."""
        return iter(tuple(self._blocks))

    @property
    def first(self) -> str | None:
        return self._blocks[0][0] if self._blocks else None

    def add(self, name: str) -> None:
        n, at = self._place(name)
        block = self._blocks[n] if self._blocks else ()
        block = (*block[:at], name, *block[at:])
        half = len(block) // 2
        self._blocks[n : n + 1] = [block] if len(block) <= _BLOCK else [block[:half], block[half:]]

    def remove(self, name: str) -> None:
        n, at = self._place(name)
        block = self._blocks[n]
        self._blocks[n : n + 1] = [(*block[:at], *block[at + 1 :])] if len(block) > 1 else []

    def after(self, name: str, end: str) -> Iterator[str]:
        """Yield the names after one and before `end`; nothing may change meanwhile."""
        n, _ = self._place(name)
        names = chain.from_iterable(self._blocks[place] for place in range(n, len(self._blocks)))
        return takewhile(end.__gt__, dropwhile(name.__ge__, names))

    def count(self, first: str, end: str) -> int:
        """Return how many names there are from `first` on and before `end`."""
        (n, at), (last, until) = self._place(first), self._place(end)
        return sum(map(len, self._blocks[n:last])) + until - at

    def _place(self, name: str) -> tuple[int, int]:
        """Return where a name stands, or would: the block, and the place in it."""
        n = max(bisect_right(self._blocks, name, key=itemgetter(0)) - 1, 0)
        return n, bisect_left(self._blocks[n], name) if self._blocks else 0


class ExpiryIndex:
    """Names, each with the moment at which to look at it, in Unix seconds."""

    def __init__(self) -> None:
        self._names = SortedNames()
        self._moments: dict[str, float] = {}

    def put(self, name: str, moment: float) -> None:
        self.remove(name)
        self._moments[name] = moment
        self._names.add(_at(name, moment))

    def remove(self, name: str) -> None:
        if (moment := self._moments.pop(name, None)) is not None:
            self._names.remove(_at(name, moment))

    def moment(self, name: str) -> float:
        return self._moments.get(name, 0)

    def expired(self, now: float) -> str | None:
        """Return the name whose moment came first, or None where none has come. It stays until it is moved."""
        first = self._names.first
        if first is None or self._moments[first[_DIGITS:]] > now:
            return None
        return first[_DIGITS:]


_DIGITS: Final = 18  # of a moment that is sorted as text


def _at(name: str, moment: float) -> str:
    return f"{moment:0{_DIGITS}.6f}{name}"


class _Values(msgspec.Struct, gc=False):
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

    def forget(self, over: float, *, keep: Callable[[str], object]) -> bool:
        """Drop the data of some sessions that ended by themselves before a moment, but those that are to be kept.

        Returns:
            Whether those were all.
        """
        for _ in range(FORGOTTEN):
            if (owner := self._ends.expired(over)) is None:
                return True
            if keep(owner):
                self._ends.put(owner, over + MINUTE)
            else:
                self.drop(owner)
        return False

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

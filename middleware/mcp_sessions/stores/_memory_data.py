"""The indexes of `MemoryStore`, and what it keeps of all sessions' data.

The garbage collector stops the event loop to walk over containers, but not over dicts of texts and numbers and structs
with `gc=False`: all that is kept for each session is of these. It walks a list, a set and, when it is new, a tuple.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import chain, dropwhile, takewhile
from typing import Final

import msgspec

from .._errors import StoreFull
from .._session.data import Namespace
from ._base import ANONYMOUS, VALUE_COST, check_principal, check_size, size_of

MINUTE: Final = 60  # seconds between two times of forgetting
FORGOTTEN: Final = 250  # sessions whose data is dropped at once
_BLOCK: Final = 40  # names that a change copies at the most


class SortedNames:
    """Names in order, some dozen to a text, in lines. A name's letters sort behind a line's end."""

    def __init__(self) -> None:
        self._blocks: list[str] = []

    def __iter__(self) -> Iterator[list[str]]:
        """Return the names in blocks, as they are now."""
        return (block.split("\n") for block in tuple(self._blocks))

    @property
    def first(self) -> str | None:
        return self._blocks[0].split("\n", 1)[0] if self._blocks else None

    def add(self, name: str) -> None:
        n, names = self._block(name)
        insort(names, name)
        half = len(names) // 2 if len(names) > _BLOCK else len(names)
        self._blocks[n : n + 1] = ["\n".join(part) for part in (names[:half], names[half:]) if part]

    def remove(self, name: str) -> None:
        n, names = self._block(name)
        names.remove(name)
        self._blocks[n : n + 1] = ["\n".join(names)] if names else []

    def after(self, name: str, end: str) -> Iterator[str]:
        """Yield the names after one and before `end`; nothing may change meanwhile."""
        n, names = self._block(name)
        others = (self._blocks[place].split("\n") for place in range(n + 1, len(self._blocks)))
        return takewhile(end.__gt__, dropwhile(name.__ge__, chain(names, chain.from_iterable(others))))

    def count(self, first: str, end: str) -> int:
        """Return how many names there are from `first` on and before `end`."""
        (n, names), (last, others) = self._block(first), self._block(end)
        between = sum(block.count("\n") + 1 for block in self._blocks[n:last])
        return between + bisect_left(others, end) - bisect_left(names, first)

    def _block(self, name: str) -> tuple[int, list[str]]:
        """Return the names among which one stands, or would, and their place."""
        n = max(bisect_right(self._blocks, f"{name}\v") - 1, 0)  # also behind a block that begins with it
        return n, self._blocks[n].split("\n") if self._blocks else []


class ExpiryIndex:
    """Names, each with the moment at which to look at it, in Unix seconds."""

    def __init__(self) -> None:
        self._names = SortedNames()
        self._moments: dict[str, float] = {}

    def put(self, name: str, moment: float) -> None:
        if (before := self._moments.get(name)) is not None:
            self._names.remove(_at(name, before))
        self._moments[name] = moment  # in place: a dict that names leave and enter is built anew at times
        self._names.add(_at(name, moment))

    def remove(self, name: str) -> None:
        self._names.remove(_at(name, self._moments.pop(name)))

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

"""What the memory store holds: names by their moments, and the data of an audience's sessions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from .._errors import StoreFull
from .._session.data import Namespace
from . import _base as base
from ._base import ANONYMOUS, VALUE_COST

_WIDTH: Final = 10  # seconds of a bucket

Values = dict[str, tuple[bytes, float]]
"""Values by their names, each with when it expires: Unix seconds, or infinity."""


class Timeline(dict[str, float]):
    """Names, each with a moment in Unix seconds.

    They also lie in buckets of some seconds, so those before or after a moment are found without looking at the others.
    """

    __slots__ = ("_buckets", "_first")  # there is one for each principal

    def __init__(self) -> None:
        super().__init__()
        self._buckets: dict[int, set[str]] = {}
        self._first: float = math.inf  # no bucket is before this one

    def __setitem__(self, name: str, moment: float) -> None:
        self.discard(name)
        super().__setitem__(name, moment)
        number = int(moment // _WIDTH)
        self._buckets.setdefault(number, set()).add(name)
        self._first = min(self._first, number)

    def discard(self, name: str) -> None:
        moment = self.pop(name, None)
        if moment is not None:
            bucket = self._buckets[int(moment // _WIDTH)]
            bucket.remove(name)
            if not bucket:
                del self._buckets[int(moment // _WIDTH)]

    def until(self, moment: float, limit: int) -> list[str]:
        """Return at most `limit` names whose moment is not later than this one, earlier buckets first."""
        found: list[str] = []
        if self._first * _WIDTH <= moment:
            self._first = min(self._buckets, default=math.inf)
            for number in sorted(number for number in self._buckets if number * _WIDTH <= moment):
                names = (name for name in self._buckets[number] if self[name] <= moment)
                found += islice(names, limit - len(found))
        return found

    def count_since(self, moment: float) -> int:
        """Return the number of names whose moment is not earlier than this one."""
        first = moment // _WIDTH
        later = sum(len(bucket) for number, bucket in self._buckets.items() if number > first)
        return later + sum(self[name] >= moment for name in self._buckets.get(int(first), ()))

    def after(self, position: tuple[float, str]) -> Iterator[str]:
        """Yield the names after a moment and a name, in that order."""
        first = position[0] // _WIDTH
        for number in sorted(number for number in self._buckets if number >= first):
            positions = sorted((self[name], name) for name in self._buckets[number])
            yield from (name for moment, name in positions if (moment, name) > position)


@dataclass(slots=True)
class _Owner:
    subject: str | None
    values: Values = field(default_factory=dict)
    cost: int = 0


class SessionData:
    """The data of an audience's sessions. Expired values are not read, and are removed before anything is measured.

    A quarter of the room is kept from sessions without a principal, who have one account together.
    """

    def __init__(self, max_bytes: int, full: Callable[[str], StoreFull]) -> None:
        self._max_bytes, self._full = max_bytes, full
        self.bytes = 0
        self._of_subjects: Counter[str | None] = Counter()
        self.deadlines = Timeline()
        self._owners: dict[str, _Owner] = {}

    def values(self, name: str) -> Values:
        return owner.values if (owner := self._owners.get(name)) else {}

    def find(self, name: str, key: str, now: float) -> tuple[bytes | None, float]:
        """Return a value and when it expires."""
        value, ends = self.values(name).get(key, (None, math.inf))
        return (value, ends) if now < ends else (None, math.inf)

    def put(self, namespace: Namespace, new: Mapping[str, tuple[bytes | None, float]], now: float) -> None:
        """Store values, and remove those that are None."""
        owner = self._owners.get(namespace.owner) or _Owner(namespace.subject)
        values, changed = owner.values, dict(new)
        changed = {key: (None, ends) for key, (_, ends) in values.items() if ends <= now} | changed
        old = {key: values[key] for key in changed if key in values}
        kept = {key: (value, ends) for key, (value, ends) in changed.items() if value is not None and now < ends}
        more = _cost(kept) - _cost(old)
        if kept:
            number = len(values) - len(old) + len(kept)
            base.check_size(namespace, owner.cost + more - number * VALUE_COST)
            self._check_room(namespace, owner.subject, more)
        for key in old:
            del values[key]
        values.update(kept)
        self._account(owner, more)
        if values:
            self._owners[namespace.owner] = owner
            self.deadlines[namespace.owner] = max(namespace.expires_at, self.deadlines.get(namespace.owner, 0))
        else:
            self.drop(namespace.owner)

    def drop(self, name: str) -> None:
        if (owner := self._owners.pop(name, None)) is not None:
            self._account(owner, -owner.cost)
            self.deadlines.discard(name)

    def _check_room(self, namespace: Namespace, subject: str | None, more: int) -> None:
        of_account, room = self._of_subjects[subject], self._max_bytes
        if subject is not None:
            base.check_principal(namespace, of_account, more)
        is_crowded = subject == ANONYMOUS and of_account + more > room // 4 * 3
        if is_crowded or self.bytes + more > room:
            raise self._full(f"max_data_bytes={room}")

    def _account(self, owner: _Owner, more: int) -> None:
        owner.cost += more
        self.bytes += more
        self._of_subjects[owner.subject] += more
        if not owner.cost and not self._of_subjects[owner.subject]:
            del self._of_subjects[owner.subject]


def _cost(values: Values) -> int:
    return sum(base.entry_size(key, value) + VALUE_COST for key, (value, _) in values.items())

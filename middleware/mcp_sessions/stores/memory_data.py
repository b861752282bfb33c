"""Session data in this process's memory, with an end for each value and a limit for them all.

Whether a session may still change its data is not judged here. What is over counts for nothing: it is
not read, and it is dropped before anything is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from ..data import Shelf
from ..errors import StoreFull
from .calendar import Calendar
from .rules import check_size, size_of

VALUE_COST: Final = 200  # bytes that keeping a value takes besides its name and itself


class _Values(msgspec.Struct):
    """One session's data."""

    until: int
    items: dict[str, bytes] = msgspec.field(default_factory=dict)
    ends: dict[str, float] = msgspec.field(default_factory=dict)  # of those values that end before the session
    size: int = 0


class MemoryData:
    """The data of all sessions.

    Args:
        max_bytes: Bytes that it may take, with `VALUE_COST` for the keeping of each value.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._data: dict[str, _Values] = {}
        self._ends = Calendar()

    def __len__(self) -> int:
        """How many sessions have data."""
        return len(self._data)

    def read(self, owner: str, key: str, now: float) -> bytes | None:
        """A value, or None where there is none or its time is over."""
        values = self._data.get(owner)
        if values is None or key not in values.items:
            return None
        return values.items[key] if key not in values.ends or now < values.ends[key] else None

    def items(self, owner: str, now: float) -> list[tuple[str, bytes, float | None]]:
        """Every value that is there, by its name, with its end."""
        values = self._data.get(owner, _Values(0))
        there = ((key, value, values.ends.get(key)) for key, value in values.items.items())
        return [(key, value, end) for key, value, end in there if end is None or now < end]

    def replace(self, shelf: Shelf, key: str, value: bytes | None, now: float) -> None:
        """Keep another value, or none, and the time that the old one had.

        Raises:
            DataTooLarge: The session's data would exceed its limit.
            StoreFull: The data of all sessions would exceed the limit.
        """
        values = self._without_what_is_over(shelf, now)
        old = values.items.get(key)
        kept = -size_of(key, old) if old is not None else 0
        if value is None:
            values.ends.pop(key, None)
            values.items.pop(key, None)
            self._resize(values, kept, count=-int(old is not None))
        else:
            more = kept + size_of(key, value)
            count = int(old is None)
            check_size(shelf, values.size + more)
            if self._bytes + more + count * VALUE_COST > self._max_bytes:
                raise StoreFull
            values.items[key] = value
            self._resize(values, more, count=count)
        self._shelve(shelf.owner, values)

    def end(self, owner: str, key: str, expires_at: float | None) -> None:
        """Say when a value's time is over; None for as long as the session."""
        ends = self._data[owner].ends
        if expires_at is None:
            ends.pop(key, None)
        else:
            ends[key] = expires_at

    def drop(self, owner: str) -> None:
        """Forget a session's data."""
        values = self._data.pop(owner, None)
        if values is not None:
            self._bytes -= values.size + len(values.items) * VALUE_COST
            self._ends.strike(owner, values.until)

    def drop_over(self, moment: float, *, keep: Callable[[str], object]) -> None:
        """Forget the data of sessions that ended by themselves before a moment, but those that are to be kept."""
        for owner in self._ends.due(moment):
            if self._data[owner].until <= moment and not keep(owner):
                self.drop(owner)

    def _without_what_is_over(self, shelf: Shelf, now: float) -> _Values:
        values = self._data.get(shelf.owner) or _Values(shelf.until)
        for key in [key for key, end in values.ends.items() if not now < end]:
            del values.ends[key]
            self._resize(values, -size_of(key, values.items.pop(key)), count=-1)
        return values

    def _resize(self, values: _Values, more: int, *, count: int) -> None:
        values.size += more
        self._bytes += more + count * VALUE_COST

    def _shelve(self, owner: str, values: _Values) -> None:
        if not values.items:
            self.drop(owner)
        elif owner not in self._data:
            self._data[owner] = values
            self._ends.put(owner, values.until)

"""Session data in Redis: one hash for the values as JSON, one for their times and the bytes that they take.

Each change is one script within the session's own slot. Values whose time is over are taken for missing, and
go when room is needed. Data of a recorded session stays for its `on_end` to read, until `finish`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from ..data import Shelf
from ..errors import DataError, DataGone, DataNotInteger, DataTooLarge
from .redis_base import RedisBase
from .redis_data_scripts import ADD, FILL, ITEMS, READ, SWAP, WRITE
from .redis_scripts import Script, Step, Word

INT64: Final = 1 << 63

_ERRORS: Final[Mapping[bytes, tuple[type[DataError], str]]] = MappingProxyType(
    {
        b"gone": (DataGone, "the session has ended"),
        b"large": (DataTooLarge, "the session's data would exceed its limit"),
        b"not-integer": (DataNotInteger, "the value or the sum is no integer of 64 bits"),
    }
)


class RedisData(RedisBase):
    """The part of a store that holds data."""

    async def read(self, shelf: Shelf, key: str) -> bytes | None:
        """A value's JSON, or None where there is none or its time is over."""
        now = await self._ready()
        (value,) = await self._link.run(self._step(READ, shelf, key, now), again=True)
        found: bytes | None = value
        return found

    async def write(self, shelf: Shelf, key: str, value: bytes | None, *, expires_at: float | None = None) -> None:
        """Keep a value, or None to keep none."""
        ends = "" if expires_at is None else repr(float(expires_at))
        await self._change(WRITE, shelf, key, value or b"", ends)

    async def swap(self, shelf: Shelf, key: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace a value by another if it is still the old one; its time stays as it was."""
        done, *_ = await self._change(SWAP, shelf, key, old or b"", new or b"")
        return bool(done == b"done")

    async def add(self, shelf: Shelf, key: str, by: int) -> int:
        """Add to a value, which is 0 where there is none; its time stays as it was."""
        if not -INT64 <= by < INT64:
            raise DataNotInteger(_ERRORS[b"not-integer"][1])
        _, total = await self._change(ADD, shelf, key, by)
        return int(total)

    async def copy(self, shelf: Shelf, target: Shelf) -> None:
        """Put what lies on a shelf onto a new one: what one script reads, another writes."""
        now = await self._ready()
        (items,) = await self._link.run(self._step(ITEMS, shelf, "", now), again=True)
        await self._change(FILL, target, "", *items)

    async def _change(self, script: Script, shelf: Shelf, key: str, *args: Word) -> list[Any]:
        """What became of a change. It is never tried twice: it may have been made, and be followed by another's."""
        now = await self._ready()
        if not now < shelf.until + self._leeway:
            raise DataGone(_ERRORS[b"gone"][1])
        (result,) = await self._link.run(self._step(script, shelf, key, now, *args), again=False)
        found: list[Any] = result
        if found[0] in _ERRORS:
            error, text = _ERRORS[found[0]]
            raise error(text)
        return found

    def _step(self, script: Script, shelf: Shelf, key: str, now: float, *args: Word) -> Step:
        times = (self._ttl(shelf.until, now), self._ttl(shelf.until, now, recorded=True))
        return script(*self._keys.shelf(shelf.owner), args=(repr(now), *times, shelf.max_bytes, key, *args))

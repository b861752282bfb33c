"""What every store decides alike: when a session is idle, what a sum is, and whether data has room.

Pure functions over what a store holds, so that stores cannot come to differ in an edge. Nothing here
reads a clock or keeps anything. The rules are those of `stores/base.py` and `data.py`.
"""

from __future__ import annotations

import math
import re
from typing import Final

from ..data import Shelf
from ..errors import DataNotInteger, DataTooLarge
from .base import grain

_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_MOST: Final = 2**63 - 1


def idle_at(seen: float, idle_timeout: int | None) -> float:
    """When a session that was noted as seen at a moment is idle: by the grain later, since that note may lag."""
    return math.inf if idle_timeout is None else seen + idle_timeout + grain(idle_timeout)


def seen_by(now: float, idle_timeout: int | None) -> float:
    """The last moment at which a session that is idle now can have been noted as seen."""
    return -math.inf if idle_timeout is None else now - idle_timeout - grain(idle_timeout)


def is_due_again(seen: float, now: float, idle_timeout: int | None) -> bool:
    """Whether a use of a session must be noted, so that the note lags by no more than the grain."""
    return now >= seen + grain(idle_timeout)


def added(value: bytes | None, by: int) -> int:
    """The sum of a value and a number.

    Args:
        value: A value's JSON, or None for 0.
        by: What is added.

    Raises:
        DataNotInteger: The value or the sum is no integer of 64 bits.
    """
    if value is not None and _INTEGER.fullmatch(value) is None:
        raise DataNotInteger("increment needs a value that is a whole number")
    before = 0 if value is None else int(value)
    if -_MOST - 1 <= before <= _MOST and -_MOST - 1 <= before + by <= _MOST:
        return before + by
    raise DataNotInteger("increment needs a value and a sum of 64 bits at most")


def size_of(key: str, value: bytes) -> int:
    """Bytes that a value counts for against `Shelf.max_bytes`."""
    return len(key.encode("utf-8")) + len(value)


def check_size(shelf: Shelf, size: int) -> None:
    """Refuse what would not fit.

    Raises:
        DataTooLarge: The session's data would take more bytes than it may.
    """
    if size > shelf.max_bytes:
        raise DataTooLarge(f"session data would take {size} bytes; the limit is {shelf.max_bytes}")

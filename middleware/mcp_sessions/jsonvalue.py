"""The JSON of a value that will be read back: as it is, or not at all.

State and data are Python values that an application writes in one request and reads in another. What
JSON would quietly change on the way (a tuple, a date, NaN, a number as a key) is refused where it is
written. The rule is RFC 8259; nothing here knows what the value is for.
"""

from __future__ import annotations

from typing import Any

import msgspec


def encode(value: Any) -> bytes:
    """The JSON of a value that comes back equal.

    Raises:
        ValueError: It has none, or none that would; the message says which and shows nothing of it.
    """
    try:
        encoded = msgspec.json.encode(value)
        kept = decode(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError("it holds a value that has no JSON form") from error
    if kept != value:  # NaN, dates, bytes, tuples and number keys would come back as something else
        raise ValueError("it holds a value that would not come back as it is")
    return encoded


def decode(encoded: bytes) -> Any:
    """The value that `encode` was given."""
    return msgspec.json.decode(encoded)

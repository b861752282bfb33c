"""What shows nothing of what it holds: tracebacks, debuggers and error reporters print what they find.

Most of what is made per request here is a msgspec struct, since a class or a dataclass takes three times as long to
make; and a struct would show all of its fields.
"""

from __future__ import annotations

from typing import Any


class Discreet:
    """The first base of a struct that may hold a credential."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []

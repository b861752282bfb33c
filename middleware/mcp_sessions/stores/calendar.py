"""Names by the moment at which they come due, for stores in memory.

What has an end is found page by page, without a look at everything else that is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_PAGE: Final = 60  # seconds that share one page


class Calendar:
    """Names, each entered for one moment."""

    __slots__ = ("_pages",)

    def __init__(self) -> None:
        self._pages: dict[int, set[str]] = {}

    def put(self, name: str, moment: float) -> None:
        """Enter a name, which must not stand at another moment."""
        self._pages.setdefault(int(moment // _PAGE), set()).add(name)

    def strike(self, name: str, moment: float) -> None:
        """Remove a name from the moment for which it was entered."""
        page = int(moment // _PAGE)
        names = self._pages[page]
        names.remove(name)
        if not names:
            del self._pages[page]

    def due(self, now: float) -> Iterator[str]:
        """The names on pages that have begun: all that are due, and some that will be within the minute.

        Names may be entered and struck in between; what is entered meanwhile may or may not come.
        """
        for page in sorted(page for page in self._pages if page <= now // _PAGE):
            yield from tuple(self._pages.get(page, ()))

"""What has ended, in this process's memory: sessions one by one, and all that were issued before a moment.

Revocations lie in one set per span of expiry, so that a look-up is two hashes and forgetting is dropping a whole set
(a scan of a dict of a million entries would stop the loop for 55 ms). Nothing is evicted to make room: a forgotten
revocation is a deleted session that works again.
"""

from __future__ import annotations

from typing import Final

from ..errors import StoreFull
from ..tokens import Claims
from .base import Record
from .calendar import Calendar

_SPAN: Final = 3600  # seconds of expiry that share one set of revocations


class MemoryEndings:
    """Revocations and cut-offs.

    Args:
        max_entries: How many of them may be alive at once; the next one is refused.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._revoked: dict[int, set[str]] = {}
        self._revocations = 0
        self._cut_offs: dict[str, tuple[int, int]] = {}  # by `_whose`: the moment, and when it may go
        self._cut_off_ends = Calendar()

    def __len__(self) -> int:
        """How many are kept."""
        return self._revocations + len(self._cut_offs)

    def cover(self, claims: Claims) -> bool:
        """Whether a session is among what has ended."""
        if claims.ref in self._revoked.get(claims.expires_at // _SPAN, ()):
            return True
        return bool(self._cut_offs) and self.is_cut_off(claims, claims.issued_at)

    def has(self, ref: str, expires_at: int) -> bool:
        """Whether a session was revoked by itself."""
        return ref in self._revoked.get(expires_at // _SPAN, ())

    def is_cut_off(self, one: Claims | Record, issued_at: int) -> bool:
        """Whether a session was issued before a moment that ended it, of its principal's or of everybody's."""
        cut_offs = [self._cut_offs.get(_whose(one.audience, subject)) for subject in (None, one.subject)]
        return any(cut_off is not None and issued_at < cut_off[0] for cut_off in cut_offs)

    def add(self, ref: str, expires_at: int) -> None:
        """Keep a revocation, which must not be there.

        Raises:
            StoreFull: There is no room for it.
        """
        self._check_room()
        self._revoked.setdefault(expires_at // _SPAN, set()).add(ref)
        self._revocations += 1

    def cut(self, moment: int, *, audience: str, subject: str | None, until: int) -> None:
        """Keep a cut-off; of several for one subject the latest moment counts, for the longest time.

        Raises:
            StoreFull: There is no room for it.
        """
        whose = _whose(audience, subject)
        before = self._cut_offs.get(whose)
        if before is None:
            self._check_room()
        else:
            moment, until = max(before[0], moment), max(before[1], until)
            self._cut_off_ends.strike(whose, before[1])
        self._cut_offs[whose] = (moment, until)
        self._cut_off_ends.put(whose, until)

    def forget(self, over: float) -> None:
        """Drop what concerns only sessions that have expired by a moment: revocations a whole span at a time."""
        for span in [span for span in self._revoked if span < over // _SPAN]:
            self._revocations -= len(self._revoked.pop(span))
        for whose in self._cut_off_ends.due(over):
            until = self._cut_offs[whose][1]
            if until <= over:
                del self._cut_offs[whose]
                self._cut_off_ends.strike(whose, until)

    def _check_room(self) -> None:
        if len(self) >= self._max_entries:
            raise StoreFull


def _whose(audience: str, subject: str | None) -> str:
    """Whose sessions a cut-off ends: a principal's or, where the keyed hash is left out, everybody's."""
    return f"{subject or ''} {audience}"

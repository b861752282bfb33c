"""A store in this process's memory: for one worker, and for tests.

Revocations lie in one set per span of expiry, so that a look-up is two hashes and forgetting is
dropping a whole set (a scan of a dict of a million entries would stop the loop for 55 ms). Nothing
is ever evicted to make room: a forgotten revocation is a deleted session that works again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ..errors import StoreFull

_SPAN: Final = 3600  # seconds of expiry that share one set


class MemoryStore:
    """Revocations of one process.

    Args:
        max_entries: How many revocations may be alive at once; the next one is refused.
        leeway: Seconds for which a revocation outlives its token, for clocks that disagree.
        clock: Unix seconds; a test passes its own.
    """

    def __init__(
        self,
        *,
        max_entries: int = 1_000_000,
        leeway: float = 60,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_entries = max_entries
        self._leeway = leeway
        self._clock = clock
        self._revoked: dict[int, set[str]] = {}

    async def revoke(self, jti: str, *, expires_at: int) -> None:
        """Remember a revocation until its token has expired.

        Raises:
            StoreFull: `max_entries` revocations are alive.
        """
        self._forget_expired()
        span = self._revoked.setdefault(expires_at // _SPAN, set())
        if jti not in span and len(self) >= self._max_entries:
            raise StoreFull
        span.add(jti)

    async def is_revoked(self, jti: str, *, expires_at: int) -> bool:
        """Whether the session was revoked in this process."""
        return jti in self._revoked.get(expires_at // _SPAN, ())

    async def close(self) -> None:
        """Nothing is held open."""

    def __len__(self) -> int:
        return sum(map(len, self._revoked.values()))

    def _forget_expired(self) -> None:
        oldest = (self._clock() - self._leeway) // _SPAN
        for span in [span for span in self._revoked if span < oldest]:
            del self._revoked[span]

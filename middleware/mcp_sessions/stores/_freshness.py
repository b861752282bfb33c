"""Which sessions a worker may take for live without asking the store again: those of the last few seconds, if at all.

`freshness=` is a bargain: a request in a session costs no round trip, and a session that another worker ended is
accepted here for so long. What this worker ends itself is refused at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from .._errors import ConfigurationError
from ._base import LIVE, SessionStatus

MAX_FRESHNESS: Final = 5.0  # seconds
_MAX_KNOWN: Final = 100_000  # sessions


def checked_freshness(value: object) -> float:
    """Return the seconds of the option `freshness=`, also from a URL; `ConfigurationError` if it cannot be used."""
    try:
        seconds = float(value)  # type: ignore[arg-type]  # as it came
    except (TypeError, ValueError):
        seconds = math.nan
    if 0 <= seconds <= MAX_FRESHNESS:
        return seconds
    raise ConfigurationError(f"freshness= must be a number of seconds from 0 to {MAX_FRESHNESS:g}")


class RecentStatuses:
    """The sessions that the store has called live a moment ago."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._live_until: dict[str, float] = {}  # by the monotonic clock
        self._endings = 0  # sessions that this worker has ended

    async def status(self, ref: str, ask: Callable[[], Awaitable[SessionStatus]]) -> SessionStatus:
        """Return a session's status, from the store unless that has said LIVE a moment ago."""
        if not self._seconds:
            return await ask()
        asked_at, endings = time.monotonic(), self._endings
        if asked_at < self._live_until.get(ref, -math.inf):
            return LIVE
        status = await ask()
        if status is LIVE and endings == self._endings:  # else it may be what the store said before the end
            if len(self._live_until) >= _MAX_KNOWN:
                self._live_until.clear()
            self._live_until[ref] = asked_at + self._seconds
        return status

    @contextmanager
    def forgetting(self, *refs: str) -> Iterator[None]:
        """Forget sessions, or all where none is named, when the block that ends them is left."""
        try:
            yield
        finally:
            self._endings += 1
            for ref in refs or tuple(self._live_until):
                self._live_until.pop(ref, None)

    def prolonged(self, idle_timeout: int | None) -> int | None:
        """Return an idle timeout with the seconds in which no use is noted: a session is idle later, never sooner."""
        return None if idle_timeout is None else idle_timeout + math.ceil(self._seconds)

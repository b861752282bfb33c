"""The time by which a store ends and deletes what all of its workers share, whatever the clock of one worker says.

A worker whose clock is ahead would end live sessions of others, for good. A database server has a clock. A file and
a process have only this machine's clock, so they wait before they believe that it jumped ahead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from ._base import logger

TOLERANCE: Final = 5  # seconds
PATIENCE: Final = 900  # seconds after which a clock that jumped ahead, and stayed there, is believed
_CONFIRM_EVERY: Final = 60  # seconds
_CONFIRMED_TO: Final = 1  # second
_MOMENT: Final = 1e-5  # seconds in which every clock that runs moves on

# Seconds of a clock that cannot be set; where the system can tell, they go on while it sleeps.
steady: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


def _boot() -> str:
    """Return the name of the machine's present run, since whose beginning `steady` counts; empty if it has none."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text("ascii").strip() if path.exists() else ""


_BOOT: Final = _boot()


def stands_still(clock: Callable[[], float]) -> bool:
    """Return True for a clock that only moves when a test moves it. It stands for all clocks, also the store's."""
    first, until = clock(), time.perf_counter() + _MOMENT
    while time.perf_counter() < until:
        """Wait."""
    return clock() == first


class ServerClock:
    """The time of a store's server: what it said last, and the seconds since then."""

    def __init__(self, own: Callable[[], float]) -> None:
        self._own = own
        self._stands_still = stands_still(own)
        self._ahead_of_steady: float | None = None  # seconds; None until the server said what time it is
        self._reported = 0.0  # seconds by which this worker's clock was ahead when that was logged
        self._lock = Lock()

    @property
    def is_known(self) -> bool:
        return self._stands_still or self._ahead_of_steady is not None

    def __call__(self) -> float:
        """Return the server's time, or this worker's until the server said it."""
        if self._stands_still or self._ahead_of_steady is None:
            return self._own()
        return steady() + self._ahead_of_steady

    def set(self, now: float, location: str) -> None:
        """Note the time that the server has now; warn once each time that this worker's clock begins to differ."""
        self._ahead_of_steady = now - steady()
        ahead = self._own() - now
        with self._lock:  # several connections may be made at once
            is_new = abs(ahead - self._reported) > TOLERANCE
            if is_new:
                self._reported = ahead
        if is_new and abs(ahead) > TOLERANCE:
            logger.warning(
                "this worker's clock is %.0f s %s that of %s: it may accept expired sessions or refuse live ones, "
                "and sessions that it creates end too early or too late (nothing is ended or deleted by its clock); "
                "synchronize the clocks of all servers",
                *(abs(ahead), "ahead of" if ahead > 0 else "behind", location),
            )


class MachineClock:
    """The time of this machine, less what its clock jumped ahead a short while ago.

    Args:
        own: This worker's clock. If it differs from the machine's, others rely on the machine's.
        location: The store, for the log.
    """

    is_known: Final = True

    def __init__(self, own: Callable[[], float], location: str) -> None:
        self._own = own
        self._stands_still = stands_still(own)
        self._location = location
        self._ahead_of_steady = time.time() - steady()  # seconds, when the clock was last believed
        self._jumped_at: float | None = None  # in steady seconds

    def __call__(self) -> float:
        if self._stands_still:
            return self._own()
        elapsed, now = steady(), time.time()
        jump = now - elapsed - self._ahead_of_steady
        if jump > TOLERANCE:
            if self._jumped_at is None:
                self._jumped_at = elapsed
                logger.warning(
                    "the clock jumped %.0f s ahead: for %d minutes, the store (%s) ends and deletes nothing that only "
                    "the new time makes due; if the clock is wrong, set it right before then, or live sessions end for "
                    "good",
                    *(jump, PATIENCE // 60, self._location),
                )
            if elapsed < self._jumped_at + PATIENCE:
                return now - jump
        self._ahead_of_steady, self._jumped_at = now - elapsed, None
        return now

    def agree(
        self, boot: str | None, ahead_of_steady: float | None, confirmed_at: float | None
    ) -> tuple[str, float, float] | None:
        """Compare this worker's clock with what the workers of this machine agreed on, as a file has it.

        Returns:
            What the file should have instead, or None. While a worker confirms the time before a jump, it counts.
        """
        if self._stands_still or not _BOOT:
            return None
        if boot != _BOOT or ahead_of_steady is None or confirmed_at is None:
            ahead_of_steady = confirmed_at = -math.inf
        elif ahead_of_steady < self._ahead_of_steady - TOLERANCE:
            self._ahead_of_steady = ahead_of_steady
        if self._jumped_at is not None:
            self._jumped_at = max(self._jumped_at, confirmed_at)
        self()
        is_new = (
            abs(self._ahead_of_steady - ahead_of_steady) > _CONFIRMED_TO or steady() > confirmed_at + _CONFIRM_EVERY
        )
        return (_BOOT, self._ahead_of_steady, steady()) if self._jumped_at is None and is_new else None

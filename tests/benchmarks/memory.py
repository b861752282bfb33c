"""Bytes that are held after some work, and at its height, as Python's own allocator counts them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Level:
    """How much more is held than when the counting began, in bytes."""

    before: int = 0
    after: int = 0
    peak: int = 0

    def now(self) -> int:
        """At this moment, with no garbage."""
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - self.before


@contextmanager
def held() -> Iterator[Level]:
    """Count what the block allocates; `after` and `peak` are known when it has ended."""
    tracemalloc.start()
    try:
        level = Level()
        level.before = level.now()
        tracemalloc.reset_peak()
        yield level
        level.peak = tracemalloc.get_traced_memory()[1] - level.before
        level.after = level.now()
    finally:
        tracemalloc.stop()

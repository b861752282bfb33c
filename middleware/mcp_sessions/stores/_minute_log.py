"""Log lines that repeat, once a minute."""

from __future__ import annotations

import math
import time


class MinuteLog:
    """Lets each of several lines into the log once a minute."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}

    def is_due(self, line: str) -> bool:
        now = time.monotonic()
        if now < self._logged_at.get(line, -math.inf) + 60:
            return False
        self._logged_at[line] = now
        return True

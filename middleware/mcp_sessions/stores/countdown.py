"""A time limit that counts only while its answer could be heard.

A worker that is short of a processor hears everything late: a timer and the answer that came long before it, in the
same moment. So a limit is counted in steps, none of which begins before the event loop has come round once more. To
wait for something that hangs takes as long as it says; what has answered meanwhile is heard.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

import anyio

STEPS: Final = 10  # times that the event loop comes round; an answer needs five or so from the socket to who waits


class Countdown:
    """Cancels a scope when its time is over. Trio, which has no timers of this kind, counts it in one step.

    Args:
        scope: The scope.
        seconds: The time.
    """

    __slots__ = ("_left", "_loop", "_scope", "_seconds", "_timer")

    def __init__(self, scope: anyio.CancelScope, seconds: float) -> None:
        self._scope = scope
        self._seconds = seconds
        self._left = STEPS
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._scope.deadline = anyio.current_time() + self._seconds
        else:
            self._start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        self._timer = self._loop.call_later(self._seconds / STEPS, self._step)

    def _step(self) -> None:
        self._left -= 1
        if self._left:
            self._start()
        else:
            self._scope.cancel()

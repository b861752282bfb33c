"""Noticing that this process has to stop, before its server does.

A server waits for its connections before it ends the lifespan, so the signal is the only early notice. What handled the
signal before goes on doing so.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_notified: Final[dict[Callable[[], None], asyncio.AbstractEventLoop]] = {}


def on_termination(begin: Callable[[], None]) -> None:
    """Call a function on the running event loop once this process has to stop; only its main thread can know."""
    if threading.current_thread() is threading.main_thread():
        _notified[begin] = asyncio.get_running_loop()
        for number in SIGNALS:
            _chain(number)


def no_longer(begin: Callable[[], None]) -> None:
    """Do not call a function any more."""
    _notified.pop(begin, None)


class _Handler:
    """A signal handler in front of the one before it."""

    def __init__(self, before: Any) -> None:
        self._before: Final = before

    def __call__(self, received: int, frame: FrameType | None) -> None:
        for begin, loop in list(_notified.items()):
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(begin)
        if callable(self._before):
            self._before(received, frame)
        else:
            signal.signal(received, self._before)
            os.kill(os.getpid(), received)


def _chain(number: signal.Signals) -> None:
    before: Any = signal.getsignal(number)
    # None: not set from Python. `SIG_IGN`: it is meant to do nothing.
    if before not in {None, signal.SIG_IGN} and not isinstance(before, _Handler):
        signal.signal(number, _Handler(before))

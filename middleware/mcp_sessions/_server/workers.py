"""The worker processes of Uvicorn, Gunicorn and Hypercorn: how many there are, and how a wrong option ends them all.

Both are read from the settings of the server below us on the stack.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeVar, cast

from .._errors import ConfigurationError
from .._session.confidential import confidential

F = TypeVar("F", bound=Callable[..., Any])

STARTUP_FAILED: Final = 3  # Uvicorn and Gunicorn start workers anew for ever, unless they end with this status
_log: Final = logging.getLogger("mcp_sessions")

# Where a worker process has its server's settings: module and function, and the variable there.
_SETTINGS: Final[Mapping[tuple[object, str], str]] = {
    ("uvicorn._subprocess", "subprocess_started"): "config",
    ("gunicorn.workers.base", "init_process"): "self.cfg",
    ("hypercorn.asyncio.run", "asyncio_worker"): "config",
    ("hypercorn.asyncio.run", "uvloop_worker"): "config",
    ("hypercorn.trio.run", "trio_worker"): "config",
}


def workers() -> int:
    """Return how many worker processes there are, by the settings of the server below us on the stack."""
    frame: FrameType | None = sys._getframe()  # `inspect.stack` reads the source of every frame
    while frame is not None:
        if (where := _SETTINGS.get((frame.f_globals.get("__name__"), frame.f_code.co_name))) is not None:
            settings = frame.f_locals["self"].cfg if where == "self.cfg" else frame.f_locals[where]
            return 1 if getattr(settings, "should_reload", False) else cast(int, settings.workers)
        frame = frame.f_back
    return 1


def failing_once() -> Callable[[F], F]:
    """Let a wrong option end a server with several workers in one line of its log, where they would start for ever.

    The failures are `confidential`, since among the options are secrets.
    """
    return lambda callee: confidential(_failing_once()(callee))


@contextmanager
def _failing_once() -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        if workers() == 1:
            raise
        _log.critical("%s", error)
        raise SystemExit(STARTUP_FAILED) from error

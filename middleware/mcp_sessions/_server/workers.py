"""The worker processes of Uvicorn, Gunicorn and Hypercorn: their number, and how a wrong option ends all of them.

The settings of the server are found on the stack of calls.
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

STARTUP_FAILED: Final = 3  # Uvicorn and Gunicorn restart workers for ever unless they end with this status
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
    """Return the number of worker processes, by the settings of the server on the stack of calls."""
    frame: FrameType | None = sys._getframe()  # `inspect.stack` reads the source of every frame
    while frame is not None:
        if (where := _SETTINGS.get((frame.f_globals.get("__name__"), frame.f_code.co_name))) is not None:
            settings = frame.f_locals["self"].cfg if where == "self.cfg" else frame.f_locals[where]
            return 1 if getattr(settings, "should_reload", False) else cast(int, settings.workers)
        frame = frame.f_back
    return 1


def exit_on_config_error(callee: F) -> F:
    """Let a wrong option end a server with several workers, and log it in one line; they would restart for ever.

    The failures are `confidential`, since options contain secrets.
    """
    return confidential(_exit_on_config_error()(callee))


@contextmanager
def _exit_on_config_error() -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        if workers() == 1:
            raise
        _log.critical("%s", error)
        raise SystemExit(STARTUP_FAILED) from error

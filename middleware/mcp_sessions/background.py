"""Work that belongs to no request: a loop that runs beside the server, on asyncio and on trio.

It is started from inside a request or the server's start, outlives it, inherits nothing from it, and
ends with the event loop. An error in it is logged and ends it; it never ends the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Final

_log: Final = logging.getLogger("mcp_sessions")
_running: Final[set[asyncio.Task[None]]] = set()  # the event loop keeps weak references only


def start(work: Callable[[], Awaitable[None]]) -> None:
    """Start some work beside what runs now.

    Args:
        work: An async function without arguments.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        _start_on_trio(work)
        return
    # A context of its own: the work must not be taken for a part of the request that happened to start it.
    task = Context().run(loop.create_task, _logged(work))
    _running.add(task)
    task.add_done_callback(_running.discard)


def _start_on_trio(work: Callable[[], Awaitable[None]]) -> None:
    import trio

    trio.lowlevel.spawn_system_task(_logged, work, context=Context())


async def _logged(work: Callable[[], Awaitable[Any]]) -> None:
    try:
        await work()
    except Exception as error:  # noqa: BLE001  # whatever it is, the server goes on
        _log.error("work in the background stopped: %s", type(error).__name__)

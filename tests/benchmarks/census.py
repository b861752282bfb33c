"""What a server holds, told by itself at `/census`: tasks, descriptors, blocks of Python's allocator, memory.

It stands around everything else and costs each other request one comparison.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from . import bodies
from .children import resident

PATH: Final = "/census"


class Census:
    """An application that can be counted."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != PATH:
            await self.app(scope, receive, send)
        else:
            await bodies.answer(send, json.dumps(count()).encode())


def count() -> dict[str, int]:
    """Now, and with no garbage."""
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "blocks": sys.getallocatedblocks(),
        "resident": resident(),
    }

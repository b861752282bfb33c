"""The program that serves the tools over HTTP: one worker, on a socket that is given to it.

It serves with uvicorn on asyncio or uvloop, or with hypercorn on asyncio or trio. The token cache is small, so that it
is full soon. At `/census` the server counts what it holds. It ends by a signal, so what starts it is not measured.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

import anyio
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from . import apps, ours

CENSUS: Final = "/census"


def _uvicorn(app: ASGIApp, descriptor: int, loop: str) -> None:  # pragma: no cover
    config = uvicorn.Config(app, log_level="error", access_log=False)
    import_module(loop).run(uvicorn.Server(config).serve(sockets=[socket.socket(fileno=descriptor)]))


def _hypercorn(app: ASGIApp, descriptor: int, loop: str) -> None:  # pragma: no cover
    config = import_module("hypercorn").Config()
    config.bind = [f"fd://{descriptor}"]
    config.loglevel = "ERROR"
    anyio.run(import_module(f"hypercorn.{loop}").serve, app, config, backend=loop)


SERVERS: Final[Mapping[str, Callable[[ASGIApp, int], None]]] = {
    "uvicorn": partial(_uvicorn, loop="asyncio"),
    "uvicorn, uvloop": partial(_uvicorn, loop="uvloop"),
    "hypercorn": partial(_hypercorn, loop="asyncio"),
    "hypercorn, trio": partial(_hypercorn, loop="trio"),
}


class Census:
    """An application that counts what its process holds."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != CENSUS:
            await self.app(scope, receive, send)
        else:
            await apps.respond(send, json.dumps(count()).encode())


def count() -> dict[str, int]:
    """Count, with no garbage: tasks, descriptors, blocks of Python's allocator, bytes of memory."""
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "blocks": sys.getallocatedblocks(),
        "resident": int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * resource.getpagesize(),
    }


def main() -> None:  # pragma: no cover
    """Serve until terminated. Arguments: a name in `SERVERS`, and a listening socket's number."""
    server, descriptor = sys.argv[1:]
    SERVERS[server](Census(ours.caching(apps.tools, 64)), int(descriptor))

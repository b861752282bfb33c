"""The program that serves one contestant over HTTP: uvicorn, one worker, on a socket that is given to it."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from . import apps, ours, peers

APPS: Final[dict[str, Callable[[], Any]]] = {
    "trivial": lambda: apps.trivial,
    "sdk": lambda: apps.sdk(json_response=True),
}
AROUND: Final[dict[str, Callable[[ASGIApp], ASGIApp]]] = {
    "none": lambda app: app,
    "pass-through": apps.PassThrough,
    "ours": ours.wrap,
    "Starlette SessionMiddleware": peers.cookies,
    **peers.PEERS,
}


def main() -> None:
    """Serve until told to stop. Arguments: a name in `APPS`, one in `AROUND`, the number of a listening socket."""
    app, around, descriptor = sys.argv[1:]
    config = uvicorn.Config(AROUND[around](APPS[app]()), log_level="error", access_log=False)
    listening = socket.socket(fileno=int(descriptor))
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))

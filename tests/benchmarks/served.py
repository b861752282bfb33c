"""The program that serves one contestant over HTTP: one worker, on a socket that is given to it.

uvicorn on asyncio, unless something else is asked for: uvloop, or hypercorn, which serves on asyncio and on trio.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

import anyio
import uvicorn
from starlette.types import ASGIApp

from . import apps, ours, peers
from .census import Census

APPS: Final[Mapping[str, Callable[[], Any]]] = {
    "trivial": lambda: apps.trivial,
    "sdk": lambda: apps.sdk(json_response=True),
    "tools": lambda: apps.tools,
}
AROUND: Final[Mapping[str, Callable[[ASGIApp], ASGIApp]]] = {
    "none": lambda app: app,
    "pass-through": apps.PassThrough,
    "ours": ours.wrap,
    **{f"ours, {mode}": partial(ours.wrap, **options) for mode, options in ours.MODES.items()},
    "ours, small cache": partial(ours.wrap, token_cache=64),
    peers.READ: peers.cookies,
    **peers.PEERS,
}


def _uvicorn(app: ASGIApp, descriptor: int, loop: str) -> None:
    config = uvicorn.Config(app, log_level="error", access_log=False)
    import_module(loop).run(uvicorn.Server(config).serve(sockets=[socket.socket(fileno=descriptor)]))


def _hypercorn(app: ASGIApp, descriptor: int, loop: str) -> None:
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


def main() -> None:
    """Serve until told to stop. Arguments: names in `APPS`, `AROUND` and `SERVERS`, and a listening socket's number."""
    app, around, server, descriptor = sys.argv[1:]
    SERVERS[server](Census(AROUND[around](APPS[app]())), int(descriptor))

"""How many worker processes serve this application, as far as a process can see.

Each worker would make random keys of its own, and remember only the sessions that were deleted in
it. Uvicorn, Gunicorn and Hypercorn leave the number where their children find it: in the command
line and the environment. A number that stands in a configuration file stays unseen. Nothing is
started, asked or waited for here.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final

RANDOM_KEYS: Final = (
    "keys=None makes random keys in each of the {count} worker processes, and no worker would know the sessions of "
    'the others. Give all of them the same keys, as in keys="env:MCP_SESSION_KEYS"'
)
MEMORY_STORE: Final = (
    'store="memory:" remembers a deleted session in one of the %d worker processes only; the others go on accepting '
    "it until it expires. Use a store that the workers share"
)
_WORKERS: Final = ("--workers", "-w")
_log: Final = logging.getLogger("mcp_sessions")


def fault(
    *,
    random_keys: bool,
    memory_store: bool,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> str | None:
    """Why these options must not be served by that many workers, with the remedy; None where they may.

    A store in memory is a warning in the log: sessions work, only deleting one is not seen everywhere.

    Args:
        random_keys: Whether the keys are made in this process.
        memory_store: Whether deleted sessions are remembered in this process.
        argv: The command line; None is this process's.
        environ: The environment; None is this process's.
    """
    count = workers(sys.argv if argv is None else argv, os.environ if environ is None else environ)
    if count <= 1:
        return None
    if random_keys:
        return RANDOM_KEYS.format(count=count)
    if memory_store:
        _log.warning(MEMORY_STORE, count)
    return None


def workers(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """The number of worker processes that a server was told to start; 1 where nothing says more.

    Args:
        argv: The command line that started the server. Its children inherit it.
        environ: Its environment.
    """
    server, arguments = _server(argv), list(argv[1:])
    if _reloads(server, arguments, environ):
        return 1  # what Uvicorn does with both
    told = [_given(arguments) if server else None]
    if server == "gunicorn":
        told.append(_given(_split(environ.get("GUNICORN_CMD_ARGS", ""))))
    if server == "uvicorn":
        told.append(environ.get("UVICORN_WORKERS"))
    if server != "hypercorn":
        told.append(environ.get("WEB_CONCURRENCY"))
    return _number(next((number for number in told if number), "1"))


def _server(argv: Sequence[str]) -> str:
    """The server that a command line starts, or "" where it is no server's own: `-m` names the package's folder."""
    program = PurePath(argv[0] if argv else "")
    name = program.parent.name if program.name == "__main__.py" else program.name.removesuffix(".exe")
    return name if name in {"uvicorn", "gunicorn", "hypercorn", "fastapi"} else ""


def _reloads(server: str, arguments: list[str], environ: Mapping[str, str]) -> bool:
    if server == "fastapi":
        return "--reload" in arguments or ("dev" in arguments[:1] and "--no-reload" not in arguments)
    asked = environ.get("UVICORN_RELOAD", "").lower() in {"1", "true", "t", "yes", "y", "on"}
    return server == "uvicorn" and ("--reload" in arguments or asked)


def _given(arguments: list[str]) -> str | None:
    """The last number of workers in some arguments, in any of the ways to write it."""
    found = None
    for place, argument in enumerate(arguments):
        if argument in _WORKERS:
            found = "".join(arguments[place + 1 : place + 2])
        elif argument.startswith("--workers="):
            found = argument.removeprefix("--workers=")
        elif argument.startswith("-w") and argument[2:].removeprefix("=").isdecimal():
            found = argument[2:].removeprefix("=")
    return found


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # Gunicorn will say what is wrong with it
        return []


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 1

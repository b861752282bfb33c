"""`mcp-sessions tail`: live sessions as a tree in the terminal, from what a middleware with `tail=` sends.

It listens on a UNIX socket until it is interrupted. A session's name is written once, and what happens in it
below, until another session's turn comes. In colours on a terminal, plain otherwise.
"""

from __future__ import annotations

import argparse
import json
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from .errors import ConfigurationError
from .terminal import OK

_MOST_BYTES: Final = 65_536  # of one datagram
_RED, _GREEN, _DIM, _BOLD, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
NOBODY: Final = "(no session)"


def add_command(commands: Any) -> None:
    """Add the command to a parser's."""
    tail = commands.add_parser("tail", help="show live sessions, as a middleware with tail=PATH tells of them")
    tail.add_argument("path", metavar="PATH", help="the socket, which is made here")
    tail.set_defaults(command=_tail)


def _tail(given: argparse.Namespace) -> int:
    tree = Tree(colours=sys.stdout.isatty())
    try:
        with _listening(Path(given.path)) as listener:
            while True:
                sys.stdout.write(tree.lines(json.loads(listener.recv(_MOST_BYTES))))
                sys.stdout.flush()
    except OSError as error:
        raise ConfigurationError(f"{given.path}: {error.strerror}") from None
    except KeyboardInterrupt:
        return OK


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):  # what an earlier one left
        path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        try:
            yield listener
        finally:
            path.unlink()


class Tree:
    """What is written of each event.

    Args:
        colours: Whether the terminal shows them.
    """

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._last: str | None = None

    def lines(self, said: dict[str, Any]) -> str:
        """The lines of one event: the session's name where another one's was the last, and what happened."""
        ref = said["ref"] or NOBODY
        head = "" if ref == self._last else f"{self._in(_BOLD, ref)}\n"
        self._last = ref
        return f"{head}  {self._what(said)}\n"

    def _what(self, said: dict[str, Any]) -> str:
        event = said["event"]
        if event == "created":
            fork = "" if said["parent"] is None else f" as a fork of {said['parent']}"
            return self._in(_GREEN, f"created{fork}")
        if event == "ended":
            return self._in(_DIM, f"ended: {_ascii(said['reason'])}, after {said['seconds']} s")
        if event == "refused":
            return self._in(_RED, f"refused: {_ascii(said['reason'])}")
        return self._call(said)

    def _call(self, said: dict[str, Any]) -> str:
        took = f"{said['seconds'] * 1000:.1f} ms"
        line = f"{_ascii(said['name'])}  {self._in(_DIM, took)}"
        if said["error"] is None:
            return line
        reason = "" if said["reason"] is None else f" ({_ascii(said['reason'])})"
        return f"{line}  {self._in(_RED, said['error'] + reason)}"

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._colours else text


def _ascii(text: str) -> str:
    """A text that cannot steer the terminal."""
    return json.dumps(text)[1:-1]

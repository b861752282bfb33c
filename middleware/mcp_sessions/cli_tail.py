"""`mcp-sessions tail`: live sessions as a tree in the terminal, from what a middleware with `tail=` sends.

It listens on a UNIX socket until it is interrupted. A session's name is written once, and what happens in it
below, until another session's turn comes. In colours on a terminal, plain otherwise. What is no event of ours is passed
over, and no text in one steers the terminal.
"""

from __future__ import annotations

import argparse
import json
import socket
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from .errors import ConfigurationError
from .terminal import OK

_MOST_BYTES: Final = 65_536  # of one datagram
_RED, _GREEN, _DIM, _BOLD, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
NOBODY: Final = "(no session)"

_TEXT, _TEXT_OR_NONE, _SECONDS = (str,), (str, type(None)), (float,)
_MEMBERS: Final[Mapping[str, Mapping[str, tuple[type, ...]]]] = MappingProxyType(
    {
        "created": {"ref": _TEXT, "parent": _TEXT_OR_NONE},
        "ended": {"ref": _TEXT, "reason": _TEXT, "seconds": _SECONDS},
        "refused": {"ref": _TEXT_OR_NONE, "reason": _TEXT},
        "call": {
            "ref": _TEXT_OR_NONE,
            "name": _TEXT,
            "seconds": _SECONDS,
            "error": _TEXT_OR_NONE,
            "reason": _TEXT_OR_NONE,
        },
    }
)
"""What of each event is shown."""


def add_command(commands: Any) -> None:
    """Add the command to a parser's."""
    tail = commands.add_parser("tail", help="show live sessions, as a middleware with tail=PATH tells of them")
    tail.add_argument("path", metavar="PATH", help="the socket, which is made here")
    tail.set_defaults(command=_tail)


def _tail(given: argparse.Namespace) -> int:
    tree = Tree(colours=sys.stdout.isatty())
    try:
        with _listening(Path(given.path)) as listener:
            # Nothing else is seen until something happens; what is piped elsewhere stays as it is.
            sys.stderr.write(f"listening for servers with tail={given.path!a}; Ctrl-C ends it\n")
            while True:
                said = event_in(listener.recv(_MOST_BYTES))
                sys.stdout.write("" if said is None else tree.lines(said))
                sys.stdout.flush()
    except OSError as error:
        raise ConfigurationError(f"{given.path}: {error.strerror}") from None
    except KeyboardInterrupt:
        return OK


def event_in(datagram: bytes) -> dict[str, Any] | None:
    """The event in a datagram, or None where it is none of ours: whoever may write to the socket may write anything."""
    try:
        said = json.loads(datagram, parse_int=float)  # a whole number can be too large for any other
    except (ValueError, RecursionError):
        return None
    members = _MEMBERS.get(str(said.get("event"))) if isinstance(said, dict) else None
    if members is None:
        return None
    return said if all(isinstance(said.get(name, ...), kinds) for name, kinds in members.items()) else None


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
        ref = _ascii(said["ref"] or NOBODY)
        head = "" if ref == self._last else f"{self._in(_BOLD, ref)}\n"
        self._last = ref
        return f"{head}  {self._what(said)}\n"

    def _what(self, said: dict[str, Any]) -> str:
        event = said["event"]
        if event == "created":
            fork = "" if said["parent"] is None else f" as a fork of {_ascii(said['parent'])}"
            return self._in(_GREEN, f"created{fork}")
        if event == "ended":
            return self._in(_DIM, f"ended: {_ascii(said['reason'])}, after {said['seconds']:.0f} s")
        if event == "refused":
            return self._in(_RED, f"refused: {_ascii(said['reason'])}")
        return self._call(said)

    def _call(self, said: dict[str, Any]) -> str:
        took = f"{said['seconds'] * 1000:.1f} ms"
        line = f"{_ascii(said['name'])}  {self._in(_DIM, took)}"
        if said["error"] is None:
            return line
        reason = "" if said["reason"] is None else f" ({_ascii(said['reason'])})"
        return f"{line}  {self._in(_RED, _ascii(said['error']) + reason)}"

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._colours else text


def _ascii(text: str) -> str:
    """A text that cannot steer the terminal."""
    return json.dumps(text)[1:-1]

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from ..errors import ConfigurationError
from .terminal import OK

_MOST_BYTES: Final = 65_536  # of one datagram
_RED, _GREEN, _DIM, _BOLD, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
NOBODY: Final = "(no session)"


class Created(msgspec.Struct, tag_field="event", tag="created"):
    """A session has begun."""

    ref: str
    parent: str | None


class Ended(msgspec.Struct, tag_field="event", tag="ended"):
    """A session is over."""

    ref: str
    reason: str
    seconds: float


class Refused(msgspec.Struct, tag_field="event", tag="refused"):
    """What came was no message that could be handled."""

    ref: str | None
    reason: str


class Call(msgspec.Struct, tag_field="event", tag="call"):
    """A message was handled."""

    ref: str | None
    name: str
    seconds: float
    error: str | None
    reason: str | None


Event = Created | Ended | Refused | Call
_event: Final[Callable[[bytes], Event]] = msgspec.json.Decoder(Event).decode


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


def event_in(datagram: bytes) -> Event | None:
    """The event in a datagram, or None where it is none of ours: whoever may write to the socket may write anything."""
    try:
        return _event(datagram)
    except (ValueError, RecursionError):
        return None


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

    def lines(self, said: Event) -> str:
        """The lines of one event: the session's name where another one's was the last, and what happened."""
        ref = _ascii(said.ref or NOBODY)
        head = "" if ref == self._last else f"{self._in(_BOLD, ref)}\n"
        self._last = ref
        return f"{head}  {self._what(said)}\n"

    def _what(self, said: Event) -> str:
        if isinstance(said, Created):
            fork = "" if said.parent is None else f" as a fork of {_ascii(said.parent)}"
            return self._in(_GREEN, f"created{fork}")
        if isinstance(said, Ended):
            return self._in(_DIM, f"ended: {_ascii(said.reason)}, after {said.seconds:.0f} s")
        if isinstance(said, Refused):
            return self._in(_RED, f"refused: {_ascii(said.reason)}")
        return self._call(said)

    def _call(self, said: Call) -> str:
        took = f"{said.seconds * 1000:.1f} ms"
        line = f"{_ascii(said.name)}  {self._in(_DIM, took)}"
        if said.error is None:
            return line
        reason = "" if said.reason is None else f" ({_ascii(said.reason)})"
        return f"{line}  {self._in(_RED, _ascii(said.error) + reason)}"

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._colours else text


def _ascii(text: str) -> str:
    """A text that cannot steer the terminal."""
    return json.dumps(text)[1:-1]

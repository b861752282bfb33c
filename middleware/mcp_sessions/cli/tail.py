"""`mcp-sessions tail`: live sessions as a tree in the terminal, from what a middleware with `tail=` sends.

It listens on a UNIX socket until it is interrupted. Any process may write there: what is not one of our events is
passed over, and no text in an event steers the terminal.
"""

from __future__ import annotations

import argparse
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from ..errors import ConfigurationError
from .terminal import OK, plain

_MAX_BYTES: Final = 65_536  # of one datagram
_RED, _GREEN, _DIM, _BOLD, _RESET = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


class Created(msgspec.Struct, tag_field="event", tag="created"):
    ref: str
    parent: str | None


class Ended(msgspec.Struct, tag_field="event", tag="ended"):
    ref: str
    reason: str
    seconds: float


class Refused(msgspec.Struct, tag_field="event", tag="refused"):  # before it could be handled as a message
    ref: str | None
    reason: str


class Call(msgspec.Struct, tag_field="event", tag="call"):
    ref: str | None
    name: str
    seconds: float
    error: str | None
    reason: str | None


Event = Created | Ended | Refused | Call
_decode: Final[Callable[[bytes], Event]] = msgspec.json.Decoder(Event).decode


def add_command(commands: Any) -> None:
    """Add `tail` to a parser's commands."""
    tail = commands.add_parser("tail", help="show live sessions, as a middleware with tail=PATH reports them")
    tail.add_argument("path", metavar="PATH", help="the socket, which is made here")
    tail.set_defaults(command=_tail)


def _tail(arguments: argparse.Namespace) -> int:
    tree = Tree(colours=sys.stdout.isatty())
    try:
        with _listening(Path(arguments.path)) as listener:
            # On stderr, so that what is piped elsewhere holds events alone.
            sys.stderr.write(f"listening for servers with tail={arguments.path!a}; Ctrl-C ends it\n")
            while True:
                event = event_in(listener.recv(_MAX_BYTES))
                sys.stdout.write("" if event is None else tree.lines(event))
                sys.stdout.flush()
    except OSError as error:
        raise ConfigurationError(f"{arguments.path}: {error.strerror}") from None
    except KeyboardInterrupt:
        return OK


def event_in(datagram: bytes) -> Event | None:
    """Return the event that a datagram holds, or None where it holds anything else."""
    try:
        return _decode(datagram)
    except (ValueError, RecursionError):
        return None


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):  # left by an earlier run
        path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        try:
            yield listener
        finally:
            path.unlink()


class Tree:
    """Events as lines, each below the name of its session."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._last: str | None = None

    def lines(self, event: Event) -> str:
        ref = plain(event.ref or "(no session)")
        head = "" if ref == self._last else f"{self._in(_BOLD, ref)}\n"
        self._last = ref
        return f"{head}  {self._line(event)}\n"

    def _line(self, event: Event) -> str:
        if isinstance(event, Created):
            fork = "" if event.parent is None else f" as a fork of {plain(event.parent)}"
            return self._in(_GREEN, f"created{fork}")
        if isinstance(event, Ended):
            return self._in(_DIM, f"ended: {plain(event.reason)}, after {event.seconds:.0f} s")
        if isinstance(event, Refused):
            return self._in(_RED, f"refused: {plain(event.reason)}")
        line = f"{plain(event.name)}  {self._in(_DIM, f'{event.seconds * 1000:.1f} ms')}"
        if event.error is None:
            return line
        reason = "" if event.reason is None else f" ({plain(event.reason)})"
        return f"{line}  {self._in(_RED, plain(event.error) + reason)}"

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colours else text

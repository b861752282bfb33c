"""`mcp-sessions watch`: sessions and calls in the terminal, as they happen, from the feeds of all workers of a machine.

Any number of readers may watch at once. No text in an event steers the terminal.
"""

from __future__ import annotations

import argparse
import json
import selectors
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

from .._errors import ConfigurationError
from ..telemetry import _feed as feeds
from ..telemetry._feed import Began, Call, Connection, Created, Ended, Event, Refused
from .terminal import OK, plain

_INTERVAL: Final = 0.5  # seconds between two looks for workers
_LONG: Final = 1.0  # seconds after which a call is shown before it has ended
_RED, _GREEN, _DIM, _BOLD, _RESET = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
_MAX_SHOWN: Final = 5_000  # events
_ERASE: Final = "\r\x1b[K"


def add_command(commands: Any) -> None:
    watch = commands.add_parser("watch", help="show sessions and calls as they happen")
    watch.add_argument("where", metavar="WHERE", help="the middleware's watch=DIRECTORY or inspector=ADDRESS")
    watch.add_argument("--session", metavar="REF", help="show this session alone")
    watch.add_argument("--json", action="store_true", help="print each event as a line of JSON")
    watch.set_defaults(command=_watch)


def _watch(arguments: argparse.Namespace) -> int:
    folder, screen = feeds.directory(arguments.where), Screen(arguments.session, is_terminal=sys.stdout.isatty())
    # On stderr, so that what is piped elsewhere holds events alone.
    sys.stderr.write(f"watching {arguments.where!a}; press Ctrl-C to stop\n")
    try:
        with closing(Workers(folder)) as workers:
            while True:
                for event in workers.events():
                    sys.stdout.write(_as_json(event, arguments.session) if arguments.json else screen.show(event))
                sys.stdout.write("" if arguments.json else screen.update(time.time()))
                sys.stdout.flush()
    except OSError as error:
        raise ConfigurationError(f"{folder}: {error.strerror}") from None
    except KeyboardInterrupt:
        return OK


def _as_json(event: Event | str, session: str | None) -> str:
    if isinstance(event, str):
        return json.dumps({"event": "gone", "worker": event}) + "\n"
    if session is not None and getattr(event, "ref", None) != session:
        return ""
    return json.dumps(msgspec.to_builtins(event)) + "\n"


class Workers:
    """The feeds of all workers, those that come later included."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._selector: Final = selectors.DefaultSelector()
        self._connected: Final[dict[Path, Connection]] = {}

    def close(self) -> None:
        self._selector.close()
        for connection in self._connected.values():
            connection.socket.close()  # pragma: no cover  # where it is ended before the workers are

    def events(self) -> Iterator[Event | str]:
        """Yield what comes within a short time; a text is the name of a worker that has gone."""
        for path in sorted(feeds.sockets(self._folder) - self._connected.keys()):
            connection = feeds.connect(path)
            if connection is not None:
                self._connected[path] = connection
                self._selector.register(connection.socket, selectors.EVENT_READ, path)
        for key, _ in self._selector.select(_INTERVAL):
            connection = self._connected[key.data]
            yield from connection.read()
            if connection.is_ended:
                self._selector.unregister(key.fileobj)
                self._connected.pop(key.data).socket.close()
                if connection.worker:
                    yield connection.worker


class Screen:
    """Events as lines, each below the name of its session: of one session, or with None of all."""

    def __init__(self, session: str | None, *, is_terminal: bool) -> None:
        self._only: Final = session
        self._is_terminal: Final = is_terminal
        self._board: Final = feeds.Board()
        self._workers: Final[set[str]] = set()
        self._shown: Final[dict[Event, None]] = {}  # a worker may send them again
        self._last: str | None = None

    def show(self, event: Event | str) -> str:
        """Return the lines for one event, if there are any."""
        if isinstance(event, str):
            self._board.forget(event)
            self._workers.discard(event)
            return ""
        self._workers.add(event.worker)
        self._board.apply(event)
        return self._below(event, _text(event)) if isinstance(event, Created | Ended | Refused | Call) else ""

    def update(self, now: float) -> str:
        """Return the lines for calls that run for long at a time in Unix seconds, and on a terminal the figures."""
        running = [*self._board.running.values()]
        long = [call for call in running if now - call.at >= _LONG]
        lines = "".join(self._below(call, f"{plain(call.name)}  running") for call in long)
        if not self._is_terminal:
            return lines
        workers = len(self._workers)
        figures = f"{len(self._board.live(now))} live, {len(running)} running, {workers} worker{'s' * (workers != 1)}"
        return f"{lines}{_ERASE}{_DIM}{figures}{_RESET}"

    def _below(self, event: Created | Ended | Refused | Began, text: str) -> str:
        if event in self._shown or (self._only is not None and event.ref != self._only):
            return ""
        self._shown[event] = None
        if len(self._shown) > _MAX_SHOWN:
            del self._shown[next(iter(self._shown))]
        session = None if event.ref is None else self._board.sessions.get(event.ref)
        client = "" if session is None or session.client is None else f"  {plain(session.client)}"
        name, is_bad = plain(event.ref or "(no session)"), isinstance(event, Refused) or getattr(event, "error", None)
        colour = _RED if is_bad else _GREEN if isinstance(event, Created) else ""
        clock = time.strftime("%H:%M:%S", time.localtime(event.at))
        live = len(self._board.live(event.at))
        count = f"  ({live} live)" if isinstance(event, Created | Ended) else ""
        head = "" if name == self._last else f"{self._in(_BOLD, name)}{client}\n"
        self._last = name
        place = self._in(_DIM, f"{clock}  {plain(event.worker)}")
        return f"{_ERASE * self._is_terminal}{head}  {place}  {self._in(colour, text)}{count}\n"

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._is_terminal and colour else text


def _text(event: Created | Ended | Refused | Call) -> str:
    if isinstance(event, Created):
        return "created"
    if isinstance(event, Ended):
        return f"ended: {plain(event.reason)}, after {event.seconds:.0f} s"
    if isinstance(event, Refused):
        return f"refused: {plain(event.reason)}"
    reason = "" if event.reason is None else f" ({plain(event.reason)})"
    error = "" if event.error is None else f"  {plain(event.error)}{reason}"
    return f"{plain(event.name)}  {event.seconds * 1000:.1f} ms{error}"

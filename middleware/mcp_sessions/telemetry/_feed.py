"""`Feed`: what happens in one worker, for readers on the same machine: `mcp-sessions watch` and the inspector.

Each worker listens on a UNIX socket in one directory, which only its user may enter. A reader connects to all of them;
each sends what it knows (live sessions, recent events, running calls) and then what happens, one JSON object a line.
A reader that falls behind is disconnected, so no request waits for one; it comes back and is sent everything anew.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Lock, Thread
from typing import Annotated, Any, Final

import msgspec

MAX_LINE: Final = 65_536  # bytes
_MAX_SESSIONS: Final = 1_000  # that a worker remembers, those used last
_MAX_HISTORY: Final = 200  # events
_MAX_BEHIND: Final = 5_000  # events that a reader may not have read yet
_KEEPALIVE: Final = 10.0  # seconds of silence after which an empty line finds readers that left
_PATIENCE: Final = 10.0  # seconds that a reader may take to make room
_MODE: Final = 0o700
_ADDRESS: Final = re.compile(r"[^/]*:\d+")
_log: Final = logging.getLogger("mcp_sessions")

Time = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]  # Unix seconds, to the year 9999


class _Event(msgspec.Struct, tag_field="event", tag=str.lower, kw_only=True, frozen=True):
    worker: str  # host and process


class Worker(_Event, frozen=True):
    """The first of each worker's events."""


class LiveSession(_Event, tag="session", frozen=True):
    """A live session that the worker has seen."""

    ref: str
    at: Time  # its last use
    created_at: Time
    expires_at: Time
    client: str | None = None
    error: str | None = None  # the last one


class Created(_Event, frozen=True):
    ref: str
    at: Time
    expires_at: Time

    @property
    def session(self) -> LiveSession:
        """The session as it begins."""
        at, until = self.at, self.expires_at
        return LiveSession(worker=self.worker, ref=self.ref, at=at, created_at=at, expires_at=until)


class Ended(_Event, frozen=True):
    ref: str
    at: Time
    reason: str
    seconds: float


class Refused(_Event, frozen=True):
    """A request that was refused before it could be handled as a message."""

    ref: str | None
    at: Time
    reason: str


class Began(_Event, frozen=True):
    """A call that runs."""

    call: str
    ref: str | None
    at: Time
    name: str
    client: str | None = None


class Call(Began, kw_only=True, frozen=True):
    """A call that has been handled; `at` is when it began."""

    seconds: float
    error: str | None = None
    reason: str | None = None


Event = Worker | LiveSession | Created | Ended | Refused | Began | Call
encode: Final = msgspec.json.Encoder().encode
_decode: Final[Callable[[bytes], Event]] = msgspec.json.Decoder(Event).decode


class Board:
    """What is known from the events so far: live sessions, running calls, and the last events."""

    def __init__(self) -> None:
        self.sessions: Final[dict[str, LiveSession]] = {}
        self.running: Final[dict[str, Began]] = {}
        self.history: Final[deque[Event]] = deque(maxlen=_MAX_HISTORY)
        self._ended: Final[dict[str, None]] = {}

    def apply(self, event: Event) -> None:
        """Take one event into account."""
        if isinstance(event, Worker):
            return
        if isinstance(event, LiveSession):
            if event.ref not in self._ended:
                self._put(event)
            return
        if isinstance(event, Began) and not isinstance(event, Call):
            self.running[event.call] = event
            self._use(event.ref, at=event.at, client=event.client)
            return
        self.history.append(event)
        if isinstance(event, Call):
            self.running.pop(event.call, None)
            self._use(event.ref, at=event.at + event.seconds, client=event.client, error=event.reason or event.error)
        elif isinstance(event, Created):
            self._put(event.session)
        elif isinstance(event, Ended):
            self.sessions.pop(event.ref, None)
            self._ended[event.ref] = None
            _trim(self._ended)
        else:
            self._use(event.ref, error=event.reason)

    def live(self, now: float) -> list[LiveSession]:
        """Return the sessions that have neither ended nor expired, those used last at the end."""
        return [session for session in self.sessions.values() if now < session.expires_at]

    def forget(self, worker: str) -> None:
        """Take a worker that is gone into account: its calls do not run any more."""
        for call in [call for call, began in self.running.items() if began.worker == worker]:
            del self.running[call]

    def _use(self, ref: str | None, **changes: Any) -> None:
        known = None if ref is None else self.sessions.pop(ref, None)
        if known is not None:
            given = {name: value for name, value in changes.items() if value is not None}
            self._put(msgspec.structs.replace(known, **given))

    def _put(self, session: LiveSession) -> None:
        self.sessions.pop(session.ref, None)
        self.sessions[session.ref] = session
        _trim(self.sessions)


def _trim(known: dict[str, Any]) -> None:
    if len(known) > _MAX_SESSIONS:
        del known[next(iter(known))]


def directory(where: str) -> Path:
    """Return the directory of a feed: `where` itself, or the one that belongs to an inspector's address."""
    if not _ADDRESS.fullmatch(where):
        return Path(where)
    return Path(tempfile.gettempdir()) / f"mcp-sessions-{os.geteuid()}-{where}"


def sockets(folder: Path) -> set[Path]:
    """Return the sockets of the workers in a directory, which need not be there yet."""
    with suppress(FileNotFoundError):
        return {path for path in folder.iterdir() if path.suffix == ".sock"}
    return set()


class Feed:
    """What happens in this worker, and those who read it.

    Args:
        where: The directory, or an inspector's address.
        clock: Unix seconds.
    """

    def __init__(self, where: str, clock: Callable[[], float]) -> None:
        self.clock: Final = clock
        self.directory: Final = directory(where)
        self.worker: str = ""
        self._is_ours: Final = self.directory != Path(where)
        self._board: Final = Board()
        self._lock: Final = Lock()
        self._readers: Final[list[Queue[Event | None]]] = []
        self._path: Path | None = None

    def open(self) -> bool:
        """Listen for readers, and return whether this is the first call; one that fails leaves the worker unwatched."""
        if self.worker:
            return False
        # Not before: a server may fork its workers after it has made the application.
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        try:
            listener = self._listener()
        except OSError as error:
            _log.warning("this worker cannot be watched at %s: %s", self.directory, error.strerror or error)
        else:
            Thread(target=self._accept, args=(listener,), name="mcp-sessions-feed", daemon=True).start()
        return True

    def close(self) -> None:
        """Let go of the readers, and of the socket."""
        path, self._path = self._path, None
        if path is not None:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as last:  # which wakes the thread that accepts
                last.connect(str(path))
            path.unlink(missing_ok=True)
            with self._lock:
                self._pass_on(None)
        self.worker = ""

    def knows(self, ref: str) -> bool:
        """Whether a session is on the board."""
        return ref in self._board.sessions

    def send(self, event: Event) -> None:
        """Record one event, and pass it on to the readers."""
        with self._lock:
            self._board.apply(event)
            self._pass_on(event)

    def _pass_on(self, event: Event | None) -> None:
        for reader in self._readers[:]:
            try:
                reader.put_nowait(event)
            except Full:
                self._readers.remove(reader)

    def _listener(self) -> socket.socket:
        self.directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
        found = self.directory.lstat()
        # In a directory that all may write to, others could have made this one.
        if self._is_ours and (not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o77):
            raise PermissionError("it belongs to another user, or others may enter it")
        path = self.directory / f"{os.getpid()}-{secrets.token_hex(4)}.new"
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen()
            # Only now: readers remove a socket where nothing listens, as a worker leaves it that was killed.
            self._path = path.rename(path.with_suffix(".sock"))
        except OSError:
            listener.close()
            raise
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                connection, _ = listener.accept()
                if self._path is None:
                    connection.close()
                    return
                reader: Queue[Event | None] = Queue(_MAX_BEHIND)
                with self._lock:
                    for event in self._known():
                        reader.put_nowait(event)
                    self._readers.append(reader)
                Thread(target=self._serve, args=(connection, reader), name="mcp-sessions-feed", daemon=True).start()

    def _known(self) -> Iterator[Event]:
        """Yield what a new reader is sent first."""
        yield Worker(worker=self.worker)
        yield from self._board.live(self.clock())
        yield from self._board.history
        yield from [*self._board.running.values()][-_MAX_SESSIONS:]

    def _serve(self, connection: socket.socket, reader: Queue[Event | None]) -> None:
        connection.settimeout(_PATIENCE)
        with connection, suppress(OSError):
            while reader in self._readers:
                try:
                    event = reader.get(timeout=_KEEPALIVE)
                except Empty:
                    connection.sendall(b"\n")
                else:
                    if event is None:
                        break
                    connection.sendall(encode(event) + b"\n")
        with self._lock, suppress(ValueError):  # it may have fallen behind meanwhile
            self._readers.remove(reader)


# --- the readers' side -------------------------------------------------------------------------------


def event_in(line: bytes) -> Event | None:
    """Return the event that a line holds, or None where it holds anything else."""
    try:
        return _decode(line)
    except (ValueError, RecursionError):
        return None


class Connection:
    """A reader's connection to one worker."""

    def __init__(self, path: Path) -> None:
        self.socket: Final = socket.socket(socket.AF_UNIX)
        self.worker: str = ""
        self.is_ended: bool = False
        self._rest = b""
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.socket.setblocking(False)

    def read(self) -> list[Event]:
        """Return what has come; `is_ended` says whether anything can follow."""
        text = b""
        with suppress(ConnectionError):
            text = self.socket.recv(MAX_LINE)
        *lines, self._rest = (self._rest + text).split(b"\n")
        found = [event for event in map(event_in, lines) if event is not None]
        if found:
            self.worker = found[-1].worker
        self.is_ended = not text or len(self._rest) > MAX_LINE
        return found


def connect(path: Path) -> Connection | None:
    """Return a connection to a worker, or None where it has ended; a socket that it left is removed.

    Raises:
        OSError: The socket is out of reach.
    """
    try:
        return Connection(path)
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
        return None

"""`Feed`: what happens in one worker, for those who look at its inspector: sessions, running calls, the last events.

A reader is sent what is known, then what happens. One that falls behind is disconnected, so no request waits for it.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

_MAX_SESSIONS: Final = 1_000  # that a worker remembers, those used last
_MAX_HISTORY: Final = 200  # events
_MAX_BEHIND: Final = 5_000  # events that a reader may not have read yet


class _Event(msgspec.Struct, tag_field="event", tag=str.lower, kw_only=True, frozen=True):
    worker: str  # host and process


class LiveSession(_Event, tag="session", frozen=True):
    """A live session that the worker has seen."""

    ref: str
    at: float  # Unix seconds  # its last use
    created_at: float
    expires_at: float
    client: str | None = None
    error: str | None = None  # the last one


class Created(_Event, frozen=True):
    ref: str
    at: float  # Unix seconds
    expires_at: float

    @property
    def session(self) -> LiveSession:
        """The session as it begins."""
        at, until = self.at, self.expires_at
        return LiveSession(worker=self.worker, ref=self.ref, at=at, created_at=at, expires_at=until)


class Ended(_Event, frozen=True):
    ref: str
    at: float  # Unix seconds
    reason: str
    seconds: float


class Refused(_Event, frozen=True):
    """A request that was refused before it could be handled as a message."""

    ref: str | None
    at: float  # Unix seconds
    reason: str


class CallStarted(_Event, tag="started", frozen=True):
    """A call that runs."""

    call: str
    ref: str | None
    at: float  # Unix seconds
    name: str
    client: str | None = None


class CallFinished(CallStarted, tag="finished", kw_only=True, frozen=True):
    """A call that has been handled; `at` is when it began."""

    seconds: float
    error: str | None = None
    reason: str | None = None


Event = LiveSession | Created | Ended | Refused | CallStarted | CallFinished


class Feed:
    """What happens in this worker, and those who read it.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock: Final = clock
        self.sessions: Final[dict[str, LiveSession]] = {}  # those used last at the end
        self.running: Final[dict[str, CallStarted]] = {}
        self.history: Final[deque[Event]] = deque(maxlen=_MAX_HISTORY)
        self._ended: Final[dict[str, None]] = {}
        self._readers: Final[set[MemoryObjectSendStream[Event]]] = set()

    @property
    def worker(self) -> str:
        """Host and process: a server may fork its workers after it has made the application."""
        return f"{socket.gethostname()}:{os.getpid()}"

    def send(self, event: Event) -> None:
        """Record one event, and pass it on to the readers."""
        self._record(event)
        for reader in [*self._readers]:
            try:
                reader.send_nowait(event)
            except (anyio.WouldBlock, anyio.BrokenResourceError):
                self._leave(reader)

    def _record(self, event: Event) -> None:
        if isinstance(event, LiveSession):
            if event.ref not in self._ended:
                self._put(event)
            return
        if isinstance(event, CallStarted) and not isinstance(event, CallFinished):
            self.running[event.call] = event
            self._use(event.ref, at=event.at, client=event.client)
            return
        self.history.append(event)
        if isinstance(event, CallFinished):
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

    def _use(self, ref: str | None, **changes: Any) -> None:
        known = None if ref is None else self.sessions.get(ref)
        if known is not None:
            given = {name: value for name, value in changes.items() if value is not None}
            self._put(msgspec.structs.replace(known, **given))

    def _put(self, session: LiveSession) -> None:
        self.sessions.pop(session.ref, None)
        self.sessions[session.ref] = session
        _trim(self.sessions)

    @contextmanager
    def reading(self) -> Iterator[tuple[list[Event], MemoryObjectReceiveStream[Event]]]:
        """Return what is known, and what each event comes by within the block."""
        sent, received = anyio.create_memory_object_stream[Event](_MAX_BEHIND)
        self._readers.add(sent)
        live = [session for session in self.sessions.values() if self.clock() < session.expires_at]
        try:
            with received:
                yield [*live, *self.history, *[*self.running.values()][-_MAX_SESSIONS:]], received
        finally:
            self._leave(sent)

    def close(self) -> None:
        """Disconnect all readers."""
        for reader in [*self._readers]:
            self._leave(reader)

    def _leave(self, reader: MemoryObjectSendStream[Event]) -> None:
        self._readers.discard(reader)
        reader.close()


def _trim(known: dict[str, Any]) -> None:
    if len(known) > _MAX_SESSIONS:
        del known[next(iter(known))]

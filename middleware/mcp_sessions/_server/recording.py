"""The observers of a deployment: the log, telemetry with the inspector's feed, and the application's `listen`.

Telemetry is imported when there is first something to record, so that a server without tracing pays nothing for it, not
even at its start. Metrics and the feed are behind the same observer, since one reading of an answer serves all three.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar, Final

from starlette.types import ASGIApp

from .._session.claims import Claims
from .._session.events import Listener, RequestRefused, SessionCreated, SessionDeleted, SessionUsed
from ..telemetry._core import is_traced
from . import route_tree
from .logs import EventLog, plain_listener
from .observers import Creation, Observer, Observers, Watch, Watched
from .options import CoreOptions
from .principal import reader

if TYPE_CHECKING:
    from ..telemetry._feed import Feed
    from ..telemetry._recorder import Telemetry


class Listening(Observer):
    """The application's own observer."""

    name: ClassVar[str] = "listen="

    def __init__(self, listen: Listener) -> None:
        self._listen: Final = plain_listener(listen)

    def created(self, event: SessionCreated) -> None:
        """Pass on that a session was created."""
        self._listen(event)

    def used(self, event: SessionUsed) -> None:
        """Pass on that a session is used."""
        self._listen(event)

    def refused(self, event: RequestRefused, *_: object) -> None:
        """Pass on that a request was refused."""
        self._listen(event)

    def ended(self, event: SessionDeleted) -> None:
        """Pass on that a session has ended."""
        self._listen(event)


class Recording(Observer):
    """Telemetry: spans if the process traces, metrics, and the inspector's feed."""

    name: ClassVar[str] = "telemetry"

    def __init__(self, app: ASGIApp, options: CoreOptions) -> None:
        telemetry = options["telemetry"]
        self.feed: Feed | None = None
        if telemetry.inspector is not None:
            from ..telemetry._feed import Feed

            self.feed = Feed(options["clock"])
        self._has_metrics: Final = telemetry.metrics is not None
        self._traces: Final = telemetry.spans != "off"
        self._telemetry: Final = cache(partial(_telemetry, app, options, self.feed))  # imports OpenTelemetry

    def begin(self) -> None:
        """Let counters begin before the first request."""
        if self._has_metrics:
            self._telemetry()

    def is_watching(self) -> bool:
        """Return True if anything is recorded now."""
        return self._has_metrics or self.feed is not None or (self._traces and is_traced())

    def created(self, event: SessionCreated) -> None:
        """Count a session, and show it."""
        if self.is_watching():
            self._telemetry().observe(event)

    def refused(self, event: RequestRefused, *_: object) -> None:
        """Count a refusal, and show it."""
        if self.is_watching():
            self._telemetry().observe(event)

    def ended(self, event: SessionDeleted) -> None:
        """Count the end of a session, and show it and its span."""
        if self.is_watching():
            self._telemetry().observe(event)

    def creating(self, claims: Claims) -> Creation | None:
        """Begin the span of a session's start."""
        return self._telemetry().start(claims) if self.is_watching() else None

    def watch(self, request: Watched) -> Watch | None:
        """Record a request."""
        telemetry, scope = self._telemetry(), request.scope
        if request.message is None:
            is_refused = request.refused is not None
            return telemetry.begin_unread(request.claims, request.server_id, scope, is_refused=is_refused)
        watch = telemetry.begin(
            *(request.message, request.headers, scope, request.claims),
            is_forwarded=request.is_forwarded,
            server_id=request.server_id,
            arrived_at=request.arrived_at,
        )
        if watch is not None:
            watch.store_fault = request.store_fault
        return watch


def _telemetry(app: ASGIApp, options: CoreOptions, feed: Feed | None) -> Telemetry:
    from ..telemetry._attributes import caller_attributes
    from ..telemetry._recorder import Telemetry

    telemetry = options["telemetry"]
    return Telemetry(
        partial(route_tree.reachable, app, options["path"]),
        spans=telemetry.spans,
        trace=telemetry.trace,
        metrics=telemetry.metrics,
        redact=telemetry.redact,
        openinference=telemetry.openinference,
        feed=feed,
        caller=telemetry.user and partial(caller_attributes, telemetry.user, reader(options["principal"])),
    )


def observers_of(recording: Recording, options: CoreOptions) -> Observers:
    """Return the observers of a deployment."""
    listen = options["telemetry"].listen
    return Observers(EventLog(), recording, *([] if listen is None else [Listening(listen)]))

"""The log: a line for each event, a warning where refusals may indicate an attack, and the ids of session and trace.

Every line of the package has the session that it concerns as `session.id`, which is the name on spans. No line holds a
credential or a client's words but for the method, quoted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from .._refusals import REFUSALS, Reason
from .._session.events import Listener, RequestRefused, SessionCreated, SessionDeleted, SessionEvent
from .._session.session import find_session
from ..telemetry import START_TRACE, running_hook
from .background import start

if TYPE_CHECKING:
    from ..telemetry._recorder import Telemetry

SESSION_ID: Final = "session.id"
MINUTE: Final = 60.0  # seconds between two warnings of one kind
MANY: Final = 20  # refusals within a minute that are a flood
_MAX_METHOD: Final = 64  # characters of a client's method name
_log: Final = logging.getLogger("mcp_sessions")


def log_extra(ref: str | None, trace: str | None = None) -> dict[str, str]:
    """Return the `extra=` of a line: its session, and that session's start."""
    known = {} if ref is None else {SESSION_ID: ref}
    return known if trace is None else {**known, START_TRACE: trace}


def _join(record: logging.LogRecord) -> bool:
    """Give a record the session that is current, where it names none itself."""
    if not hasattr(record, SESSION_ID) and (of := running_hook.get() or find_session()) is not None:
        setattr(record, SESSION_ID, of.ref)
    return True


_log.addFilter(_join)  # of the package's own logger, so that it sees all lines of the package and no others


class EventSink:
    """Takes each event to the log, to telemetry (where `is_recording` says so) and to the application's `listen`.

    Creations, ends and refusals are lines at INFO; refusals that may indicate an attack are warnings, too.
    """

    def __init__(
        self,
        listen: Listener | None,
        is_recording: Callable[[], bool],
        telemetry: Callable[[], Telemetry],
        *,
        seconds: float = MINUTE,
    ) -> None:
        self._listen: Final = listen
        self._is_recording: Final = is_recording
        self._telemetry: Final = telemetry
        self._seconds: Final = seconds
        self._floods: Final[dict[str, _Flood]] = {}

    def __call__(self, event: SessionEvent) -> None:
        if isinstance(event, RequestRefused):
            if _log.isEnabledFor(logging.INFO):  # formatting is expensive
                of, extra = ("", None) if event.ref is None else (f" of session {event.ref}", {SESSION_ID: event.ref})
                method = "a body that was not read" if event.method is None else ascii(event.method[:_MAX_METHOD])
                _log.info("refused %s%s: %s (%d)", method, of, event.reason, event.code, extra=extra)
            reason = REFUSALS.get(event.reason)
            if reason is not None and reason.suspicion != "no":
                self._track_suspicious(event, reason)
        elif isinstance(event, SessionCreated):
            of = " of a principal" if event.of_principal else ""
            _log.info("session %s%s created", event.ref, of, extra={SESSION_ID: event.ref})
        elif isinstance(event, SessionDeleted):
            _log.info("session %s ended: %s", event.ref, event.reason, extra=log_extra(event.ref, event.trace))
        if self._is_recording():
            self._telemetry().observe(event)
        if self._listen is not None:
            self._listen(event)

    def _track_suspicious(self, event: RequestRefused, reason: Reason) -> None:
        flood = self._floods.get(reason.remedy)
        if flood is None:
            flood = self._floods[reason.remedy] = _Flood(reason.remedy)
            start(partial(self._watch, flood))
        flood.counts[event.reason] = flood.counts.get(event.reason, 0) + 1
        flood.refs.add(event.ref if len(flood.refs) < MANY else None)
        if not flood.is_warned and (reason.suspicion == "yes" or sum(flood.counts.values()) >= MANY):
            flood.warn()

    async def _watch(self, flood: _Flood) -> None:
        """Warn once a minute for as long as there are more."""
        while True:
            await anyio.sleep(self._seconds)
            if not (flood.is_warned and flood.counts):
                del self._floods[flood.remedy]
                return
            flood.warn()


class _Flood:
    """Refusals with one remedy, since the last warning of them."""

    def __init__(self, remedy: str) -> None:
        self.remedy: Final = remedy
        self.is_warned = False
        self.counts: Final[dict[str, int]] = {}
        self.refs: Final[set[str | None]] = set()

    def warn(self) -> None:
        ref = self.refs.pop() if len(self.refs) == 1 else None
        of, requests = "" if ref is None else f" of session {ref}", sum(self.counts.values())
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.counts.items())
        text = "refused %d request%s%s that may indicate an attack (%s): %s"
        plural = "" if requests == 1 else "s"
        _log.warning(text, requests, plural, of, reasons, self.remedy, extra=log_extra(ref))
        self.is_warned = True
        self.counts.clear()
        self.refs.clear()

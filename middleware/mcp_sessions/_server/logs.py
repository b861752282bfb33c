"""The log: a line for each event, a warning where refusals may indicate an attack, and the ids of session and trace.

Every line of the package has the session that it concerns as `session.id`, which is the name on spans. No line holds a
credential or a client's words but for the method, quoted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from starlette.types import Scope

from .._refusals import REFUSALS, Reason
from .._session.claims import Principal
from .._session.events import Listener, RequestRefused, SessionCreated, SessionDeleted, SessionEvent
from .._session.functions import described, is_unfinished
from .._session.session import find_session
from ..telemetry._core import START_TRACE, call_observer, running_hook
from .background import start
from .principal import ReadPrincipal

if TYPE_CHECKING:
    from ..telemetry._recorder import Telemetry

SESSION_ID: Final = "session.id"
MINUTE: Final = 60.0  # seconds between two warnings of one kind
MANY: Final = 20  # refusals within a minute that are a flood
FEW: Final = 3  # addresses and users that a warning names
_MAX_METHOD: Final = 64  # characters of a client's method name
_MAX_NAME: Final = 64  # characters of an address or a user
LISTEN_ASYNC: Final = (
    "listen= returned %s, which nothing awaits, so it missed an event: pass a plain function that starts a task or "
    "fills a queue"
)
CLIENT_PRINCIPAL: Final = (
    "a caller is authenticated as an OAuth client (%s), which many users may share: such users can use each other's "
    "sessions if they learn an id, and no session is found by the caller alone, nor listed. Pass principal=, a "
    "function that returns the user for an ASGI scope; if each client is one user, return the client's id as text"
)
Caller = tuple[str | None, str | None]  # address and user
_warned: Final[set[str]] = set()  # reasons, in our own words: what clients send is never kept
_log: Final = logging.getLogger("mcp_sessions")


def log_extra(ref: str | None, trace: str | None = None) -> dict[str, str]:
    """Return the `extra=` of a line: its session, and that session's start."""
    known = {} if ref is None else {SESSION_ID: ref}
    return known if trace is None else {**known, START_TRACE: trace}


def warn_once(reason: str, text: str, *values: object) -> None:
    """Log a warning, the first for this reason in this process."""
    if reason not in _warned:
        _warned.add(reason)
        _log.warning(text, *values)


def say_once(reason: str, text: str, *values: object) -> None:
    """Log a line at INFO, the first for this reason in this process; it waits until lines at INFO are logged."""
    if reason not in _warned and _log.isEnabledFor(logging.INFO):
        _warned.add(reason)
        _log.info(text, *values)


def _join(record: logging.LogRecord) -> bool:
    """Give a record the session that is current, where it names none itself."""
    if not hasattr(record, SESSION_ID) and (of := running_hook.get() or find_session()) is not None:
        setattr(record, SESSION_ID, of.ref)
    return True


def warns_of_client(principal: Principal) -> bool:
    """Whether a caller is a client and no user, of which the log then warns once."""
    if not principal.is_user:
        name = ascii((principal.client_id or principal.subject or "")[:_MAX_NAME])
        warn_once(CLIENT_PRINCIPAL, CLIENT_PRINCIPAL, name)
    return not principal.is_user


def plain_listener(listen: Listener | None) -> Listener | None:
    """Return `listen=`, with an error in the log if it returns what nothing awaits: it may be async unnoticed."""
    if listen is None:
        return None

    def called(event: SessionEvent) -> None:
        outcome: object = listen(event)
        if is_unfinished(outcome) and LISTEN_ASYNC not in _warned:
            _warned.add(LISTEN_ASYNC)
            _log.error(LISTEN_ASYNC, described(outcome))

    return called


def caller_of(scope: Scope, principal: ReadPrincipal) -> Caller:
    """Return the address that a request came from, and the user that it is authenticated as, each None if unknown."""
    client, found = scope.get("client"), None
    with suppress(Exception):  # a `principal=` that fails does so where its answer counts
        found = principal(scope)
    user = None if found is None else found.subject or found.client_id
    return None if client is None else str(client[0])[:_MAX_NAME], user and user[:_MAX_NAME]


def _handle(record: logging.LogRecord) -> None:
    """Handle a record as a logger does, but for an error of a filter or a handler, which no request may get."""
    try:
        logging.Logger.handle(_log, record)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException:  # noqa: BLE001  # handlers report their own errors; one that does not is reported as they do
        logging.Handler().handleError(record)


_log.handle = _handle  # type: ignore[method-assign]
_log.addFilter(_join)  # of the package's own logger, so that it sees all lines of the package and no others


@dataclass(eq=False, repr=False)
class EventSink:
    """Takes each event to the log, to telemetry (where `is_recording` says so) and to the application's `listen`.

    Creations, ends and refusals are lines at INFO; refusals that may indicate an attack are warnings, too.
    """

    listen: Listener | None
    is_recording: Callable[[], bool]
    telemetry: Callable[[], Telemetry]
    seconds: float = MINUTE
    _floods: dict[str, _Flood] = field(default_factory=dict, init=False)

    def __call__(self, event: SessionEvent, caller: Callable[[], Caller] = lambda: (None, None)) -> None:
        """Take an event; `caller` returns who sent a request that is refused."""
        if isinstance(event, RequestRefused):
            if _log.isEnabledFor(logging.INFO):  # formatting is expensive
                of, extra = ("", None) if event.ref is None else (f" of session {event.ref}", {SESSION_ID: event.ref})
                method = (
                    "a request without a readable message"
                    if event.method is None
                    else ascii(event.method[:_MAX_METHOD])
                )
                _log.info("refused %s%s: %s (%d)", method, of, event.reason, event.code, extra=extra)
            reason = REFUSALS.get(event.reason)
            if reason is not None and reason.suspicion != "no":
                self._track_suspicious(event, reason, caller())
        elif isinstance(event, SessionCreated):
            of = " of a principal" if event.of_principal else ""
            _log.info("session %s%s created", event.ref, of, extra={SESSION_ID: event.ref})
        elif isinstance(event, SessionDeleted):
            _log.info("session %s ended: %s", event.ref, event.reason, extra=log_extra(event.ref, event.trace))
        if self.is_recording():
            call_observer("telemetry", self._record, event)
        if self.listen is not None:
            call_observer("listen=", self.listen, event)

    def _record(self, event: SessionEvent) -> None:
        self.telemetry().observe(event)

    def _track_suspicious(self, event: RequestRefused, reason: Reason, caller: Caller) -> None:
        flood = self._floods.get(reason.remedy)
        if flood is None:
            flood = self._floods[reason.remedy] = _Flood()
            start(partial(self._watch, reason.remedy, flood))
        flood.reasons[event.reason] += 1
        for seen, one in ((flood.refs, event.ref), (flood.addresses, caller[0]), (flood.users, caller[1])):
            seen.add(one if len(seen) < MANY else None)
        if not flood.is_warned and (reason.suspicion == "yes" or flood.reasons.total() >= MANY):
            flood.warn(reason.remedy)

    async def _watch(self, remedy: str, flood: _Flood) -> None:
        """Warn once a minute for as long as there are more."""
        while True:
            await anyio.sleep(self.seconds)
            if not (flood.is_warned and flood.reasons):
                del self._floods[remedy]
                return
            flood.warn(remedy)


@dataclass(eq=False, repr=False)
class _Flood:
    """Refusals with one remedy, since the last warning of them."""

    is_warned: bool = False
    reasons: Counter[str] = field(default_factory=Counter)
    refs: set[str | None] = field(default_factory=set)
    addresses: set[str | None] = field(default_factory=set)
    users: set[str | None] = field(default_factory=set)

    def warn(self, remedy: str) -> None:
        ref, count = next(iter(self.refs)) if len(self.refs) == 1 else None, self.reasons.total()
        plural, of = "" if count == 1 else "s", "" if ref is None else f" of session {ref}"
        senders = f"{_listed('from', self.addresses)}{_listed('by', self.users)}"
        reasons = ", ".join(f"{reason} {times}" for reason, times in self.reasons.items())
        text = "refused %d request%s%s%s that may indicate an attack (%s): %s"
        _log.warning(text, count, plural, of, senders, reasons, remedy, extra=log_extra(ref))
        self.is_warned = True
        self.reasons.clear()
        for seen in (self.refs, self.addresses, self.users):
            seen.clear()


def _listed(word: str, seen: set[str | None]) -> str:
    """Return who or where requests came from, a few by name: text of theirs cannot forge a line."""
    names = sorted(ascii(name) for name in seen if name is not None)
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return f" {word} {', '.join(names[:FEW])}{more}" if names else ""

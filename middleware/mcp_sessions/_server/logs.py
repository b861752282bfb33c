"""The log: a line for each event, as a warning if it may indicate an attack, with the ids of its session and trace.

Each line has its session as `session.id`, as spans do. It contains no credential, and of the client's words only the
method, quoted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final

from starlette.types import Scope

from .._refusals import REFUSALS
from .._session.claims import Principal
from .._session.endings import Ending
from .._session.events import Listener, RequestRefused, SessionCreated, SessionDeleted, SessionEvent
from .._session.functions import described, is_lost, is_unfinished
from .._session.session import session_in_use
from ..telemetry._core import START_TRACE, running_hook
from .observers import Caller, Observer
from .principal import ReadPrincipal

SESSION_ID: Final = "session.id"
MINUTE: Final = 60.0  # seconds, at least, between two warnings with one reason in one session
MAX_COUNTED: Final = 1000  # pairs of a reason and a session whose refusals are counted
_MAX_METHOD: Final = 64  # characters of a client's method name
_MAX_NAME: Final = 64  # characters of an address or a user
LISTEN_ASYNC: Final = (
    "listen= returned %s, which nothing runs or awaits, so it missed an event: pass a plain function that starts a "
    "task or fills a queue"
)
CLIENT_PRINCIPAL: Final = (
    "a caller is authenticated as an OAuth client (%s), which many users may share: such users can use each other's "
    "sessions if they learn an id, and no session is found by the caller alone, nor listed. Pass principal=, a "
    "function that returns the user for an ASGI scope; if each client is one user, return the client's id as text"
)
CLIENT_HANDLE: Final = (
    "the holder of a handle is an OAuth client (%s), which many users may share: each of them can use it. Pass "
    "principal= to Handles, a function that returns the user; if each client is one user, return its id as text"
)
Kind = tuple[str, str | None]  # the reason of a refusal, and the session's ref
_warned: Final[set[str]] = set()  # reasons in our own words, never text from a client
_log: Final = logging.getLogger("mcp_sessions")


def log_extra(ref: str | None, trace: str | None = None) -> dict[str, str]:
    """Return the `extra=` of a line: the session's ref, and the traceparent of its start."""
    known = {} if ref is None else {SESSION_ID: ref}
    return known if trace is None else {**known, START_TRACE: trace}


def warn_once(reason: str, text: str, *values: object) -> None:
    """Log a warning once for each reason in this process."""
    if reason not in _warned:
        _warned.add(reason)
        _log.warning(text, *values)


def say_once(reason: str, text: str, *values: object) -> None:
    """Log a line at INFO once for each reason in this process. A line that the log level hides does not count."""
    if reason not in _warned and _log.isEnabledFor(logging.INFO):
        _warned.add(reason)
        _log.info(text, *values)


def add_session_id(record: logging.LogRecord) -> bool:
    """Add the current session's ref to a record that has none."""
    if not hasattr(record, SESSION_ID) and (session := running_hook.get() or session_in_use()) is not None:
        setattr(record, SESSION_ID, session.ref)
    return True


def warns_of_client(principal: Principal) -> bool:
    """Return True if a caller is an OAuth client and not a user. The log warns of that once."""
    if not principal.is_user:
        warn_once(CLIENT_PRINCIPAL, CLIENT_PRINCIPAL, _name_of(principal))
    return not principal.is_user


def warn_of_holder(principal: Principal) -> Principal:
    """Return the holder of a handle; if it is a client and no user, the log warns once."""
    if not principal.is_user:
        warn_once(CLIENT_HANDLE, CLIENT_HANDLE, _name_of(principal))
    return principal


def _name_of(principal: Principal) -> str:
    return ascii((principal.client_id or principal.subject or "")[:_MAX_NAME])


def plain_listener(listen: Callable[[SessionEvent], object]) -> Listener:
    """Return `listen=` so that the log has an error if the function is async, which nothing would await."""

    def called(event: SessionEvent) -> None:
        outcome = listen(event)
        if (is_unfinished(outcome) or is_lost(outcome)) and LISTEN_ASYNC not in _warned:
            _warned.add(LISTEN_ASYNC)
            _log.error(LISTEN_ASYNC, described(outcome))

    return called


def caller_of(scope: Scope, principal: ReadPrincipal) -> Caller:
    """Return the client's address and the authenticated user, each None if unknown."""
    client, found = scope.get("client"), None
    with suppress(Exception):  # the request itself reports an error of `principal=`
        found = principal(scope)
    user = None if found is None else found.subject or found.client_id
    return None if client is None else str(client[0])[:_MAX_NAME], user and user[:_MAX_NAME]


def _handle(record: logging.LogRecord) -> None:
    """Handle a record as a logger does, but keep errors of filters and handlers from the request."""
    try:
        logging.Logger.handle(_log, record)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException:  # noqa: BLE001  # report it as handlers report their own errors
        logging.Handler().handleError(record)


_log.handle = _handle  # type: ignore[method-assign]
_log.addFilter(add_session_id)  # the package's own logger has all lines of the package, and no others


@dataclass(eq=False, repr=False)
class EventLog(Observer):
    """Writes the log: creations, ends and refusals are lines at INFO.

    A refusal that may indicate an attack is a warning instead, at most once a minute for each reason and session, with
    the number of those that were none.
    """

    name: ClassVar[str] = "log"
    clock: Callable[[], float] = time.monotonic
    _counts: dict[Kind, tuple[float, int, int]] = field(default_factory=dict, init=False)

    def created(self, event: SessionCreated) -> None:
        """Log that a session was created."""
        of = "" if event.kind is None else f" of a {event.kind}"
        _log.info("session %s%s created", event.ref, of, extra={SESSION_ID: event.ref})

    def ended(self, event: SessionDeleted) -> None:
        """Log that a session has ended."""
        ending = Ending(event.reason, event.by, event.name)
        _log.info("session %s ended: %s", event.ref, ending, extra=log_extra(event.ref, event.trace))

    def refused(self, event: RequestRefused, caller: Callable[[], Caller], /) -> None:
        """Log why a request was refused."""
        reason = REFUSALS.get(event.reason)
        similar = None if reason is None or reason.warn_at is None else self._similar(event, reason.warn_at)
        level = logging.INFO if similar is None else logging.WARNING
        if not _log.isEnabledFor(level):  # formatting is expensive
            return
        method = "a request without a readable message" if event.method is None else ascii(event.method[:_MAX_METHOD])
        session = "" if event.ref is None else f" of session {event.ref}"
        sender = "" if similar is None else _sender(*caller())
        claim = "" if event.claim is None else f" {event.claim}"
        more = f", and {similar} more since the last warning like this" if similar else ""
        remedy = "" if reason is None else f"; {reason.remedy}"
        text, values = "refused %s%s%s: %s%s (%d)%s%s", (event.reason, claim, event.code, more, remedy)
        _log.log(level, text, method, session, sender, *values, extra=log_extra(event.ref))

    def _similar(self, event: RequestRefused, warn_at: int) -> int | None:
        """Count a refusal, and return None unless it is to be a warning: then the number of those that were none."""
        kind, now = (event.reason, event.ref), self.clock()
        since, count, suppressed = self._counts.pop(kind, (now, 0, 0))
        if now - since >= MINUTE:
            since, count, suppressed = now, 0, suppressed + max(0, count - warn_at)
        count += 1
        if len(self._counts) >= MAX_COUNTED:
            del self._counts[next(iter(self._counts))]  # the one that was refused least recently
        self._counts[kind] = since, count, 0 if count == warn_at else suppressed
        return suppressed + warn_at - 1 if count == warn_at else None


def _sender(address: str | None, user: str | None) -> str:
    """Return where a request came from, quoted, since a proxy may pass on a client's words."""
    return f"{'' if address is None else f' from {address!a}'}{'' if user is None else f' by {user!a}'}"

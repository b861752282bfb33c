"""What one process remembers of callers: sessions created by each, confirmations due, and principals' sessions."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from weakref import WeakValueDictionary

import anyio
import msgspec

from .._refusals import refusal
from .._session.claims import RedactedRepr

WINDOW: Final = 60  # seconds
MAX_CALLERS: Final = 10_000  # counted separately within one window
_OTHERS: Final = ""  # the rest together; no subject is empty
MAX_WAITING: Final = 10_000  # transport sessions; those of clients that never came back go first


class CreateLimit(msgspec.Struct):
    """Limits the sessions that each caller may create per window in one process."""

    per_minute: int
    max_callers: int = MAX_CALLERS
    window: int = -1
    created: dict[str | None, int] = {}

    def spend(self, subject: str | None, *, now: float) -> None:
        """Count a session of a caller, None if anonymous, or refuse with `create_limit`; `now` is Unix seconds."""
        window = int(now // WINDOW)
        if window != self.window:
            self.window, self.created = window, {}
        caller = subject if subject in self.created or len(self.created) < self.max_callers else _OTHERS
        spent = self.created.get(caller, 0)
        if not spent < self.per_minute:
            raise refusal("create_limit", retry_after=WINDOW - int(now % WINDOW))
        self.created[caller] = spent + 1


class PendingInitialized(OrderedDict[str, None]):
    """The transport sessions of the wrapped server's process that wait for `notifications/initialized`."""

    def add(self, transport: str) -> None:
        """Remember a transport session whose client need not confirm it."""
        self[transport] = None
        if len(self) > MAX_WAITING:
            self.popitem(last=False)


class PrincipalSessions:
    """What the store last had about the session of each principal, and who begins one now."""

    def __init__(self, *, max_callers: int = MAX_CALLERS) -> None:
        self._max_callers: Final = max_callers
        self._remembered: Final[dict[str, bytes]] = {}
        self._beginning: Final = WeakValueDictionary[str, anyio.Lock]()

    def get(self, subject: str) -> bytes | None:
        return self._remembered.get(subject)

    def put(self, subject: str, current: bytes | None) -> None:
        """Remember what the store has, or forget it (None)."""
        if current is None:
            self._remembered.pop(subject, None)
            return
        if len(self._remembered) >= self._max_callers:
            self._remembered.clear()  # the store has them all
        self._remembered[subject] = current

    def beginning(self, subject: str) -> anyio.Lock:
        """Return what lets the requests of one principal that begin a session at once do so one by one."""
        lock = self._beginning.get(subject) or anyio.Lock()
        self._beginning[subject] = lock  # as long as one of them holds it
        return lock


class LegacyEra(RedactedRepr, msgspec.Struct):
    """What one process knows of the wrapped server's legacy era, and the runtimes that it has led there."""

    is_served: bool | None = None  # whether a client gets a session there; None where the server was not asked yet
    logged: set[str] = msgspec.field(default_factory=set)

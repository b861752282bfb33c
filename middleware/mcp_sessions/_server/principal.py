"""Who calls: the principal of a request, and what one process remembers of callers.

The principal comes from `principal=`, or from what an authentication middleware left on the scope: the user of the
official SDK and FastMCP (client id, issuer, subject), or Starlette's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from typing import Any, Final
from weakref import WeakValueDictionary

import anyio
import msgspec
from starlette.authentication import SimpleUser
from starlette.types import Scope

from .._errors import ConfigurationError
from .._refusals import refusal
from .._session.claims import Principal

PrincipalOf = Callable[[Scope], "Principal | str | None"]
"""The `principal=` option: returns who a request is authenticated as, given its scope."""

ReadPrincipal = Callable[[Scope], "Principal | None"]

AUTHORIZATION: Final = b"authorization"
WINDOW: Final = 60  # seconds
MAX_CALLERS: Final = 10_000  # counted separately within one window
_OTHERS: Final = ""  # the rest together; no subject is empty
MAX_WAITING: Final = 10_000  # transport sessions; those of clients that never came back go first


def from_scope(scope: Scope) -> Principal | None:
    """Return the principal that an authentication middleware left on the scope, or None.

    Where nothing distinguishes the user from others, only `principal=` can: `ConfigurationError`.
    """
    user = _user(scope)
    if user is None:
        return None
    token = getattr(user, "access_token", None)
    principal = _from_user(user) if token is None else _from_token(token)
    if principal == Principal():
        raise ConfigurationError(
            f"nothing in {type(user).__name__} distinguishes users; pass principal=, a function of the ASGI "
            "scope that returns who the caller is"
        )
    return principal


def is_unseen(read: ReadPrincipal, scope: Scope, headers: Container[bytes]) -> bool:
    """Whether a request has credentials, but nothing shows whose they are.

    A session would then belong to anyone who learns its id, which a server with users does not want. Only a function
    that was given as `principal=` may call such a request anonymous.
    """
    return read is from_scope and AUTHORIZATION in headers and _user(scope) is None


def _user(scope: Scope) -> Any:
    user = scope.get("user")
    return user if getattr(user, "is_authenticated", True) else None


def _from_token(token: Any) -> Principal:
    claims = getattr(token, "claims", None) or {}
    subject = getattr(token, "subject", None)
    return Principal(
        client_id=_text(getattr(token, "client_id", None)),
        issuer=_text(claims.get("iss")),
        subject=_text(claims.get("sub") if subject is None else subject),  # FastMCP 3 has it in the claims only
    )


def _from_user(user: Any) -> Principal:
    if isinstance(user, SimpleUser):  # elsewhere a display name identifies no user, but this has nothing else
        return Principal(subject=user.username)
    try:
        return Principal(subject=_text(user.identity))
    except (NotImplementedError, AttributeError):
        return Principal()


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def reader(principal_of: PrincipalOf | None) -> ReadPrincipal:
    """Return the function that reads the principal of every request."""
    if principal_of is None:
        return from_scope
    if not callable(principal_of):
        raise ConfigurationError(
            "principal= takes a function of the ASGI scope that returns a Principal, a str or None"
        )

    def read(scope: Scope) -> Principal | None:
        value: Any = principal_of(scope)
        if value is None:
            return None
        principal = value if isinstance(value, Principal) else Principal(subject=str(value))
        if not value or value is True or not (principal.client_id or principal.subject):
            raise ConfigurationError(
                f"principal= returned {value!r}, which would make all callers the same; return what identifies "
                "the caller, or None for an anonymous one"
            )
        return principal

    return read


# --- what is remembered ---


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

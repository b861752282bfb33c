"""Who calls: the principal of a request, and what one process remembers of callers.

The principal comes from `principal=`, or from what an authentication middleware left on the scope: the user of the
official SDK and FastMCP (client id, issuer, subject), or Starlette's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import anyio
import msgspec
from starlette.authentication import SimpleUser
from starlette.types import Scope

from .._errors import ConfigurationError
from .._refusals import refusal
from .._session.claims import Principal
from .._session.functions import described, is_unfinished

if TYPE_CHECKING:
    from typing import TypeGuard

PrincipalOf = Callable[[Scope], "Principal | str | None"]
"""The `principal=` option: returns who a request is authenticated as, given its scope."""

ReadPrincipal = Callable[[Scope], "Principal | None"]

AUTHORIZATION: Final = b"authorization"
WINDOW: Final = 60  # seconds
MAX_CALLERS: Final = 10_000  # counted separately within one window
_RETURN: Final = (
    "return text that identifies the caller and never changes, such as user.id or claims['sub'], a Principal of such "
    "texts, or None for an anonymous caller"
)
_OTHERS: Final = ""  # the rest together; no subject is empty
MAX_WAITING: Final = 10_000  # transport sessions; those of clients that never came back go first


def from_scope(scope: Scope) -> Principal | None:
    """Return the principal that an authentication middleware left on the scope, or None.

    If nothing distinguishes the user from others, only `principal=` can: `ConfigurationError`.
    """
    user = _user(scope)
    if user is None:
        return None
    token = getattr(user, "access_token", None)
    principal = _from_user(user) if token is None else _from_token(token)
    if principal.client_id is principal.subject is None:
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
    if user is None:
        return None
    is_authenticated = getattr(user, "is_authenticated", True)
    if isinstance(is_authenticated, bool):
        return user if is_authenticated else None
    if is_unfinished(is_authenticated) or callable(is_authenticated):  # true, whatever it would answer
        raise _unusable("user.is_authenticated", is_authenticated)
    return user if is_authenticated else None


def _from_token(token: Any) -> Principal:
    claims = getattr(token, "claims", None) or {}
    if not isinstance(claims, Mapping):
        raise _unusable("access_token.claims", claims)
    subject = _text("access_token.subject", getattr(token, "subject", None))
    if subject is None:
        subject = _text("the claim sub", claims.get("sub"))  # FastMCP 3 has it there only
    client_id = _text("access_token.client_id", getattr(token, "client_id", None))
    issuer = _text("the claim iss", claims.get("iss"))
    if subject is None:
        return Principal(client_id, issuer)
    is_same = subject in {client_id, getattr(token, "original_client_id", None)}  # `MultiAuth` renames clients
    is_client = _is_of_client(claims, subject) or (is_same and _say_nothing(claims))
    return Principal(client_id, issuer, subject, is_client=is_client)


def _is_of_client(claims: Mapping[str, Any], subject: str) -> bool:
    """Whether a token is a client's own (RFC 6749, section 4.4), as far as its claims say so.

    Sources: Microsoft Entra ID, optional claim `idtyp`; Auth0, "Client Credentials Flow"; FusionAuth, "JWTs", whose
    `gty` is a list; RFC 9068, section 2.2, whose `client_id` is `azp` in OpenID Connect, `cid` at Okta and `appid` in
    version 1.0 of Entra's tokens.
    """
    signs = [("idtyp", "app"), ("gty", "client-credentials"), ("gty", "client_credentials")]
    signs += [(name, subject) for name in ("client_id", "azp", "cid", "appid")]
    return subject.endswith("@clients") or any(_has(claims.get(name), value) for name, value in signs)


def _has(claim: object, value: str) -> bool:
    return claim == value or (isinstance(claim, (list, tuple, set, frozenset)) and value in claim)


def _say_nothing(claims: Mapping[str, Any]) -> bool:
    """Whether claims are missing, or only repeat the subject.

    What the claims of a whole token do not call a client is a user, even under the name of one: verifiers that know no
    client, as FastMCP's of GitHub, name the user twice.
    """
    return all(name in {"sub", "iss"} or not value for name, value in claims.items())


def _from_user(user: Any) -> Principal:
    try:
        return Principal(subject=_text("user.identity", user.identity))
    except AttributeError:
        return Principal()
    except NotImplementedError:  # a display name identifies no user, but a `SimpleUser` may have nothing else
        return Principal(subject=_text("user.username", user.username) if isinstance(user, SimpleUser) else None)


def _text(name: str, value: object) -> str | None:
    """Return a part of a principal, or None for a blank one; only text identifies (RFC 7519: StringOrURI)."""
    if value is None or isinstance(value, str):
        return None if value is None or not value.strip() else str.__str__(value)
    raise _unusable(name, value)


def _unusable(name: str, value: object) -> ConfigurationError:
    is_unfinished(value)
    return ConfigurationError(
        f"{name} of the authenticated user is {described(value)}, not text; pass principal=, a function of the ASGI "
        "scope that returns who the caller is"
    )


def reader(principal_of: PrincipalOf | None) -> ReadPrincipal:
    """Return the function that reads the principal of every request."""
    if principal_of is None:
        return from_scope

    def read(scope: Scope) -> Principal | None:
        value: object = principal_of(scope)
        return None if value is None else identified(value, "principal= returned")

    return read


def identified(value: object, source: str) -> Principal:
    """Return the principal that the application names, a `Principal` or the text that identifies a user.

    Anything else is a `ConfigurationError`: the `str()` of an object, or of claims with times, is another one for each
    request, and may be that of another user's object.
    """
    if isinstance(value, Principal):
        principal = checked(value, source)
        if principal.client_id is principal.subject is None:
            raise _unidentified(f"{source} a Principal without client_id and subject")
        return principal
    if _is_text(value):
        return Principal(subject=str.__str__(value))
    if is_unfinished(value):
        raise _unidentified(f"{source} {described(value)}, but it must be a plain function that nobody has to await")
    raise _unidentified(f"{source} {_shown(value)}")


def checked(value: Principal, source: str, *, remedy: str = _RETURN) -> Principal:
    """Return a principal whose parts are text or None; `ConfigurationError` if it has others, or further ones."""
    if type(value) is not Principal:
        raise ConfigurationError(
            f"{source} {described(value)}, a subclass of Principal: only client_id, issuer and subject tell callers "
            "apart, so what it adds would be lost; use Principal itself, and put a tenant, for example, into issuer"
        )
    parts = {name: getattr(value, name) for name in ("client_id", "issuer", "subject")}
    for name, part in parts.items():
        if part is not None and not _is_text(part):
            raise ConfigurationError(f"{source} a Principal whose {name} is {_shown(part)}; {remedy}")
    texts = {name: None if part is None else str.__str__(part) for name, part in parts.items()}
    return Principal(**texts, is_client=value.is_client)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.strip() != ""


def _shown(value: object) -> str:
    return "a blank text" if isinstance(value, str) else described(value)


def _unidentified(problem: str) -> ConfigurationError:
    return ConfigurationError(f"{problem}; {_RETURN}")


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

    def give_back(self, subject: str | None) -> None:
        """Count one session less, which another request has created."""
        caller = subject if subject in self.created else _OTHERS
        self.created[caller] = max(0, self.created.get(caller, 0) - 1)


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

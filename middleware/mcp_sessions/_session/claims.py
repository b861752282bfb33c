"""The identity of a session: the claims of its token, its principal, and its id among other texts."""

from __future__ import annotations

import hashlib
import math
from base64 import b32encode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import datetime, timezone
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field
from msgspec.structs import force_setattr

TYP: Final = "mcp-session+jwt"
MAX_TOKEN_BYTES: Final = 2048
MAX_CLIENT_CHARS: Final = 64
ALIAS: Final = 12  # characters of a name that a principal has without some of its parts
MAX_CLOCK_SKEW: Final = 60  # seconds that another worker's clock may be ahead

AUDIENCE: Final = "mcp-sessions"  # where a deployment does not name one

Kind = str
"""What a token may be used as (`knd`): each dialect accepts the kinds that it creates, and no others."""
SESSION: Final = "session"  # named in `_meta`; the only one whose client carries the state
TRANSPORT: Final = "transport"  # named in the header, and where a dialect asks for it in the field, too
COOKIE: Final = "cookie"  # named in a cookie alone
USER: Final = "user"  # remembered for an authenticated user, whose client sends nothing; no token is of this kind
CONVERSATION: Final = "conversation"  # remembered for a conversation of a user, which the host names
ARGUMENT: Final = "argument"  # remembered by a handle, which the model passes to tools
REMEMBERED: Final = frozenset({USER, CONVERSATION, ARGUMENT})
FIELD: Final = "field"  # named in the field of SEP-1364, and mirrored in the header
COEXISTING: Final = "beside"  # named in the field, while the header holds the wrapped server's own transport id


class RedactedRepr:
    """The first base of a struct that may hold a credential: tracebacks and error reporters print all of its fields."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


_Random128 = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{21}[AQgw]\Z")]
END_OF_TIME: Final = 253_402_300_799  # the end of the year 9999, as datetime goes
_Trace = Annotated[str, Meta(pattern=r"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")]


class Claims(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """The claims of a session id. Unknown ones in a token are ignored, so that versions can run side by side.

    Attributes:
        issuer: Who minted it.
        audience: The deployment that the session belongs to. Stores separate deployments.
        jti: 128 random bits in base64url, by which it is revoked.
        issued_at: Unix seconds, to the millisecond, so that one cut-off ends all sessions up to now.
        expires_at: Unix seconds; from then on it is refused.
        kind: How the token may be sent: as a session in `_meta`, in the header, in a cookie, or by SEP-1364.
        subject: The keyed hash of the principal, or None for an anonymous session.
        trace: The traceparent of the session's start, or None.
        client: The client's name and version, at most 64 characters, or None.
        upstream: The encrypted transport id of the wrapped server, or None.
        boot: The process whose memory holds its state, or None if the client or a shared store does.
        aliases: Keyed hashes of the principal without its client, issuer or both, 12 characters each. A cut-off for one
            ends the session: a user's sessions end together, whichever clients they are of.
    """

    issuer: str = field(name="iss")
    audience: str = field(name="aud")
    jti: _Random128
    issued_at: Annotated[float, Meta(ge=0, le=END_OF_TIME)] = field(name="iat")
    expires_at: Annotated[int, Meta(ge=0, le=END_OF_TIME)] = field(name="exp")
    kind: Annotated[str, Meta(min_length=1, max_length=32)] = field(name="knd")
    subject: _Random128 | None = field(default=None, name="sub")
    trace: _Trace | None = field(default=None, name="tp")
    client: Annotated[str, Meta(max_length=MAX_CLIENT_CHARS)] | None = field(default=None, name="cli")
    upstream: Annotated[str, Meta(min_length=1, max_length=MAX_TOKEN_BYTES)] | None = field(default=None, name="up")
    boot: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    aliases: Annotated[str, Meta(pattern=r"\A([A-Za-z0-9_-]{12}){1,3}\Z")] | None = field(default=None, name="als")

    def __post_init__(self) -> None:
        if self.client is not None:  # what a client calls itself must not keep it from getting a session
            cut = self.client[:MAX_CLIENT_CHARS].encode("utf-8", "replace").decode("utf-8")
            force_setattr(self, "client", cut)

    @property
    def ref(self) -> str:
        """The session's public name, 120 bits derived from `jti`; safe in logs and traces."""
        # Not a `cached_property`: before Python 3.12 that has a lock, which a fork could inherit as held.
        found: str | None = self.__dict__.get("ref")
        if found is None:
            found = self.__dict__["ref"] = ref_of(self.jti)
        return found

    @property
    def owners(self) -> list[str | None]:
        """The names by which the sessions of its principal end: the subject, and the aliases."""
        if self.aliases is None:
            return [self.subject]
        return [self.subject, *(self.aliases[start : start + ALIAS] for start in range(0, len(self.aliases), ALIAS))]

    def by_owner(self) -> list[Claims]:
        """Return these claims under each name that a cut-off of the principal may have, the subject first."""
        return [self, *(msgspec.structs.replace(self, subject=name, aliases=None) for name in self.owners[1:])]

    def __repr__(self) -> str:
        return f"<Claims {self.kind} {self.ref}>"


def ref_of(jti: str) -> str:
    """Return the public name of the session with a `jti`."""
    digest = hashlib.sha256(b"mcp-sessions/1/ref/" + jti.encode("utf-8")).digest()
    return "ses_" + b32encode(digest[:15]).decode("ascii").lower()


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller that a request is authenticated as.

    Args:
        client_id: The OAuth client, or the name of the authenticated user if there is no client.
        issuer: The issuer of the client and the user, or None if the server does not report one.
        subject: The user at that issuer, or None if the server does not report one.
        is_client: Whether the subject is the client itself, or None if nothing but the names says so.
    """

    client_id: str | None = None
    issuer: str | None = None
    subject: str | None = None
    is_client: bool | None = dataclass_field(default=None, kw_only=True, compare=False, repr=False)

    @property
    def is_user(self) -> bool:
        """Whether this is one user. All users of a client may share a principal whose subject is missing or the client.

        In tokens that a client gets for itself, the subject is the client's id (RFC 9068, section 2.2).
        """
        return self.can_be_user and not (self.is_client is None and self.subject == self.client_id)

    @property
    def can_be_user(self) -> bool:
        """Whether nothing shows that this is a client, for whoever names the subject and knows who that is.

        Some servers name a user as the client, too. Auth0's subject of a client ends with `@clients`.
        """
        if self.subject is None or self.is_client is not None:
            return self.subject is not None and not self.is_client
        return self.client_id is None or not self.subject.endswith("@clients")


@dataclass(frozen=True, slots=True)
class Correlation:
    """The name that a client gives a request's conversation: a label that proves nothing.

    Args:
        id: The name, at most 256 printable characters. Clients can send any name.
        source: Where it was found, in the notation of the option, such as `"meta:openai/session"`.
    """

    id: str
    source: str


def utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def floor_ms(seconds: float) -> float:
    """Return the millisecond that a time is in: two times of one millisecond give equal numbers."""
    return math.floor(seconds * 1000) / 1000


def after_ms(seconds: float) -> float:
    """Return the millisecond after the one that a time is in: a cut-off there ends all that was issued by then."""
    return (math.floor(seconds * 1000) + 1) / 1000


# --- ids among other texts ---


def _in_base64url(text: bytes) -> Iterator[bytes]:
    """Yield the three ways in which a text can stand in base64url, by where in a group of three bytes it begins."""
    for before in range(3):
        encoded = urlsafe_b64encode(bytes(before) + text)
        yield encoded[-(-before * 8 // 6) : (before + len(text)) * 8 // 6]


_MARKS: Final = tuple(_in_base64url(TYP.encode()))


def looks_like_session_id(value: str | bytes) -> bool:
    """Whether a value is or contains one of our tokens, verified or not: whether it holds our `typ` in base64url.

    Only what was minted here can be a credential, and that has one spelling; whatever stands around it, it is kept from
    the wrapped server, whose logs it could reach.
    """
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return any(mark in data for mark in _MARKS)

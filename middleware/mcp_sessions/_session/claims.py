"""What shows nothing of what it holds: tracebacks, debuggers and error reporters print what they find.

Most of what is made per request here is a msgspec struct, since a class or a dataclass takes three times as long to
make; and a struct would show all of its fields.

Telling a session id of ours from any other text, by its envelope alone and never by whether it verifies.

What is ours is kept from the wrapped server, whose logs it could reach, so it is told generously; what
verifies is decided strictly, in `tokens`. Nothing here knows a key.

What a verified token says, and who a request is from.

Forks: what the token of a session says that was made from another one, and what ends a whole lineage.

A fork is a session of the same principal, as old as its own making, that ends by itself when its root does. So what
is kept for one member of a lineage lasts as long as for any other, and nobody gains time by forking. Nothing here
mints, and nothing asks a store.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b32encode, b64decode
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec.structs import force_setattr


class RedactedRepr:
    """The first base of a struct that may hold a credential."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


TYP: Final = "mcp-session+jwt"
MAX_TOKEN_BYTES: Final = 2048

_FROM_BASE64URL: Final = bytes.maketrans(b"-_", b"+/")
_BEGINNING: Final = re.compile(b"eyJ")  # base64url of `{"`, with which every header begins that is minted here
_MAX_BEGINNINGS: Final = 16
_NOT_BASE64: Final = re.compile(rb"[^A-Za-z0-9+/]")


def looks_like_session_id(value: str | bytes) -> bool:
    """Whether a value is or contains one of our tokens by its envelope's `typ` alone, verified or not.

    What counts as ours is decided generously (any padding, any order of members, any case of `typ`,
    further segments, any text around it): it is kept from the wrapped server, whose logs it could
    reach. What verifies is decided strictly, elsewhere.

    Args:
        value: A header's value or another text.
    """
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    if data.count(b".") < 2:
        return False
    # The first segment needs no such beginning: other spellings of a header may have white space there.
    return _is_header(data, 0) or _contains_header(data)


def _contains_header(data: bytes) -> bool:
    starts = [found.start() for found in _BEGINNING.finditer(data, 1)]
    if len(starts) <= _MAX_BEGINNINGS:
        return any(_is_header(data, start) for start in starts)
    return True  # more than any honest value has, and more than are worth decoding


def _is_header(data: bytes, start: int) -> bool:
    """Whether the text from there to the next dot, or to the end, is a header of ours."""
    segment = data[start:].partition(b".")[0]
    try:
        header = json.loads(_decode_leniently(segment), object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return False
    return isinstance(header, tuple) and any(name == "typ" and _is_ours(value) for name, value in header)


def _decode_leniently(segment: bytes) -> bytes:
    if not len(segment) <= MAX_TOKEN_BYTES:
        return b""
    alphabet_only = _NOT_BASE64.sub(b"", segment.translate(_FROM_BASE64URL))
    return b64decode(alphabet_only + b"==")


def _is_ours(typ: object) -> bool:
    return isinstance(typ, str) and typ.strip().lower().removeprefix("application/") == TYP


AUDIENCE: Final = "mcp-sessions"
"""Whom sessions are for where a deployment does not say."""


MAX_CLIENT_CHARS: Final = 64


MAX_CLOCK_SKEW: Final = 60  # seconds that another worker's clock may be ahead of ours


Kind = Literal["session", "transport", "field", "beside"]


SESSION: Final[Kind] = "session"  # named in `_meta`; the only one whose client carries the state


TRANSPORT: Final[Kind] = "transport"  # named in the header, and where a dialect asks for it in the field, too


FIELD: Final[Kind] = "field"  # named in the field of SEP-1364, and mirrored in the header


BESIDE: Final[Kind] = "beside"  # named in the field, while the header holds the wrapped server's own transport id


class Claims(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a token says. (A struct, since a frozen dataclass takes four times as long to make.)

    Attributes:
        kind: What the token may be used as: a session in `_meta`, a transport id in the header, or one of SEP-1364.
        kid: The key that signed it.
        jti: 128 random bits in base64url; what revocation goes by.
        issued_at: Unix seconds.
        expires_at: Unix seconds; the first moment at which it is no longer accepted.
        subject: The keyed hash of the principal, or None for an anonymous session.
        trace: The traceparent of the session's start, or None.
        client: The client's name and version, cut to 64 characters, or None.
        parent: The `ref` that this one was forked from, or None.
        root: The `ref` at the top of that lineage, or None.
        generation: How many forks lie between the root and this one.
        owner: The `ref` of the session whose data this one shares, or None where it has its own.
        upstream: The encrypted transport id of the wrapped server, or None.
        ref: The session's public name, of 120 bits: safe to log and to trace. Always made from `jti`.
        audience: Whom the session is for; a store keeps apart what it is told of different ones.
    """

    kind: Kind
    kid: str
    jti: str
    issued_at: int
    expires_at: int
    subject: str | None = None
    trace: str | None = None
    client: str | None = None
    parent: str | None = None
    root: str | None = None
    generation: int = 0
    owner: str | None = None
    upstream: str | None = None
    ref: str = ""
    audience: str = AUDIENCE

    def __post_init__(self) -> None:
        digest = hashlib.sha256(b"mcp-sessions/1/ref/" + self.jti.encode("utf-8")).digest()
        force_setattr(self, "ref", "ses_" + b32encode(digest[:15]).decode("ascii").lower())
        if self.client is not None:  # what a client calls itself must not keep it from getting a session
            cut = self.client[:MAX_CLIENT_CHARS].encode("utf-8", "replace").decode("utf-8")
            force_setattr(self, "client", cut)

    def __repr__(self) -> str:
        return f"<Claims {self.kind} {self.ref}>"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request is authenticated as.

    Args:
        client_id: The OAuth client, or the name of the authenticated user where there is no client.
        issuer: Who vouches for it, or None where the server does not say.
        subject: The user within that issuer, or None where the server does not say.
    """

    client_id: str | None = None
    issuer: str | None = None
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Correlation:
    """What a client calls the conversation that a request belongs to: a label, and never proof of anything.

    Args:
        id: The name, of at most 256 printable characters. Anybody may send any.
        source: Where it stood, as the option names it, such as `"meta:openai/session"`.
    """

    id: str
    source: str


def utc(seconds: int) -> datetime:
    """Unix seconds as an aware datetime."""
    return datetime.fromtimestamp(seconds, tz=timezone.utc)


Mode = Literal["share", "copy", "fresh"]
"""What a fork begins with: its parent's own data, a copy of it as it is now, or nothing."""

MODES: Final[tuple[Mode, ...]] = get_args(Mode)


def below(parent: Claims, mode: Mode) -> dict[str, Any]:
    """What the claims of a fork say, but for its own name, its making and whose it is.

    Args:
        parent: The session that it is made from.
        mode: What it begins with.
    """
    return {
        "kind": SESSION,
        "expires_at": parent.expires_at,
        "client": parent.client,
        "parent": parent.ref,
        "root": root(parent),
        "generation": parent.generation + 1,
        "owner": owner(parent) if mode == "share" else None,
    }


def root(claims: Claims) -> str:
    """The `ref` of the session at the top of the lineage, which is a session's own where it is no fork."""
    return claims.root or claims.ref


def owner(claims: Claims) -> str:
    """The `ref` of the session whose data it has, which is its own where it shares nobody's."""
    return claims.owner or claims.ref


def mark(claims: Claims) -> Claims:
    """The name under which a store is told, and asked, that all forks of a lineage have ended.

    It stands in place of a session's claims, and has the same name for every member of the lineage. No session can
    have it: a session's `jti` has no slash.

    Args:
        claims: Any member of the lineage.
    """
    return Claims(
        kind=SESSION,
        kid=claims.kid,
        jti=f"lineage/{root(claims)}",
        issued_at=claims.issued_at,
        expires_at=claims.expires_at,
        subject=claims.subject,
        audience=claims.audience,
    )

"""Session state as the client carries it: sealed, so that it can be neither read nor changed.

`v1.<kid>.<base64url>` holds AES-256-GCM over the time the session was last seen and a JSON object.
The seal is bound to its version, key, session, principal and audience: a state moved to another
session opens nowhere. An older state of the *same* session does open: it can make the session end
sooner, never later, and what must not be turned back belongs on the server. The size is judged
before any cryptography, and nothing but `StateUnreadable` leaves `open`.
Sources: NIST SP 800-38D (GCM), RFC 5116 (AEAD), and the data-layer sessions draft ("state").

The bridge's part of a transport id: the wrapped server's own, sealed inside of ours.

A client that holds one of our ids holds the server's with it, and can neither read it nor move it to another id: it is
sealed under a key of its own and bound to the session's `jti`, its owner and the deployment. Nothing here knows a
request. Sources: NIST SP 800-38D (GCM), RFC 5116 (AEAD).
"""

from __future__ import annotations

import re
import secrets
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .._session.claims import MAX_CLOCK_SKEW, Claims
from ..errors import SessionNotFound, StateUnreadable
from .keys import Key, KeyRing, base64url, encode_fields, from_base64url

VERSION: Final = "v1"

_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_TIME_BYTES: Final = 8
_PREFIX_CHARS: Final = len("v1.kkkkkkkk.")
_SHAPE: Final = re.compile(r"v1\.([A-Za-z0-9_-]{8})\.([A-Za-z0-9_-]+)")
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Opened(msgspec.Struct, frozen=True):
    """What a state token held.

    Attributes:
        payload: A JSON object.
        last_seen: Unix seconds at which the session was last used.
    """

    payload: bytes
    last_seen: int


def sealed_size(payload_bytes: int) -> int:
    """Bytes of the token for a payload of that many bytes."""
    sealed = _NONCE_BYTES + _TIME_BYTES + payload_bytes + _TAG_BYTES
    return _PREFIX_CHARS + (sealed * 4 + 2) // 3


def seal(
    key: Key,
    payload: bytes,
    *,
    jti: str,
    subject: str | None,
    audience: str,
    last_seen: int,
    nonce: bytes | None = None,
) -> str:
    """The state token for a JSON object.

    Args:
        key: The ring's signing key, whatever key the session's own token is under.
        payload: A JSON object.
        jti: The session's.
        subject: The session's own, as its token says it.
        audience: The deployment's.
        last_seen: Unix seconds.
        nonce: 12 bytes that were never used with this key; by default random ones. Random ones are
            safe for 2^32 states under one key (SP 800-38D section 8.3): rotate before.

    Raises:
        ValueError: The key is a public one, which cannot seal.
    """
    if key.state_cipher is None:
        raise ValueError("a public key cannot seal state")
    nonce = secrets.token_bytes(_NONCE_BYTES) if nonce is None else nonce
    plain = last_seen.to_bytes(_TIME_BYTES, "big") + payload
    sealed = key.state_cipher.encrypt(nonce, plain, _bound_to(key, jti, subject, audience))
    return f"{VERSION}.{key.kid}.{base64url(nonce + sealed)}"


def open(  # noqa: A001  # the field's own pair of words: seal and open
    ring: KeyRing, token: str, *, jti: str, subject: str | None, audience: str, max_bytes: int, now: float
) -> Opened:
    """What a state token holds, if it was sealed for this session.

    Args:
        ring: The keys that are valid now; the token's own `kid` chooses.
        token: The text that the client sent.
        jti: The session's.
        subject: The session's own, as its token says it.
        audience: The deployment's.
        max_bytes: How long the token may be.
        now: Unix seconds.

    Raises:
        StateUnreadable: It was not, or is no state token; `reason` says why, for logs only.
    """
    if not (isinstance(token, str) and len(token) <= max_bytes):  # type: ignore[redundant-expr]  # as it came
        raise StateUnreadable("state_size")
    shape = _SHAPE.fullmatch(token)
    if shape is None:
        raise StateUnreadable("state_shape")
    key = ring.get(shape[1])
    if key is None or key.state_cipher is None:
        raise StateUnreadable("state_key_unknown")
    plain = _decrypt(key.state_cipher, _sealed(shape[2]), _bound_to(key, jti, subject, audience))
    last_seen = int.from_bytes(plain[:_TIME_BYTES], "big")
    if not last_seen <= now + MAX_CLOCK_SKEW:
        raise StateUnreadable("state_from_the_future")
    return Opened(_json_object(plain[_TIME_BYTES:]), last_seen)


def _bound_to(key: Key, jti: str, subject: str | None, audience: str) -> bytes:
    return encode_fields("mcp-sessions/state", VERSION, key.kid, jti, subject, audience)


def _sealed(text: str) -> bytes:
    try:
        sealed = from_base64url(text)
    except ValueError:
        raise StateUnreadable("state_shape") from None
    if len(sealed) >= _NONCE_BYTES + _TIME_BYTES + _TAG_BYTES:
        return sealed
    raise StateUnreadable("state_shape")


def _decrypt(cipher: AESGCM, sealed: bytes, bound_to: bytes) -> bytes:
    try:
        return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to)
    except InvalidTag:
        raise StateUnreadable("state_seal") from None


def _json_object(payload: bytes) -> bytes:
    """The payload, if it is a JSON object in UTF-8; its values stay undecoded until they are read."""
    try:
        payload.decode("utf-8")  # msgspec does not look at the text that it skips
        _OBJECT.decode(payload)
    except (ValueError, RecursionError):
        raise StateUnreadable("state_not_an_object") from None
    return payload


MAX_SERVER_ID: Final = 256  # characters; a UUID has 36, and every one of them makes every request longer

_UPSTREAM_NONCE_BYTES: Final = 12
_SERVER_ID: Final = re.compile(rf"[\x21-\x7E]{{1,{MAX_SERVER_ID}}}")


def can_carry(server_id: str) -> bool:
    """Whether a server's id can be sealed: visible ASCII, as the specification asks, and not too long."""
    return _SERVER_ID.fullmatch(server_id) is not None


def seal_upstream(key: Key, server_id: str, *, jti: str, subject: str | None, audience: str) -> str:
    """The claim `up` for a server's id.

    The nonce is the beginning of `jti`, which is random and names one session only, so it is used once.

    Args:
        key: The ring's signing key.
        server_id: What the wrapped server calls its transport session.
        jti: The session's.
        subject: The session's own, as its token says it.
        audience: The deployment's.

    Raises:
        ValueError: The key is a public one, which cannot seal.
    """
    if key.bridge_cipher is None:
        raise ValueError("a public key cannot seal a transport id")
    bound_to = _bound_to_session(key, jti, subject, audience)
    return base64url(key.bridge_cipher.encrypt(_nonce(jti), server_id.encode("ascii"), bound_to))


def open_upstream(ring: KeyRing, claims: Claims, *, audience: str) -> str | None:  # the field's own pair of words
    """The server's id in a verified token, or None where it holds none.

    Args:
        ring: The keys that are valid now.
        claims: What the token says.
        audience: The deployment's.

    Raises:
        SessionNotFound: What it holds was not sealed for it.
    """
    if claims.upstream is None:
        return None
    key = ring.get(claims.kid)
    if key is None or key.bridge_cipher is None:
        raise SessionNotFound("bridge_key_unknown", ref=claims.ref)
    bound_to = _bound_to_session(key, claims.jti, claims.subject, audience)
    try:
        sealed = from_base64url(claims.upstream)
        return key.bridge_cipher.decrypt(_nonce(claims.jti), sealed, bound_to).decode("ascii")
    except (InvalidTag, ValueError):
        raise SessionNotFound("bridge_seal", ref=claims.ref) from None


def _nonce(jti: str) -> bytes:
    return from_base64url(jti)[:_UPSTREAM_NONCE_BYTES]


def _bound_to_session(key: Key, jti: str, subject: str | None, audience: str) -> bytes:
    return encode_fields("mcp-sessions/bridge", key.kid, jti, subject, audience)

"""Session state as the client carries it: sealed, so that it can be neither read nor changed.

`v1.<kid>.<base64url>` holds AES-256-GCM over the time the session was last seen and a JSON object.
The seal is bound to its version, key, session, principal and audience: a state moved to another
session opens nowhere. An older state of the *same* session does open: it can make the session end
sooner, never later, and what must not be turned back belongs on the server. The size is judged
before any cryptography, and nothing but `StateUnreadable` leaves `open`.
Sources: NIST SP 800-38D (GCM), RFC 5116 (AEAD), and the data-layer sessions draft ("state").
"""

from __future__ import annotations

import re
import secrets
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .errors import StateUnreadable
from .keys import Key, KeyRing, base64url, encode_fields, from_base64url
from .tokens import MAX_CLOCK_SKEW

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

"""The bridge's part of a transport id: the wrapped server's own, sealed inside of ours.

A client that holds one of our ids holds the server's with it, and can neither read it nor move it to another id: it is
sealed under a key of its own and bound to the session's `jti`, its owner and the deployment. Nothing here knows a
request. Sources: NIST SP 800-38D (GCM), RFC 5116 (AEAD).
"""

from __future__ import annotations

import re
from typing import Final

from cryptography.exceptions import InvalidTag

from ..errors import SessionNotFound
from ..keys import Key, KeyRing, base64url, encode_fields, from_base64url
from ..tokens import Claims

MAX_SERVER_ID: Final = 256  # characters; a UUID has 36, and every one of them makes every request longer

_NONCE_BYTES: Final = 12
_SERVER_ID: Final = re.compile(rf"[\x21-\x7E]{{1,{MAX_SERVER_ID}}}")


def can_carry(server_id: str) -> bool:
    """Whether a server's id can be sealed: visible ASCII, as the specification asks, and not too long."""
    return _SERVER_ID.fullmatch(server_id) is not None


def seal(key: Key, server_id: str, *, jti: str, subject: str | None, audience: str) -> str:
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
    bound_to = _bound_to(key, jti, subject, audience)
    return base64url(key.bridge_cipher.encrypt(_nonce(jti), server_id.encode("ascii"), bound_to))


def open(ring: KeyRing, claims: Claims, *, audience: str) -> str | None:  # noqa: A001  # the field's own pair of words
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
    bound_to = _bound_to(key, claims.jti, claims.subject, audience)
    try:
        sealed = from_base64url(claims.upstream)
        return key.bridge_cipher.decrypt(_nonce(claims.jti), sealed, bound_to).decode("ascii")
    except (InvalidTag, ValueError):
        raise SessionNotFound("bridge_seal", ref=claims.ref) from None


def _nonce(jti: str) -> bytes:
    return from_base64url(jti)[:_NONCE_BYTES]


def _bound_to(key: Key, jti: str, subject: str | None, audience: str) -> bytes:
    return encode_fields("mcp-sessions/bridge", key.kid, jti, subject, audience)

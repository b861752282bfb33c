"""AES-256-GCM seals for what a client carries and may neither read nor change.

A state token is `v1.<kid>.<base64url>` over the time the session was last seen and a JSON object. Each seal is bound to
its purpose, key, session, principal and audience: it does not open in another session. An older state of the *same*
session does: what must not be rolled back belongs on the server.
Sources: NIST SP 800-38D (GCM), RFC 5116 (AEAD), and the data-layer sessions draft ("state").
"""

from __future__ import annotations

import os
import re
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag

from .._errors import SessionNotFound, StateUnreadable
from .._session.claims import MAX_CLOCK_SKEW, Claims, RedactedRepr
from .keys import CipherName, Key, KeyRing, base64url, encode_fields, from_base64url

VERSION: Final = "v1"
MAX_SERVER_ID: Final = 256  # characters; a UUID has 36, and every one of them makes every request longer

_NONCE_BYTES, _TAG_BYTES, _TIME_BYTES = 12, 16, 8
_PREFIX_CHARS: Final = len("v1.kkkkkkkk.")
_SHAPE: Final = re.compile(r"v1\.([A-Za-z0-9_-]{8})\.([A-Za-z0-9_-]+)")
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SERVER_ID: Final = re.compile(rf"[\x21-\x7E]{{1,{MAX_SERVER_ID}}}")


class Seal(msgspec.Struct, frozen=True):
    """One purpose that keys seal for; each is bound to it, its key, and a session's `jti`, subject and audience."""

    name: CipherName
    purpose: bytes

    def seal(self, key: Key, nonce: bytes, plain: bytes, claims: Claims) -> bytes:
        """Return ciphertext and tag, or raise ValueError for a public key, which cannot seal."""
        if not key.ciphers:
            raise ValueError("a public key cannot seal")
        return key.ciphers[self.name].encrypt(nonce, plain, self._bound_to(key, claims))

    def open(self, key: Key, nonce: bytes, sealed: bytes, claims: Claims) -> bytes | None:
        """Return what was sealed, or None if it was sealed otherwise."""
        try:
            return key.ciphers[self.name].decrypt(nonce, sealed, self._bound_to(key, claims))
        except InvalidTag:
            return None

    def _bound_to(self, key: Key, claims: Claims) -> bytes:
        return self.purpose + encode_fields(key.kid, claims.jti, claims.subject, claims.audience)


STATE: Final = Seal("state", encode_fields("mcp-sessions/state", VERSION))
UPSTREAM: Final = Seal("bridge", encode_fields("mcp-sessions/bridge"))


class UnsealedState(RedactedRepr, msgspec.Struct, frozen=True):
    """The contents of a state token."""

    payload: bytes  # a JSON object
    last_seen: int  # Unix seconds at which the session was last used


def sealed_size(payload_bytes: int) -> int:
    """Return the bytes of the token for a payload of that many bytes."""
    sealed = _NONCE_BYTES + _TIME_BYTES + payload_bytes + _TAG_BYTES
    return _PREFIX_CHARS + (sealed * 4 + 2) // 3


def seal(key: Key, payload: bytes, claims: Claims, *, last_seen: int, nonce: bytes | None = None) -> str:
    """Return the state token of a session for a JSON object, sealed by the ring's signing key at a time, Unix seconds.

    Nonces are random, which is safe for 2^32 states under one key (SP 800-38D section 8.3): rotate before.
    """
    nonce = os.urandom(_NONCE_BYTES) if nonce is None else nonce
    sealed = STATE.seal(key, nonce, last_seen.to_bytes(_TIME_BYTES, "big") + payload, claims)
    return f"{VERSION}.{key.kid}.{base64url(nonce + sealed)}"


def open(ring: KeyRing, token: str, claims: Claims, *, max_bytes: int, now: float) -> UnsealedState:  # noqa: A001
    """Return the contents of a state token that was sealed for this session; the token's `kid` chooses the key.

    A longer one is refused before any cryptography. `StateUnreadable.reason` says why, for logs only.
    """
    if not (isinstance(token, str) and len(token) <= max_bytes):  # type: ignore[redundant-expr]  # as it came
        raise StateUnreadable("state_size")
    shape = _SHAPE.fullmatch(token)
    if shape is None:
        raise StateUnreadable("state_shape")
    key = ring.get(shape[1])
    if key is None or not key.ciphers:
        raise StateUnreadable("state_key_unknown")
    try:
        sealed = from_base64url(shape[2])
    except ValueError:
        raise StateUnreadable("state_shape") from None
    if not len(sealed) >= _NONCE_BYTES + _TIME_BYTES + _TAG_BYTES:
        raise StateUnreadable("state_shape")
    plain = STATE.open(key, sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], claims)
    if plain is None:
        raise StateUnreadable("state_seal")
    unsealed = UnsealedState(_object(plain[_TIME_BYTES:]), int.from_bytes(plain[:_TIME_BYTES], "big"))
    if not unsealed.last_seen <= now + MAX_CLOCK_SKEW:
        raise StateUnreadable("state_from_the_future")
    return unsealed


def _object(payload: bytes) -> bytes:
    try:
        payload.decode("utf-8")  # msgspec does not look at the text that it skips
        _OBJECT.decode(payload)  # its values stay undecoded until they are read
    except (ValueError, RecursionError):
        raise StateUnreadable("state_not_an_object") from None
    return payload


def can_carry(server_id: str) -> bool:
    """Whether a server's id can be sealed: visible ASCII, as the specification requires, and not too long."""
    return _SERVER_ID.fullmatch(server_id) is not None


class Upstream(RedactedRepr, msgspec.Struct, frozen=True, array_like=True):
    """What the token of a bridged session has of the wrapped server."""

    server_id: str  # of its transport session
    owner: str = ""  # the name of the worker that began it; empty if workers had no names then
    params: str = ""  # the name under which the store has the params of its `initialize`; empty if it has none


_UPSTREAM: Final = msgspec.msgpack.Decoder(Upstream)


def seal_upstream(key: Key, upstream: Upstream, claims: Claims) -> str:
    """Return the claim `up` for a server's transport session, sealed by the ring's signing key for a session."""
    return base64url(UPSTREAM.seal(key, _nonce(claims), msgspec.msgpack.encode(upstream), claims))


def open_upstream(key: Key, claims: Claims) -> Upstream | None:
    """Return what is sealed in a token that a key verified, or None; refuse what was sealed otherwise."""
    if claims.upstream is None:
        return None
    if not key.ciphers:
        raise SessionNotFound("bridge_key_unknown", ref=claims.ref)
    try:
        opened = UPSTREAM.open(key, _nonce(claims), from_base64url(claims.upstream), claims)
    except ValueError:
        opened = None
    if opened is None:
        raise SessionNotFound("bridge_seal", ref=claims.ref)
    if _SERVER_ID.fullmatch(opened.decode("latin-1")):  # sealed alone, before workers had names
        return Upstream(opened.decode("ascii"))
    return _UPSTREAM.decode(opened)


def _nonce(claims: Claims) -> bytes:
    return from_base64url(claims.jti)[:_NONCE_BYTES]  # random, and of one session only, so it is used once

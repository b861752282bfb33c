"""Mutants of state tokens, a part of them sealed again over other texts or for other sessions.

The oracle derives its keys by hand and deciphers with the streaming interface of `cryptography`: the mathematics is
OpenSSL's on both sides, and everything around it is written twice.
"""

import json
from base64 import urlsafe_b64decode
from random import Random
from typing import Final

from environments import require

require("joserfc>=1")

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM
from hypothesis import given
from jose import encode, hkdf, refuse
from mutations import TRIALS, chances, mutate

from mcp_sessions._errors import StateUnreadable
from mcp_sessions._session.claims import SESSION, Claims
from mcp_sessions._tokens import seal as state
from mcp_sessions._tokens.keys import KeyRing

NOW: Final = 1_800_000_000
LONGEST: Final = 400
SECRETS: Final = ("vB1kTn0RzJmYwq3uXo7sLd5cHf9aGe2i", "another secret of the trials: 7sLd5cHf9aGe2i0")
RINGS: Final = [KeyRing([secret]) for secret in SECRETS]
RING: Final = KeyRing(SECRETS)
CIPHER_KEYS: Final = {
    ring.signing.kid: hkdf(secret.encode(), "mcp-sessions/1/HS256/state")
    for ring, secret in zip(RINGS, SECRETS, strict=True)
}
PAYLOADS: Final = [
    *(b"{}", b'{"a":1}', b"[]", b"", b"1", b'{"a":"\xff"}', b'{"a":1', b'{"a":1}x', b"{" * 90, b'{"a":NaN}'),
]
Bound = tuple[str, "str | None", str]  # session, principal, audience
BOUNDS: Final[list[Bound]] = [
    *(("jti", None, "here"), ("jti", "alice", "here"), ("other", None, "here"), ("jti", None, "x")),
]


def claims(bound: Bound) -> Claims:
    """The claims of a session, as far as a state is bound to them."""
    jti, subject, audience = bound
    return Claims(
        issuer="us", audience=audience, jti=jti, issued_at=NOW, expires_at=NOW + 60, kind=SESSION, subject=subject
    )


def opens(token: str, bound: Bound, now: float) -> bool:
    """Whether the oracle would open a token for a session."""
    parts = token.split(".", 2)
    if len(token) > LONGEST or len(parts) != 3 or parts[0] != "v1" or parts[1] not in CIPHER_KEYS:
        return False
    try:
        sealed = urlsafe_b64decode(parts[2] + "==")
        if encode(sealed) != parts[2] or len(sealed) < 12 + 8 + 16:
            return False
        plain = _decipher(parts[1], sealed, bound)
        value = json.loads(plain[8:].decode(), parse_constant=refuse)
    except (ValueError, InvalidTag, RecursionError):
        return False
    return isinstance(value, dict) and int.from_bytes(plain[:8], "big") <= now + 60


def _decipher(kid: str, sealed: bytes, bound: Bound) -> bytes:
    fields = ("mcp-sessions/state", "v1", kid, *bound)
    about = "".join("-" if field is None else f"{len(field)}:{field}" for field in fields).encode()
    cipher = Cipher(AES(CIPHER_KEYS[kid]), GCM(sealed[:12], sealed[-16:])).decryptor()
    cipher.authenticate_additional_data(about)
    return cipher.update(sealed[12:-16]) + cipher.finalize()


def seal(random: Random, bound: Bound) -> str:
    """A state token that was made with a valid key, of a good or a bad payload."""
    payload = random.choice(PAYLOADS) if random.random() < 0.8 else b'{"a":"%s"}' % (b"x" * random.randrange(300))
    last_seen = random.choice((0, NOW, NOW + 60, NOW + 61, 2**63))
    key, nonce = random.choice(RINGS).signing, random.randbytes(12)
    return state.seal(key, payload, claims(bound), last_seen=last_seen, nonce=nonce)


@given(chances)
def test_no_state_is_judged_differently_from_the_oracle(random: Random) -> None:
    for _ in TRIALS:
        bound = random.choice(BOUNDS)
        token = seal(random, bound)
        token = mutate(random, token) if random.random() < 0.5 else token
        bound = bound if random.random() < 0.8 else random.choice(BOUNDS)
        try:
            state.open(RING, token, claims(bound), max_bytes=LONGEST, now=NOW)
            is_opened = True
        except StateUnreadable:
            is_opened = False
        assert is_opened is opens(token, bound, NOW), f"{token!r} {bound}"

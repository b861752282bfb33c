"""The keys that sign session and event ids, seal states, make handles and hide principals.

One secret gives every key that is needed, by HKDF. `keys[0]` signs and every key verifies, found by its `kid`; a key
has one algorithm for its whole life, so no token can choose another. No `repr` or error shows material.
Sources: RFC 5869 (HKDF), RFC 7518 section 3 and RFC 8037 (HS256, ES256, EdDSA), RFC 8725 section 3.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets as randomness
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from jwt.algorithms import Algorithm, ECAlgorithm, HMACAlgorithm, OKPAlgorithm
from jwt.exceptions import InvalidKeyError

from .._errors import ConfigurationError, SessionNotFound
from .._session.claims import ALIAS, Principal
from .._session.keywords import known_keywords
from .placeholders import PLACE, PUBLISHED, is_published, placeholder

AlgorithmName = Literal["HS256", "EdDSA", "ES256"]
CipherName = Literal["state", "bridge"]

REMEDY: Final = 'make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'
_PEM_REMEDY: Final = "make one with: openssl genpkey -algorithm ed25519"

MIN_SECRET_BYTES: Final = 32
MIN_DISTINCT_BYTES: Final = 8  # 32 random hexadecimal digits fall short of it once in 27 million

_HMAC: Final = HMACAlgorithm(HMACAlgorithm.SHA256)
_ES256: Final = ECAlgorithm(ECAlgorithm.SHA256)
_ALGORITHMS: Final[Mapping[AlgorithmName, Algorithm]] = {"HS256": _HMAC, "EdDSA": OKPAlgorithm(), "ES256": _ES256}

# Were a public key taken for an HMAC secret, everyone could sign. PyJWT detects whole keys; these begin parts of one.
_NEVER_SECRET: Final = (
    *(b"ssh-", b"ecdsa-", b"sk-ssh-", b"sk-ecdsa-", b"---- BEGIN"),
    *(b"MIIBIjANBgkq", b"MIIBojANBgkq", b"MIICIjANBgkq"),
    *(b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48", b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70"),
)
# A PEM that was damaged on its way (a dash lost, another case, one line) is still public, wherever these stand in it.
_NOWHERE_IN_SECRET: Final = (b"PUBLIC KEY", b"PRIVATE KEY", b"MFKWEWYHKOZI", b"MCOWBQYDK2VW")

_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")
# By length modulo 4: which last characters leave no bit unused, or only unused bits that are zero.
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_LAST_CHARACTERS: Final = (_ALPHABET, "", _ALPHABET[::16], _ALPHABET[::4])
_TO_BASE64: Final = bytes.maketrans(b"-_", b"+/")
_TO_BASE64URL: Final = bytes.maketrans(b"+/", b"-_")


def base64url(data: bytes) -> str:
    """Encode as unpadded base64url (RFC 7515 section 2)."""
    return b2a_base64(data, newline=False).translate(_TO_BASE64URL).rstrip(b"=").decode("ascii")


def from_base64url(text: str) -> bytes:
    """Decode unpadded base64url in its one canonical form, so that no two texts decode alike, or raise ValueError."""
    if _BASE64URL.fullmatch(text) and text[-1] in _LAST_CHARACTERS[len(text) % 4]:
        return a2b_base64(text.encode("ascii").translate(_TO_BASE64) + b"==")
    raise ValueError("not canonical base64url")


def encode_fields(*fields: str | None) -> bytes:
    """Encode a row of texts such that no two rows share an encoding, nor None and the empty text."""
    # Lone surrogates are kept: an issuer or user name from JSON may hold them.
    parts = ["-" if field is None else f"{len(field)}:{field}" for field in fields]
    return "".join(parts).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """One key of a ring, and the keys derived from it.

    Attributes:
        kid: Its id in token headers, 8 base64url characters.
        algorithm: The algorithm with which it signs and verifies.
    """

    kid: str
    algorithm: AlgorithmName
    verifying: Any = field(repr=False)  # the HMAC key or the public key
    # A public key, which only verifies, has none of these.
    signing: Any = field(default=None, repr=False)  # the HMAC key or the private key
    ciphers: Mapping[CipherName, AESGCM] = field(default_factory=dict, repr=False)  # for states and transport ids
    handle_key: bytes | None = field(default=None, repr=False)  # authenticates explicit handles, 32 bytes
    principal_key: bytes | None = field(default=None, repr=False)  # hides principals in tokens, 32 bytes
    event_key: bytes | None = field(default=None, repr=False)  # authenticates event ids, 32 bytes
    hop_key: bytes | None = field(default=None, repr=False)  # authenticates workers to each other, 32 bytes

    def sign(self, message: bytes) -> bytes:
        """Sign a message; only for a key that can sign, as `KeyRing.signing` always can."""
        return _ALGORITHMS[self.algorithm].sign(message, self.signing)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether the signature is this key's over the message."""
        return _ALGORITHMS[self.algorithm].verify(message, self.verifying, signature)

    def subject(self, principal: Principal | None) -> str | None:
        """Return the principal as tokens name it: a keyed hash of 22 characters, or None for an anonymous request.

        Under a public key no principal has a name: `SessionNotFound`.
        """
        if principal is None:
            return None
        if self.principal_key is None:
            raise SessionNotFound("principal_under_public_key")
        fields = encode_fields(principal.client_id, principal.issuer, principal.subject)
        return base64url(hmac.digest(self.principal_key, fields, "sha256")[:16])

    def alias(self, principal: Principal) -> str:
        """Return the keyed hash of some of a principal's components, by which all sessions with these end."""
        fields = encode_fields("alias", principal.client_id, principal.issuer, principal.subject)
        hashed: str = base64url(hmac.digest(self.principal_key or b"", fields, "sha256")[: ALIAS * 3 // 4])
        return hashed

    def aliases(self, principal: Principal | None) -> str | None:
        """Return the aliases of a principal that lack its client, its issuer or both; None where it has neither."""
        if principal is None or principal.subject is None:
            return None
        client_id, issuer, subject = principal.client_id, principal.issuer, principal.subject
        shorter = {Principal(one, other, subject) for one in (client_id, None) for other in (issuer, None)} - {
            principal
        }
        return "".join(sorted(map(self.alias, shorter))) or None

    def component_hashes(self, principal: Principal) -> str:
        """Return a keyed hash of each component of a principal, by which an operator finds all clients of a subject."""
        key = self.principal_key or b""
        components = (principal.client_id, principal.issuer, principal.subject)
        return "".join(_part(key, place, one) for place, one in enumerate(components))

    def matches(self, hashes: str, principal: Principal) -> bool:
        """Whether hashes of components are those of a principal, in the components that it names."""
        wanted, none = self.component_hashes(principal), self.component_hashes(Principal())
        places = [slice(start, start + PART) for start in range(0, len(wanted), PART)]
        return all(wanted[place] in {none[place], hashes[place]} for place in places)


PART: Final = 12  # characters of one component's hash


def _part(key: bytes, place: int, component: str | None) -> str:
    if component is None:
        return "-" * PART
    digest = hmac.digest(key, encode_fields("component", str(place), component), "sha256")
    hashed: str = base64url(digest[:9])
    return hashed


class KeyRing:
    """The keys of a deployment; immutable.

    Keys rotate without downtime in three steps, each deployed everywhere: `[old, new]`, `[new, old]`, `[new]`.

    Attributes:
        signing: The first key, which signs and seals.
        ephemeral: Whether the keys are lost when this process ends.
    """

    __slots__ = ("_keys", "ephemeral", "signing")

    @known_keywords
    def __init__(
        self, secrets: Sequence[str | bytes], *, ephemeral: bool = False, places: Sequence[str] | None = None
    ) -> None:
        """Args:
            secrets: Secrets of at least 32 bytes (HS256), private PEM keys (Ed25519: EdDSA, P-256: ES256), and, except
                in the first place, public PEM keys, which only verify. White space around a `str` is ignored.
            ephemeral: Whether the keys are lost when this process ends.
            places: The names of the secrets in error messages; by default `keys[0]` and so on.

        Raises:
            ConfigurationError: A key is missing, weak, of an unknown kind, or given twice.
        """
        if isinstance(secrets, (str, bytes)) or not secrets:
            raise ConfigurationError(f"keys must be a list of at least one secret; {REMEDY}")
        named = places or [f"keys[{place}]" for place in range(len(secrets))]
        keys = [_key(place, secret) for place, secret in zip(named, secrets, strict=True)]
        if keys[0].signing is None:
            raise ConfigurationError(
                "keys[0] is a public key, and keys[0] must sign: put a secret or private key first"
            )
        self.signing: Final = keys[0]
        self.ephemeral: Final = ephemeral
        self._keys: Final = {key.kid: key for key in keys}
        if len(self._keys) != len(keys):
            raise ConfigurationError("keys holds the same key twice: remove one")

    @classmethod
    def random(cls) -> KeyRing:
        """Return a ring of one random key, for a single process, whose sessions end with it."""
        return cls([randomness.token_bytes(MIN_SECRET_BYTES)], ephemeral=True)

    def get(self, kid: str) -> Key | None:
        return self._keys.get(kid)

    def __iter__(self) -> Iterator[Key]:  # the one that signs comes first
        return iter(self._keys.values())

    def subjects(self, principal: Principal) -> list[str]:
        """Return the names that stores may have for a principal: one for each key that has ever signed."""
        names = (key.subject(principal) for key in self if key.principal_key is not None)
        return [name for name in names if name is not None]

    def names(self, principal: Principal, *fields: str) -> list[str]:
        """Return keyed hashes of a principal and further texts: one for each key that has ever signed."""
        whose = (principal.client_id, principal.issuer, principal.subject)
        row = encode_fields("name", *whose, *fields)
        keys = [key.principal_key for key in self if key.principal_key is not None]
        return [base64url(hmac.digest(key, row, "sha256")[:16]) for key in keys]

    def __repr__(self) -> str:
        return f"<KeyRing {' '.join(self._keys)}>"


def _key(place: str, secret: str | bytes) -> Key:
    if not isinstance(secret, (str, bytes)):
        raise ConfigurationError(f"{place} is neither str nor bytes; {REMEDY}")
    try:
        material = bare(secret).encode("utf-8") if isinstance(secret, str) else secret
    except UnicodeEncodeError:
        raise ConfigurationError(f"{place} is not text that UTF-8 can hold; {REMEDY}") from None
    if b"-----BEGIN" in material or b"-----END" in material:
        return _public(place, material) if b"PUBLIC KEY-----" in material else _private(place, material)
    _check_secret(place, material)
    signing = _derive("HS256", material, "signing")
    kid = base64url(_derive("HS256", material, "kid")[:6])
    return _full_key(kid, "HS256", material, signing=signing, verifying=signing)


def bare(text: str) -> str:
    """Return a text without white space and byte order marks around it, which editors and shells add."""
    return text.strip().strip("\ufeff").strip()


def _check_secret(place: str, secret: bytes) -> None:
    if len(secret) < MIN_SECRET_BYTES:
        hint = ' (to name a variable or a file that holds it, write "env:NAME" or "file:PATH")'
        problem = f"{place} is too short: a secret has at least {MIN_SECRET_BYTES} bytes; {REMEDY}"
        raise ConfigurationError(problem + hint if place.startswith("keys[") else problem)
    if len(set(secret)) < MIN_DISTINCT_BYTES or secret in (secret + secret)[1:-1]:
        raise ConfigurationError(f"{place} is not random: it repeats one text, or uses very few characters; {REMEDY}")
    what = placeholder(secret)
    if what == PLACE:
        read = 'is read if keys= has it as text: keys=["env:NAME"] or keys=["file:PATH"]'
        raise ConfigurationError(f"{place} names a place, which {read}; {REMEDY}")
    if what is not None:
        raise ConfigurationError(f"{place} is {what}, and no secret; {REMEDY}")
    try:
        _HMAC.prepare_key(secret)
        lookalike = secret.startswith(_NEVER_SECRET) or any(part in secret.upper() for part in _NOWHERE_IN_SECRET)
    except InvalidKeyError:
        lookalike = True
    if lookalike:
        raise ConfigurationError(f"{place} is an asymmetric key or JWK, or a part of one, not a secret; {REMEDY}")


def _private(place: str, pem: bytes) -> Key:
    try:
        private = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigurationError(f"{place} is not an unencrypted private or public key in PEM; {_PEM_REMEDY}") from None
    if isinstance(private, Ed25519PrivateKey):
        raw = private.private_bytes_raw()
    elif isinstance(private, EllipticCurvePrivateKey) and isinstance(private.curve, SECP256R1):
        raw = private.private_numbers().private_value.to_bytes(32, "big")
    else:
        raise ConfigurationError(f"{place} is a private key, but neither Ed25519 nor P-256; {_PEM_REMEDY}")
    if is_published(base64url(raw)):
        raise ConfigurationError(f"{place} is {PUBLISHED}; {_PEM_REMEDY}")
    public = private.public_key()
    return _full_key(*_name_of(public), raw, signing=private, verifying=public)


def _public(place: str, pem: bytes) -> Key:
    try:
        public = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"{place} is not a public key in PEM; {_PEM_REMEDY}") from None
    if isinstance(public, Ed25519PublicKey):
        return Key(*_name_of(public), verifying=public)
    if isinstance(public, EllipticCurvePublicKey) and isinstance(public.curve, SECP256R1):
        return Key(*_name_of(public), verifying=public)
    raise ConfigurationError(f"{place} is a public key, but neither Ed25519 nor P-256; {_PEM_REMEDY}")


def _name_of(public: Ed25519PublicKey | EllipticCurvePublicKey) -> tuple[str, AlgorithmName]:
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return base64url(hashlib.sha256(der).digest()[:6]), "EdDSA" if isinstance(public, Ed25519PublicKey) else "ES256"


def _full_key(kid: str, algorithm: AlgorithmName, source: bytes, *, signing: Any, verifying: Any) -> Key:
    return Key(
        kid=kid,
        algorithm=algorithm,
        verifying=verifying,
        signing=signing,
        ciphers={purpose: AESGCM(_derive(algorithm, source, purpose)) for purpose in get_args(CipherName)},
        handle_key=_derive(algorithm, source, "handle"),
        principal_key=_derive(algorithm, source, "principal"),
        event_key=_derive(algorithm, source, "event"),
        hop_key=_derive(algorithm, source, "hop"),
    )


def _derive(algorithm: AlgorithmName, source: bytes, purpose: str) -> bytes:
    info = f"mcp-sessions/1/{algorithm}/{purpose}".encode("ascii")
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(source)

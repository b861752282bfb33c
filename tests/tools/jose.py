"""The oracles for session ids and states: joserfc and OpenSSL do the mathematics, the standard library all the rest.

Written from RFC 7515, RFC 7519 and the package's documentation, and sharing no code with it: keys are derived here by
hand, base64url is checked by encoding again, and JSON is read by `json`.
"""

import hmac
import json
import re
import warnings
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

with warnings.catch_warnings():  # of what its own dependencies have deprecated
    warnings.simplefilter("ignore")
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OctKey, OKPKey
    from joserfc.jws import JWSRegistry, deserialize_compact

TYP: Final = "mcp-session+jwt"
LONGEST: Final = 2048
SKEW: Final = 60
LAST_SECOND: Final = 253_402_300_799
REGISTRIES: Final = {name: JWSRegistry(algorithms=[name]) for name in ("HS256", "ES256", "EdDSA")}
Caller = tuple["str | None", "str | None", "str | None"]  # client, issuer, subject


@dataclass(frozen=True)
class Known:
    """A key that the oracle accepts, by the secret that all others are derived from."""

    algorithm: str
    secret: bytes
    pem: str = ""  # of an asymmetric key

    def derived(self, use: str) -> bytes:
        """32 bytes by RFC 5869 with SHA-256 and no salt."""
        extracted = hmac.digest(bytes(32), self.secret, "sha256")
        return hmac.digest(extracted, f"mcp-sessions/1/{self.algorithm}/{use}\x01".encode(), "sha256")

    @cached_property
    def key(self) -> Any:
        """The key, as joserfc has it."""
        kind: Any = {"HS256": OctKey, "ES256": ECKey, "EdDSA": OKPKey}[self.algorithm]
        return kind.import_key(self.pem or self.derived("signing"))

    def signed(self, token: str) -> bool:
        """Whether the signature is right."""
        try:
            deserialize_compact(token, self.key, registry=REGISTRIES[self.algorithm])
        except (JoseError, ValueError):
            return False
        return True

    def subject(self, principal: Caller | None) -> str | None:
        """The claim `sub` for a caller."""
        if principal is None:
            return None
        return encode(hmac.digest(self.derived("principal"), _row(principal), "sha256")[:16])


def encode(data: bytes) -> str:
    """Unpadded base64url."""
    return urlsafe_b64encode(data).decode().rstrip("=")


def _decode(part: str) -> bytes | None:
    """What a segment says, if it is the one text that says it."""
    try:
        data = urlsafe_b64decode(part + "==")
    except ValueError:
        return None
    return data if part and encode(data) == part else None


def _row(parts: tuple[str | None, ...]) -> bytes:
    """A row of texts, of which no two rows have the same."""
    return "".join("-" if part is None else f"{len(part)}:{part}" for part in parts).encode()


# --- session ids -----------------------------------------------------------------------------------


def accepts(keys: Mapping[str, Known], token: str, *, now: float, principal: Caller | None, **expected: str) -> bool:
    """Whether a token is a session of this caller's at this time, with these claims as they are expected."""
    parts = [_decode(part) for part in token.split(".")]
    if len(token) > LONGEST or len(parts) != 3 or None in parts:
        return False
    header, claims = _members(parts[0] or b""), _members(parts[1] or b"")
    if header is None or b"\\" in (parts[0] or b"") or sorted(name for name, _ in header) != ["alg", "kid", "typ"]:
        return False
    stated = dict(header)
    known = keys.get(stated["kid"]) if isinstance(stated["kid"], str) and stated["typ"] == TYP else None
    if known is None or known.algorithm != stated["alg"] or not known.signed(token):
        return False
    if claims is None or not _well_formed(claims):
        return False
    said = dict(claims)
    is_valid = said["iat"] <= now + SKEW and now < said["exp"] and said.get("sub") == known.subject(principal)
    return is_valid and all(said[name] == value for name, value in expected.items())


class _Object(tuple[tuple[str, Any], ...]):
    """The members of an object as they are written, those given twice as well."""

    __slots__ = ()


def _refuse(name: str) -> None:
    """Read no `NaN`."""
    raise ValueError(name)


def _members(text: bytes) -> _Object | None:
    """The members of an object that UTF-8 can hold, or None for any other text."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_Object, parse_constant=_refuse)
        if b"\\" in text:
            json.dumps(value, ensure_ascii=False).encode()  # fails on a lone surrogate
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, _Object) else None


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LAST_SECOND


def _is_millisecond(value: Any) -> bool:
    """A number of seconds with three decimals."""
    return type(value) in {int, float} and 0 <= value <= LAST_SECOND and round(value * 1000) / 1000 == value


def _is_text(pattern: str) -> Any:
    form = re.compile(pattern, re.ASCII | re.DOTALL)
    return lambda value: isinstance(value, str) and form.fullmatch(value) is not None


_is_random: Final = _is_text(r"[A-Za-z0-9_-]{21}[AQgw]")
REQUIRED: Final[Mapping[str, Any]] = {
    "iss": _is_text(".*"),
    "aud": _is_text(".*"),
    "jti": _is_random,
    "iat": _is_millisecond,
    "exp": _is_time,
    "knd": _is_text("session|transport"),
}
OPTIONAL: Final[Mapping[str, Any]] = {
    "sub": _is_random,
    "tp": _is_text("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"),
    "cli": _is_text(".{0,64}"),
    "up": _is_text(".+"),
    "boot": _is_text(".{1,64}"),
}
GRAMMAR: Final = {**REQUIRED, **OPTIONAL}


def _well_formed(claims: _Object) -> bool:
    """Every claim that is known has its form, however often it is given, and none that is required lacks."""
    return REQUIRED.keys() <= {name for name, _ in claims} and all(
        GRAMMAR[name](value) for name, value in claims if name in GRAMMAR
    )


# --- states ----------------------------------------------------------------------------------------


def opens(keys: Mapping[str, Known], state: str, bound: tuple[str | None, ...], *, now: float, longest: int) -> bool:
    """Whether a state is one of this session, principal and audience."""
    version, kid, text = [*state.split(".", 2), "", ""][:3]
    sealed = _decode(text)
    if len(state) > longest or version != "v1" or kid not in keys or sealed is None or len(sealed) < 12 + 8 + 16:
        return False
    cipher = Cipher(AES(keys[kid].derived("state")), GCM(sealed[:12], sealed[-16:])).decryptor()
    cipher.authenticate_additional_data(_row(("mcp-sessions/state", "v1", kid, *bound)))
    try:
        plain = cipher.update(sealed[12:-16]) + cipher.finalize()
        value = json.loads(plain[8:].decode(), parse_constant=_refuse)
    except (ValueError, InvalidTag, RecursionError):
        return False
    return isinstance(value, dict) and int.from_bytes(plain[:8], "big") <= now + SKEW

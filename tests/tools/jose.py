"""The oracle for tokens: joserfc judges the signature, the standard library all the rest.

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
from typing import Any, Final

with warnings.catch_warnings():  # of what its own dependencies have deprecated
    warnings.simplefilter("ignore")
    from joserfc.errors import JoseError
    from joserfc.jws import JWSRegistry, deserialize_compact

TYP: Final = "mcp-session+jwt"
LONGEST: Final = 2048
SKEW: Final = 60
LAST_SECOND: Final = 253_402_300_799

_REGISTRIES: Final = {name: JWSRegistry(algorithms=[name]) for name in ("HS256", "ES256", "EdDSA")}
_RANDOM: Final = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)

Caller = tuple["str | None", "str | None", "str | None"]  # client, issuer, subject


def hkdf(secret: bytes, info: str) -> bytes:
    """32 bytes by RFC 5869 with SHA-256 and no salt."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info.encode() + b"\x01", "sha256")


@dataclass(frozen=True)
class Known:
    """A key that the oracle accepts."""

    algorithm: str
    key: Any  # in joserfc's form
    hides: bytes  # the key under which it hides principals

    def subject(self, principal: Caller | None) -> str | None:
        """The claim `sub` for a caller."""
        if principal is None:
            return None
        row = "".join("-" if part is None else f"{len(part)}:{part}" for part in principal)
        return encode(hmac.digest(self.hides, row.encode(), "sha256")[:16])


def accepts(keys: Mapping[str, Known], token: str, *, now: float, principal: Caller | None, **expected: str) -> bool:
    """Whether a token is a session of this caller's at this time, with these claims as they are expected."""
    if len(token) > LONGEST:
        return False
    parts = [_decode(part) for part in token.split(".")]
    if len(parts) != 3 or None in parts:
        return False
    known = _named(keys, parts[0] or b"")
    claims = _members(parts[1] or b"")
    if known is None or not _signed(known, token) or claims is None or not _well_formed(claims):
        return False
    said = dict(claims)
    is_valid = said["iat"] <= now + SKEW and now < said["exp"] and said.get("sub") == known.subject(principal)
    return is_valid and all(said[name] == value for name, value in expected.items())


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


class _Object(tuple[tuple[str, Any], ...]):
    """The members of an object as they are written, those given twice as well."""

    __slots__ = ()


def refuse(name: str) -> None:
    """Read no `NaN`."""
    raise ValueError(name)


_read: Final = json.JSONDecoder(object_pairs_hook=_Object, parse_constant=refuse).decode


def _members(text: bytes) -> _Object | None:
    """The members of an object that UTF-8 can hold, or None for any other text."""
    try:
        value = _read(text.decode())
        if b"\\" in text:
            json.dumps(value, ensure_ascii=False).encode()  # fails on a lone surrogate
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, _Object) else None


def _named(keys: Mapping[str, Known], header: bytes) -> Known | None:
    """The key of a header with exactly three members, written without escapes."""
    members = _members(header)
    if members is None or b"\\" in header or sorted(name for name, _ in members) != ["alg", "kid", "typ"]:
        return None
    said = dict(members)
    known = keys.get(said["kid"]) if isinstance(said["kid"], str) and said["typ"] == TYP else None
    return known if known is not None and known.algorithm == said["alg"] else None


def _signed(known: Known, token: str) -> bool:
    try:
        deserialize_compact(token, known.key, registry=_REGISTRIES[known.algorithm])
    except (JoseError, ValueError):
        return False
    return True


# --- the grammar of claims -----------------------------------------------------------------------


def _is_random(value: Any) -> bool:
    return isinstance(value, str) and _RANDOM.fullmatch(value) is not None and value[-1] in "AQgw"


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LAST_SECOND


def _is_millisecond(value: Any) -> bool:
    """A number of seconds with three decimals."""
    return type(value) in {int, float} and 0 <= value <= LAST_SECOND and round(value * 1000) / 1000 == value


def _is_text(least: int, most: int) -> Any:
    return lambda value: isinstance(value, str) and least <= len(value) <= most


REQUIRED: Final[Mapping[str, Any]] = {
    "iss": _is_text(0, LONGEST),
    "aud": _is_text(0, LONGEST),
    "jti": _is_random,
    "iat": _is_millisecond,
    "exp": _is_time,
    "knd": lambda value: value in ("session", "transport") and isinstance(value, str),
}
OPTIONAL: Final[Mapping[str, Any]] = {
    "sub": _is_random,
    "tp": lambda value: isinstance(value, str) and _TRACE.fullmatch(value) is not None,
    "cli": _is_text(0, 64),
    "up": _is_text(1, LONGEST),
    "boot": _is_text(1, 64),
}
GRAMMAR: Final = {**REQUIRED, **OPTIONAL}


def _well_formed(claims: _Object) -> bool:
    """Every claim that is known has its form, however often it is given, and none that is required lacks."""
    return REQUIRED.keys() <= {name for name, _ in claims} and all(
        GRAMMAR[name](value) for name, value in claims if name in GRAMMAR
    )

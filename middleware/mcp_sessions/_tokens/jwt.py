"""Session ids: signed tokens that any worker verifies with nothing but the keys.

PyJWT's algorithms sign and verify a JWS in compact form; everything around the signature is checked here. No error text
holds a part of a token. Revocation goes by `jti`: an ES256 signature has two valid forms, so a token's text proves
nothing.
Sources: RFC 7515 (JWS), RFC 7519 (JWT), RFC 8725 (best practices), SEP data-layer sessions draft.
"""

from __future__ import annotations

import json
import re
from hmac import compare_digest
from typing import Final, Literal

import msgspec

from .._errors import ConfigurationError, SessionExpired, SessionNotFound
from .._session.claims import MAX_CLOCK_SKEW, MAX_TOKEN_BYTES, SESSION, TYP, Claims, Kind, Principal, RedactedRepr
from .keys import Key, KeyRing, base64url, from_base64url

_WITHOUT_ISSUER: Final = 2  # names of an owner that has a client and a subject alone
_BACKSLASH: Final = ord("\\")
_SHAPE: Final = re.compile(r"([^.]+)\.([^.]+)\.([^.]+)")  # their characters are checked where each is decoded


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    alg: str
    kid: str
    typ: Literal["mcp-session+jwt"]


_HEADERS: Final = msgspec.json.Decoder(_Header)
_CLAIMS: Final = msgspec.json.Decoder(Claims)
_NAMES: Final = frozenset(Claims.__struct_encode_fields__)
_CLAIM: Final = re.compile(rf"\b({'|'.join(_NAMES)})`\Z")


class VerifiedToken(RedactedRepr, msgspec.Struct, frozen=True, eq=False):
    """The claims of a token whose signature, types, issuer and audience were verified, and the ring and key for it.

    What may change (the ring, the time, the caller, the store's answer) is checked for each request.
    """

    ring: KeyRing
    key: Key
    claims: Claims

    def belongs_to(self, principal: Principal | None) -> bool:
        owner = self.claims.subject
        if owner is None:
            return principal is None
        caller = self.key.subject(principal)
        return caller is not None and compare_digest(owner, caller)

    def is_users(self, principal: Principal | None) -> bool:
        """Whether another client of the same user holds the session: one that has registered again, say."""
        if principal is None or principal.subject is None or self.key.principal_key is None:
            return False
        user, owners = Principal(None, principal.issuer, principal.subject), self.claims.owners
        if self.key.subject(user) == self.claims.subject:
            return True
        # A principal with an issuer has an alias without it, too, so it has more of them.
        return self.key.alias(user) in owners and (user.issuer is not None or len(owners) == _WITHOUT_ISSUER)


class Tokens:
    """Mints and verifies session ids for one issuer and audience, and caches verified ones.

    The cache saves only the signature and parsing: principal, kind and times are checked on every request, and what was
    verified under one ring counts for that ring only, so that nothing outlives the removal of its key. It holds at most
    `cache_entries` tokens, rounded up to an even number. A token of more than `max_bytes` is refused unread.
    """

    def __init__(
        self, *, issuer: str, audience: str, cache_entries: int = 10_000, max_bytes: int = MAX_TOKEN_BYTES
    ) -> None:
        if not issuer or not audience:
            raise ConfigurationError("issuer and audience must be non-empty strings")
        self._max_bytes: Final = max_bytes
        self.issuer: Final = issuer
        self.audience: Final = audience
        # Two generations: a full young one replaces the old one, whose entries go at once.
        self._generation: Final = (cache_entries + 1) // 2
        self._young: dict[str, VerifiedToken] = {}
        self._old: dict[str, VerifiedToken] = {}

    def mint(self, ring: KeyRing, claims: Claims) -> str:
        """Return the token that holds these claims, whose `subject` is the hash of the ring's signing key.

        Claims that would not verify, or whose token would be too long, raise `ConfigurationError`.
        """
        key = ring.signing
        try:
            payload = msgspec.json.encode(claims)
            self._read(payload)  # what would not verify is never handed out
        except SessionNotFound as refusal:
            reason = " ".join(filter(None, (refusal.reason, refusal.claim)))
            raise ConfigurationError(f"the claims do not make a session id ({reason})") from None
        except (ValueError, TypeError):
            raise ConfigurationError("the claims do not make a session id (token_claim)") from None
        header = msgspec.json.encode(_Header(alg=key.algorithm, kid=key.kid, typ=TYP))
        signed = f"{base64url(header)}.{base64url(payload)}"
        token = f"{signed}.{base64url(key.sign(signed.encode('ascii')))}"
        if len(token) <= self._max_bytes:
            return token
        raise ConfigurationError(f"a session id would take {len(token)} bytes; the limit is {self._max_bytes}")

    def verify(
        self, ring: KeyRing, token: str, *, now: float, principal: Principal | None, kind: str = SESSION
    ) -> VerifiedToken:
        """Return a token that is authentic, for us, of this kind, this caller's, and not expired.

        Raises `SessionNotFound`, whose `reason` is for logs only, or `SessionExpired` where it is all the rest, so that
        only the session's own holder learns it. `now` is Unix seconds, and None an anonymous caller.
        """
        verified = self._verified(ring, token)
        claims = verified.claims
        if not claims.kind == kind:
            raise SessionNotFound("token_kind")
        if not claims.issued_at - MAX_CLOCK_SKEW <= now:
            raise SessionNotFound("token_from_the_future")
        if not verified.belongs_to(principal):
            if verified.is_users(principal):
                raise SessionNotFound("token_other_client", ref=claims.ref)
            raise SessionNotFound("token_principal", ref=claims.ref)
        if now < claims.expires_at:
            return verified
        raise SessionExpired(ref=claims.ref)

    def verified(self, ring: KeyRing, token: str) -> VerifiedToken:
        """Return a token that was signed for us, or raise `SessionNotFound`; nothing else is checked."""
        return self._verified(ring, token)

    def authentic(self, ring: KeyRing, token: str) -> Claims:
        """Return the claims of a token that was signed for us, or raise `SessionNotFound`; nothing else is checked."""
        return self._verified(ring, token).claims

    def kind(self, ring: KeyRing, token: str) -> Kind | None:
        """Return the kind of a token, or None if it is not authentic; nothing else is checked."""
        try:
            return self.authentic(ring, token).kind
        except SessionNotFound:
            return None

    def _verified(self, ring: KeyRing, token: str) -> VerifiedToken:
        if not (isinstance(token, str) and len(token) <= self._max_bytes):  # type: ignore[redundant-expr]  # as it came
            raise SessionNotFound("token_size")
        verified = self._young.get(token) or self._old.get(token)
        if verified is not None and verified.ring is ring:
            return verified
        verified = self._authenticate(ring, token)
        if self._generation > 0:
            if len(self._young) >= self._generation:
                self._old, self._young = self._young, {}
            self._young[token] = verified
        return verified

    def _authenticate(self, ring: KeyRing, token: str) -> VerifiedToken:
        segments = _SHAPE.fullmatch(token)
        if segments is None:
            raise SessionNotFound("token_shape")
        try:
            header, signature = from_base64url(segments[1]), from_base64url(segments[3])
            signed = token[: segments.end(2)].encode("ascii")
        except ValueError:
            raise SessionNotFound("token_shape") from None
        try:
            stated = _HEADERS.decode(header)
        except (ValueError, RecursionError):
            raise SessionNotFound("token_header") from None
        # Three members have twelve quotes; one given twice brings more, and without a backslash no text hides a quote.
        if not (header.count(b'"') == 12 and _BACKSLASH not in header):
            raise SessionNotFound("token_header")
        key = ring.get(stated.kid)
        if key is None:
            raise SessionNotFound("token_key_unknown")
        if not stated.alg == key.algorithm:
            raise SessionNotFound("token_algorithm")
        if not key.verify(signed, signature):  # before the payload is read, which is most of the work
            raise SessionNotFound("token_signature")
        try:
            claims = self._read(from_base64url(segments[2]))
        except ValueError:
            raise SessionNotFound("token_claim") from None
        return VerifiedToken(ring, key, claims)

    def _read(self, text: bytes) -> Claims:
        """Return the claims in a payload, or raise `SessionNotFound`, which names the claim at fault."""
        try:
            text.decode("utf-8")  # msgspec does not look at the text that it skips
            claims, members = _CLAIMS.decode(text), json.loads(text, object_pairs_hook=list)
        except (ValueError, RecursionError) as error:
            named = _CLAIM.search(str(error))
            raise SessionNotFound("token_claim", claim=named[1] if named else None) from None
        for name, value in members:
            if value is None and name in _NAMES:  # which would count as absent, and an absent subject as anonymous
                raise SessionNotFound("token_claim", claim=name)
        if not claims.issued_at == round(claims.issued_at * 1000) / 1000:
            raise SessionNotFound("token_claim", claim="iat")
        if not claims.issuer == self.issuer:
            raise SessionNotFound("token_issuer")
        if not claims.audience == self.audience:
            raise SessionNotFound("token_audience")
        return claims

"""Mutants of session ids and of states: half only damaged, half made with a valid key of other contents.

What the package says of each is what the oracles of `jose` say.
"""

import json
from base64 import urlsafe_b64decode
from random import Random
from typing import Any, Final, NamedTuple

from environments import require

require("joserfc>=1")

import jose
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, derive_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from mutations import TRIALS, chances, mutate

from mcp_sessions._errors import SessionNotFound, StateUnreadable
from mcp_sessions._session.claims import SESSION, TRANSPORT, Claims, Kind, Principal
from mcp_sessions._tokens import seal
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import Key, KeyRing

NOW: Final = 1_800_000_000
SECRETS: Final = ("vB1kTn0RzJmYwq3uXo7sLd5cHf9aGe2i", "another secret of the trials: 7sLd5cHf9aGe2i0")
ED25519: Final = bytes(range(32))
P256: Final = 0x1234567890ABCDEF


def _pem(key: Any) -> str:
    text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text.decode()


PEMS: Final = (_pem(Ed25519PrivateKey.from_private_bytes(ED25519)), _pem(derive_private_key(P256, SECP256R1())))
RING: Final = KeyRing([*SECRETS, *PEMS])
RINGS: Final = [KeyRing([secret]) for secret in (*SECRETS, *PEMS)]  # each signs with its one key
STRANGER: Final = KeyRing(["a secret that no ring holds: Xo7sLd5cHf9aGe2i"]).signing
SOURCES: Final = (*((text.encode(), "") for text in SECRETS), (ED25519, PEMS[0]), (P256.to_bytes(32, "big"), PEMS[1]))
KNOWN: Final = {
    ring.signing.kid: jose.Known(ring.signing.algorithm, *source) for ring, source in zip(RINGS, SOURCES, strict=True)
}
TOKENS: Final = Tokens(issuer="us", audience="here", cache_entries=0)
CALLERS: Final[list[jose.Caller | None]] = [None, ("client", None, "alice"), ("client", None, "bob"), (None, "i", "a")]


def principal(caller: jose.Caller | None) -> Principal | None:
    return None if caller is None else Principal(*caller)


# --- session ids -----------------------------------------------------------------------------------


class Original(NamedTuple):
    """A good session id, and for whom it is good."""

    key: Key
    caller: jose.Caller | None
    kind: Kind
    parts: list[str]

    @property
    def texts(self) -> list[str]:
        return [urlsafe_b64decode(part + "==").decode() for part in self.parts[:2]]


def original(ring: KeyRing, caller: jose.Caller | None, kind: Kind) -> Original:
    claims = Claims(
        kind=kind,
        issuer="us",
        audience="here",
        jti="AAAAAAAAAAAAAAAAAAAAAA",
        issued_at=NOW,
        expires_at=NOW + 3600,
        subject=ring.signing.subject(principal(caller)),
        trace=f"00-{'a' * 32}-{'b' * 16}-01",
        client="a client/1",
        upstream="x" * 40,
        boot="a process",
    )
    return Original(ring.signing, caller, kind, TOKENS.mint(ring, claims).split("."))


ORIGINALS: Final = [
    original(ring, caller, kind)
    # Asymmetric signatures take ten times as long, so there are fewer of them.
    for ring in [*RINGS[:2] * 10, *RINGS[2:]]
    for caller in CALLERS
    for kind in (SESSION, TRANSPORT)
]
HEADER_NAMES: Final = ["alg", "kid", "typ", "crit", "b64", "jwk", "jku", "zip"]
HEADER_VALUES: Final[list[Any]] = [
    *("HS256", "ES256", "EdDSA", "none", "None", "HS384", "Ed25519", "hs256", "", None, False, ["b64"], {"kty": "oct"}),
    *("mcp-session+jwt", "JWT", "application/mcp-session+jwt", "MCP-SESSION+JWT", *KNOWN, STRANGER.kid, "../passwd"),
]
NAMES: Final = [*jose.GRAMMAR, "nbf", "b64", "crit", "later", "Exp", "exp\\u0000"]
VALUES: Final[list[Any]] = [
    *(None, True, False, 0, -1, 1, 1.0, NOW - 60, NOW - 61, NOW, NOW + 1, NOW + 60, NOW + 61, NOW + 3600, NOW + 0.5),
    *(10**6, 10**6 + 1, jose.LAST_SECOND, jose.LAST_SECOND + 1, 2**63, 2**64, 10**400, "", "us", "here", "session"),
    *("transport", "ses_a", "A" * 21 + "Q", "A" * 22, "A" * 21 + "B", "A" * 23, "\u0661" * 22, "x" * 64, "x" * 65),
    *(f"00-{'a' * 32}-{'b' * 16}-01", f"00-{'A' * 32}-{'b' * 16}-01", "\ud800", [], {}, ["us"], ["here"], {"a": 1}),
]


def damaged(random: Random, original: Original) -> str:
    """A session id changed as text, by somebody without a key."""
    parts, other = list(original.parts), random.choice(ORIGINALS).parts
    place = random.randrange(8)
    if place < 3:
        parts[place] = other[place]
    elif place == 3:
        parts.insert(random.randrange(4), other[2])
    elif place == 4:
        parts[:2] = [jose.encode(mutate(random, text).encode("utf-8", "surrogatepass")) for text in original.texts]
    return ".".join(parts) if place < 5 else mutate(random, ".".join(parts))


def changed(random: Random, text: str, names: list[str], values: list[Any]) -> str:
    """An object with members changed, dropped, added or given twice, or its text damaged."""
    if random.random() < 0.2:
        return mutate(random, text)
    members = [*json.loads(text).items()]
    for _ in range(random.choice((1, 1, 2, 3))):
        name = random.choice(names)
        members = [member for member in members if member[0] != name or random.random() < 0.1]
        members += [(name, random.choice(values))] * (random.random() < 0.8)
    random.shuffle(members)
    return "{" + ",".join(f'"{name}":{json.dumps(value)}' for name, value in members) + "}"


def signed_again(random: Random, original: Original) -> str:
    """A session id with a header and claims of the mutator's choice under a signature that is right."""
    header, payload = original.texts
    header = changed(random, header, HEADER_NAMES, HEADER_VALUES) if random.random() < 0.15 else header
    payload = changed(random, payload, NAMES, VALUES) if random.random() < 0.8 else payload
    key = original.key if random.random() < 0.95 else random.choice([RING.signing, STRANGER])
    signed = ".".join(jose.encode(text.encode("utf-8", "surrogatepass")) for text in (header, payload))
    return f"{signed}.{jose.encode(key.sign(signed.encode()))}"


@pytest.mark.filterwarnings("ignore")  # RFC 9864 has another name for EdDSA
@given(chances)
def test_no_token_is_judged_differently_from_the_oracle(random: Random) -> None:
    for _ in TRIALS:
        original = random.choice(ORIGINALS)
        token = (signed_again if random.random() < 0.5 else damaged)(random, original)
        caller = original.caller if random.random() < 0.8 else random.choice(CALLERS)
        kind = original.kind if random.random() < 0.9 else random.choice((SESSION, TRANSPORT))
        now = NOW if random.random() < 0.7 else random.choice((NOW + 3599, NOW + 3600, NOW - 60, NOW - 61, NOW + 0.5))
        try:
            TOKENS.verify(RING, token, now=now, principal=principal(caller), kind=kind)
            reason = "accepted"
        except SessionNotFound as refused:  # or expired
            reason = refused.reason
        accepts = jose.accepts(KNOWN, token, now=now, principal=caller, knd=kind, iss="us", aud="here")
        assert (reason == "accepted") is accepts, f"{reason}: {token!r} {caller} {kind} {now}"


# --- states ----------------------------------------------------------------------------------------

LONGEST: Final = 400
PAYLOADS: Final = [
    *(b"{}", b'{"a":1}', b"[]", b"", b"1", b'{"a":"\xff"}', b'{"a":1', b'{"a":1}x', b"{" * 90, b'{"a":NaN}'),
]
BOUNDS: Final = [("jti", None, "here"), ("jti", "alice", "here"), ("other", None, "here"), ("jti", None, "x")]


def sealed(random: Random, claims: Claims) -> str:
    """A state that was made with a valid key, of a good or a bad payload."""
    payload = random.choice(PAYLOADS) if random.random() < 0.8 else b'{"a":"%s"}' % (b"x" * random.randrange(300))
    last_seen = random.choice((0, NOW, NOW + 60, NOW + 61, 2**63))
    return seal.seal(random.choice(RINGS[:2]).signing, payload, claims, last_seen=last_seen, nonce=random.randbytes(12))


@given(chances)
def test_no_state_is_judged_differently_from_the_oracle(random: Random) -> None:
    bound_to = {
        bound: Claims(
            issuer="us",
            kind=SESSION,
            issued_at=NOW,
            expires_at=NOW + 60,
            jti=bound[0],
            subject=bound[1],
            audience=bound[2],
        )
        for bound in BOUNDS
    }
    for _ in TRIALS:
        bound = random.choice(BOUNDS)
        state = sealed(random, bound_to[bound])
        state = mutate(random, state) if random.random() < 0.5 else state
        bound = bound if random.random() < 0.8 else random.choice(BOUNDS)
        try:
            seal.open(RING, state, bound_to[bound], max_bytes=LONGEST, now=NOW)
            is_opened = True
        except StateUnreadable:
            is_opened = False
        assert is_opened is jose.opens(KNOWN, state, bound, now=NOW, longest=LONGEST), f"{state!r} {bound}"

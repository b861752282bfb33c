"""Mutants of session ids: half only damaged, half changed inside and signed again with a key that is valid."""

import json
import warnings
from base64 import urlsafe_b64decode
from random import Random
from typing import Any, Final

from environments import require

require("joserfc>=1")

import jose
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, derive_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from mutations import ALPHABET, TRIALS, chances, mutate

from mcp_sessions._errors import SessionNotFound
from mcp_sessions._session.claims import SESSION, TRANSPORT, Claims, Kind, Principal
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import Key, KeyRing

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from joserfc.jwk import ECKey, OctKey, OKPKey

NOW: Final = 1_800_000_000
SECRETS: Final = ("vB1kTn0RzJmYwq3uXo7sLd5cHf9aGe2i", "another secret of the trials: 7sLd5cHf9aGe2i0")
STRANGE: Final = "a secret that no ring holds: Xo7sLd5cHf9aGe2i"
_ED25519: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_P256: Final = derive_private_key(0x1234567890ABCDEF, SECP256R1())


def _pem(key: Any) -> str:
    text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text.decode()


PEMS: Final = (_pem(_ED25519), _pem(_P256))
RING: Final = KeyRing([*SECRETS, *PEMS])
RINGS: Final = [KeyRing([secret]) for secret in (*SECRETS, *PEMS)]  # each signs with its one key
KEYS: Final[list[Key]] = [ring.signing for ring in RINGS]
STRANGER: Final = KeyRing([STRANGE]).signing
TOKENS: Final = Tokens(issuer="us", audience="here", cache_entries=0)

CALLERS: Final[list[jose.Caller | None]] = [
    None,
    ("client", None, "alice"),
    ("client", None, "bob"),
    (None, "i", "alice"),
]


def _known() -> dict[str, jose.Known]:
    sources = [*map(str.encode, SECRETS), bytes(range(32)), (0x1234567890ABCDEF).to_bytes(32, "big")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        signing = [OctKey.import_key(jose.hkdf(source, "mcp-sessions/1/HS256/signing")) for source in sources[:2]]
        found = [*signing, OKPKey.import_key(PEMS[0]), ECKey.import_key(PEMS[1])]
    return {
        key.kid: jose.Known(key.algorithm, theirs, jose.hkdf(source, f"mcp-sessions/1/{key.algorithm}/principal"))
        for key, theirs, source in zip(KEYS, found, sources, strict=True)
    }


KNOWN: Final = _known()


def _principal(caller: jose.Caller | None) -> Principal | None:
    return None if caller is None else Principal(*caller)


FULL: Final[dict[str, Any]] = {
    "trace": f"00-{'a' * 32}-{'b' * 16}-01",
    "client": "a client/1",
    "upstream": "x" * 40,
    "boot": "a process",
}


class Original:
    """A good token, and for whom it is good."""

    def __init__(self, ring: KeyRing, caller: jose.Caller | None, kind: Kind, more: dict[str, Any]) -> None:
        self.caller, self.kind, self.key = caller, kind, ring.signing
        claims = Claims(
            kind=kind,
            issuer="us",
            audience="here",
            jti="AAAAAAAAAAAAAAAAAAAAAA",
            issued_at=NOW,
            expires_at=NOW + 3600,
            subject=ring.signing.subject(_principal(caller)),
            **more,
        )
        self.token = TOKENS.mint(ring, claims)
        self.parts = self.token.split(".")
        self.texts = [urlsafe_b64decode(part + "==").decode() for part in self.parts[:2]]
        self.claims = {name: json.dumps(value) for name, value in json.loads(self.texts[1]).items()}


def encode(text: str) -> str:
    """One segment, of a text that UTF-8 may not hold."""
    return jose.encode(text.encode("utf-8", "surrogatepass"))


ORIGINALS: Final = [
    Original(ring, caller, kind, more)
    # Asymmetric signatures take ten times as long, so there are fewer of them.
    for ring in [*RINGS[:2] * 10, *RINGS[2:]]
    for caller in CALLERS
    for kind in (SESSION, TRANSPORT)
    for more in ({}, FULL)
]

# --- damaged -------------------------------------------------------------------------------------


def damaged(random: Random, original: Original) -> str:
    """A token changed as text, by somebody without a key."""
    if random.random() < 0.5:
        return mutate(random, original.token)
    parts = list(original.parts)
    place = random.randrange(6)
    if place < 3:
        parts[place] = random.choice(ORIGINALS).parts[place]
    elif place == 3:
        parts[2] = "".join(random.choices(ALPHABET, k=len(parts[2]) - 1)) + random.choice("AQgwEI")
    elif place == 4:
        parts[:2] = [encode(mutate(random, text)) for text in original.texts]
    else:
        parts.insert(random.randrange(4), random.choice(ORIGINALS).parts[2])
    return ".".join(parts)


# --- signed again --------------------------------------------------------------------------------

ALGORITHMS: Final = ["HS256", "ES256", "EdDSA", "none", "None", "HS384", "RS256", "Ed25519", "hs256", ""]
TYPS: Final = ["mcp-session+jwt", "JWT", "application/mcp-session+jwt", "MCP-SESSION+JWT", "", None]
VALUES: Final[list[Any]] = [
    *(None, True, False, 0, -1, 1, 1.0, NOW - 60, NOW - 61, NOW, NOW + 1, NOW + 60, NOW + 61, NOW + 3600, NOW + 0.5),
    *(10**6, 10**6 + 1, jose.LAST_SECOND, jose.LAST_SECOND + 1, 2**63, 2**64, 10**400, "", "us", "here", "session"),
    *("transport", "ses_a", "A" * 21 + "Q", "A" * 22, "A" * 21 + "B", "A" * 23, "\u0661" * 22, "x" * 64, "x" * 65),
    *(f"00-{'a' * 32}-{'b' * 16}-01", f"00-{'A' * 32}-{'b' * 16}-01", "\ud800", [], {}, ["us"], ["here"], {"a": 1}),
]
VALUE_TEXTS: Final = list(map(json.dumps, VALUES))
NAMES: Final = [*jose.GRAMMAR, "nbf", "b64", "crit", "later", "Exp", "exp\\u0000"]


RIGHT: Final = {
    key.kid: json.dumps({"alg": key.algorithm, "kid": key.kid, "typ": "mcp-session+jwt"}) for key in [*KEYS, STRANGER]
}


def header(random: Random, text: str, key: Key) -> str:
    """A header, mostly right for the key that will sign."""
    chance = random.random()
    if chance < 0.85:
        return RIGHT[key.kid]
    if chance < 0.9:
        return mutate(random, text)
    said: dict[str, Any] = {
        "alg": random.choice([key.algorithm, key.algorithm, *ALGORITHMS]),
        "kid": random.choice([key.kid, key.kid, random.choice(KEYS).kid, STRANGER.kid, "", None, "../../etc/passwd"]),
        "typ": random.choice(["mcp-session+jwt", *TYPS]),
    }
    if random.random() < 0.3:
        more = random.choice(("jwk", "jku", "x5u", "crit", "b64", "zip", "cty", "enc"))
        said[more] = random.choice((False, ["b64"], "x", {"kty": "oct", "k": "AAAA"}))
    members = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in said.items()]
    random.shuffle(members)
    return "{" + ", ".join(members + random.choices(members, k=random.choice((0, 0, 0, 1)))) + "}"


def payload(random: Random, original: Original) -> str:
    """Claims with a few of them changed, dropped, added or given twice; sometimes no claims at all."""
    chance = random.random()
    if chance < 0.2:
        return original.texts[1]
    if chance < 0.35:
        return mutate(random, original.texts[1])
    said = dict(original.claims)
    for _ in range(random.choice((1, 1, 2, 3))):
        name = random.choice(NAMES)
        if random.random() < 0.2:
            said.pop(name, None)
        else:
            said[name] = random.choice(VALUE_TEXTS)
    members = [f'"{name}":{value}' for name, value in said.items()]
    if random.random() < 0.2:
        members.append(f'"{random.choice(NAMES)}":{random.choice(VALUE_TEXTS)}')
    random.shuffle(members)
    return "{" + ",".join(members) + "}"


def signed_again(random: Random, original: Original) -> str:
    """A token with a header and claims of the mutator's choice under a signature that is right."""
    key = original.key if random.random() < 0.95 else random.choice([*KEYS[:2], STRANGER])
    signed = f"{encode(header(random, original.texts[0], key))}.{encode(payload(random, original))}"
    return f"{signed}.{jose.encode(key.sign(signed.encode()))}"


# --- judged --------------------------------------------------------------------------------------


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
            TOKENS.verify(RING, token, now=now, principal=_principal(caller), kind=kind)
            reason = "accepted"
        except SessionNotFound as refused:  # or expired
            reason = refused.reason
        accepts = jose.accepts(KNOWN, token, now=now, principal=caller, knd=kind, iss="us", aud="here")
        assert (reason == "accepted") is accepts, f"{reason}: {token!r} {caller} {kind} {now}"

"""What verifies, what does not and why, and that only our own errors are raised."""

import json
import string
from typing import Any

import jwt
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from signers import ED25519, NEW, P256, private_pem, public_pem
from signers import OLD as SECRET

from mcp_sessions._errors import ConfigurationError, SessionExpired, SessionNotFound
from mcp_sessions._session.claims import (
    MAX_TOKEN_BYTES,
    SESSION,
    TRANSPORT,
    TYP,
    Claims,
    Principal,
    looks_like_session_id,
)
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import KeyRing, base64url, from_base64url

NOW = 1_800_000_000
JTI = "AAAAAAAAAAAAAAAAAAAAAA"
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
ALICE = Principal("client", "https://issuer.example", "alice")
BOB = Principal("client", "https://issuer.example", "bob")

HS256 = KeyRing([SECRET])
KEYS = {"HS256": SECRET, "EdDSA": private_pem(ED25519), "ES256": private_pem(P256)}
RINGS = {name: KeyRing([key]) for name, key in KEYS.items()}
every_ring = pytest.mark.parametrize("ring", RINGS.values(), ids=RINGS)


def tokens(**options: Any) -> Tokens:
    return Tokens(**{"issuer": "mcp-sessions", "audience": "mcp-sessions", **options})


TOKENS = tokens(cache_entries=0)


@pytest.fixture(params=[0, 10], ids=["without a cache", "with a cache"])
def by(request: pytest.FixtureRequest) -> Tokens:
    return tokens(cache_entries=request.param)


def claims(ring: KeyRing = HS256, principal: Principal | None = None, **changes: Any) -> Claims:
    ours = {"issuer": "mcp-sessions", "audience": "mcp-sessions"}
    usual = {**ours, "kind": SESSION, "jti": JTI, "issued_at": NOW, "expires_at": NOW + 3600}
    return Claims(**{**usual, "subject": ring.signing.subject(principal), **changes})


def accepted(token: str, *, ring: KeyRing = HS256, by: Tokens = TOKENS, **how: Any) -> Claims:
    return by.verify(ring, token, **{"now": NOW, "principal": None, **how}).claims


def reason(token: Any, **how: Any) -> str:
    """Why a token is not found; the test fails where it is, or where another error comes out."""
    with pytest.raises(SessionNotFound) as refused:
        accepted(token, **how)
    assert refused.value.__cause__ is None
    return " ".join(filter(None, (refused.value.reason, refused.value.claim)))


# --- minted and verified -------------------------------------------------------------------------


@every_ring
def test_what_was_minted_verifies_to_the_same_claims(ring: KeyRing) -> None:
    """In an id of at most 512 bytes with an owner and a trace; 768 with a long name and a transport id."""
    usual = claims(ring, ALICE, trace=TRACE, issued_at=NOW + 0.123)
    named = msgspec.structs.replace(usual, client="client é😀".ljust(64, "x"), upstream="x" * 120)
    for minted, limit in ((usual, 512), (named, 768)):
        token = TOKENS.mint(ring, minted)
        assert accepted(token, ring=ring, principal=ALICE, now=NOW + 1) == minted
        assert len(token) <= limit
        assert looks_like_session_id(token)


@every_ring
def test_the_header_and_the_claims_on_the_wire_are_these(ring: KeyRing) -> None:
    """The header is exactly three members, and a claim that has nothing to say is not sent."""
    header, payload, _ = TOKENS.mint(ring, claims(ring)).split(".")
    assert json.loads(from_base64url(header)) == {"alg": ring.signing.algorithm, "kid": ring.signing.kid, "typ": TYP}
    assert json.loads(from_base64url(payload)) == GOOD_PAYLOAD


@every_ring
def test_a_public_key_verifies_anonymous_sessions_only(ring: KeyRing) -> None:
    """Any JWT library reads them with it. Without the private key no principal has a name, so none has a session."""
    ours = KeyRing([SECRET, public_pem(ED25519), public_pem(P256)])
    token = TOKENS.mint(ring, claims(ring, issued_at=1, expires_at=4_000_000_000))
    assert accepted(token, ring=ours).jti == JTI
    key, owned = ring.signing, TOKENS.mint(ring, claims(ring, ALICE))
    read = jwt.decode(token, key.verifying, algorithms=[key.algorithm], audience="mcp-sessions", issuer="mcp-sessions")
    assert read["jti"] == JTI
    if ring is not RINGS["HS256"]:
        assert reason(owned, ring=ours, principal=ALICE) == "principal_under_public_key"


def test_a_ref_is_public_and_made_from_the_jti_alone() -> None:
    """120 bits in lower-case base32; it does not say the jti, and no caller can choose it."""
    assert claims().ref == claims(expires_at=NOW + 9).ref == "ses_xflrp52e635tjljobpp7d5sl"
    assert claims(jti="AAAAAAAAAAAAAAAAAAAAAQ").ref != claims().ref
    assert repr(claims(principal=ALICE, client="x", trace=TRACE)) == "<Claims session ses_xflrp52e635tjljobpp7d5sl>"


def test_a_clients_name_is_cut_and_cleaned() -> None:
    parsed = claims(client="\ud800" + "x" * 100)
    assert accepted(TOKENS.mint(HS256, parsed)).client == parsed.client == "?" + "x" * 63


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"issuer": "other"}, "issuer"),
        ({"audience": "other"}, "audience"),
        ({"jti": "short"}, "claim jti"),
        ({"issued_at": -1}, "claim iat"),
        ({"boot": "\ud800"}, r"^the claims do not make a session id \(token_claim\)$"),
        ({"upstream": object()}, r"^the claims do not make a session id \(token_claim\)$"),
        ({"upstream": "x" * 1500}, "limit is 2048"),
    ],
)
def test_what_would_not_verify_is_not_minted(changes: dict[str, Any], complaint: str) -> None:
    """No client is ever handed a dead session."""
    with pytest.raises(ConfigurationError, match=complaint):
        TOKENS.mint(HS256, claims(**changes))


def test_an_id_is_of_somebody_for_somebody_and_no_longer_than_the_limit() -> None:
    token = TOKENS.mint(HS256, claims())
    assert accepted(tokens(max_bytes=len(token)).mint(HS256, claims()), by=tokens(max_bytes=len(token))).jti == JTI
    assert reason(token, by=tokens(max_bytes=len(token) - 1)) == "token_size"
    with pytest.raises(ConfigurationError, match=f"would take {len(token)} bytes; the limit is {len(token) - 1}"):
        tokens(max_bytes=len(token) - 1).mint(HS256, claims())
    for option in ("issuer", "audience"):
        with pytest.raises(ConfigurationError, match=r"^issuer and audience must be non-empty strings$"):
            tokens(**{option: ""})


# --- who, what for, and until when ---------------------------------------------------------------


@pytest.mark.parametrize(("owner", "caller"), [(None, ALICE), (ALICE, None), (ALICE, BOB), (ALICE, Principal())])
def test_a_session_is_its_principals_alone(by: Tokens, owner: Principal | None, caller: Principal | None) -> None:
    """An owned one is not open to all and an anonymous one is not owned."""
    token = by.mint(HS256, claims(principal=owner))
    for _ in range(2):
        assert reason(token, by=by, principal=caller) == "token_principal"
        assert accepted(token, by=by, principal=owner).jti == JTI


def test_a_session_ends_at_exp_and_not_before(by: Tokens) -> None:
    """The last accepted moment is just before; a strange clock accepts nothing, and one may be a minute behind."""
    token = by.mint(HS256, claims())
    for now in (NOW - 60, NOW + 3599.999):
        assert accepted(token, by=by, now=now).jti == JTI
    for late in (NOW + 3600, NOW + 10**9, float("inf")):
        with pytest.raises(SessionExpired):
            accepted(token, by=by, now=late)
    for early in (NOW - 60.001, float("nan")):
        assert reason(token, by=by, now=early) == "token_from_the_future"


def test_only_its_owner_learns_that_a_session_has_expired() -> None:
    token = TOKENS.mint(HS256, claims(principal=ALICE))
    assert reason(token, now=NOW + 9999, principal=BOB) == "token_principal"
    assert reason(token, now=NOW + 9999, principal=ALICE, kind=TRANSPORT) == "token_kind"
    assert reason(token, now=NOW + 9999, principal=ALICE) == "expired"


def test_each_kind_is_accepted_in_its_own_place_only(by: Tokens) -> None:
    """Which kind it is, is known before it is judged: even of one that has expired or is another principal's."""
    for kind, other in ((SESSION, TRANSPORT), (TRANSPORT, SESSION)):
        token = by.mint(HS256, claims(kind=kind))
        for _ in range(2):
            assert accepted(token, by=by, kind=kind).kind == kind
            assert reason(token, by=by, kind=other) == "token_kind"
        assert by.kind(HS256, by.mint(HS256, claims(HS256, ALICE, kind=kind, issued_at=0, expires_at=1))) == kind
        assert by.kind(HS256, token[:-4] + "AAAA") is None


def test_issuer_and_audience_are_equal_or_the_token_is_anothers() -> None:
    for other in ("mcp-session", "mcp-sessions2", "MCP-SESSIONS"):
        assert reason(TOKEN, by=tokens(issuer=other)) == "token_issuer"
        assert reason(TOKEN, by=tokens(audience=other)) == "token_audience"


@pytest.mark.parametrize("name", KEYS)
def test_every_key_of_the_ring_verifies_and_a_removed_one_does_not(name: str) -> None:
    """Rotation: `[old]`, `[new, old]`, `[new]`; a cached token does not outlive its key."""
    by, ring = tokens(), RINGS[name]
    token = by.mint(ring, claims(ring, ALICE))
    for kept in (ring, KeyRing([NEW, KEYS[name]])):
        assert accepted(token, ring=kept, by=by, principal=ALICE).jti == JTI
    assert reason(token, ring=KeyRing([NEW]), by=by, principal=ALICE) == "token_key_unknown"
    assert accepted(token, ring=ring, by=by, principal=ALICE).jti == JTI


def test_the_cache_is_bounded_and_still_right() -> None:
    """More tokens than it holds all verify, before and after; off, it holds none."""
    for entries, most in ((0, 0), (1, 2), (4, 4), (5, 6)):
        held = 0
        by = tokens(cache_entries=entries)
        minted = {by.mint(HS256, claims(jti=f"{place:021}A")): f"{place:021}A" for place in range(20)}
        for token, jti in [*minted.items(), *minted.items()]:
            assert accepted(token, by=by).jti == jti
            held = max(held, len(by._young) + len(by._old))
        assert held == most


# --- shape ---------------------------------------------------------------------------------------


TOKEN = TOKENS.mint(HS256, claims())
HEADER, PAYLOAD, SIGNATURE = TOKEN.split(".")


@pytest.mark.parametrize(
    ("token", "why"),
    [
        *((text, "token_shape") for text in ("a.b", f"{TOKEN}.", f"{TOKEN}=", f"{TOKEN}\ud800", f"{TOKEN}AA")),
        (f"{HEADER}..{SIGNATURE}", "token_shape"),
        (f"{HEADER}.{PAYLOAD}!.{SIGNATURE}", "token_signature"),  # what is not signed is not decoded
        *((odd, "token_size") for odd in ("a" * (MAX_TOKEN_BYTES + 1), TOKEN.encode())),
    ],
)
def test_what_has_not_the_shape_of_a_token_gets_nowhere(token: Any, why: str) -> None:
    assert reason(token) == why


@given(st.text(max_size=300))
def test_no_text_raises_anything_but_our_error(text: str) -> None:
    assert reason(text) in {"token_shape", "token_header"}


@every_ring
def test_one_changed_character_is_refused_everywhere(ring: KeyRing) -> None:
    token = TOKENS.mint(ring, claims(ring))
    ends = {len(token) - 1, len(token.rpartition(".")[0]) - 1, len(token.partition(".")[0]) - 1}
    for place, character in enumerate(token):
        others = string.ascii_letters + string.digits + "-_.=" if place in ends else "Aw."
        for other in others.replace(character, ""):
            assert reason(token[:place] + other + token[place + 1 :], ring=ring).startswith("token_")


# --- header --------------------------------------------------------------------------------------


def signed(header: Any, payload: Any, ring: KeyRing = HS256) -> str:
    """A token with the right key's signature over whatever header and payload."""
    raw = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    return with_signature(".".join(base64url(part) for part in raw), ring)


def with_signature(text: str, ring: KeyRing = HS256) -> str:
    return f"{text}.{base64url(ring.signing.sign(text.encode()))}"


KID = HS256.signing.kid
GOOD_HEADER = {"alg": "HS256", "kid": KID, "typ": TYP}
HEADER_TEXT = json.dumps(GOOD_HEADER)
GOOD_PAYLOAD = {"iss": "mcp-sessions", "aud": "mcp-sessions", "jti": JTI, "iat": NOW, "exp": NOW + 3600, "knd": SESSION}
START = json.dumps(GOOD_PAYLOAD).encode().removesuffix(b"}")


def test_even_a_signed_payload_has_one_spelling() -> None:
    """Its last character may carry bits that a decoder drops."""
    payload = json.dumps(GOOD_PAYLOAD).encode()
    payload += b" " * (-(len(payload) - 1) % 3)
    text = f"{base64url(HEADER_TEXT.encode())}.{base64url(payload)}"
    assert text[-1] in "AQgw"
    assert accepted(with_signature(text)).jti == JTI
    assert reason(with_signature(text[:-1] + chr(ord(text[-1]) + 1))) == "token_claim"


def test_the_right_header_in_any_order_and_spacing_verifies() -> None:
    """The forger of these tests signs well: what fails below fails for the reason it names."""
    for header in (GOOD_HEADER, dict(reversed(GOOD_HEADER.items())), json.dumps(GOOD_HEADER, indent=2).encode()):
        assert accepted(signed(header, GOOD_PAYLOAD)).jti == JTI


CHANGES = [("{", '{"alg":"x",'), ("alg", "\\u0061lg"), (KID, "\\ud800"), (KID, "\udcff")]
ODD_HEADERS = [
    *({**GOOD_HEADER, **odd} for odd in ({"kid": 1}, {"typ": "JWT"}, {"jku": "x"})),
    *({"alg": "HS256", "kid": KID}, [GOOD_HEADER], b"[" * 1000),
    *(HEADER_TEXT.replace(old, new).encode(errors="surrogateescape") for old, new in CHANGES),
]


@pytest.mark.parametrize(
    ("header", "why"),
    [
        *(({**GOOD_HEADER, "alg": other}, "token_algorithm") for other in ("none", "EdDSA")),
        ({**GOOD_HEADER, "kid": "other"}, "token_key_unknown"),
        *((odd, "token_header") for odd in ODD_HEADERS),
    ],
)
def test_a_header_that_is_not_exactly_ours_is_refused_though_signed_well(header: Any, why: str) -> None:
    assert reason(signed(header, GOOD_PAYLOAD)) == why


def test_a_key_does_not_verify_for_another_key_of_the_ring() -> None:
    token = signed({**GOOD_HEADER, "kid": KeyRing([NEW]).signing.kid}, GOOD_PAYLOAD)
    assert reason(token, ring=KeyRing([SECRET, NEW])) == "token_signature"


# --- claims --------------------------------------------------------------------------------------


STRANGE: list[Any] = [None, True, 0, -1, 1.5, 10**30, "", "x", "\ud800", ["mcp-sessions"]]
REQUIRED = ("iss", "aud", "jti", "iat", "exp", "knd")
ACCEPTED: list[Any] = [("iat", 0), ("iat", 1.5), ("cli", ""), ("cli", "x"), ("up", "x"), ("boot", "x")]


@pytest.mark.parametrize("name", [*REQUIRED, "sub", "tp", "cli", "up", "boot"])
def test_a_claim_of_a_strange_type_is_refused_though_signed_well(name: str) -> None:
    """And a required one that is missing."""
    for value in STRANGE:
        token = signed(GOOD_HEADER, {**GOOD_PAYLOAD, name: value})
        if any((name, value) == pair and type(value) is type(pair[1]) for pair in ACCEPTED):
            assert accepted(token).jti == JTI
        elif (name, value) == ("exp", 0):
            assert reason(token) == "expired"
        elif (name, value) == ("knd", "x"):  # perhaps of another deployment's dialect
            assert reason(token) == "token_kind"
        elif isinstance(value, str) and name in {"iss", "aud"} and value != "\ud800":
            assert reason(token) in {"token_issuer", "token_audience"}
        else:
            assert reason(token) == ("token_claim" if value == "\ud800" else f"token_claim {name}")
    payload = {key: value for key, value in GOOD_PAYLOAD.items() if key != name}
    assert name not in REQUIRED or reason(signed(GOOD_HEADER, payload)) == f"token_claim {name}"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": NOW + 3600.0}, "token_claim exp"),
        ({"jti": "A" * 21 + "B"}, "token_claim jti"),
        ({"sub": "alice"}, "token_claim sub"),
        ({"tp": f"{TRACE}\r\nset-cookie: x"}, "token_claim tp"),
        ({"cli": "x" * 65}, "token_claim cli"),
        ({"knd": "x" * 33}, "token_claim knd"),
        ({"iat": NOW + 0.1234}, "token_claim iat"),
        ({"iat": 253_402_300_800}, "token_claim iat"),
    ],
)
def test_a_claim_out_of_its_grammar_is_refused(changes: dict[str, Any], why: str) -> None:
    assert reason(signed(GOOD_HEADER, {**GOOD_PAYLOAD, **changes})) == why


MORE = [b'"later":"\xff"}', b'"later":"\\ud800"}', b'"x":' + b"[" * 1200, b'"x":1}x']


@pytest.mark.parametrize("payload", [b"null", b"{", b"[" * 1200, *(START + b"," + more for more in MORE)])
def test_a_payload_is_an_object_that_every_parser_could_read(payload: bytes) -> None:
    """However well it is signed; not even a claim that is not read may be unreadable."""
    assert reason(signed(GOOD_HEADER, payload)) == "token_claim"


def test_a_claim_of_a_later_version_is_skipped_and_a_null_claim_is_not() -> None:
    """Two versions run side by side; but null must not count as absent: without a subject, a session is anybody's."""
    assert accepted(signed(GOOD_HEADER, START + b',"later":{"nested":[1]},"nbf":null}')).jti == JTI
    for more in (b',"sub":null}', b',"cli":null,"cli":"x"}'):
        assert reason(signed(GOOD_HEADER, START + more)).startswith("token_claim ")


def test_a_verified_token_is_not_verified_again() -> None:
    by = tokens()
    assert reason(TOKEN[:-4] + "AAAA", by=by) == "token_signature"
    assert not by._young
    assert accepted(TOKEN, by=by) is by.authentic(HS256, TOKEN)


def test_claims_cannot_be_changed() -> None:
    """They are shared by all requests of a session."""
    with pytest.raises(AttributeError):
        claims().expires_at = 0  # type: ignore[misc]

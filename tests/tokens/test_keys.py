"""One secret gives every key, nothing public ever signs, and nothing shows material."""

from contextlib import suppress

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, PublicFormat
from hypothesis import example, given
from hypothesis import strategies as st
from signers import ED25519, P256, Private, private_pem, public_pem
from signers import NEW as OTHER
from signers import OLD as SECRET

from mcp_sessions._errors import ConfigurationError
from mcp_sessions._session.claims import Principal
from mcp_sessions._tokens.keys import KeyRing, base64url, encode_fields, from_base64url


@given(st.binary(min_size=1, max_size=70), st.text("AQgwBZaz09-_=+/ \n", max_size=9))
@example(b"a", "AAB")
@example(b"a", "AA==")
def test_base64url_has_one_text_for_each_data(data: bytes, text: str) -> None:
    assert from_base64url(base64url(data)) == data
    with suppress(ValueError):
        assert base64url(from_base64url(text)) == text


ROWS = st.lists(st.none() | st.text("-:0123a\ud800😀", max_size=4), max_size=4)


@given(ROWS, ROWS)
def test_no_two_rows_share_an_encoding(one: list[str | None], two: list[str | None]) -> None:
    assert (encode_fields(*one) == encode_fields(*two)) == (one == two)


def test_a_secret_gives_the_same_distinct_keys_everywhere() -> None:
    """Text, text with white space around it, and bytes: three replicas agree, to the byte and for ever."""
    for form in (SECRET, f" {SECRET}\n", SECRET.encode()):
        key = KeyRing([form]).signing
        assert (key.algorithm, key.kid) == ("HS256", "fjrfnkeb")
        derived = [SECRET.encode(), key.signing, key.handle_key or b"", key.principal_key or b""]
        assert len({bytes(each) for each in derived}) == 4
        assert all(len(each) == 32 for each in derived)
        assert derived[2].hex().startswith("39047dae0ecf17f6")
        assert key.subject(Principal("client", "issuer", "user")) == "cPOPaJ_PNAjrUocqeVEM7g"
        assert key.subject(Principal("client")) == "yGRCtgoKSxW96vewzCSRQw"


EIGHT = "abcdefghabdcefhgbacdhgfeacbdgehf"  # characters, of which 32 random hexadecimal digits nearly always have more


@pytest.mark.parametrize(
    ("secret", "complaint"),
    [
        ("", "too short"),
        ("MCP_SESSIONS_KEYS", "env:NAME"),
        (bytes(range(31)), "too short"),
        (EIGHT.replace("h", "a"), "not random"),
        ("0123456789abcdef" * 3, "not random"),
        ("\ud800" * 40, "UTF-8"),
        (12345678901234567890123456789012, "neither str nor bytes"),
    ],
)
def test_a_weak_secret_is_refused_with_the_remedy(secret: str | bytes, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as refused:
        KeyRing([OTHER, secret])
    assert "keys[1]" in str(refused.value)
    assert "secrets.token_urlsafe(32)" in str(refused.value)
    assert not secret or str(secret) not in str(refused.value)
    assert KeyRing([EIGHT]).signing.algorithm == "HS256"


@pytest.mark.parametrize(
    "secret",
    [
        P256.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        public_pem(P256).splitlines()[1],
        public_pem(P256).replace("BEGIN", "begin").replace("END", "end"),
        public_pem(ED25519).replace("-----", "\u2014"),
        "key = " + "".join(public_pem(ED25519).splitlines()[1:-1]),
    ],
)
def test_an_asymmetric_key_is_never_an_hmac_secret(secret: str | bytes) -> None:
    """Nor is a damaged one: who knows it could sign with it. `tests/test_advisories.py` has further forms."""
    with pytest.raises(ConfigurationError, match="not a secret"):
        KeyRing([secret])


@pytest.mark.parametrize(
    "pem",
    [
        public_pem(P256)[:60],
        private_pem(ED25519).replace("M", "%"),
        ED25519.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")),
        "-----BEGIN PUBLIC KEY-----\n-----END PRIVATE KEY-----",
    ],
)
def test_a_broken_encrypted_or_unsuited_pem_is_refused(pem: str | bytes) -> None:
    with pytest.raises(ConfigurationError, match="openssl genpkey") as refused:
        KeyRing([OTHER, pem])
    assert str(refused.value).startswith("keys[1] ")
    assert refused.value.__cause__ is None
    p384 = ec.generate_private_key(ec.SECP384R1())
    for other in (private_pem(p384), public_pem(p384)):
        with pytest.raises(ConfigurationError, match="neither Ed25519 nor P-256"):
            KeyRing([OTHER, other])


@pytest.mark.parametrize(("private", "algorithm"), [(ED25519, "EdDSA"), (P256, "ES256")])
def test_a_private_pem_signs_and_its_public_half_verifies(private: Private, algorithm: str) -> None:
    """Both halves have one name; the public one signs nothing, seals nothing and knows no principal."""
    full = KeyRing([private_pem(private)]).signing
    half = KeyRing([SECRET, public_pem(private).encode()]).get(full.kid)
    assert half is not None
    assert full.algorithm == half.algorithm == algorithm
    assert half.verify(b"message", full.sign(b"message"))
    assert not half.verify(b"messagf", full.sign(b"message"))
    assert (half.signing, half.ciphers, half.handle_key, half.principal_key) == (None, {}, None, None)
    as_secret = KeyRing([ED25519.private_bytes_raw()]).signing
    assert len({full.handle_key, full.principal_key, as_secret.handle_key}) == 3


def test_the_first_key_signs_and_every_key_is_found_by_its_name() -> None:
    ring, other = KeyRing([SECRET, OTHER]), KeyRing([OTHER]).signing
    signing, found = ring
    assert signing is ring.signing is ring.get(signing.kid)
    assert found is ring.get(other.kid)
    assert found.signing == other.signing
    assert ring.get("") is None
    assert not ring.ephemeral


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ([], "at least one"),
        (SECRET, "a list"),
        ([SECRET, OTHER, SECRET], "^keys holds the same key twice: remove one$"),
        ([private_pem(P256), public_pem(P256)], "twice"),
        ([public_pem(P256), SECRET], r"^keys\[0\] is a public key, .* must sign: put a secret or private key first$"),
    ],
)
def test_a_ring_that_cannot_work_is_refused(keys: list[str | bytes], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        KeyRing(keys)


def test_no_repr_shows_material() -> None:
    ring, pem = KeyRing([SECRET, private_pem(P256)]), KeyRing([private_pem(P256)])
    assert repr(ring) == f"<KeyRing fjrfnkeb {pem.signing.kid}>"
    assert [repr(key) for key in ring] == [
        "Key(kid='fjrfnkeb', algorithm='HS256')",
        f"Key(kid={pem.signing.kid!r}, algorithm='ES256')",
    ]


def test_a_principal_is_named_by_a_keyed_hash() -> None:
    """22 characters that differ by key, by field, and between absent and empty; an anonymous caller is None."""
    key, other = KeyRing([SECRET]).signing, KeyRing([OTHER]).signing
    names = [
        key.subject(Principal("a", "b", "c")),
        other.subject(Principal("a", "b", "c")),
        key.subject(Principal("ab", "", "c")),
        key.subject(Principal("ab", None, "c")),
        key.subject(Principal()),
        *(key.subject(Principal(odd)) for odd in ("\ud83d\ude00", "😀")),
    ]
    assert len(set(names)) == len(names)
    assert all(name is not None and len(name) == 22 for name in names)
    assert key.subject(None) is None
    ring = KeyRing([OTHER, SECRET, public_pem(P256)])  # in a rotation a store finds all; a public key named nothing
    assert ring.subjects(Principal("a", "b", "c")) == [names[1], names[0]]


def test_hashes_of_components_match_whom_they_name() -> None:
    """By them an operator finds all clients of a user, of any of its deployment's keys."""
    key, other = KeyRing([SECRET]).signing, KeyRing([OTHER]).signing
    hashes = key.component_hashes(Principal("client", "issuer", "user"))
    for named in (Principal(), Principal(subject="user"), Principal("client", "issuer", "user")):
        assert key.matches(hashes, named)
    for another in (Principal("user"), Principal("client", "issuer", "use"), Principal(issuer="Issuer")):
        assert not key.matches(hashes, another)
    assert not other.matches(hashes, Principal(subject="user"))
    assert not key.matches(key.component_hashes(Principal("client")), Principal(subject="user"))
    assert hashes == "sGxSr7GfjPx-OG_bS-30RkQpls0EqUiOkXSp"

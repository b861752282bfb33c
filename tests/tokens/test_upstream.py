"""The wrapped server's transport id is sealed for one session, and opens nowhere else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from clients import SECRET, START
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from mcp_sessions._errors import SessionNotFound
from mcp_sessions._session.claims import TRANSPORT, Claims, Principal
from mcp_sessions._tokens import seal
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import KeyRing, base64url

ED25519 = Ed25519PrivateKey.generate()
PRIVATE = ED25519.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
PUBLIC = ED25519.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
RING = KeyRing([SECRET])
SERVERS = "3fa85f64-5717-4562-b3fc-2c963f66afa6"
BOUND: dict[str, Any] = {"jti": "j" * 21 + "A", "subject": "s" * 21 + "A", "audience": "here"}


def claims(sealed_id: str | None = None, **other: Any) -> Claims:
    times = {"issued_at": START, "expires_at": START + 60}
    return Claims(kind=TRANSPORT, issuer="mcp-sessions", upstream=sealed_id, **{**times, **BOUND, **other})


def sealed(ring: KeyRing = RING, **other: Any) -> str:
    return seal.seal_upstream(ring.signing, SERVERS, claims(**other))


@pytest.mark.parametrize("ring", [RING, KeyRing([PRIVATE])], ids=["HS256", "EdDSA"])
def test_what_was_sealed_opens_for_its_session(ring: KeyRing) -> None:
    assert seal.open_upstream(ring.signing, claims(sealed(ring))) == SERVERS


def test_it_says_nothing_to_who_reads_it() -> None:
    """Not even in base64, and each session's is another."""
    assert base64url(SERVERS.encode())[:16] not in sealed()
    assert sealed() != sealed(jti="k" * 21 + "A")


def test_a_token_without_one_holds_none() -> None:
    assert seal.open_upstream(RING.signing, claims(None)) is None


@pytest.mark.parametrize(
    ("sealed_id", "other"),
    [
        (sealed(jti="k" * 21 + "A"), {}),
        (sealed(subject=None), {}),
        (sealed(audience="there"), {}),
        (sealed()[:-2], {}),
        ("A" + sealed()[1:], {}),
        ("not base64!", {}),
        ("AAAA", {}),
    ],
    ids=["session", "owner", "audience", "cut", "changed", "no text of ours", "short"],
)
def test_what_was_sealed_for_another_does_not_open(sealed_id: str, other: dict[str, Any]) -> None:
    with pytest.raises(SessionNotFound) as refused:
        seal.open_upstream(RING.signing, claims(sealed_id, **other))
    assert (refused.value.reason, refused.value.ref) == ("bridge_seal", claims(**other).ref)


def test_with_the_public_key_it_does_not_open() -> None:
    theirs = KeyRing([PRIVATE])
    public = KeyRing([SECRET, PUBLIC]).get(theirs.signing.kid)
    assert public is not None
    with pytest.raises(SessionNotFound) as refused:
        seal.open_upstream(public, claims(sealed(theirs)))
    assert (refused.value.reason, refused.value.ref) == ("bridge_key_unknown", claims().ref)


def test_what_is_sealed_for_one_purpose_opens_for_no_other() -> None:
    """A server's id cannot be passed off as state, though both are sealed for one session by one key."""
    key, nonce, mine = RING.signing, bytes(12), claims()
    for one, other in ((seal.STATE, seal.UPSTREAM), (seal.UPSTREAM, seal.STATE)):
        assert one.open(key, nonce, one.seal(key, nonce, b"{}", mine), mine) == b"{}"
        assert other.open(key, nonce, one.seal(key, nonce, b"{}", mine), mine) is None


def test_a_public_key_seals_nothing() -> None:
    public = KeyRing([SECRET, PUBLIC]).get(KeyRing([PRIVATE]).signing.kid)
    assert public is not None
    with pytest.raises(ValueError, match="cannot seal"):
        seal.seal_upstream(public, SERVERS, claims())


@pytest.mark.parametrize(
    ("server_id", "can"),
    [("a", True), (SERVERS, True), ("~" * 256, True), ("", False), ("a" * 257, False), ("a b", False), ("ä", False)],
)
def test_visible_ascii_can_be_carried(server_id: str, can: bool) -> None:
    assert seal.can_carry(server_id) is can


def test_ids_stay_small() -> None:
    """768 bytes at the most with an owner, a trace and a UUID of the server's; the longest one fits, too."""
    tokens = Tokens(issuer="mcp-sessions", audience="here")
    owner = RING.signing.subject(Principal("client", "https://issuer.example", "alice"))
    made = claims(sealed(), trace=f"00-{'0' * 31}1-{'0' * 15}1-01", subject=owner)
    assert len(tokens.mint(RING, made)) <= 768
    longest = seal.seal_upstream(RING.signing, "~" * seal.MAX_SERVER_ID, claims())
    assert tokens.mint(RING, msgspec.structs.replace(made, upstream=longest))

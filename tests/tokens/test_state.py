"""A sealed state, and the wrapped server's sealed transport id, open for their own session alone."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from signers import ED25519, NEW, OLD, private_pem, public_pem

from mcp_sessions._errors import SessionNotFound, StateUnreadable
from mcp_sessions._session.claims import SESSION, TRANSPORT, Claims, Principal
from mcp_sessions._tokens import seal
from mcp_sessions._tokens.jwt import Tokens
from mcp_sessions._tokens.keys import KeyRing, base64url

NOW = 1_800_000_000
PRIVATE, PUBLIC = private_pem(ED25519), public_pem(ED25519)

RING = KeyRing([OLD])
KID = RING.signing.kid
BOUND: dict[str, Any] = {"jti": "j" * 22, "subject": "s" * 22, "audience": "mcp-sessions"}


def claims(**changes: Any) -> Claims:
    others = {"issuer": "mcp-sessions", "kind": SESSION, "issued_at": NOW, "expires_at": NOW + 60}
    return Claims(**{**others, **BOUND, **changes})


CART = b'{"cart":1}'


def sealed(payload: bytes = CART, ring: KeyRing = RING, *, last_seen: int = NOW, **changes: Any) -> str:
    return seal.seal(ring.signing, payload, claims(**changes), last_seen=last_seen)


def opened(
    token: Any, ring: KeyRing = RING, *, max_bytes: int = 4096, now: float = NOW, **changes: Any
) -> seal.UnsealedState:
    return seal.open(ring, token, claims(**changes), max_bytes=max_bytes, now=now)


def reason(token: Any, ring: KeyRing = RING, **changes: Any) -> str:
    with pytest.raises(StateUnreadable) as refused:
        opened(token, ring, **changes)
    assert refused.value.__cause__ is None
    return refused.value.reason


@given(st.binary(max_size=300), st.integers(0, NOW), st.none() | st.text("ab", max_size=3))
def test_what_was_sealed_opens_with_the_time_it_was_seen(text: bytes, last_seen: int, subject: str | None) -> None:
    payload = b'{"text":"' + text.hex().encode() + b'"}'
    token = sealed(payload, last_seen=last_seen, subject=subject)
    assert opened(token, subject=subject) == seal.UnsealedState(payload, last_seen)
    assert len(token) == seal.sealed_size(len(payload))


def test_the_format_is_pinned() -> None:
    """A state sealed by an earlier release opens. It names its key, shows nothing, and no two are alike."""
    token = seal.seal(RING.signing, CART, claims(), last_seen=NOW, nonce=bytes(12))
    assert token == f"v1.{KID}.AAAAAAAAAAAAAAAA7VhxRDfAEdq5dXGuxFHDCOePnkVKqhiZ02vxNazOA0EZfA"
    assert opened(token).payload == CART
    assert sealed() != sealed()


@pytest.mark.parametrize("changes", [{"jti": "k" * 22}, {"subject": None}, {"subject": ""}, {"audience": "other"}])
def test_a_state_opens_for_its_own_session_principal_and_audience_alone(changes: dict[str, Any]) -> None:
    assert reason(sealed(), **changes) == "state_seal"
    assert opened(sealed(**changes), **changes).last_seen == NOW


def test_a_state_survives_a_rotation_until_its_key_is_gone() -> None:
    """Each is opened by the key that it names, sealed by the first one, and bound to no token's key."""
    assert opened(sealed(), KeyRing([NEW, OLD])).payload == CART
    assert opened(sealed(ring=KeyRing([NEW, OLD])), KeyRing([OLD, NEW])).payload == CART
    assert reason(sealed(), KeyRing([NEW])) == "state_key_unknown"
    assert reason(sealed().replace(KID, KeyRing([NEW]).signing.kid), KeyRing([OLD, NEW])) == "state_seal"


def test_a_state_from_the_future_is_refused() -> None:
    """A minute of clock difference is allowed; a strange clock allows nothing."""
    assert opened(sealed(last_seen=NOW + 60)).last_seen == NOW + 60
    assert reason(sealed(last_seen=NOW + 61)) == "state_from_the_future"
    assert reason(sealed(), now=float("nan")) == "state_from_the_future"


def test_the_size_is_judged_before_anything_else() -> None:
    token = sealed(b'{"text":"' + b"x" * 500 + b'"}')
    assert opened(token, max_bytes=len(token)).last_seen == NOW
    assert reason(token, max_bytes=len(token) - 1) == "state_size"
    assert reason("x" * 10_000_000) == "state_size"


GOOD = "." + base64url(bytes(40))


@pytest.mark.parametrize(
    ("token", "why"),
    [
        *((f"v1.{KID}{rest}", "state_shape") for rest in (".", "x" + GOOD, GOOD[:-1] + "B", GOOD + "\n")),
        (f"v2.{KID}{GOOD}", "state_shape"),
        (f"v1.{KID}.{base64url(bytes(35))}", "state_shape"),
        (f"v1.{KID}.{base64url(bytes(36))}", "state_seal"),
        (f"v1.AAAAAAAA{GOOD}", "state_key_unknown"),
        (b"v1", "state_size"),
    ],
)
def test_what_is_no_state_token_is_refused(token: Any, why: str) -> None:
    assert reason(token) == why


def test_every_changed_character_is_seen() -> None:
    token = sealed()
    for place, character in enumerate(token):
        for other in set("AQgw_.") - {character}:
            assert reason(token[:place] + other + token[place + 1 :]).startswith("state_")


@given(st.text(max_size=100))
def test_no_text_raises_anything_but_our_error(text: str) -> None:
    assert reason(text).startswith("state_")
    assert reason(f"v1.{KID}.{text}").startswith("state_")


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"null", b"{}x", b'{"a":"\xff"}', b'{"a":"\\ud800"}', b'{"a":' + b"[" * 30_000 + b"]" * 30_000 + b"}"),
    ],
)
def test_what_is_sealed_is_a_json_object_or_unreadable(payload: bytes) -> None:
    """Even under the right key: an application must never meet a state that it cannot read."""
    assert reason(sealed(payload), max_bytes=100_000) == "state_not_an_object"


# --- the wrapped server's transport id ---------------------------------------------------------------

SERVERS = "3fa85f64-5717-4562-b3fc-2c963f66afa6"
OWNED: dict[str, Any] = {"kind": TRANSPORT, "jti": "j" * 21 + "A", "subject": "s" * 21 + "A"}


def bridged(sealed_id: str | None = None, **changes: Any) -> Claims:
    return claims(**{**OWNED, "upstream": sealed_id, **changes})


UPSTREAM = seal.Upstream(SERVERS, "o" * 11, "p" * 22)


def sealed_server_id(ring: KeyRing = RING, **changes: Any) -> str:
    return seal.seal_upstream(ring.signing, UPSTREAM, bridged(**changes))


@pytest.mark.parametrize("ring", [RING, KeyRing([PRIVATE])], ids=["HS256", "EdDSA"])
def test_what_was_sealed_opens_for_its_session_and_says_nothing_to_others(ring: KeyRing) -> None:
    assert seal.open_upstream(ring.signing, bridged(sealed_server_id(ring))) == UPSTREAM
    assert seal.open_upstream(ring.signing, bridged(None)) is None
    assert base64url(SERVERS.encode())[:16] not in sealed_server_id(ring)
    assert sealed_server_id(ring) != sealed_server_id(ring, jti="k" * 21 + "A")


@pytest.mark.parametrize(
    "sealed_id",
    [
        sealed_server_id(jti="k" * 21 + "A"),
        sealed_server_id(subject=None),
        sealed_server_id(audience="there"),
        "A" + sealed_server_id()[1:],
        "not base64!",
        "AAAA",
    ],
    ids=["session", "owner", "audience", "changed", "no text of ours", "short"],
)
def test_what_was_sealed_for_another_does_not_open(sealed_id: str) -> None:
    with pytest.raises(SessionNotFound) as refused:
        seal.open_upstream(RING.signing, bridged(sealed_id))
    assert (refused.value.reason, refused.value.ref) == ("bridge_seal", bridged().ref)


def test_a_public_key_neither_seals_nor_opens() -> None:
    private, public = KeyRing([PRIVATE]), KeyRing([OLD, PUBLIC])
    half = public.get(private.signing.kid)
    assert half is not None
    assert reason(sealed(ring=private), public) == "state_key_unknown"
    with pytest.raises(SessionNotFound) as refused:
        seal.open_upstream(half, bridged(sealed_server_id(private)))
    assert (refused.value.reason, refused.value.ref) == ("bridge_key_unknown", bridged().ref)
    with pytest.raises(ValueError, match=r"^a public key cannot seal$"):
        seal.seal(half, b"{}", claims(), last_seen=NOW)


def test_what_is_sealed_for_one_purpose_opens_for_no_other() -> None:
    """A server's id cannot be passed off as state, though both are sealed for one session by one key."""
    key, nonce, mine = RING.signing, bytes(12), bridged()
    for one, other in ((seal.STATE, seal.UPSTREAM), (seal.UPSTREAM, seal.STATE)):
        assert one.open(key, nonce, one.seal(key, nonce, b"{}", mine), mine) == b"{}"
        assert other.open(key, nonce, one.seal(key, nonce, b"{}", mine), mine) is None


def test_visible_ascii_can_be_carried_in_an_id_that_stays_small() -> None:
    """768 bytes at the most with an owner, a trace and a UUID of the server's; the longest one fits, too."""
    tokens, longest = Tokens(issuer="mcp-sessions", audience="mcp-sessions"), "~" * seal.MAX_SERVER_ID
    assert all(map(seal.can_carry, ("a", SERVERS, longest)))
    assert not any(map(seal.can_carry, ("", longest + "a", "a b", "ä")))
    owner = RING.signing.subject(Principal("client", "https://issuer.example", "alice"))
    made = bridged(sealed_server_id(), trace=f"00-{'0' * 31}1-{'0' * 15}1-01", subject=owner)
    assert len(tokens.mint(RING, made)) <= 768
    upstream = msgspec.structs.replace(UPSTREAM, server_id=longest)
    assert tokens.mint(RING, msgspec.structs.replace(made, upstream=seal.seal_upstream(RING.signing, upstream, made)))


def test_ids_that_were_sealed_alone_still_open() -> None:
    """As before workers had names."""
    made = bridged()
    sealed = base64url(seal.UPSTREAM.seal(RING.signing, seal._nonce(made), SERVERS.encode(), made))
    assert seal.open_upstream(RING.signing, bridged(sealed)) == seal.Upstream(SERVERS)

"""A handle that was misquoted is found out, whatever was done to it, and the error says what to do."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signers import ED25519, NEW, OLD, private_pem, public_pem

from mcp_sessions import ConfigurationError, KeyRing, MCPSessionsError, Principal
from mcp_sessions.handles import (
    ALPHABET,
    BITS,
    BODY_CHARS,
    LAYOUT,
    MAX_CHARS,
    MAX_TYPE_CHARS,
    Handle,
    HandleError,
    Holder,
    check_type,
    make_id,
    mint,
    pattern,
    verify,
)

NOW = 1_800_000_000
DAY = 86_400
RING = KeyRing([OLD])
SIGNING = KeyRing([private_pem(ED25519)])

ANN = Holder("shop", Principal("desk", "https://id.example", "ann"))
ID = "0123456789abcdefghjkmnpqrs"

types = st.from_regex(r"[a-z][a-z0-9]{0,5}(_[a-z0-9]{1,4}){0,2}", fullmatch=True).filter(
    lambda text: len(text) <= MAX_TYPE_CHARS
)
names = st.none() | st.text(max_size=5)
holders = st.builds(
    Holder, st.text(max_size=5), st.none() | st.builds(Principal, names, names, names), st.none() | st.text(max_size=5)
)


def minted(type: str = "basket", holder: Holder = ANN, *, ring: KeyRing = RING, expires_at: int | None = None) -> str:
    return mint(ring.signing, type, make_id(), holder, expires_at=expires_at)


def verified(
    text: object,
    type: str = "basket",
    holder: Holder = ANN,
    *,
    ring: KeyRing = RING,
    now: float = NOW,
    lifetime: float | None = None,
) -> Handle:
    return verify(ring, type, text, holder, now=now, lifetime=lifetime)


def refusal(text: object, type: str = "basket", holder: Holder = ANN, *, ring: KeyRing = RING) -> HandleError:
    with pytest.raises(HandleError) as refused:
        verified(text, type, holder, ring=ring)
    assert refused.value.__cause__ is None
    assert isinstance(refused.value, MCPSessionsError)
    assert isinstance(refused.value, ValueError)
    return refused.value


# --- what a handle is ----------------------------------------------------------------------------


def test_the_layout_is_pinned() -> None:
    """130 random bits, 65 bits of tag, no character that looks like another, at most 64 characters in all."""
    assert {part: BITS * width for part, width in LAYOUT.items()} == {"key": 10, "id": 130, "expiry": 35, "tag": 65}
    assert (BODY_CHARS, MAX_TYPE_CHARS, MAX_CHARS) == (48, 15, 64)
    assert len(set(ALPHABET)) == 1 << BITS
    assert set(string.ascii_lowercase + string.digits) - set(ALPHABET) == set("ilou")


def test_a_handle_is_pinned() -> None:
    """One that was minted by an earlier release verifies; the same arguments give the same text."""
    text = mint(RING.signing, "basket", ID, ANN, expires_at=NOW + DAY)
    assert text == "basket_d40123456789abcdefghjkmnpqrs1nmp8w0hdc57kq0zep4z"
    assert verified(text) == Handle("basket", ID, NOW + DAY, False, text)


@given(types, holders, st.none() | st.integers(1, 2 ** (BITS * LAYOUT["expiry"]) - 1), st.sampled_from([RING, SIGNING]))
def test_what_was_minted_verifies(type: str, holder: Holder, expires_at: int | None, ring: KeyRing) -> None:
    """Any type, any holder, any time, any key that can sign: every part comes back."""
    text = minted(type, holder, ring=ring, expires_at=expires_at)
    found = verified(text, type, holder, ring=ring, now=0)
    assert found == Handle(type, found.id, expires_at, holder.session is not None, text)
    assert text == f"{check_type(type)}_{text[-BODY_CHARS:]}"
    assert found.id in text
    assert len(text) <= MAX_CHARS
    assert re.search(pattern(type), text)


def test_no_two_handles_name_one_object() -> None:
    assert len({make_id() for _ in range(1000)}) == 1000
    assert {len(make_id()) for _ in range(10)} == {LAYOUT["id"]}


def test_a_verified_handle_shows_its_id_and_not_its_text() -> None:
    """The id is worthless as a handle, so it may be logged."""
    found = verified(minted())
    assert found.id in repr(found)
    assert found.text[-LAYOUT["tag"] :] not in repr(found)
    assert refusal(f"basket_{found.id}").reason == "malformed"


@pytest.mark.parametrize("type", ["", "Basket", "2fa", "a-b", "a__b", "_a", "a_", "a" * 16, "ü", "a\n", None])
def test_what_cannot_stand_in_a_handle_is_no_type(type: str) -> None:
    with pytest.raises(ConfigurationError, match="at most 15 lower-case letters and digits"):
        check_type(type)


# --- everything that a model may do to a handle --------------------------------------------------

PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))


def substituted(text: str) -> Iterator[str]:
    return (text[:at] + other + text[at + 1 :] for at in range(len(text)) for other in PRINTABLE if other != text[at])


def shortened(text: str) -> Iterator[str]:
    return (text[:at] + text[at + 1 :] for at in range(len(text)))


def lengthened(text: str) -> Iterator[str]:
    return (text[:at] + more + text[at:] for at in range(len(text) + 1) for more in PRINTABLE)


def transposed(text: str) -> Iterator[str]:
    pairs = (at for at in range(len(text) - 1) if text[at] != text[at + 1])
    return (text[:at] + text[at + 1] + text[at] + text[at + 2 :] for at in pairs)


@pytest.mark.parametrize("misquote", [substituted, shortened, lengthened, transposed])
def test_every_slip_of_one_character_is_found_out(misquote: Callable[[str], Iterator[str]]) -> None:
    """Each of them, at every place, with every printable character; and no error repeats what was sent."""
    text = mint(RING.signing, "basket", ID, ANN, expires_at=NOW + DAY)
    others = {other: refusal(other) for other in misquote(text)}
    assert text not in others
    assert len(others) >= 50
    assert {error.reason for error in others.values()} <= {"malformed", "unknown"}
    assert not any(ID[:8] in str(error) or text[-8:] in str(error) for error in others.values())


def test_parts_of_two_handles_make_none() -> None:
    one, two = minted(), minted()
    cuts = [one[:at] + two[at:] for at in range(8, len(one))]
    assert {refusal(cut).reason for cut in cuts if cut not in {one, two}} == {"unknown"}


@pytest.mark.parametrize(("one", "other"), [("basket", "browser"), ("price", "price_list"), ("price_list", "price")])
def test_a_handle_of_another_type_is_found_out(one: str, other: str) -> None:
    """Also where one type's name begins with the other's; and no other prefix makes it one of that type."""
    text = minted(one)
    assert refusal(text, other).reason == "other_type"
    assert refusal(text.replace(one, other, 1), other).reason == "unknown"
    assert refusal(text.replace(one, other, 1), one).reason == "unknown"


STRANGERS = [
    Holder("other", ANN.principal),
    Holder("shop"),
    Holder("shop", Principal()),
    Holder("shop", Principal("desk", "https://id.example", "bob")),
    Holder("shop", Principal("phone", "https://id.example", "ann")),
    Holder("shop", Principal("desk", "https://other.example", "ann")),
    Holder("shop", Principal("desk", None, "ann")),
]


@pytest.mark.parametrize("one", [ANN, *STRANGERS])
def test_somebody_elses_handle_is_found_out(one: Holder) -> None:
    """Another user's, another client's, another issuer's, an anonymous one, another server's: none says which."""
    text, old = minted(holder=one), minted(holder=one, expires_at=NOW)
    assert verified(text, holder=one).text == text
    for other in {ANN, *STRANGERS} - {one}:
        assert str(refusal(text, holder=other)) == str(refusal(old, holder=other)) == UNKNOWN
        assert str(refusal(text, "browser", holder=other)) == UNKNOWN.replace("basket", "browser")


def test_a_handle_that_is_bound_to_a_session_is_good_there_alone() -> None:
    a, b, none = (Holder("shop", ANN.principal, session) for session in ("ses_a", "ses_b", None))
    bound, free = minted(holder=a), minted(holder=none)
    assert [verified(bound, holder=a).bound, verified(free, holder=a).bound] == [True, False]
    assert verified(free, holder=b) == verified(free, holder=none)
    assert {refusal(bound, holder=holder).reason for holder in (b, none)} == {"unknown"}


@given(st.text() | st.text(ALPHABET + "_", min_size=50, max_size=60) | st.from_regex(pattern("basket"), fullmatch=True))
def test_no_text_verifies_that_was_not_minted(text: str) -> None:
    assert refusal(text).reason in {"malformed", "unknown"}


@pytest.mark.parametrize("sent", [None, 5, True, b"basket", ["basket"], {}])
def test_what_is_no_string_is_no_handle(sent: object) -> None:
    assert str(refusal(sent)) == "not a basket handle: a handle is a string"


def test_a_huge_text_is_refused_for_its_beginning() -> None:
    assert "those begin with basket_" in str(refusal("x" * 10_000_000))
    assert "is too long" in str(refusal("basket_" + "0" * 10_000_000))


# --- errors for the model ----------------------------------------------------------------------

SENT = "basket_d40123456789abcdefghjkmnpqrs1nmp8w0hdc57kq0zep4z"
UNKNOWN = "not one of your basket handles: copy the handle again exactly as it was given, or create a new basket"
AROUND = "not a basket handle as it stands: send it alone, with no spaces, quotes or punctuation around it"
CASE = "not a basket handle as it stands: handles are lower case; copy it again exactly as it was given"
BEGIN = "not a basket handle: those begin with basket_; copy it again exactly as it was given, or create a new basket"
SHORT = "this basket handle was cut short: copy all 55 characters of it"
LONG = "this basket handle is too long: copy its 55 characters and nothing else"
MISTYPED = "this basket handle was mistyped: copy it again exactly as it was given"


@pytest.mark.parametrize(
    ("sent", "advice"),
    [
        *((around.format(SENT), AROUND) for around in ("`{}`", " {}", "{}\n", "**{}**,")),
        *((text, CASE) for text in (SENT.upper(), SENT.capitalize())),
        *((text, BEGIN) for text in ("", "the basket", SENT[7:], SENT.replace("_", "-"))),
        *((text, SHORT) for text in ("basket_", SENT[:-1], SENT[:12] + "...", SENT[:20] + SENT[30:])),
        *((text, LONG) for text in (SENT + "0", SENT + " " + SENT)),
        *((SENT[:20] + wrong + SENT[21:], MISTYPED) for wrong in ("i", "O", "-", " ", "٠")),
        *((text, UNKNOWN) for text in (SENT[:-1] + "0", "basket_" + SENT, SENT.replace("basket", "baskte"))),
    ],
)
def test_each_slip_is_named_in_words_to_act_on(sent: str, advice: str) -> None:
    """What surrounds a handle is not forgiven, since what is sent must be what was given; but it is named."""
    assert verified(SENT).id == ID
    assert str(refusal(sent)) == advice


@pytest.mark.parametrize(
    ("type", "other", "advice"),
    [
        ("basket", "browser", "not a basket handle: it is a browser handle"),
        ("order", "price_list", "not an order handle: it is a price list handle"),
    ],
)
def test_a_mix_up_of_ones_own_handles_is_named(type: str, other: str, advice: str) -> None:
    """Only for a handle that verifies: what a text merely claims to be is not repeated."""
    assert str(refusal(minted(other), type)) == str(refusal(minted(other, expires_at=NOW), type)) == advice
    assert "other" not in str(refusal(f"other_{SENT[7:]}"))


@pytest.mark.parametrize(
    ("lifetime", "advice"),
    [
        (None, "expired: create a new basket"),
        (90, "expired: basket handles live 90 s; create a new basket"),
        (DAY, "expired: basket handles live 24 h; create a new basket"),
        (36 * 3600.0, "expired: basket handles live 36 h; create a new basket"),
    ],
)
def test_an_expired_handle_says_how_long_they_live(lifetime: float | None, advice: str) -> None:
    with pytest.raises(HandleError) as refused:
        verified(minted(expires_at=NOW), lifetime=lifetime)
    assert str(refused.value) == advice


def test_the_time_of_a_handle_ends_with_its_second() -> None:
    """It is good before that second and not in it; a strange clock lets nothing pass; without a time it is good."""
    text = minted(expires_at=NOW)
    assert verified(text, now=NOW - 0.001).expires_at == NOW
    for now in (NOW, NOW + 0.001, math.inf, math.nan):
        with pytest.raises(HandleError, match="expired: create"):
            verified(text, now=now)
    assert verified(minted(), now=math.inf).expires_at is None


# --- keys ----------------------------------------------------------------------------------------


def test_a_handle_survives_a_rotation_until_its_key_is_gone() -> None:
    text = minted()
    assert verified(text, ring=KeyRing([NEW, OLD])).text == text
    assert verified(minted(ring=KeyRing([NEW, OLD])), ring=KeyRing([OLD, NEW])).type == "basket"
    assert refusal(text, ring=KeyRing([NEW])).reason == "unknown"


def test_a_handle_cannot_be_moved_to_another_key() -> None:
    text, other = minted(), minted(ring=KeyRing([NEW]))
    moved = text[:7] + other[7:9] + text[9:]
    assert moved != text
    assert refusal(moved, ring=KeyRing([OLD, NEW])).reason == "unknown"


def test_keys_that_share_their_short_name_verify_their_own_handles() -> None:
    """10 bits tell few keys apart, so every key of that name is tried."""
    candidates = (f"{number} {NEW}" for number in range(100_000))
    twin = next(secret for secret in candidates if minted(ring=KeyRing([secret]))[7:9] == minted()[7:9])
    for text in (minted(), minted(ring=KeyRing([twin]))):
        assert verified(text, ring=KeyRing([OLD, twin])).text == text


def test_a_public_key_makes_no_handles() -> None:
    """Nor does it verify those of its private half: what everybody has authenticates nothing."""
    text = minted(ring=SIGNING)
    assert refusal(text, ring=KeyRing([OLD, public_pem(ED25519)])).reason == "unknown"

"""`Handles` mints handles that their owner alone can use, and a misquoted one is refused in words to act on."""

import math
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import fastmcp.server.dependencies as fastmcp_dependencies
import pytest
from clients import START, Clock, http
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from signers import ED25519, NEW, OLD, private_pem, public_pem
from starlette.requests import Request

from mcp_sessions import ConfigurationError, KeyRing, MCPSessionsError, Principal
from mcp_sessions.handles import ALPHABET, DATA_KEY, Handle, HandleError, Handles, current_principal, pattern
from mcp_sessions.testing import session_for_test

DAY = 86_400
ISSUER = "https://id.example"
ANN, BOB = Principal("desk", ISSUER, "ann"), Principal("desk", ISSUER, "bob")


def made(
    keys: Any = OLD, *, audience: str = "shop", caller: Principal | None = ANN, now: float = START, **options: Any
) -> Handles:
    return Handles(keys, audience=audience, principal=lambda: caller, clock=Clock(now), **options)


HANDLES = made(lifetimes={"basket": DAY})
ID = "0123456789abcdefghjkmnpqrs"
PINNED = "basket_d40123456789abcdefghjkmnpqrs1nmp8w0hdc57kq0zep4z"
"""A handle of `HANDLES` that an earlier release minted."""


def refusal(handle: object, type: str = "basket", handles: Handles = HANDLES, **changes: Any) -> HandleError:
    with pytest.raises(HandleError) as refused:
        handles.verify(type, handle, **changes)
    assert isinstance(refused.value, MCPSessionsError)
    assert isinstance(refused.value, ValueError)
    assert refused.value.__cause__ is None
    return refused.value


# --- what a handle is ----------------------------------------------------------------------------


def test_a_handle_of_an_earlier_release_verifies() -> None:
    assert HANDLES.read("basket", PINNED) == Handle("basket", ID, START + DAY, False, PINNED)


@pytest.mark.parametrize("keys", [OLD, private_pem(ED25519)], ids=["a secret", "a private key"])
@pytest.mark.parametrize("type", ["a", "price_list_2", "x" * 15])
@pytest.mark.parametrize("lifetime", [None, 1, 2**30])
def test_what_was_minted_verifies(type: str, lifetime: int | None, keys: str) -> None:
    """And every part of it comes back."""
    handles = made(keys, lifetime=lifetime)
    text = handles.mint(type)
    found = handles.read(type, text)
    assert found == Handle(type, found.id, None if lifetime is None else START + lifetime, False, text)
    assert re.search(pattern(type), text)
    assert len(text) <= 64


def test_a_verified_handle_shows_its_id_and_not_its_text() -> None:
    """The id is worthless as a handle, so it may be logged; and `Handles` show no key."""
    shown = repr(HANDLES.read("basket", PINNED))
    assert ID in shown
    assert PINNED[-13:] not in shown
    assert refusal(f"basket_{ID}").reason == "malformed"
    assert repr(HANDLES) == "<Handles of shop>"


@pytest.mark.parametrize("type", ["", "Basket", "2fa", "a-b", "a__b", "_a", "a_", "a" * 16, "ü", "a\n", None])
def test_what_cannot_stand_in_a_handle_is_no_type(type: str) -> None:
    for use in (HANDLES.mint, HANDLES.type, lambda kind: HANDLES.verify(kind, "")):
        with pytest.raises(ConfigurationError, match="at most 15 lower-case letters and digits"):
            use(type)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"lifetime": 0}, "lifetime=0 must be from 1 to"),
        ({"lifetime": "1h"}, "lifetime='1h' must be"),
        ({"lifetimes": {"basket": 1e12}}, r"lifetimes\['basket'\]=1000000000000.0 must be"),
        ({"lifetimes": {"Basket": 1}}, "type='Basket' must be"),
        ({"audience": ""}, "audience must be"),
        ({"principal": ANN}, "principal= takes a function"),
        ({"keys": "short"}, "too short"),
    ],
)
def test_a_wrong_option_fails_at_construction(options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        Handles(**{"keys": OLD, **options})


# --- everything that a model may do to a handle --------------------------------------------------

PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))


SLIPS: dict[str, Callable[[str], Iterator[str]]] = {
    "another character": lambda text: (
        text[:at] + other + text[at + 1 :] for at in range(len(text)) for other in PRINTABLE if other != text[at]
    ),
    "a character too few": lambda text: (text[:at] + text[at + 1 :] for at in range(len(text))),
    "a character too many": lambda text: (
        text[:at] + more + text[at:] for at in range(len(text) + 1) for more in PRINTABLE
    ),
    "two that are swapped": lambda text: (
        text[:at] + text[at + 1] + text[at] + text[at + 2 :] for at in range(len(text) - 1) if text[at] != text[at + 1]
    ),
}


@pytest.mark.parametrize("misquote", SLIPS.values(), ids=SLIPS)
def test_every_slip_of_one_character_is_found_out(misquote: Callable[[str], Iterator[str]]) -> None:
    """Each of them, at every place, with every printable character; and no error repeats what was sent."""
    others = {other: refusal(other) for other in misquote(PINNED)}
    assert len(others) >= 50
    assert {error.reason for error in others.values()} <= {"malformed", "unknown"}
    assert not any(ID[:8] in str(error) or PINNED[-8:] in str(error) for error in others.values())


def test_parts_of_two_handles_make_none() -> None:
    one, two = HANDLES.mint("basket"), HANDLES.mint("basket")
    cuts = [one[:at] + two[at:] for at in range(8, len(one))]
    assert {refusal(cut).reason for cut in cuts if cut not in {one, two}} == {"unknown"}


@given(st.text() | st.text(ALPHABET + "_", min_size=50, max_size=60) | st.from_regex(pattern("basket"), fullmatch=True))
def test_no_text_verifies_that_was_not_minted(text: str) -> None:
    assert refusal(text).reason in {"malformed", "unknown"}


@pytest.mark.parametrize(("one", "other"), [("basket", "browser"), ("price", "price_list"), ("price_list", "price")])
def test_a_handle_of_another_type_is_found_out(one: str, other: str) -> None:
    """Also where one type's name begins with the other's; and no other prefix makes it one of that type."""
    text = HANDLES.mint(one)
    assert refusal(text, other).reason == "other_type"
    assert refusal(text.replace(one, other, 1), other).reason == "unknown"
    assert refusal(text.replace(one, other, 1), one).reason == "unknown"


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
        *((around.format(PINNED), AROUND) for around in ("`{}`", " {}", "{}\n", "**{}**,")),
        *((text, CASE) for text in (PINNED.upper(), PINNED.capitalize())),
        *((text, BEGIN) for text in ("", "the basket", PINNED[7:], PINNED.replace("_", "-"), "x" * 10_000_000)),
        *((text, SHORT) for text in ("basket_", PINNED[:-1], PINNED[:12] + "...", PINNED[:20] + PINNED[30:])),
        *((text, LONG) for text in (PINNED + "0", PINNED + " " + PINNED, "basket_" + "0" * 10_000_000)),
        *((PINNED[:20] + wrong + PINNED[21:], MISTYPED) for wrong in ("i", "O", "-", " ", "٠")),
        *((text, UNKNOWN) for text in (PINNED[:-1] + "0", "basket_" + PINNED, PINNED.replace("basket", "baskte"))),
        *((sent, "not a basket handle: a handle is a string") for sent in (None, 5, b"basket", ["basket"])),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_each_slip_is_named_in_words_to_act_on(sent: object, advice: str) -> None:
    """What surrounds a handle is not forgiven, since what is sent must be what was given; but it is named."""
    assert str(refusal(sent)) == advice


@pytest.mark.parametrize(
    ("type", "other", "advice"),
    [
        ("basket", "browser", "not a basket handle: it is a browser handle"),
        ("order", "price_list", "not an order handle: it is a price list handle"),
    ],
)
def test_a_mix_up_of_ones_own_handles_is_named(type: str, other: str, advice: str) -> None:
    """Only for a handle that verifies, expired or not: what a text merely claims to be is not repeated."""
    minted = made(lifetime=1).mint(other)
    assert [str(refusal(minted, type, made(now=now))) for now in (START, START + 1)] == [advice] * 2
    assert "other" not in str(refusal(f"other_{PINNED[7:]}"))


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lifetime", "lives"),
    [
        (None, ""),
        (90, " basket handles live 90 s;"),
        (DAY, " basket handles live 24 h;"),
        (timedelta(hours=36), " basket handles live 36 h;"),
    ],
)
def test_an_expired_handle_says_how_long_they_live(lifetime: Any, lives: str) -> None:
    handles = made(now=START + DAY, lifetime=lifetime)
    assert str(refusal(PINNED, handles=handles)) == f"expired:{lives} create a new basket"


def test_the_time_of_a_handle_ends_with_its_second() -> None:
    """It is good before that second and not in it; a strange clock lets nothing pass."""
    assert made(now=START + DAY - 0.001).verify("basket", PINNED) == ID
    for now in (START + DAY, math.inf, math.nan):
        assert refusal(PINNED, handles=made(now=now)).reason == "expired"


def test_a_handle_lives_as_long_as_its_type() -> None:
    """`lifetimes` says so for a type, where None is for ever, and `lifetime` for all others."""
    handles = made(lifetime=timedelta(minutes=90), lifetimes={"basket": DAY, "account": None})
    expiries = [handles.read(kind, handles.mint(kind)).expires_at for kind in ("basket", "browser", "account")]
    assert expiries == [START + DAY, START + 5400, None]


# --- keys ----------------------------------------------------------------------------------------


def test_a_handle_survives_a_rotation_until_its_key_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys come from where session keys come from."""
    monkeypatch.setenv("HANDLE_KEYS", OLD)
    for keys in ("env:HANDLE_KEYS", KeyRing([NEW, OLD]), KeyRing([OLD, NEW])):
        assert made(keys).verify("basket", PINNED) == ID
    moved = PINNED[:7] + made(NEW).mint("basket")[7:9] + PINNED[9:]  # to the other key's name
    for text, keys in ((PINNED, NEW), (moved, KeyRing([OLD, NEW]))):
        assert refusal(text, handles=made(keys)).reason == "unknown"


def test_keys_that_share_their_short_name_verify_their_own_handles() -> None:
    """10 bits tell few keys apart, so every key of that name is tried."""
    candidates = (f"{number} {NEW}" for number in range(100_000))
    twin = next(secret for secret in candidates if made(secret).mint("basket")[7:9] == PINNED[7:9])
    for text in (PINNED, made(twin).mint("basket")):
        assert made(KeyRing([OLD, twin])).verify("basket", text)


def test_a_public_key_verifies_no_handles() -> None:
    """What everybody has authenticates nothing."""
    text = made(private_pem(ED25519)).mint("basket")
    assert refusal(text, handles=made(KeyRing([OLD, public_pem(ED25519)]))).reason == "unknown"


# --- whose a handle is ---------------------------------------------------------------------------

HOLDERS: dict[str, dict[str, Any]] = {
    "ann": {},
    "of another server": {"audience": "other"},
    "anonymous": {"caller": None},
    "anonymous by name": {"caller": Principal()},
    "another user": {"caller": BOB},
    "another client": {"caller": Principal("phone", ISSUER, "ann")},
    "another issuer": {"caller": Principal("desk", "https://other.example", "ann")},
    "no issuer": {"caller": Principal("desk", None, "ann")},
}


@pytest.mark.parametrize("one", HOLDERS)
def test_somebody_elses_handle_is_found_out(one: str) -> None:
    """It is unknown to all others, whatever its type and age."""
    text = made(**HOLDERS[one], lifetime=60).mint("basket")
    assert made(**HOLDERS[one]).verify("basket", text)
    for other in HOLDERS.keys() - {one}:
        answers = {str(refusal(text, handles=made(**HOLDERS[other], now=now))) for now in (START, START + 60)}
        assert answers == {UNKNOWN}
        assert str(refusal(text, "browser", made(**HOLDERS[other]))) == UNKNOWN.replace("basket", "browser")


def user(subject: str) -> AuthenticatedUser:
    return AuthenticatedUser(AccessToken(token="t", client_id="desk", scopes=[], subject=subject))


def test_the_caller_is_the_owner_of_the_session_or_who_was_authenticated() -> None:
    """A framework's own request comes before the SDK's variable, which may be another request's."""
    assert current_principal() is None
    token = auth_context_var.set(user("of the SDK"))
    assert current_principal() == Principal("desk", None, "of the SDK")
    with session_for_test(principal=ANN):
        assert current_principal() == ANN
    variable: Any = vars(fastmcp_dependencies)["_current_http_request"]
    request = variable.set(Request(http(user=user("of the request"))))
    assert current_principal() == Principal("desk", None, "of the request")
    variable.reset(request)
    auth_context_var.reset(token)


def test_the_application_may_say_who_is_calling() -> None:
    """`principal=` is asked each time, and comes before the session's; a call's own comes before both."""
    callers = [ANN, ANN, BOB]
    handles = Handles(OLD, principal=lambda: callers.pop(0))
    handle = handles.mint("basket")
    with session_for_test(principal=BOB):
        assert handles.verify("basket", handle)
    assert refusal(handle, handles=handles).reason == "unknown"
    assert handles.verify("basket", handle, principal=ANN)


def test_a_handle_may_be_bound_to_a_session() -> None:
    """It is good in that session alone, which by default is the current one; an unbound one is good in every one."""
    handles = Handles(OLD)
    with session_for_test(principal=ANN) as a:
        bound, free = handles.mint("basket", session=a), handles.mint("basket")
        assert [handles.read("basket", handle).bound for handle in (bound, free)] == [True, False]
        assert refusal(bound, handles=handles, session=None).reason == "unknown"
    assert handles.verify("basket", bound, session=a)
    assert refusal(bound, handles=handles, principal=ANN).reason == "unknown"
    with session_for_test(principal=ANN):
        assert refusal(bound, handles=handles).reason == "unknown"
        assert handles.verify("basket", free)


# --- the handles that a session keeps ------------------------------------------------------------


async def test_a_session_lists_the_handles_that_it_keeps() -> None:
    """For a model that lost its handles: oldest first, of one type or of all, bound or not, each once."""
    with session_for_test() as other, session_for_test() as session:
        assert await HANDLES.of(session) == []
        basket = await HANDLES.keep(session, "basket", HANDLES.mint("basket"))
        browser = await HANDLES.keep(session, "browser", HANDLES.mint("browser", session=session))
        await HANDLES.keep(session, "basket", basket)
        assert await HANDLES.of(session) == [basket, browser]
        assert await HANDLES.of(session, "browser") == [browser]
        assert await HANDLES.of(other) == []
        await HANDLES.forget(session, HANDLES.verify("basket", basket))
        assert await HANDLES.of(session) == [browser]
        assert HANDLES.verify("basket", basket)


@pytest.mark.parametrize("handle", ["basket_mistyped", made(caller=BOB).mint("basket")], ids=["mistyped", "another's"])
async def test_a_session_keeps_nothing_that_does_not_work_in_it(handle: str) -> None:
    with session_for_test() as session:
        with pytest.raises(HandleError):
            await HANDLES.keep(session, "basket", handle)
        assert await HANDLES.of(session) == []


async def test_expired_handles_are_not_listed_and_not_kept_for_long() -> None:
    clock = Clock()
    handles = Handles(OLD, clock=clock, lifetimes={"basket": 60})
    with session_for_test() as session:
        await handles.keep(session, "basket", handles.mint("basket"))
        account = await handles.keep(session, "account", handles.mint("account"))
        clock.now += 60
        assert await handles.of(session) == [account]
        browser = await handles.keep(session, "browser", handles.mint("browser"))
        assert await handles.of(session) == [account, browser]
        assert [kind for kind, _, _ in (await session.data.get(DATA_KEY)).values()] == ["account", "browser"]


async def test_kept_handles_outlive_the_key_that_made_them() -> None:
    """They are made anew under the key that signs now, and name the same objects."""
    with session_for_test() as session:
        old = await HANDLES.keep(session, "basket", HANDLES.mint("basket", session=session))
        rolled = made(NEW)
        (new,) = await rolled.of(session)
        assert new != old
        assert rolled.verify("basket", new) == HANDLES.verify("basket", old)


async def test_no_handle_lies_in_the_store() -> None:
    """Only what is public in it: who reads the store can use none."""
    with session_for_test() as session:
        handle = await HANDLES.keep(session, "basket", HANDLES.mint("basket", session=session))
        name = HANDLES.verify("basket", handle)
        assert await session.data.get(DATA_KEY) == {name: ["basket", START + DAY, True]}

"""`Handles` mints handles that their owner alone can use, and a misquoted one is refused in words to act on.

As types of tool arguments they meet real servers of every framework.
"""

import logging
import math
import re
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Final

import fastmcp.server.dependencies as fastmcp_dependencies
import pytest
from clients import START, Clock, http
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from pydantic import Field, TypeAdapter, ValidationError, create_model
from signers import ED25519, NEW, OLD, private_pem, public_pem
from starlette.requests import Request

from mcp_sessions import ConfigurationError, DataError, KeyRing, MCPSessionsError, Principal, add_sessions
from mcp_sessions.handles import (
    ALPHABET,
    DATA_KEY,
    Handle,
    HandleError,
    HandleOf,
    Handles,
    _Installed,
    current_principal,
    pattern,
)
from mcp_sessions.testing import session_for_test

from .servers import CELLS, KEYS, Cell, Hall, bearer, running
from .servers import made as serving

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
@pytest.mark.parametrize(("type", "lifetime"), [("a", None), ("price_list_2", 1), ("x" * 15, 2**30)])
def test_every_part_of_what_was_minted_comes_back(type: str, lifetime: int | None, keys: str) -> None:
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


@pytest.mark.parametrize("type", ["", "Basket", "2fa", "a-b", "a__b", "a" * 16, "ü", "a\n", None])
def test_what_cannot_stand_in_a_handle_is_no_type(type: str) -> None:
    for use in (HANDLES.mint, HANDLES.type, lambda kind: HANDLES.verify(kind, "")):
        with pytest.raises(ConfigurationError, match="at most 15 lower-case letters and digits"):
            use(type)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"lifetime": 0}, "lifetime=0 must be from 1 to"),
        ({"lifetime": "1 week"}, "lifetime='1 week' must be"),
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


def slips(text: str) -> Iterator[str]:
    """A character that is another, missing or too many, and two that are swapped."""
    for at in range(len(text)):
        yield from (text[:at] + other + text[at + 1 :] for other in PRINTABLE)
        yield from (text[:at] + more + text[at:] for more in PRINTABLE)
        yield text[:at] + text[at + 1 :]
        yield text[:at] + text[at + 1 : at + 2] + text[at] + text[at + 2 :]


def test_every_slip_of_one_character_is_found_out() -> None:
    """Each of them, at every place, with every printable character; and no error repeats what was sent."""
    errors = [refusal(other) for other in {*slips(PINNED)} - {PINNED}]
    assert len(errors) > 10_000
    assert {error.reason for error in errors} <= {"malformed", "unknown"}
    assert not any(ID[:8] in str(error) or PINNED[-8:] in str(error) for error in errors)


@given(st.text() | st.text(ALPHABET + "_", min_size=50, max_size=60) | st.from_regex(pattern("basket"), fullmatch=True))
def test_no_text_verifies_that_was_not_minted(text: str) -> None:
    assert refusal(text).reason in {"malformed", "unknown"}


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
        *((around.format(PINNED), AROUND) for around in ("`{}`", " {}\n", "**{}**,")),
        *((text, CASE) for text in (PINNED.upper(), PINNED.capitalize())),
        *((text, BEGIN) for text in ("", "the basket", PINNED[7:], PINNED.replace("_", "-"), "x" * 10_000_000)),
        *((text, SHORT) for text in ("basket_", PINNED[:-1], PINNED[:12] + "...")),
        *((text, LONG) for text in (PINNED + "0", PINNED + " " + PINNED, "basket_" + "0" * 10_000_000)),
        *((PINNED[:20] + wrong + PINNED[21:], MISTYPED) for wrong in ("O", " ", "٠")),
        *((text, UNKNOWN) for text in (PINNED[:-1] + "0", "basket_" + PINNED, PINNED.replace("basket", "baskte"))),
        *((sent, "not a basket handle: a handle is a string") for sent in (None, ["basket"])),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_each_slip_is_named_in_words_to_act_on(sent: object, advice: str) -> None:
    """What surrounds a handle is not forgiven, since what is sent must be what was given; but it is named."""
    assert str(refusal(sent)) == advice


@pytest.mark.parametrize(
    ("type", "other", "advice"),
    [
        ("order", "price", "not an order handle: it is a price handle"),
        ("price", "price_list", "not a price handle: it is a price list handle"),
        ("price_list", "price", "not a price list handle: it is a price handle"),
    ],
)
def test_a_mix_up_of_ones_own_handles_is_named(type: str, other: str, advice: str) -> None:
    """Only for a handle that verifies, expired or not: what a text merely claims to be is not repeated."""
    minted = made(lifetime=1).mint(other)
    for now in (START, START + 1):
        assert str(refusal(minted, type, made(now=now))) == advice
    claimed = minted.replace(other, type, 1)
    assert {refusal(claimed, kind).reason for kind in (type, other)} == {"unknown"}


# --- time ----------------------------------------------------------------------------------------


def test_the_time_of_a_handle_ends_with_its_second() -> None:
    """It is good before that second and not in it; a strange clock lets nothing pass. An error says how long it is."""
    assert made(now=START + DAY - 0.001).verify("basket", PINNED) == ID
    clock = Clock()
    handles = Handles(OLD, audience="shop", principal=lambda: ANN, clock=clock)
    for clock.now in (START + DAY, math.inf, math.nan):
        assert str(refusal(PINNED, handles=handles)) == "expired: create a new basket"
    for lifetime, lives in ((90, "90 s"), (DAY, "24 h"), (timedelta(hours=36), "36 h")):
        error = refusal(PINNED, handles=made(now=START + DAY, lifetime=lifetime))
        assert (error.reason, str(error)) == ("expired", f"expired: basket handles live {lives}; create a new basket")


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
        for unusable in ("basket_mistyped", made(caller=BOB).mint("basket")):
            with pytest.raises(HandleError):
                await HANDLES.keep(other, "basket", unusable)
        assert await HANDLES.of(other) == []
        await HANDLES.forget(session, HANDLES.verify("basket", basket))
        assert await HANDLES.of(session) == [browser]
        assert HANDLES.verify("basket", basket)


async def test_expired_handles_are_not_listed_and_not_kept_for_long() -> None:
    """No handle lies in the store: only what is public in it, so who reads the store can use none."""
    clock = Clock()
    handles = Handles(OLD, clock=clock, lifetimes={"basket": 60})
    with session_for_test() as session:
        await handles.keep(session, "basket", handles.mint("basket"))
        account = await handles.keep(session, "account", handles.mint("account", session=session))
        clock.now += 60
        assert await handles.of(session) == [account]
        browser = await handles.keep(session, "browser", handles.mint("browser"))
        assert await handles.of(session) == [account, browser]
        assert await session.data.get(DATA_KEY) == {
            handles.verify("account", account): ["account", None, session.ref, " mcp-sessions"],
            handles.verify("browser", browser): ["browser", None, False, " mcp-sessions"],
        }


def reserved() -> list[str]:
    """Names under which a client might hope to reach what the package keeps in a session's data."""
    stored = str(DATA_KEY)
    spelt = [stored.strip("\0").replace("\0", between) for between in ("", "/", ":", ".", "\\u0000")]
    return [stored, stored.strip("\0"), *spelt, "mcp-sessions/handles", "handles", "kept", repr(DATA_KEY)]


async def test_no_name_in_data_mints_a_handle() -> None:
    """Neither through any method nor through a fork or a test's data; a name that looks so stays the application's."""
    forged = {ID: ["basket", None, False]}
    names = reserved()
    public = [name for name in names if "\0" not in name]
    with session_for_test(data=dict.fromkeys(public, forged)) as session:
        for name in names:
            for change in (
                partial(session.data.set, name, forged),
                partial(session.data.set, name, forged, ttl=60),
                partial(session.data.update, name, lambda _: forged),
            ):
                with nullcontext() if name in public else pytest.raises(DataError):
                    await change()
        assert await HANDLES.of(session) == []
        kept = await HANDLES.keep(session, "basket", HANDLES.mint("basket"))
        for name in public:
            assert await session.data.get(name) == forged
            await session.data.delete(name)
            assert await session.data.increment(name) == 1
        assert await HANDLES.of(session) == [kept]


async def test_kept_handles_stay_their_holders() -> None:
    """Handles of another audience, and of another principal in one session, are not minted anew for the caller."""
    with session_for_test() as session:
        for other in (made(audience="bank"), made(caller=BOB), made(caller=None)):
            await other.keep(session, "basket", other.mint("basket"))
            assert await HANDLES.of(session) == []
            assert len(await other.of(session)) == 1


async def test_kept_handles_outlive_the_key_that_made_them() -> None:
    """They are made anew under the key that signs now, and name the same objects."""
    with session_for_test() as session:
        for before, after in ((made(), made([NEW, OLD])), (Handles(OLD), Handles(NEW))):
            old = await before.keep(session, "basket", before.mint("basket", session=session))
            (new,) = await after.of(session)
            assert new != old
            assert after.verify("basket", new) == before.verify("basket", old)


# --- types of tool arguments ---------------------------------------------------------------------

INSTALLED: Final = Handles(KEYS, lifetimes={"basket": DAY}).install()
Basket = Annotated[str, INSTALLED.type("basket")]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handles above, whatever other tests of this process have installed, and after each test those again."""
    monkeypatch.setattr(_Installed, "type", staticmethod(INSTALLED.type))


def shown(name: str) -> str:
    """An id. Both forms are strings to a type checker, which the gate runs over this file."""
    return f"id {name}"


async def create(kind: str) -> str:
    return INSTALLED.mint(kind)


async def short(basket: HandleOf["basket"]) -> str:  # noqa: F821  # a word, which is no name and no annotation
    return shown(basket)


async def long(basket: Basket) -> str:
    return shown(basket)


async def whole(basket: Annotated[Handle, INSTALLED.type("basket")]) -> str:
    return f"id {basket.id} of {basket.text}"


def server(cell: Cell, hall: Hall | None = None, *, authenticated: bool = False) -> Any:
    return serving(cell, create, short, long, whole, authenticated=authenticated)


def with_sessions(cell: Cell, hall: Hall, **options: Any) -> Any:
    return add_sessions(server(cell, hall, **options), keys=KEYS)


every_cell = pytest.mark.parametrize(
    "cell", [cell for cell in CELLS if cell.stateful is not cell.modern and not cell.json], ids=str
)


@every_cell
async def test_a_tool_gets_the_verified_id(cell: Cell) -> None:
    """In each form; and models are told what a handle looks like."""
    async with running(cell, server) as up:
        client = await up.connected()
        tools = (await client.send("tools/list")).result["tools"]
        basket = await client.call("create", kind="basket")
        name = INSTALLED.verify("basket", basket)
        for tool in ("long", "short"):
            assert await client.call(tool, basket=basket) == f"id {name}"
        assert await client.call("whole", basket=basket) == f"id {name} of {basket}"
    schemas = {tool["name"]: tool["inputSchema"]["properties"].get("basket") for tool in tools}
    for tool in ("long", "short", "whole"):
        assert schemas[tool]["type"] == "string"
        assert schemas[tool]["description"] == "The handle of a basket, copied exactly as it was given"
        assert re.search(schemas[tool]["pattern"], basket)


@every_cell
async def test_a_wrong_handle_is_the_tools_error_and_says_what_to_do(
    cell: Cell, caplog: pytest.LogCaptureFixture
) -> None:
    """In words for the model, and with nothing of what was sent: not in the error, not in any log."""
    logging.getLogger("fastmcp").addHandler(caplog.handler)
    async with running(cell, server) as up:
        client = await up.connected()
        basket, browser = [await client.call("create", kind=kind) for kind in ("basket", "browser")]
        for sent, words in (
            (browser, "not a basket handle: it is a browser handle"),
            (basket[:-1] + ("1" if basket[-1] == "0" else "0"), UNKNOWN),
            ([basket], "not a basket handle: a handle is a string"),
        ):
            for tool in ("long", "short", "whole"):
                reply = await client.tool(tool, basket=sent)
                assert reply.result["isError"]
                assert words in reply.text
                assert not any(handle[10:40] in reply.text for handle in (basket, browser))
    logging.getLogger("fastmcp").removeHandler(caplog.handler)
    assert not any(handle[10:40] in caplog.text for handle in (basket, browser))


@every_cell
@pytest.mark.parametrize("make", [server, with_sessions])
async def test_what_one_user_was_given_no_other_can_use(cell: Cell, make: Any) -> None:
    """By their bearer tokens, in a session of the owner's or in none: not another user, nor another client."""
    async with running(cell, make, authenticated=True) as up:
        ann, bob, elsewhere = [await up.connected(**bearer(token)) for token in ("ann", "bob", "ann-elsewhere")]
        sessions = [None] if make is server else [await ann.create(), await ann.create(), None]
        basket, of_bob = await ann.call("create", sessions[0], kind="basket"), await bob.call("create", kind="basket")
        found = [await ann.call("long", held, basket=basket) for held in sessions]
        assert set(found) == {found[0]}
        assert found[0].startswith("id ")
        assert (await bob.call("long", basket=of_bob)).startswith("id ")
        for client, handle in ((bob, basket), (elsewhere, basket), (ann, of_bob)):
            assert UNKNOWN in await client.call("long", basket=handle)


def test_the_short_form_means_the_handles_that_were_installed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was written; without any it says what to do."""
    handle = INSTALLED.mint("basket")
    here = TypeAdapter(HandleOf["basket"])
    Handles(KEYS, audience="elsewhere").install()
    assert here.validate_json(f'"{handle}"') == INSTALLED.verify("basket", handle)
    with pytest.raises(ValidationError, match="not one of your basket handles"):
        TypeAdapter(HandleOf["basket"]).validate_python(handle)
    monkeypatch.setattr(_Installed, "type", None)
    with pytest.raises(ConfigurationError, match=re.escape('HandleOf["basket"] needs handles: call Handles(')):
        HandleOf["basket"]


def test_a_type_of_arguments_is_one_of_pydantics_own() -> None:
    """The reason is the error's type, and the application's description counts."""
    order = create_model("Order", basket=(Basket, Field(description="What is bought")))
    assert order.model_json_schema()["properties"]["basket"]["description"] == "What is bought"
    with pytest.raises(ValidationError) as refused:
        order.model_validate({"basket": INSTALLED.mint("browser")})
    (error,) = refused.value.errors()
    assert (error["type"], error["msg"]) == ("handle_other_type", "not a basket handle: it is a browser handle")
    assert "input_value=<not shown>" in str(refused.value)
    with pytest.raises(ConfigurationError, match=r'handles.type\("basket"\) annotates str or Handle, not'):
        TypeAdapter(Annotated[int, INSTALLED.type("basket")])

"""`Handles` finds the keys, the time and the caller, and a session finds again the handles that it keeps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from itertools import count
from typing import Any

import fastmcp.server.dependencies as fastmcp_dependencies
import mcp.server.lowlevel.server as sdk_server
import pytest
from clients import SECRET, START, Clock, http
from fastmcp.server.http import _current_http_request as fastmcp_request
from mcp.server.auth.middleware import auth_context
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from sources import Made, claims_of
from starlette.requests import Request

from mcp_sessions import ConfigurationError, Data, KeyRing, Principal, Session
from mcp_sessions._session.session import shown_variable
from mcp_sessions.handles import DATA_KEY, HandleError, Handles, current_principal
from mcp_sessions.stores import MemoryStore, Namespace

NEW = "Qe8pZt4yUw6rNb2mKc0xVh5jLs7dFg1a"
DAY = 86_400
ANN, BOB = Principal("desk", None, "ann"), Principal("desk", None, "bob")
STORE = MemoryStore(clock=lambda: START)


NUMBERS = count()


def held(name: str, principal: Principal | None = ANN) -> Session:
    ref = f"{name}_{next(NUMBERS)}"

    def data() -> Data:
        shelf = Namespace(owner=ref, expires_at=START + 30 * DAY, max_bytes=10_000)
        return Data(STORE, shelf, clock=lambda: START, max_value_bytes=10_000)

    source = Made("secret", claims_of(ref, START), ends_at=START + 1, principal=principal, make_data=data)
    return Session(source)


@contextmanager
def within(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    yield
    variable.reset(token)


def user(subject: str) -> AuthenticatedUser:
    return AuthenticatedUser(AccessToken(token="t", client_id="desk", scopes=[], subject=subject))


def made(keys: Any = SECRET, *, clock: Clock | None = None, **options: Any) -> Handles:
    return Handles(keys, clock=clock or Clock(), **options)


HANDLES = made()


def refusal(handle: object, type: str = "basket", *, handles: Handles = HANDLES, **changes: Any) -> str:
    with pytest.raises(HandleError) as refused:
        handles.verify(type, handle, **changes)
    return refused.value.reason


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
        made(**options)


def test_a_type_that_can_stand_in_no_handle_is_refused_at_once() -> None:
    for use in (HANDLES.mint, HANDLES.type, lambda kind: HANDLES.verify(kind, "")):
        with pytest.raises(ConfigurationError, match="type='A Basket' must be"):
            use("A Basket")


def test_handles_show_no_key() -> None:
    assert repr(made(audience="shop")) == "<Handles of shop>"


def test_keys_come_from_where_session_keys_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment, a file, a ring; the same key makes sessions and handles, each by a sub-key of its own."""
    monkeypatch.setenv("HANDLE_KEYS", SECRET)
    handle = made("env:HANDLE_KEYS").mint("basket")
    assert made(KeyRing([NEW, SECRET])).verify("basket", handle) == made().verify("basket", handle)
    assert refusal(handle, handles=made(NEW)) == "unknown"


def test_a_handle_lives_as_long_as_its_type() -> None:
    """`lifetimes` says so for a type and `lifetime` for all others, in seconds or as a `timedelta`."""
    clock = Clock()
    handles = made(clock=clock, lifetime=timedelta(minutes=90), lifetimes={"basket": DAY, "account": None})
    minted = {kind: handles.mint(kind) for kind in ("basket", "browser", "account")}
    expiries = [handles.read(kind, handle).expires_at for kind, handle in minted.items()]
    assert expiries == [START + DAY, START + 5400, None]
    clock.now = START + DAY - 1
    assert handles.verify("basket", minted["basket"])
    assert handles.verify("account", minted["account"])
    with pytest.raises(HandleError, match="expired: browser handles live 5400 s; create a new browser"):
        handles.verify("browser", minted["browser"])
    clock.now += 1
    assert refusal(minted["basket"], handles=handles) == "expired"


def test_nobody_is_calling_where_nothing_says_so() -> None:
    assert current_principal() is None
    handle = HANDLES.mint("basket")
    assert HANDLES.verify("basket", handle, principal=None)
    assert refusal(handle, principal=ANN) == "unknown"


def test_the_caller_is_the_owner_of_the_current_session() -> None:
    """With the middleware; its session may narrow who the user is, so it comes first."""
    with within(shown_variable, {"mcp_session": held("ses_a")}), within(auth_context.auth_context_var, user("bob")):
        assert current_principal() == ANN
        handle = HANDLES.mint("basket")
        assert HANDLES.verify("basket", handle)
    assert HANDLES.verify("basket", handle, principal=ANN)
    assert refusal(handle) == "unknown"


def test_the_caller_is_the_user_of_the_current_request() -> None:
    """Without a session: the framework's own request comes first, since the variable may be another request's."""
    request = Request(http(user=user("ann")))
    with within(fastmcp_request, request), within(auth_context.auth_context_var, user("bob")):
        assert current_principal() == ANN


def test_the_caller_is_the_user_that_the_sdk_authenticated() -> None:
    """Where no framework has a current request, as in SDK 2.x."""
    with within(auth_context.auth_context_var, user("bob")):
        assert current_principal() == BOB


def test_a_framework_that_was_never_imported_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fastmcp_dependencies, sdk_server, auth_context):
        monkeypatch.delitem(sys.modules, module.__name__)
    with within(auth_context.auth_context_var, user("bob")):
        assert current_principal() is None


def test_the_application_may_say_who_is_calling() -> None:
    """`principal=` is asked each time, and comes before everything that is found."""
    callers = [ANN, ANN, BOB]
    handles = made(principal=lambda: callers.pop(0))
    handle = handles.mint("basket")
    with within(shown_variable, {"mcp_session": held("ses_a", BOB)}):
        assert handles.verify("basket", handle)
    assert refusal(handle, handles=handles) == "unknown"
    assert handles.verify("basket", handle, principal=ANN)


def test_a_handle_may_be_bound_to_a_session() -> None:
    """It is good in that session alone; by default the session is the current one."""
    a, b = held("ses_a"), held("ses_b")
    handle = HANDLES.mint("basket", session=a)
    assert HANDLES.read("basket", handle, session=a).bound
    with within(shown_variable, {"mcp_session": a}):
        assert HANDLES.verify("basket", handle)
        assert refusal(handle, session=None) == "unknown"
    assert {refusal(handle, session=session) for session in (b, None)} == {"unknown"}
    with within(shown_variable, {"mcp_session": b}):
        assert refusal(handle) == "unknown"


async def test_a_session_lists_the_handles_that_it_keeps() -> None:
    """For a model that lost its handles: oldest first, of one type or of all, bound or not."""
    session = held("ses_keeping")
    assert await HANDLES.of(session) == []
    basket = await HANDLES.keep(session, "basket", HANDLES.mint("basket", principal=ANN))
    browser = await HANDLES.keep(session, "browser", HANDLES.mint("browser", session=session))
    assert await HANDLES.of(session) == [basket, browser]
    assert await HANDLES.of(session, "browser") == [browser]
    assert await HANDLES.of(held("ses_other")) == []


async def test_a_handle_that_is_kept_twice_is_listed_once() -> None:
    """A forgotten one is listed no more, though the handle itself still verifies."""
    session = held("ses_twice")
    handle = HANDLES.mint("basket", session=session)
    for _ in range(2):
        await HANDLES.keep(session, "basket", handle)
    assert await HANDLES.of(session) == [handle]
    await HANDLES.forget(session, HANDLES.verify("basket", handle, session=session))
    assert await HANDLES.of(session) == []
    assert HANDLES.verify("basket", handle, session=session)


@pytest.mark.parametrize(
    "handle", ["basket_mistyped", "", HANDLES.mint("basket", principal=BOB)], ids=["mistyped", "empty", "another's"]
)
async def test_a_session_keeps_nothing_that_does_not_work_in_it(handle: str) -> None:
    session = held("ses_refusing")
    with pytest.raises(HandleError):
        await HANDLES.keep(session, "basket", handle)
    assert await HANDLES.of(session) == []


async def test_expired_handles_are_not_listed_and_not_kept_for_long() -> None:
    session, clock = held("ses_expiring"), Clock()
    handles = made(clock=clock, lifetimes={"basket": 60})
    await handles.keep(session, "basket", handles.mint("basket", session=session))
    account = await handles.keep(session, "account", handles.mint("account", session=session))
    clock.now += 60
    assert await handles.of(session) == [account]
    browser = await handles.keep(session, "browser", handles.mint("browser", session=session))
    assert await handles.of(session) == [account, browser]
    assert [kind for kind, _, _ in (await session.data.get(DATA_KEY)).values()] == ["account", "browser"]


async def test_kept_handles_outlive_the_key_that_made_them() -> None:
    """They are made anew under the key that signs now, and name the same objects."""
    session = held("ses_rotating")
    old = HANDLES.mint("basket", session=session)
    await HANDLES.keep(session, "basket", old)
    rolled = made(NEW)
    (new,) = await rolled.of(session)
    assert new != old
    assert rolled.verify("basket", new, session=session) == HANDLES.verify("basket", old, session=session)


async def test_no_handle_lies_in_the_store() -> None:
    """Only what is public in it: who reads the store can use none."""
    session = held("ses_stored")
    handle = await HANDLES.keep(session, "basket", HANDLES.mint("basket", session=session))
    name = HANDLES.verify("basket", handle, session=session)
    assert await session.data.get(DATA_KEY) == {name: ["basket", None, True]}

"""Who a request is authenticated as, for every shape of user that servers leave on the scope."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.authentication import BaseUser, SimpleUser, UnauthenticatedUser

from mcp_sessions._server.principal import from_scope, reader
from mcp_sessions._session.claims import Principal
from mcp_sessions.errors import ConfigurationError


def user_with(**token: Any) -> SimpleNamespace:
    """A user as the SDK's bearer authentication leaves it."""
    return SimpleNamespace(is_authenticated=True, access_token=SimpleNamespace(**token))


class IdentifiedUser(BaseUser):
    """A Starlette user that has an identity."""

    is_authenticated = True
    display_name = "Alice A."
    identity = "alice"


class NamelessUser:
    """A user of somebody's own make, without Starlette's base class."""

    is_authenticated = True
    display_name = "bob"


@pytest.mark.parametrize("scope", [{}, {"user": None}, {"user": UnauthenticatedUser()}])
def test_without_a_user_there_is_no_principal(scope: dict[str, Any]) -> None:
    """Nobody was authenticated, and that is known."""
    assert from_scope(scope) is None


@pytest.mark.parametrize(
    "user",
    [
        object(),
        SimpleNamespace(is_authenticated=1, display_name="John Smith"),
        SimpleNamespace(is_authenticated=True, identity=None),
        NamelessUser(),
        user_with(client_id=None),
    ],
)
def test_a_user_that_nothing_tells_from_others_is_refused(user: object) -> None:
    """Neither anonymous nor one principal for all: two John Smiths must not share sessions."""
    with pytest.raises(ConfigurationError, match="pass principal="):
        from_scope({"user": user})


@pytest.mark.parametrize(
    ("user", "principal"),
    [
        (
            user_with(client_id="app", subject="alice", claims={"iss": "https://idp"}),
            Principal("app", "https://idp", "alice"),
        ),
        (user_with(client_id="app", claims={"sub": "alice"}), Principal("app", None, "alice")),
        (user_with(client_id="app", subject="alice", claims={"sub": "other"}), Principal("app", None, "alice")),
        (user_with(client_id="app", subject=None, claims={"sub": 7}), Principal("app", None, "7")),
        (user_with(client_id="app", claims=None), Principal("app")),
        (user_with(client_id="app"), Principal("app")),
        (SimpleUser("carol"), Principal(subject="carol")),
        (IdentifiedUser(), Principal(subject="alice")),
        (SimpleNamespace(is_authenticated=1, identity="dora"), Principal(subject="dora")),
    ],
)
def test_the_user_on_the_scope_is_the_principal(user: object, principal: Principal) -> None:
    """The SDK's client, issuer and subject, FastMCP's claims, Starlette's identity."""
    assert from_scope({"user": user}) == principal


def test_an_option_replaces_what_is_on_the_scope() -> None:
    """The function may return a principal, a text that names the subject, or nobody."""
    scope = {"user": SimpleUser("carol"), "tenant": "t1"}
    assert reader(None)(scope) == Principal(subject="carol")
    assert reader(lambda scope: Principal(client_id="c"))(scope) == Principal(client_id="c")
    assert reader(lambda scope: str(scope["tenant"]))(scope) == Principal(subject="t1")
    assert reader(lambda scope: None)(scope) is None


@pytest.mark.parametrize(
    "given", ["", 0, False, True, Principal(), Principal(issuer="https://idp"), Principal("", None, "")]
)
def test_what_would_make_all_callers_one_is_refused(given: Any) -> None:
    """Each would have everybody's sessions; the message says what was returned, and what to return."""
    with pytest.raises(ConfigurationError, match="would make all callers one") as refused:
        reader(lambda scope: given)({})
    assert f"principal= returned {given!r}, " in str(refused.value)

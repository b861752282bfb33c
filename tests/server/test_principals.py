"""Who a request is authenticated as, for every shape of user that servers leave on the scope."""

import itertools
import json
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from apps import Server, sessions
from clients import Client, Header, by, call, http, user_of
from starlette.authentication import SimpleUser, UnauthenticatedUser
from stateful import Stateful

from mcp_sessions import ConfigurationError, Principal, SEP1364Create, SEP1364Initialize
from mcp_sessions._server import logs, minting
from mcp_sessions._server.principal import from_scope, reader
from mcp_sessions._session.claims import Kind

JOHN_SMITH = {"display_name": "John Smith"}


def user_with(**token: Any) -> SimpleNamespace:
    """A user as the SDK's bearer authentication leaves it."""
    return SimpleNamespace(is_authenticated=True, access_token=SimpleNamespace(**token))


@pytest.mark.parametrize(
    ("user", "principal"),
    [
        (user_with(client_id="app", subject="alice", claims={"iss": "idp"}), Principal("app", "idp", "alice")),
        (user_with(client_id="app", claims={"sub": "alice"}), Principal("app", None, "alice")),
        (user_with(client_id="app", subject="alice", claims={"sub": "other"}), Principal("app", None, "alice")),
        (user_with(client_id="app", subject=None, claims={"sub": 7}), Principal("app", None, "7")),
        (user_with(client_id="app", claims=None), Principal("app")),
        (SimpleUser("carol"), Principal(subject="carol")),
        (SimpleNamespace(is_authenticated=1, identity="dora"), Principal(subject="dora")),
        (UnauthenticatedUser(), None),
        (None, None),
        # neither anonymous nor one principal for all: two John Smiths must not share sessions
        *((user, "refused") for user in (object(), user_with(client_id=None))),
        *((SimpleNamespace(is_authenticated=True, **name), "refused") for name in ({"identity": None}, JOHN_SMITH)),
    ],
)
def test_the_user_on_the_scope_is_the_principal(user: object, principal: object) -> None:
    """Unless nothing tells it from others."""
    assert from_scope({}) is None
    if principal == "refused":
        with pytest.raises(ConfigurationError, match="pass principal="):
            from_scope({"user": user})
    else:
        assert from_scope({"user": user}) == principal


@pytest.mark.parametrize(
    "given", ["", 0, False, True, Principal(), Principal(issuer="https://idp"), Principal("", None, "")]
)
def test_what_would_make_all_callers_one_is_refused(given: Any) -> None:
    """Each would have everybody's sessions; the message says what was returned, and what to return."""
    with pytest.raises(ConfigurationError, match="would make all callers the same") as refused:
        reader(lambda scope: given)({})
    assert f"principal= returned {given!r}, " in str(refused.value)


BEARER: Header = (b"authorization", b"Bearer of-ann")
UNSEEN = {
    "code": -31046,
    "message": "Principal required: the server does not see whose Authorization header this is; its log has the remedy",
}


class TestACallerWhomNothingShows:
    """A server with an authentication of its own make, which leaves no user on the scope."""

    async def test_it_is_refused_a_session_with_the_remedy(self, caplog: pytest.LogCaptureFixture) -> None:
        """An anonymous session would let one user's token use another user's session."""
        logs._warned.clear()
        app = sessions(Server())
        client = Client(app)
        for one in (client, client, Client(app, user=UnauthenticatedUser())):  # Starlette's for unknown credentials
            assert (await one.send("sessions/create", None, BEARER)).error == UNSEEN
        assert (await client.send("sessions/fork", None, BEARER, session=await client.create())).error == UNSEEN
        (warned,) = [text for text in caplog.messages if text.startswith("no session for a request")]
        assert "Pass principal=" in warned
        assert "add_sessions" in warned

    @pytest.mark.parametrize(
        ("method", "modern", "named_in"),
        [("initialize", False, b"mcp-session-id"), ("server/discover", True, b"set-cookie")],
    )
    async def test_a_client_without_session_support_gets_none(
        self, method: str, modern: bool, named_in: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its server works as before, and whoever asks for a session reads in the log why there is none."""
        logs._warned.clear()
        client = Client(sessions(Server()), modern=modern)
        answer = await client.send(method, None, BEARER)
        assert answer.result["capabilities"]["tools"] == {}
        assert named_in not in answer.headers
        assert named_in in (await client.send(method)).headers
        await client.tool("asks", BEARER)
        assert "does not see who the caller is; pass principal=" in caplog.messages[-1]

    @pytest.mark.parametrize(
        ("principal", "scope"),
        [(lambda scope: "ann", {}), (lambda scope: None, {}), (None, {"user": SimpleUser("ann")})],
        ids=["a principal", "nobody, on purpose", "a user on the scope"],
    )
    async def test_it_gets_one_where_it_is_seen_or_anonymous_on_purpose(self, principal: Any, scope: Any) -> None:
        assert await Client(sessions(Server(), principal=principal), **scope).create(BEARER)


DIALECTS = [SEP1364Create(), SEP1364Initialize()]
DEPLOYMENTS: list[dict[str, Any]] = [
    *({}, {"transport": "off"}, {"bridge": True}, {"dialects": DIALECTS}, {"dialects": DIALECTS, "bridge": True}),
]


def bodies(token: str, method: str) -> list[bytes]:
    """Bodies that name a session in each place, or another one, or none."""
    if method != "POST":
        return [b""]
    metadata, fields = [{"sessionId": token}, {"sessionId": "unknown"}, None], [{"sessionId": token}, {}]
    message = partial(Client(Server(), modern=False).message, "tools/call", {"name": "whoami"})
    named = [{**message(session=session), **field} for session, field in itertools.product(metadata, fields)]
    return [json.dumps(each).encode() for each in named]


@pytest.mark.parametrize("kind", [kind for kind in get_args(Kind) if kind != "principal"])  # which has no id
@pytest.mark.parametrize("server", [Server, Stateful])
@pytest.mark.parametrize("options", DEPLOYMENTS)
async def test_no_answer_shows_that_an_id_is_authentic(kind: Kind, server: Any, options: dict[str, Any]) -> None:
    """Who is not its owner gets what a forged one gets, whatever it is used as, in every place and method."""
    app = sessions(server(), principal=user_of, **options)
    minted = await minting.mint(app._runtime, principal=Principal("ann"), params={}, scope=http(), kind=kind)

    async def answers(token: str, method: str, *user: Header) -> list[tuple[Any, ...]]:
        found = []
        for body, named in itertools.product(bodies(token, method), (token, "another", None)):
            header = [] if named is None else [(b"mcp-session-id", named.encode())]
            scope = http(method, headers=[(b"content-type", b"application/json"), *header, *user])
            answer = await call(app, scope, body)
            text = answer.body.replace(token.encode(), b"TOKEN")
            found.append((answer.status, answer.headers.get(b"allow"), text))
        return found

    for user, method in itertools.product(([], [by("bob")]), ("POST", "GET", "DELETE", "PUT")):
        forged = await answers(minted.token[:-4] + "AAAA", method, *user)
        assert await answers(minted.token, method, *user) == forged, (user, method)

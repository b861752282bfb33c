"""Users and clients as the token verifiers of FastMCP leave them, and users of Starlette with two names."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from apps import Server, sessions
from clients import SECRET, Client, Clock
from fastmcp.server.auth.providers import clerk, github, google, huggingface, jwt, workos
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import SimpleUser

from mcp_sessions import ConfigurationError, Principal, Sessions
from mcp_sessions._server.principal import from_scope, reader
from mcp_sessions.stores import MemoryStore

httpx: Any = getattr(github, "httpx2", None) or github.httpx  # type: ignore[attr-defined]  # FastMCP 4 has another one
SUB = "583231"
PROFILE = {"sub": SUB, "id": SUB, "email": "ann@example.com", "name": "Ann", "aud": "app", "scope": "openid"}


def answer(request: Any) -> Any:
    """What every provider's endpoints answer about Ann."""
    profile: dict[str, Any] = {**PROFILE, "id": int(SUB), "login": "ann", "user_id": SUB, "expires_in": "3600"}
    if request.url.path == "/oauth/token_info":  # of Clerk, for a token without an audience
        profile = {"active": True, "sub": SUB, "scope": "openid"}
    return httpx.Response(200, content=json.dumps(profile), headers={"x-oauth-scopes": "user"})


def verifiers() -> dict[str, Any]:
    http: Any = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return {
        "clerk": clerk.ClerkTokenVerifier(domain="id.example", http_client=http),
        "github": github.GitHubTokenVerifier(http_client=http),
        "google": google.GoogleTokenVerifier(http_client=http),
        "huggingface": huggingface.HuggingFaceTokenVerifier(http_client=http),
        "workos": workos.WorkOSTokenVerifier(authkit_domain="https://id.example", http_client=http),
    }


async def verified(kind: str) -> Any:
    """A user as the SDK's authentication leaves it, by a verifier of FastMCP."""
    token = await verifiers()[kind].verify_token("a-token-of-ann")
    assert token is not None
    return AuthenticatedUser(token)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", ["clerk", "github", "google", "huggingface", "workos"])
async def test_user_of_a_verifier_without_clients_is_a_user(kind: str) -> None:
    """These verifiers know no OAuth client, and name the user twice."""
    user = await verified(kind)
    principal = from_scope({"user": user})
    assert principal == Principal(SUB, None, SUB)
    client = Client(sessions(Server(), tracked=True, **{"transport.per_user": True}), user=user)
    refs = [(await client.tool("whoami")).result["content"] for _ in range(2)]
    assert refs == [refs[0]] * 2 != ["nobody"] * 2
    assert [one["ref"] for one in (await client.send("sessions/list")).result["sessions"]] == refs[:1]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_principal_of_a_session_can_be_signed_out() -> None:
    """Also as an operator writes it down, who does not know the token."""
    user = await verified("github")
    for whose in (from_scope({"user": user}), Principal(SUB, None, SUB)):
        store, clock = MemoryStore(clock=Clock()), Clock()
        client = Client(sessions(Server(), store=store, clock=clock), user=user)
        held = await client.create()
        assert whose is not None
        await Sessions(store=store, keys=SECRET, clock=clock).end_all(whose)
        assert (await client.tool(session=held)).error["code"] == -32043


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("claims", "is_user"),
    [
        ({}, True),
        ({"azp": [SUB]}, False),
        ({"client_id": SUB}, False),
        ({"azp": SUB}, False),
        ({"azp": "app"}, True),
    ],
)
async def test_client_claim_of_a_token_decides(claims: dict[str, Any], is_user: bool) -> None:
    """Without one, FastMCP takes `sub` for the client, which proves nothing."""
    pair = jwt.RSAKeyPair.generate()
    token = pair.create_token(subject=SUB, issuer="https://id", audience="x", additional_claims=claims)
    found = await jwt.JWTVerifier(public_key=pair.public_key, issuer="https://id", audience="x").verify_token(token)
    assert found is not None
    principal = from_scope({"user": AuthenticatedUser(found)})
    assert principal is not None
    assert principal.is_user is is_user


def of(client_id: str, claims: Any, **more: Any) -> Principal:
    token = SimpleNamespace(client_id=client_id, claims=claims, **more)
    found = from_scope({"user": SimpleNamespace(is_authenticated=True, access_token=token)})
    assert found is not None
    return found


NOTHING: list[dict[str, Any]] = [
    {},
    {"sub": "abc"},
    {"sub": "abc", "iss": "https://id"},
    {"sub": "abc", "username": None, "cognito:groups": []},
]


@pytest.mark.parametrize("claims", NOTHING)
def test_claims_that_say_nothing_leave_a_client(claims: dict[str, Any]) -> None:
    """As one verifier's of AWS Cognito, and `MultiAuth`, which renames the client."""
    assert not of("abc", claims, subject="abc").is_user
    assert not of("cognito:abc", claims, subject="abc", original_client_id="abc").is_user
    assert of("app", claims, subject="abc").is_user
    assert of("abc", {**claims, "login": "ann"}, subject="abc").is_user


def test_token_of_the_sdk_without_claims_is_a_clients() -> None:
    """Nothing says whose the subject is, so that users may share it."""
    if "subject" not in AccessToken.model_fields:
        pytest.skip("this SDK knows no subject")
    more: Any = {"subject": "abc"}
    user = AuthenticatedUser(AccessToken(token="t", client_id="abc", scopes=[], **more))
    found = from_scope({"user": user})
    assert found is not None
    assert not found.is_user


GRANTS: list[dict[str, Any]] = [
    {"gty": ["client-credentials"]},
    {"gty": "client_credentials"},
    {"gty": ("refresh_token", "client_credentials")},
    {"idtyp": ["app"]},
    *({name: ["other", "abc"]} for name in ("client_id", "azp", "cid", "appid")),
]


@pytest.mark.parametrize("claims", GRANTS)
def test_claims_in_lists_count(claims: dict[str, Any]) -> None:
    assert not of("app", {"sub": "abc", "email": "a@b.example", **claims}).is_user


class Named(SimpleUser):
    """A display name, and an identity, as Starlette's `BaseUser` asks for."""

    def __init__(self, id: Any) -> None:
        super().__init__("John Smith")
        self.id = id

    @property
    def identity(self) -> Any:
        return self.id


async def test_identity_counts_and_not_the_display_name() -> None:
    """Two John Smiths have a session each."""
    app = sessions(Server(), **{"transport.per_user": True})
    one, other = (Client(app, user=Named(name)) for name in ("u1", "u2"))
    held = await one.create()
    assert (await one.tool("whoami", session=held)).result["content"].startswith("ses_")
    assert (await other.tool("whoami", session=held)).error["code"] == -32043
    refs = [(await client.tool("whoami")).result["content"] for client in (one, other)]
    assert len({*refs}) == 2
    assert from_scope({"user": Named("u1")}) == Principal(subject="u1")


@pytest.mark.parametrize("identity", [None, "", " ", 7])
def test_identity_that_is_no_text_is_not_replaced_by_the_name(identity: Any) -> None:
    with pytest.raises(ConfigurationError, match="pass principal="):
        from_scope({"user": Named(identity)})


class Member(Principal):
    """A principal with a further part, which no session id is bound to."""

    __slots__ = ("tenant",)


async def test_subclass_of_a_principal_is_refused() -> None:
    """What it adds would be lost, and one tenant's user would have another's sessions."""
    server = Server()
    whose = Member(subject="ann")
    client = Client(sessions(server, principal=lambda scope: whose))
    with pytest.raises(ConfigurationError, match="into issuer"):
        await client.create()
    with pytest.raises(ConfigurationError, match="into issuer"):
        reader(lambda scope: whose)({})
    for call in ("end_all", "of"):
        with pytest.raises(ConfigurationError, match="into issuer"):
            await getattr(Sessions(store=MemoryStore(), keys=SECRET), call)(whose)


def test_user_whose_identity_is_not_implemented_is_named_by_the_username() -> None:
    """Starlette's `SimpleUser` has had no identity in some versions."""

    class Older(SimpleUser):
        @property
        def identity(self) -> str:
            raise NotImplementedError

    assert from_scope({"user": Older("carol")}) == Principal(subject="carol")

"""A session is never authentication, and belongs to the one who made it: with real servers and real bearer tokens."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import pytest
from apps import grouped
from clients import Answer, RealClient, started
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Scope

from mcp_sessions import MCPSessionMiddleware, Principal, add_sessions
from mcp_sessions._server import logs
from mcp_sessions._server.principal import from_scope

from .servers import CELLS, FASTMCP, FRAMEWORKS, KEYS, SDK, USERS, Cell, Hall, bearer, made, running


def principal(scope: Scope) -> str | None:
    """The principal, as a deployment whose guards stand outside may name it: here, the token is the name."""
    user = USERS.get(dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer "))
    return None if user is None else f"{user['client_id']}/{user.get('sub')}"


def added(cell: Cell, hall: Hall, *, authenticated: bool = True, **options: Any) -> ASGIApp:
    app: ASGIApp = add_sessions(made(cell, authenticated=authenticated), keys=KEYS, **grouped(**options))
    return app


def handed_on(cell: Cell, hall: Hall, *, authenticated: bool = True, **options: Any) -> ASGIApp:
    """FastMCP takes the middleware, which the SDK does not."""
    middleware = [Middleware(MCPSessionMiddleware, keys=KEYS, **grouped(**options))]
    app: ASGIApp = made(cell, authenticated=authenticated, middleware=middleware)
    return app


def wrapped(cell: Cell, hall: Hall, *, authenticated: bool = True, **options: Any) -> ASGIApp:
    server = made(cell, authenticated=authenticated)
    return MCPSessionMiddleware(server, keys=KEYS, principal=principal, **grouped(**options))


Place = Callable[..., ASGIApp]
PLACED: Final[list[tuple[Place, Cell]]] = [
    (place, cell)
    for cell in CELLS
    if not (cell.json or (cell.modern and cell.stateful))  # the modern era has no modes
    for place in ((handed_on,) if cell.framework == FASTMCP else (added, wrapped))
] + [(place, Cell(FASTMCP)) for place in (added, wrapped)]


def name(value: Any) -> str:
    return getattr(value, "__name__", str(value))


every_cell = pytest.mark.parametrize(("place", "cell"), PLACED, ids=name)

RULES: Final = {"prompts/get": ["secret"]}
KEPT_OUT: Final[dict[str, list[tuple[dict[str, str], int]]]] = {
    "by its token": [
        ({"authorization": ""}, 401),
        (bearer("made-up"), 401),
        (bearer("late"), 401),
        ({"authorization": "Basic YW5uOmFubg=="}, 401),
    ],
    "by its host or origin": [({"host": "evil.example"}, 421), ({"origin": "https://evil.example"}, 403)],
    "by its transport session": [({"mcp_session_id": "0123456789abcdef0123456789abcdef"}, 404)],
}


async def everything_of_ours(client: RealClient, held: dict[str, str], **headers: str) -> list[Answer]:
    """Whatever the middleware answers itself, and the use of a session."""
    client = client.having(**headers)
    return [
        await client.send("sessions/create"),
        await client.tool(session=held),
        await client.delete(held),
        await client.tool(session={"sessionId": "made-up"}),
        await client.send("prompts/get", {"name": "secret"}),
        await client.send("sessions/delete"),
        await client.tool(session=1),
        await client.having(mcp_session_id=headers.get("mcp_session_id", held["sessionId"])).http("DELETE"),
    ]


@pytest.mark.parametrize(
    ("how", "place", "cell"),
    [(how, *placed) for how in KEPT_OUT for placed in PLACED if placed[1].stateful or "transport" not in how],
    ids=name,
)
async def test_whom_the_server_keeps_out_can_do_nothing_with_a_session(how: str, place: Place, cell: Cell) -> None:
    """It gets the server's own answer to every request, so that a client renews its token and keeps its session id."""
    authenticated = how != "by its host or origin"
    async with running(cell, place, authenticated=authenticated, require=RULES) as server:
        client = await server.connected(**(bearer("ann") if authenticated else {}))
        held = await client.create()
        for headers, status in KEPT_OUT[how]:
            own = await client.having(**headers).tool()
            assert own.status == status
            for reply in await everything_of_ours(client, held, **headers):
                assert (reply.status, reply.body) == (own.status, own.body)
                assert (b"www-authenticate" in reply.headers) is (status == 401)
        assert await client.call("whoami", held) != "nobody"


@every_cell
async def test_another_principal_has_no_use_for_a_session(place: Place, cell: Cell) -> None:
    """The same client's other user, and the same user's other client: each is answered as for an id that never was."""
    async with running(cell, place) as server:
        ann = await server.connected(**bearer("ann"))
        held = await ann.create()
        for token in ("bob", "ann-elsewhere"):
            other = await server.connected(**bearer(token))
            for reply in (await other.tool(session=held), await other.delete(held)):
                error = {"code": -32043, "message": "Session not found", "data": {"sessionId": held["sessionId"]}}
                assert reply.error == error
        assert await ann.call("whoami", held) != "nobody"


@every_cell
async def test_with_a_good_token_the_answers_are_ours(place: Place, cell: Cell) -> None:
    """The requests that a bad token was refused for are created, answered, deleted and refused by the middleware."""
    async with running(
        cell, place, require=RULES, transport="off"
    ) as server:  # which would be a session to every request
        client = await server.connected(**bearer("ann"))
        replies = await everything_of_ours(client, await client.create())
    codes = [reply.json.get("error", {}).get("code") for reply in replies]
    assert codes[:-1] == [None, None, None, -32043, -31044, -32602, -32602]
    # A stateful server refuses a DELETE that names no transport session of its own; else the refusal is ours.
    assert replies[-1].status in {400, 404}


PLACES: Final[dict[str, Place]] = {"added": added, **({"handed_on": handed_on} if FASTMCP in FRAMEWORKS else {})}
OWN: Final = {"transport.per_user": True, "transport.header": False, "transport.cookie": False, "tracked": True}


@pytest.mark.parametrize(("framework", "place"), [(SDK, "added"), (FASTMCP, "added"), (FASTMCP, "handed_on")])
async def test_token_of_a_client_has_no_session_of_a_user(
    framework: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Ann's and Bob's name a subject; one that names only the client, or the client twice, may be anybody's."""
    logs._warned.clear()
    async with running(Cell(framework), PLACES[place], **OWN) as server:
        seen = {
            token: await (await server.connected(**bearer(token))).call("whoami") for token in USERS if token != "late"
        }
        assert {token for token, ref in seen.items() if ref == "nobody"} == {"desk", "desk-itself"}
        assert len({*seen.values()}) == 4
        for token in ("desk", "desk-itself"):
            client = await server.connected(**bearer(token))
            held = await client.create()
            assert await client.call("whoami", held) != "nobody"
            listed = await client.send("sessions/list")
            assert listed.error["code"] == -31046
            assert "OAuth client" in listed.error["message"]
        ann = await server.connected(**bearer("ann"))
        assert [one["ref"] for one in (await ann.send("sessions/list")).result["sessions"]] == [seen["ann"]]
    [line] = [text for text in caplog.messages if "which many users may share" in text]
    assert "principal=" in line


@every_cell
async def test_user_who_connects_for_each_call_is_in_one_session(place: Place, cell: Cell) -> None:
    """Also across the bridge, where each connection has a transport session of the server."""
    async with running(cell, place, **{"transport.per_user": True, "bridge": cell.stateful}) as server:
        calls = [await server.connected(**bearer(token)) for token in ("ann", "bob", "ann")]
        ann, bob, again = [await client.call("whoami") for client in calls]
        assert ann == again != bob
        assert "nobody" not in {ann, bob}
        assert ({"mcp-session-id" in client.own for client in calls}) == {cell.stateful}


@every_cell
async def test_conversation_that_a_host_names_is_one_session_of_its_user(place: Place, cell: Cell) -> None:
    """Whatever transport session a call comes by."""
    async with running(cell, place, **{"transport.per_conversation": True, "bridge": cell.stateful}) as server:
        refs = []
        for token, chat in (("ann", "one"), ("bob", "one"), ("ann", "two"), ("ann", "one")):
            client = await server.connected(**bearer(token))
            params = {"name": "whoami", "arguments": {}, "_meta": {"openai/session": chat}}
            refs.append((await client.send("tools/call", params)).text)
        assert refs[0] == refs[3]
        assert len({*refs, "nobody"}) == 4


@pytest.mark.parametrize(
    ("claims", "is_user"),
    [({"client_id": "desk"}, True), ({"azp": "desk"}, True), ({"client_id": "ann"}, False), ({}, True)],
)
async def test_fastmcp_s_jwt_names_a_user_beside_its_client(claims: dict[str, str], is_user: bool) -> None:
    """Without a claim for the client, FastMCP takes the subject for it, which proves nothing."""
    jwt = import_module("fastmcp.server.auth.providers.jwt")
    pair = jwt.RSAKeyPair.generate()
    verifier = jwt.JWTVerifier(public_key=pair.public_key, issuer="https://auth.example", audience="mcp")
    token = pair.create_token("ann", "https://auth.example", "mcp", additional_claims=claims)
    user = import_module("mcp.server.auth.middleware.bearer_auth").AuthenticatedUser(await verifier.verify_token(token))
    principal = from_scope({"user": user})
    assert principal == Principal(next(iter(claims.values()), "ann"), "https://auth.example", "ann")
    assert principal.is_user is is_user


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_function_can_say_that_a_client_is_a_user(framework: str) -> None:
    """The remedy that the log names, for tokens that each user has of its own."""

    def user(scope: Scope) -> str:
        return str(scope["user"].access_token.client_id)

    async with running(Cell(framework), added, principal=user, **OWN) as server:
        desk, phone = [await server.connected(**bearer(token)) for token in ("desk", "ann-elsewhere")]
        seen = [await client.call("whoami") for client in (desk, phone, desk)]
        assert seen[0] == seen[2] != seen[1]
        assert "nobody" not in seen
        assert [len((await client.send("sessions/list")).result["sessions"]) for client in (desk, phone)] == [1, 1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_wrapper_that_cannot_see_the_user_does_not_start(framework: str) -> None:
    """Around a server that authenticates inside, start-up fails with the remedy in the message."""
    said = await started(MCPSessionMiddleware(made(Cell(framework), authenticated=True), keys=KEYS))
    assert said["type"] == "lifespan.startup.failed"
    assert "add_sessions" in said["message"]

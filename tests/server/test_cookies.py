"""The cookie dialect: who gets a cookie, what it is good for, and how each odd one is answered."""

from __future__ import annotations

import json
from http.cookies import SimpleCookie
from typing import Any

import pytest
from apps import Server, reply, sessions
from clients import DISCOVER, Answer, Client, Clock, Header
from failing import Failing
from starlette.types import Message, Receive, Scope, Send

from mcp_sessions import Session, TransportSessions
from mcp_sessions._protocol.cookies import cookie_name
from mcp_sessions._refusals import REFUSALS

DEAD = (-32043, "Session not found")
CLIENT = "io.modelcontextprotocol/clientCapabilities"


def set_cookies(answer: Answer) -> list[bytes]:
    return [value for name, value in answer.start["headers"] if name == b"set-cookie"]


def error_of(answer: Answer) -> tuple[int, str]:
    return answer.error["code"], answer.error["message"]


async def counted(client: Client, *headers: Header, **more: Any) -> Any:
    return (await client.tool("count", *headers, **more)).result["content"]


def test_a_cookie_is_named_after_the_audience() -> None:
    """For good: another name would end all sessions of a deployment that is upgraded."""
    assert cookie_name("shop") == b"mcp-session-7dypny4b"


@pytest.mark.parametrize("sse", [False, True])
async def test_a_client_that_keeps_cookies_is_in_a_session(sse: bool) -> None:
    """The answer to `server/discover` sets the cookie; later requests are in its session, and nothing is echoed."""
    client = Client(sessions(app := Server(sse=sse)))
    cookie = (await client.send(DISCOVER)).cookie
    called = [await client.tool("count", cookie) for _ in range(3)]
    assert [answer.result["content"] for answer in called] == [1, 2, 3]
    assert (called[-1].session, set_cookies(called[-1])) == (None, [])
    assert b"cookie" not in app.last.headers


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ({}, "/mcp"),
        ({"path": "/mcp/"}, "/mcp"),
        ({"root_path": "/api", "path": "/api/mcp"}, "/api/mcp"),
        ({"root_path": "/a b;c", "path": "/a b;c/mcp"}, "/a%20b%3Bc/mcp"),
    ],
)
@pytest.mark.parametrize("secure", [False, True])
async def test_its_attributes(scope: dict[str, Any], path: str, secure: bool) -> None:
    """No script reads it, no other site sends it, no other path and, under https, no plain text carries it."""
    scope = {"path": "/mcp", "scheme": "https" if secure else "http", **scope}
    (header,) = set_cookies(await Client(sessions(Server()), **scope).send(DISCOVER))
    name, morsel = SimpleCookie(header.decode()).popitem()
    assert name.startswith("__Secure-mcp-session-" if secure else "mcp-session-")
    assert (morsel["path"], morsel["httponly"], morsel["samesite"]) == (path, True, "Strict")
    assert (morsel["secure"], morsel["max-age"], morsel["expires"], morsel["domain"]) == (secure or "", "", "", "")


async def test_at_the_root_of_a_host_no_other_host_of_the_site_can_plant_one() -> None:
    """Under https the name begins with `__Host-`; what another host could set is neither read nor passed on."""
    app = Server()
    client = Client(sessions(app, path="/"), path="/", scheme="https")
    own = (answer := await client.send(DISCOVER)).cookie
    assert own[1].startswith(b"__Host-mcp-session-")
    assert set_cookies(answer)[0].endswith(b"; Path=/; HttpOnly; SameSite=Strict; Secure")
    assert [await counted(client, own) for _ in range(2)] == [1, 2]
    for prefix in (b"", b"__Secure-"):
        assert await counted(client, (b"cookie", own[1].replace(b"__Host-", prefix))) == 0
        assert b"cookie" not in app.last.headers


# --- a cookie that is not a live session of this caller -------------------------------------------


async def refuses(scope: Scope, send: Send) -> bool:
    await reply(send, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}')
    return True


DRAFT: dict[str, Any] = {"_meta": {CLIENT: {"experimental": {"sessions": {}}}}}


@pytest.mark.parametrize(
    ("options", "modern", "method", "params"),
    [
        ({"keys": None}, True, DISCOVER, {}),
        ({"transport": "off"}, True, DISCOVER, {}),
        ({"transport": TransportSessions(cookie=False)}, True, DISCOVER, {}),
        ({}, True, DISCOVER, DRAFT),
        *(({}, False, method, {}) for method in (DISCOVER, "initialize")),
        ({"app": Server(guard=refuses)}, True, DISCOVER, {}),
    ],
    ids=["mortal keys", "off", "no cookie", "the draft", "legacy", "legacy handshake", "failed"],
)
async def test_some_get_none(options: dict[str, Any], modern: bool, method: str, params: Any) -> None:
    client = Client(sessions(**{"app": Server(), **options}), modern=modern)
    message = client.message(method, params)
    message["params"]["_meta"] |= params.get("_meta", {})
    assert set_cookies(await client.post(message, method=method)) == []


async def alive(client: Client) -> tuple[Header, bytes]:
    """A live cookie, and its name."""
    cookie = (await client.send(DISCOVER)).cookie
    return cookie, cookie[1].partition(b"=")[0]


async def leave(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    await session.end()


@pytest.mark.parametrize(
    "kind", ["forged", "long", "empty", "twice", "quoted", "draft", "header", "expired", "deleted", "foreign"]
)
async def test_what_is_no_live_cookie_of_the_caller_is_answered_once(kind: str) -> None:
    """It is refused with a fresh one, which is good; and `server/discover` begins anew."""
    clock, caller = Clock(), ["alice"]
    client = Client(sessions(Server(leave=leave), clock=clock, principal=lambda scope: caller[0]))
    (_, cookie), name = await alive(client)
    token = cookie.partition(b"=")[2]
    values = {
        "forged": token[:-8] + b"AAAAAAAA",
        "long": token * 20,
        "empty": b"",
        "twice": token + b"; " + name + b"=" + token,
        "quoted": b'"' + token + b'"',
        "draft": (await client.create())["sessionId"].encode(),
        "header": (await Client(client.app, modern=False).initialize())[1],
    }
    dead = b"cookie", name + b"=" + values.get(kind, token)
    if kind == "expired":
        clock.now += 31 * 24 * 3600
    elif kind == "foreign":
        caller[0] = "bob"
    elif kind == "deleted":
        await client.tool("leave", dead)
    refused, begun = await client.tool("count", dead), await client.send(DISCOVER, None, dead)
    assert error_of(refused) == DEAD
    assert "result" in begun.json
    assert [await counted(client, answer.cookie) for answer in (refused, begun)] == [1, 1]


async def test_a_dead_cookie_is_not_renewed_where_the_caller_gets_no_session() -> None:
    """Who the caller is cannot be seen here, so nobody else may go on with its session."""
    client = Client(sessions(Server()))
    _, name = await alive(client)
    answer = await client.tool("count", (b"cookie", name + b"=dead"), (b"authorization", b"Bearer of something"))
    assert error_of(answer) == DEAD
    assert set_cookies(answer) == []


async def test_its_token_is_good_for_nothing_else() -> None:
    """Not in `_meta`, which wins over a cookie, and not as a transport id."""
    client = Client(sessions(Server()))
    cookie, name = await alive(client)
    token = cookie[1].partition(b"=")[2].decode()
    assert error_of(await client.tool("count", session={"sessionId": token})) == DEAD
    legacy = Client(client.app, modern=False)
    assert (await legacy.tool("count", (b"mcp-session-id", token.encode()))).status in {400, 404}
    session = await client.create()
    for beside in (cookie, (b"cookie", name + b"=dead")):
        assert (await client.tool("count", beside, session=session)).session is not None
    assert await counted(client, cookie) == 1


async def test_other_cookies_pass_both_ways() -> None:
    server = Server()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"set-cookie", b"app=1")]}
            await send(message)

        await server(scope, receive, with_cookie)

    client = Client(sessions(app))
    theirs, ours = set_cookies(await client.send(DISCOVER))
    assert theirs == b"app=1"
    pair = ours.partition(b";")[0]
    sent = [b"a=1;b=2; " + pair + b"; c", b"d=4", pair], [b"a=1;b=2 ;c"]
    for values, left in zip(sent, ([b"a=1; b=2; c", b"d=4"], [b"a=1;b=2 ;c"]), strict=True):
        await client.tool("count", *((b"cookie", value) for value in values))
        assert [value for name, value in server.last.scope["headers"] if name == b"cookie"] == left


HOST: Header = (b"host", b"mcp.example")
OTHER_SITES = (
    "https://evil.example",
    "null",
    "https://mcp.example:8443",
    "http://mcp.example:443",
    "http://a://mcp.example",
)


@pytest.mark.parametrize(
    ("headers", "counts"),
    [
        ([(b"sec-fetch-site", b"cross-site")], False),
        *(([(b"origin", origin.encode()), HOST], False) for origin in OTHER_SITES),
        ([(b"origin", b"http://mcp.example"), (b"host", b"80:mcp.example")], False),
        ([(b"origin", b"http://mcp.example")], False),
        *(([(b"origin", b"https://" + name), HOST], True) for name in (b"mcp.example", b"MCP.example:443")),
        ([(b"origin", b"http://mcp.example:80"), HOST], True),
        ([(b"origin", b"http://mcp.example"), (b"host", b"mcp.example:80")], True),
    ],
)
async def test_requests_from_pages_of_other_sites_count_as_without(headers: list[Header], counts: bool) -> None:
    """A page is of the host that its origin names, by its authority, to which the usual port belongs in any case."""
    client = Client(sessions(Server()))
    cookie, _ = await alive(client)
    assert await counted(client, cookie, *headers) == int(counts)
    assert bool(set_cookies(await client.send(DISCOVER, None, *headers))) is counts


async def test_two_clients_that_share_a_jar_have_no_session(caplog: pytest.LogCaptureFixture) -> None:
    """The second begins with the live cookie of the first: from there on neither has a session, and the log says so."""
    client = Client(sessions(Server(), require=["prompts/get"]))
    cookie, _ = await alive(client)
    assert await counted(client, cookie) == 1
    shared = (await client.send(DISCOVER, None, cookie)).cookie
    assert await counted(client, shared) == 0
    assert set_cookies(await client.send(DISCOVER, None, shared)) == []
    assert "two MCP clients share one cookie jar" in caplog.text
    for headers, message in (([shared], REFUSALS["cookie_jar_shared"].message), ([], "Session required")):
        assert error_of(await client.send("prompts/get", None, *headers)) == (-31044, message)


async def test_a_jar_may_be_one_conversation() -> None:
    """`cookie="shared"`: whoever brings the cookie goes on in its session; a marker of before begins one."""
    client = Client(sessions(Server(), transport=TransportSessions(cookie="shared")))
    cookie, name = await alive(client)
    assert await counted(client, cookie) == 1
    assert set_cookies(await client.send(DISCOVER, None, cookie)) == []
    assert await counted(client, cookie) == 2
    assert set_cookies(await client.send(DISCOVER, None, (b"cookie", name + b"=shared"))) != []


async def test_an_answer_of_a_session_is_not_kept_for_others() -> None:
    """A list is the same for all; nor has a request without a cookie an answer of its own."""
    hints = {"ttlMs": 60_000, "cacheScope": "public"}

    async def guard(scope: Scope, send: Send) -> bool:
        await reply(send, json.dumps({"jsonrpc": "2.0", "id": 1, "result": {**hints, "capabilities": {}}}).encode())
        return True

    client = Client(sessions(Server(guard=guard)))
    cookie, _ = await alive(client)
    for method, headers, kept in (
        ("resources/read", [cookie], {"ttlMs": 0, "cacheScope": "private"}),
        ("tools/list", [cookie], hints),
        ("resources/read", [], hints),
    ):
        answer = await client.send(method, {"uri": "a://b"}, *headers)
        assert answer.result == {**kept, "capabilities": {}}


async def test_a_cookie_of_which_the_store_cannot_say_anything_is_taken_for_a_live_one() -> None:
    """To begin anew could give one of two clients the session of the other."""
    store = Failing()
    client = Client(sessions(Server(), store=store))
    cookie, name = await alive(client)
    store.failing.add("status")
    assert (await client.send(DISCOVER, None, cookie)).cookie[1] == name + b"=shared"

"""Transport sessions: the bridge, where clients see our ids and the server its own, and who is led to have one."""

import logging
from typing import Any

import anyio
import pytest
from apps import Server, reply, sessions
from clients import DEADLINE, DISCOVER, INITIALIZE, Client, Exchange, Header, call, http
from starlette.types import Message, Receive, Scope, Send
from stateful import HEADER, Stateful

from mcp_sessions import CreateRefused, Session, TransportSessions
from mcp_sessions._dialects.crossing import Crossing
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import logs
from mcp_sessions.events import RequestRefused, SessionEvent
from mcp_sessions.stores import MemoryStore


def bridged(server: Stateful | None = None, **options: Any) -> tuple[Stateful, Client]:
    """A stateful server behind the bridge, and a client of it."""
    server = server or Stateful()
    return server, Client(sessions(server, bridge=True, **options), modern=False)


@pytest.mark.parametrize(
    ("named", "seen"),
    [([], []), ([b"servers-1"], [b"ours"]), ([b"servers-2"], []), ([b"servers-1", b"servers-2"], [])],
    ids=["none", "its own", "another", "two"],
)
async def test_no_response_names_another_id(named: list[bytes], seen: list[bytes]) -> None:
    _, client = bridged()
    ours = await client.initialize()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(HEADER, value) for value in named]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    client.app.app = app  # type: ignore[attr-defined]
    answer = await client.send("tools/call", None, ours)
    assert [header for header in answer.start["headers"] if header[0] == HEADER] == [ours for _ in seen]


@pytest.mark.parametrize(
    ("refusal", "status", "code"), [(CreateRefused("not today"), 200, -31045), (StoreUnavailable(), 503, -32603)]
)
async def test_who_gets_no_id_is_told_and_leaves_nothing_behind(refusal: Exception, status: int, code: int) -> None:
    """Nobody could ever use what the server has begun, so it is ended there."""

    def refuse(_session: Session, _params: dict[str, Any], _scope: Scope) -> None:
        raise refusal

    server, client = bridged(Stateful(sse=True), on_create=refuse)
    answer = await client.send("initialize")
    assert (answer.status, answer.error["code"]) == (status, code)
    assert HEADER not in answer.headers
    assert server.counts == {}
    assert [seen.scope["method"] for seen in server.seen] == ["POST", "DELETE"]


async def test_an_id_that_cannot_be_carried_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    """The specification asks for visible ASCII; the log says what is wrong."""
    _, client = bridged(Stateful(names="servers "), transport="off")
    assert HEADER not in (await client.send("initialize")).headers
    assert "not visible ASCII, or too long" in caplog.text


async def test_server_without_transport_sessions_has_no_stream_for_a_bridged_client() -> None:
    """The bridge names a session of its own there, and a GET in it would stay open without a word."""
    app = Server()
    client = Client(sessions(app, transport=TransportSessions(bridge=True)), modern=False)
    answer = await call(client.app, http("GET", headers=[await client.initialize()]))
    assert (answer.status, answer.headers[b"allow"]) == (405, b"POST, DELETE")
    assert app.methods == ["initialize"]


@pytest.mark.parametrize(("said", "answered"), [(405, 200), (404, 200), (403, 403), (500, 500)])
async def test_delete_ends_ours_unless_the_server_refuses(said: int, answered: int) -> None:
    """A server that ends nothing, or has forgotten, keeps nobody from leaving; one that forbids it does."""
    _, client = bridged(Stateful(deletes=said))
    ours = await client.initialize()
    assert (await call(client.app, http("DELETE", headers=[ours]))).status == answered
    assert ((await client.send("tools/call", None, ours)).status == 200) is (answered != 200)


async def test_a_stream_ends_with_its_session() -> None:
    """Nothing is said: no request waits for an answer there."""
    (server, client), answer = bridged(), Exchange()
    ours = await client.initialize()
    await client.send("tools/call", None, ours)
    session = server.seen[-1].scope["mcp_session"]
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer.run, client.app, http("GET", headers=[ours]), b"")
            await server.listening.wait()
            before = len(answer.messages)
            await session.end("over")
            assert answer.messages[before:] == [{"type": "http.response.body", "body": b"", "more_body": False}]
            tasks.cancel_scope.cancel()


async def test_a_stream_of_another_transport_session_is_not_taken_up() -> None:
    """By its event's id, which the server finds by that alone, with an id of ours that is live."""
    facts: list[SessionEvent] = []
    server, client = bridged(listen=facts.append)
    mine, other = await client.initialize(), await client.initialize()
    server.sse = True
    event_id = (await client.send("tools/call", None, mine)).body.partition(b"\n")[0].removeprefix(b"id: ")
    server.seen.clear()
    answer = await call(client.app, http("GET", headers=[other, (b"last-event-id", event_id)]))
    assert (answer.status, answer.error["code"]) == (404, -32043)
    assert [fact.reason for fact in facts if isinstance(fact, RequestRefused)] == ["event_foreign"]
    assert all(b'"ping"' in one.body for one in server.seen)  # which asks whether the caller is admitted


async def test_the_server_sees_nothing_of_the_bridge() -> None:
    """Its scope holds what it would hold without one, and what crosses cannot be printed by accident."""
    server, client = bridged()
    await client.send("tools/call", None, await client.initialize())
    plain = {"type", "asgi", "method", "path", "headers", "state", "mcp_session", "mcp_sessions.missing_session"}
    assert all(set(seen.scope) - plain == set(http()) - plain for seen in server.seen)
    assert repr(Crossing("ours", "servers-1")) == "<Crossing>"


@pytest.fixture(autouse=True)
def quiet_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each line be logged once in each test."""
    monkeypatch.setattr(logs, "_warned", set())


# --- ids from an earlier deployment, in which the server kept transport sessions ------------------

EARLIER: Header = (b"mcp-session-id", b"0123456789abcdef0123456789abcdef")


@pytest.mark.parametrize("bridge", [False, True])
async def test_id_of_an_earlier_deployment_is_served_without_session(
    bridge: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Some clients never reconnect after a 404. That the server is stateless shows when it answers `initialize`."""
    caplog.set_level(logging.INFO, "mcp_sessions")
    client = Client(sessions(Server(), bridge=bridge), modern=False)
    await client.initialize()
    assert (await client.tool("asks", EARLIER)).result["content"] is True
    (line,) = [line for line in caplog.messages if "has no session" in line]
    assert "earlier deployment" in line


@pytest.mark.parametrize("bridge", [False, True])
async def test_required_session_of_an_earlier_deployment_is_404(bridge: bool) -> None:
    """By the specification, clients then send `initialize` again."""
    client = Client(sessions(Server(), bridge=bridge, require={"tools/call"}), modern=False)
    await client.initialize()
    answer = await client.tool("count", EARLIER)
    assert (answer.status, answer.error["code"]) == (404, -31044)
    assert (await client.tool("count")).status == 200  # without any id, nothing could be forgotten


async def test_id_of_the_server_itself_is_not_of_an_earlier_deployment(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mcp_sessions")
    server = Server()

    async def stateful(scope: Scope, receive: Receive, send: Send) -> None:
        async def naming(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], EARLIER]}
            await send(message)

        await server(scope, receive, naming)

    client = Client(sessions(stateful), modern=False)
    await client.send("initialize", INITIALIZE)
    await client.tool("asks", EARLIER)
    (line,) = [line for line in caplog.messages if "has no session" in line]
    assert "transport sessions of its own" in line


# --- `Wire(era="auto")`: which clients are led to the legacy era --------------------------------

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
NODE: Header = (b"user-agent", b"node")


async def is_led(client: Client, *headers: Header) -> bool:
    """Whether a client's `server/discover` is answered as by a legacy server; else with the server's success."""
    answer = await client.send(DISCOVER, None, *headers)
    if "result" in answer.json:
        return False
    assert (answer.status, answer.error) == (404, {"code": -32601, "message": "Method not found"})
    return True


async def test_client_that_sends_our_cookie_stays_modern() -> None:
    client = Client(sessions(Server(), era="auto"))
    cookie = (await client.send(DISCOVER, None, (b"user-agent", b"python-httpx/0.28"))).cookie
    assert await is_led(client)
    assert not await is_led(client, cookie)


async def test_only_page_of_own_origin_stays_modern() -> None:
    """Its browser keeps our cookies; those of other pages are ignored."""
    client = Client(sessions(Server(), era="auto"))
    browser = (b"user-agent", b"Mozilla/5.0 (X11) Firefox/140")
    assert not await is_led(client, browser, (b"sec-fetch-site", b"same-origin"))
    assert await is_led(client, browser, (b"sec-fetch-site", b"cross-site"))


async def test_each_kind_of_led_client_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """However many invent a name, the log stays short; names are quoted."""
    caplog.set_level(logging.INFO, "mcp_sessions")
    client = Client(sessions(Server(), era="auto"))
    for agent in (
        b"claude-code/2.1.332 (cli)",
        b"claude-code/2.1.333",
        b"no\x9bde",
        *(b"bot%d" % n for n in range(50)),
    ):
        assert await is_led(client, (b"user-agent", agent))
    lines = [line for line in caplog.messages if 'Wire(era="both")' in line]
    assert [line.partition(" ")[0] for line in lines[:3]] == ["'claude-code'", r"'no\x9bde'", "'bot0'"]
    assert len(lines) == 20


@pytest.mark.parametrize(
    ("agent", "led"),
    [
        *(
            (agent, True)
            for agent in ("node", "Deno/2.1", "claude-code/2.1.332 (sdk-cli)", "Claude-User", "okhttp/5.1.0")
        ),
        *(
            (agent, True)
            for agent in ("openai-mcp/1.0.0", "Visual Studio Code/1.112", "Java-http-client/25", "rmcp/0.9")
        ),
        *((agent, True) for agent in ("", "Mozilla/5.0 (X11) Electron/37", "ai-sdk/mcp/2.0 runtime/Node.js/24")),
        *(
            (agent, False)
            for agent in ("python-httpx/0.28.1", "python-httpx2/2.16.2", "shop/1.0 (x) Python-HTTPX/0.28")
        ),
        ("python-httpxyz/1", True),
    ],
)
async def test_only_clients_known_to_keep_cookies_stay_modern(agent: str, led: bool) -> None:
    """`era="both"` and the default leave everybody alone."""
    header = (b"user-agent", agent.encode())
    assert await is_led(Client(sessions(Server(), era="auto")), header) is led
    assert not await is_led(Client(sessions(Server())), header)
    assert not await is_led(Client(sessions(Server(), era="both")), header)


async def test_they_get_a_session_by_header() -> None:
    """The server is asked once per process."""
    app = Server()
    client = Client(sessions(app, era="auto", admission="own"))
    legacy = Client(client.app, modern=False)
    for agent in (b"node", b"node", b"Deno/2"):
        assert await is_led(client, (b"user-agent", agent))
    assert app.methods == ["initialize"]
    begun = await legacy.send("initialize", INITIALIZE, NODE)
    named = (b"mcp-session-id", begun.headers[b"mcp-session-id"])
    assert [(await legacy.tool("count", NODE, named)).result["content"] for _ in range(2)] == [1, 2]


async def test_a_client_of_the_draft_stays_in_its_era() -> None:
    client = Client(sessions(Server(), era="auto"))
    message = client.message(DISCOVER)
    message["params"]["_meta"][CAPABILITIES] = {"experimental": {"sessions": {}}}
    assert "result" in (await client.post(message, NODE, method=DISCOVER)).json


SUCCESS = b'{"jsonrpc":"2.0","id":ID,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}'
OWN: Header = (b"mcp-session-id", b"the-servers-own")


@pytest.mark.parametrize(
    ("answer", "options", "led"),
    [
        ((200, SUCCESS), {}, True),
        ((200, SUCCESS), {"transport": "off"}, False),
        ((404, b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no"}}'), {}, False),
        ((400, b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32022,"message":"no"}}'), {}, False),
        ((200, SUCCESS, OWN), {}, False),
        ((200, SUCCESS, OWN), {"bridge": True}, True),
        ((200, SUCCESS), {"transport": TransportSessions(header=False, bridge=True)}, False),
    ],
)
async def test_they_are_led_where_a_session_waits_for_them(answer: Any, options: dict[str, Any], led: bool) -> None:
    """Not to a server of the modern era alone, nor to one whose own sessions we leave alone; it ends what it began."""
    ended: list[bytes] = []

    async def guard(scope: Scope, send: Send) -> bool:
        """Answer `initialize` in the way that is asked about."""
        headers = dict(scope["headers"])
        if scope["method"] == "DELETE":
            ended.append(headers[HEADER])
        elif b"mcp-protocol-version" in headers:
            return False
        status, body, *more = answer
        body = body.replace(b"ID", app.last.body.partition(b'"id":')[2].partition(b",")[0])
        start = [(b"content-type", b"application/json"), *more]
        await send({"type": "http.response.start", "status": status, "headers": start})
        await send({"type": "http.response.body", "body": body})
        return True

    app = Server(guard=guard)
    client = Client(sessions(app, era="auto", **options))
    assert [await is_led(client, NODE) for _ in range(2)] == [led, led]
    assert ended == ([b"the-servers-own"] if OWN in answer else [])
    answer = (200, SUCCESS)
    assert await is_led(client, NODE) is led


FOREIGN = b'{"jsonrpc":"2.0","id":"x","error":{"code":-32601,"message":"no"}}'
DENIED = b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"no"}}'


@pytest.mark.parametrize("body", [b"no", FOREIGN, DENIED, DENIED.replace(b"-32600", b"-32001")])
@pytest.mark.parametrize("status", [200, 400, 404, 421])
async def test_callers_that_are_not_admitted_decide_for_nobody(status: int, body: bytes) -> None:
    """Such as one with a wrong `Host`, whom guards answer before the server sees a message."""

    async def guard(scope: Scope, send: Send) -> bool:
        if dict(scope["headers"]).get(b"host") != b"evil":
            return False
        await reply(send, body.replace(b"ID", app.last.body.partition(b'"id":')[2].partition(b",")[0]), status=status)
        return True

    app = Server(guard=guard)
    client = Client(sessions(app, era="auto"))
    await client.send(DISCOVER, None, NODE, (b"host", b"evil"))
    assert await is_led(client, NODE)


UNKNOWN = DENIED.replace(b"-32600", b"-32601")


@pytest.mark.parametrize(
    "body", [UNKNOWN, UNKNOWN.replace(b"-32601", b"-32602"), UNKNOWN.replace(b"-32601", b"-32022")]
)
@pytest.mark.parametrize("status", [401, 403, 407, 421, 429, 500, 503])
async def test_status_of_guard_settles_nothing(status: int, body: bytes) -> None:
    """Whatever the error beside it says, it is the caller who is refused."""

    async def guard(scope: Scope, send: Send) -> bool:
        if dict(scope["headers"]).get(b"authorization") == b"good":
            return False
        await reply(send, body.replace(b"ID", app.last.body.partition(b'"id":')[2].partition(b",")[0]), status=status)
        return True

    app = Server(guard=guard)
    client = Client(sessions(app, era="auto", principal=lambda scope: None))
    await client.send(DISCOVER, None, NODE)
    assert await is_led(client, NODE, (b"authorization", b"good"))


async def test_no_of_server_holds_for_a_minute() -> None:
    """It may have been asked while it began; within the minute it is asked once."""
    is_legacy, now = False, [1_800_000_000.0]

    async def guard(scope: Scope, send: Send) -> bool:
        if is_legacy or b"mcp-protocol-version" in dict(scope["headers"]):
            return False
        asked.append(None)
        await reply(send, UNKNOWN.replace(b"ID", app.last.body.partition(b'"id":')[2].partition(b",")[0]), status=404)
        return True

    asked: list[None] = []
    app = Server(guard=guard)
    client = Client(sessions(app, era="auto", clock=lambda: now[0]))
    assert [await is_led(client, NODE) for _ in range(3)] == [False] * 3
    assert len(asked) == 1
    is_legacy = True
    assert not await is_led(client, NODE)
    now[0] += 61
    assert await is_led(client, NODE)


@pytest.mark.parametrize("options", [{"transport": "off"}, {"keys": None}], ids=["off", "keys that die"])
async def test_it_needs_no_dialect_and_no_lasting_key(options: dict[str, Any]) -> None:
    """The server's own sessions die with the process, too."""
    _, client = bridged(**options)
    assert (await client.send("tools/call", None, await client.initialize())).result == {"content": 1}


async def test_session_from_before_the_bridge_is_served_without_one_of_the_server() -> None:
    """The server then says itself what it lacks."""
    store = MemoryStore()
    earlier = Client(sessions(Server(), store=store), modern=False)
    header = await earlier.initialize()
    answer = await Client(sessions(server := Server(), store=store, bridge=True), modern=False).tool("whoami", header)
    assert answer.status == 200
    assert b"mcp-session-id" not in dict(server.seen[-1].scope["headers"])

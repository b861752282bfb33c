"""The cookie dialect: who gets one, what it is good for, how each odd one is answered, and when its session begins."""

import json
from http.cookies import SimpleCookie
from typing import Any

import anyio
import pytest
from apps import Server, read, reply, sessions
from clients import DISCOVER, START, Answer, Client, Clock, Header, call, http
from failing import Failing
from starlette.types import Message, Receive, Scope, Send

from mcp_sessions import CreateRefused, Limits, Session, TransportSessions
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._refusals import REFUSALS
from mcp_sessions._server.lifecycle import LEASE
from mcp_sessions._session.data import Namespace
from mcp_sessions.events import SessionCreated, SessionEvent
from mcp_sessions.stores import MemoryStore, Record

CLIENT = "io.modelcontextprotocol/clientCapabilities"


def set_cookies(answer: Answer) -> list[bytes]:
    return [value for name, value in answer.start["headers"] if name == b"set-cookie"]


async def counted(client: Client, *headers: Header, **more: Any) -> Any:
    return (await client.tool("count", *headers, **more)).result["content"]


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


DRAFT: dict[str, Any] = {"experimental": {"sessions": {}}}


@pytest.mark.parametrize(
    ("options", "modern", "method", "capable"),
    [
        ({"keys": None}, True, DISCOVER, {}),
        ({"transport": "off"}, True, DISCOVER, {}),
        ({"transport": TransportSessions(cookie=False)}, True, DISCOVER, {}),
        ({}, True, DISCOVER, DRAFT),
        ({}, False, "initialize", {}),
        ({"app": Server(guard=refuses)}, True, DISCOVER, {}),
    ],
    ids=["mortal keys", "off", "no cookie", "the draft", "legacy", "failed"],
)
async def test_some_get_none(options: dict[str, Any], modern: bool, method: str, capable: Any) -> None:
    client = Client(sessions(**{"app": Server(), **options}), modern=modern)
    message = client.message(method)
    message["params"]["_meta"][CLIENT] = capable
    assert set_cookies(await client.post(message, method=method)) == []


async def alive(client: Client) -> tuple[Header, bytes]:
    """A live cookie, and its name."""
    cookie = (await client.send(DISCOVER)).cookie
    return cookie, cookie[1].partition(b"=")[0]


@pytest.mark.parametrize(
    "kind", ["forged", "long", "empty", "twice", "quoted", "draft", "header", "expired", "deleted", "foreign"]
)
async def test_what_is_no_live_cookie_of_the_caller_is_answered_once(kind: str) -> None:
    """It is refused with a fresh one, which is good; and `server/discover` begins anew."""
    clock, caller = Clock(), ["alice"]
    client = Client(sessions(Server(), clock=clock, principal=lambda scope: caller[0]))
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
    assert refused.error["code"] == -32043
    assert "result" in begun.json
    assert [await counted(client, answer.cookie) for answer in (refused, begun)] == [1, 1]


async def test_a_dead_cookie_is_not_renewed_where_the_caller_gets_no_session() -> None:
    """Who the caller is cannot be seen here, so nobody else may go on with its session."""
    client = Client(sessions(Server()))
    _, name = await alive(client)
    answer = await client.tool("count", (b"cookie", name + b"=dead"), (b"authorization", b"Bearer of something"))
    assert answer.error["code"] == -32043
    assert set_cookies(answer) == []


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


def page(*origins: str, host: str | None = "mcp.example", site: str | None = None) -> list[Header]:
    """The headers by which a browser says whose page sends a request."""
    headers = [(b"origin", origin.encode()) for origin in origins]
    headers += [] if host is None else [(b"host", host.encode())]
    return headers if site is None else [*headers, (b"sec-fetch-site", site.encode())]


OWN: list[tuple[str, list[Header]]] = [
    ("http", page()),
    *(("http", page(site=site)) for site in ("same-origin", "none")),
    *(("http", page("http://mcp.example", host=host)) for host in ("mcp.example", "MCP.example", "mcp.example:80")),
    *(("http", page(origin)) for origin in ("http://mcp.example:80", "HTTP://MCP.example")),
    *(("https", page(origin)) for origin in ("https://mcp.example", "https://mcp.example:443")),
    ("https", page("https://mcp.example", host="mcp.example:443", site="same-origin")),
    ("http", page("http://[::1]:8000", host="[::1]:8000")),
    ("http", page("http://[::1]", host="[::1]:80")),
]
FOREIGN: list[tuple[str, list[Header]]] = [
    *(("http", page(site=site)) for site in ("cross-site", "same-site", "Cross-Site", "", "same-origin, none")),
    ("http", [*page(site="same-origin"), (b"sec-fetch-site", b"cross-site")]),
    *(
        ("http", page(origin))
        for origin in ("http://evil.example", "null", "", "http://a://mcp.example", "mcp.example")
    ),
    *(
        ("http", page(f"http://mcp.example{tail}"))
        for tail in (":8443", ":443", ".", "/", ":", "@evil.example", ":080")
    ),
    ("http", page("http://mcp.example, http://mcp.example")),
    ("http", page("http://mcp.example", "http://mcp.example")),
    ("http", page("https://mcp.example")),
    ("https", page("http://mcp.example")),
    ("https", page("http://mcp.example:443")),
    ("http", page("ws://mcp.example")),
    ("http", page("http://mcp.example", host=None)),
    ("http", [*page("http://mcp.example"), (b"host", b"evil.example")]),
    ("http", page("http://mcp.example", host="80:mcp.example")),
    ("http", page("http://[::1]:8000", host="[::2]:8000")),
    ("http", page("http://::1", host="[::1]")),
    ("http", page("http://mcp.example", site="cross-site")),
    ("http", [*page("http://mcp.example", host="evil.example"), (b"x-forwarded-host", b"mcp.example")]),
    ("http", [*page("https://mcp.example"), (b"x-forwarded-proto", b"https")]),
]
PAGES = [*((*one, True) for one in OWN), *((*one, False) for one in FOREIGN)]


@pytest.mark.parametrize(("scheme", "headers", "counts"), PAGES)
async def test_requests_from_pages_of_other_origins_count_as_without(
    scheme: str, headers: list[Header], counts: bool
) -> None:
    """A page is of the endpoint's origin if scheme, host and port of both are the same; all else is foreign."""
    client = Client(sessions(Server()), scheme=scheme)
    hosts = [header for header in headers if header[0].endswith(b"host")]
    cookie = (await client.send(DISCOVER, None, *hosts)).cookie
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
        assert (await client.send("prompts/get", None, *headers)).error["message"] == message


async def test_a_jar_may_be_one_conversation() -> None:
    """`cookie="shared"`: whoever brings the cookie goes on in its session; a marker of before begins one."""
    client = Client(sessions(Server(), transport=TransportSessions(cookie="shared")))
    cookie, name = await alive(client)
    assert await counted(client, cookie) == 1
    assert set_cookies(await client.send(DISCOVER, None, cookie)) == []
    assert await counted(client, cookie) == 2
    assert set_cookies(await client.send(DISCOVER, None, (b"cookie", name + b"=shared"))) != []


async def test_a_cookie_of_which_the_store_cannot_say_anything_is_taken_for_a_live_one() -> None:
    """To begin anew could give one of two clients the session of the other."""
    store = Failing()
    client = Client(sessions(Server(), store=store))
    cookie, name = await alive(client)
    store.failing.add("look_up")
    assert (await client.send(DISCOVER, None, cookie)).cookie[1] == name + b"=shared"


# --- the first use: a client that only asks what there is leaves nothing --------------------------


@pytest.mark.parametrize("tracked", [False, True])
async def test_a_discover_alone_leaves_nothing(tracked: bool) -> None:
    """No record, no event and no `on_create`, nor do lists make any; the first call makes all of them."""
    events, created, store = list[SessionEvent](), list[str](), MemoryStore()
    hooks: dict[str, Any] = {"listen": events.append, "on_create": lambda session, *_: created.append(session.ref)}
    client = Client(sessions(Server(sse=tracked), store=store, tracked=tracked, **hooks))
    cookies = [(await client.send(DISCOVER)).cookie for _ in range(3)]
    for method in (DISCOVER, "tools/list"):
        assert "result" in (await client.send(method, None, cookies[0])).json
    assert (events, created, await store.count(audience="mcp-sessions")) == ([], [], 0)
    called = [await client.tool("count", cookies[1]) for _ in range(3)]
    assert [answer.result["content"] for answer in called] == [1, 2, 3]
    assert (called[-1].session, set_cookies(called[-1])) == (None, [])  # nothing is echoed
    assert [event.ref for event in events if isinstance(event, SessionCreated)] == created
    assert (len(created), await store.count(audience="mcp-sessions")) == (1, int(tracked))


@pytest.mark.parametrize("workers", [1, 2])
async def test_calls_that_come_first_at_once_begin_it_once(workers: int) -> None:
    """On one worker or on several: the others wait until `on_create` has filled it."""
    entered, store, refs, seen = anyio.Event(), MemoryStore(), list[str](), list[Any]()

    async def welcome(session: Session, params: Any, scope: Scope) -> None:
        refs.append(session.ref)
        entered.set()
        await anyio.wait_all_tasks_blocked()
        session.state["greeting"] = "hello"

    clients = [Client(sessions(Server(), store=store, on_create=welcome)) for _ in range(workers)]
    cookie = (await clients[0].send(DISCOVER)).cookie

    async def call(client: Client) -> None:
        seen.append((await client.tool("remember", cookie)).result["content"])

    async with anyio.create_task_group() as group:
        group.start_soon(call, clients[0])
        await entered.wait()
        for client in clients * 2:
            group.start_soon(call, client)
    assert seen == [{"greeting": "hello"}] * (1 + 2 * workers)
    assert len(refs) == 1


@pytest.mark.parametrize("tracked", [False, True])
async def test_without_a_hook_nobody_waits_for_the_first_call(tracked: bool) -> None:
    """Calls on two workers overtake each other before the swap: all are in one session, which is created once."""
    store, events = Failing(), list[object]()
    options = {"store": store, "tracked": tracked, "listen": events.append}
    clients = [Client(sessions(Server(), **options)) for _ in range(2)]
    cookie = (await clients[0].send(DISCOVER)).cookie

    async def overtake(*_: object) -> None:
        answer = await clients[1].tool("remember", cookie, n=1)
        assert "result" in answer.json

    store.before["compare_and_swap"] = overtake
    assert (await clients[0].tool("remember", cookie)).result["content"] == {"n": 1}
    assert len([event for event in events if isinstance(event, SessionCreated)]) == 1
    assert await store.count(audience="mcp-sessions") == int(tracked)


async def test_lost_registration_leaves_a_session_that_others_created() -> None:
    """The worker whose answer was lost takes back no record of a session that is in use meanwhile."""
    store = Failing()
    clients = [Client(sessions(Server(), store=store, tracked=True)) for _ in range(2)]
    cookie = (await clients[0].send(DISCOVER)).cookie

    async def overtake(*_: object) -> None:
        assert "result" in (await clients[1].tool("remember", cookie, n=1)).json
        raise StoreUnavailable

    store.before["register"] = overtake
    assert (await clients[0].tool("whoami", cookie)).status == 503
    assert (await clients[1].tool("remember", cookie)).result["content"] == {"n": 1}
    assert await store.count(audience="mcp-sessions") == 1


async def test_only_one_of_parallel_first_calls_counts() -> None:
    """A caller may create three sessions per minute here; two parallel calls of one create one."""
    store = Failing()
    client = Client(sessions(Server(), store=store, limits=Limits(creates_per_minute=3)))
    cookies = [(await client.send(DISCOVER)).cookie for _ in range(3)]

    async def overtake(*_: object) -> None:
        assert "result" in (await client.tool("whoami", cookies[0])).json

    store.before["compare_and_swap"] = overtake
    for cookie in cookies:
        assert "result" in (await client.tool("whoami", cookie)).json


async def test_of_two_workers_the_faster_one_begins_it() -> None:
    store, refs = Failing(), list[str]()
    hook = {"on_create": lambda session, *_: refs.append(session.ref)}
    clients = [Client(sessions(Server(), store=store, **hook)) for _ in range(2)]
    cookie = (await clients[0].send(DISCOVER)).cookie
    store.before["compare_and_swap"] = lambda *_: counted(clients[1], cookie)
    assert await counted(clients[0], cookie) == 2
    assert len(refs) == 1


async def test_one_that_is_ended_before_it_begins_has_ended() -> None:
    store = Failing()
    client = Client(sessions(Server(), store=store))
    cookie = (await client.send(DISCOVER)).cookie

    async def end(place: Namespace, *_: object) -> None:
        await store.revoke(Record(place.owner, None, START, place.expires_at, START), reason="deleted", lease=None)

    store.before["compare_and_swap"] = end
    assert (await client.tool("count", cookie)).error["code"] == -32043


async def test_what_a_worker_began_and_did_not_finish_is_begun_by_another() -> None:
    """It was killed: until its lease runs out the others wait, since `on_create` may still run there."""
    store, clock, refs = Failing("register"), Clock(), list[str]()

    async def on_create(session: Session, params: Any, scope: Scope) -> None:
        refs.append(session.ref)
        if len(refs) == 1:
            store.failing.update({"purge", "compare_and_swap"})
            raise CreateRefused("dies")

    client = Client(sessions(Server(), store=store, clock=clock, on_create=on_create))
    cookie = (await client.send(DISCOVER)).cookie
    assert (await client.tool("count", cookie)).error["message"] == "dies"
    store.failing.clear()
    seen: list[Any] = []

    async def call() -> None:
        seen.append(await counted(client, cookie))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        assert seen == []
        clock.now += LEASE
    assert (seen, len(refs)) == ([1], 2)


@pytest.mark.parametrize(
    "limits", [{"creates_per_minute": 1}, {"anonymous_sessions": 1}, {"anonymous_data_bytes": 300}]
)
async def test_limits_count_what_is_used(limits: dict[str, int]) -> None:
    """Any number of cookies may be offered; the second one that is used is over the limit."""
    client = Client(sessions(Server(), limits=Limits(**limits), tracked="anonymous_sessions" in limits))
    cookies = [(await client.send(DISCOVER)).cookie for _ in range(3)]
    assert "result" in (await client.tool("whoami", cookies[0])).json
    assert "error" in (await client.tool("whoami", cookies[1])).json
    assert "result" in (await client.tool("whoami", cookies[0])).json
    assert "result" in (await client.send("tools/list", None, cookies[1])).json


async def test_server_that_names_a_session_of_its_own_gets_no_cookie_beside_it() -> None:
    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        message = json.loads(await read(receive))
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
        text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        await reply(send, text.encode(), named=b"server-1")

    answer = await Client(sessions(named)).send("server/discover")
    assert answer.result["supportedVersions"] == ["2026-07-28"]
    assert b"set-cookie" not in {name.lower() for name in answer.headers}


async def test_session_of_cookie_is_not_forked() -> None:
    client = Client(sessions(Server()))
    cookie = (await client.send(DISCOVER)).cookie
    await client.tool("whoami", cookie)
    assert "result" not in (await client.send("sessions/fork", None, cookie)).json


@pytest.mark.parametrize(("method", "name"), [("GET", b"last-event-id"), ("DELETE", b"mcp-session-id")])
async def test_guards_never_get_the_cookie_of_a_refused_request(method: str, name: bytes) -> None:
    """Every dialect takes its credentials out of the headers before any of them refuses the request."""
    app = Server()
    client = Client(sessions(app, transport=TransportSessions(bridge=True)))
    cookie = (await client.send(DISCOVER)).cookie
    answer = await call(client.app, http(method, headers=[*client.headers(""), cookie, (name, b"a"), (name, b"b")]))
    assert (answer.status, b"cookie" in app.last.headers) == (400, False)

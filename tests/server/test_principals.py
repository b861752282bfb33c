"""Who a request is authenticated as, and sessions of a principal, whose client names none."""

import itertools
import json
import logging
from enum import Enum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import anyio
import pytest
from apps import Server, reply, sessions
from clients import (
    DISCOVER,
    INITIALIZE,
    SECRET,
    SESSION_KEY,
    Answer,
    Client,
    Clock,
    Header,
    Incoming,
    by,
    call,
    http,
    user_of,
)
from every_store import STORES
from failing import Failing
from starlette.authentication import SimpleUser, UnauthenticatedUser
from starlette.types import Receive, Scope, Send
from stateful import Stateful

from mcp_sessions import ConfigurationError, CreateRefused, KeyRing, Principal, Session, TransportSessions
from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._refusals import REFUSALS
from mcp_sessions._server import logs, minting
from mcp_sessions._server.context import Request
from mcp_sessions._server.options import DAY, HOUR
from mcp_sessions._server.principal import PrincipalSessions, from_scope, reader
from mcp_sessions._session.claims import Kind
from mcp_sessions.dialects import SEP1364Create, SEP1364Initialize
from mcp_sessions.events import RequestRefused, SessionCreated, SessionEvent, SessionUsed
from mcp_sessions.stores import MemoryStore

JOHN_SMITH = {"display_name": "John Smith"}
NO_TEXT = 7, 0, True, b"alice", ["alice"], {"id": "alice"}, object(), object, uuid4(), lambda: "alice"


class Word(str, Enum):
    """Whose `str()` is another one from Python 3.11 on."""

    APP = "app"
    ALICE = "alice"


def user_with(**token: Any) -> SimpleNamespace:
    """A user as the SDK's bearer authentication leaves it."""
    return SimpleNamespace(is_authenticated=True, access_token=SimpleNamespace(**token))


@pytest.mark.parametrize(
    ("user", "principal"),
    [
        (user_with(client_id="app", subject="alice", claims={"iss": "idp"}), Principal("app", "idp", "alice")),
        (user_with(client_id="app", claims={"sub": "alice"}), Principal("app", None, "alice")),
        (user_with(client_id="app", subject="alice", claims={"sub": "other"}), Principal("app", None, "alice")),
        (user_with(client_id="app", subject="", claims={"sub": " "}), Principal("app")),
        (user_with(client_id=Word("app"), claims={"sub": Word("alice")}), Principal("app", None, "alice")),
        (user_with(client_id="app", claims=None), Principal("app")),
        (SimpleUser("carol"), Principal(subject="carol")),
        (SimpleNamespace(is_authenticated=1, identity="dora"), Principal(subject="dora")),
        (UnauthenticatedUser(), None),
        (None, None),
        # neither anonymous nor one principal for all: two John Smiths must not share sessions
        *(
            (user, "refused")
            for user in (object(), user_with(client_id=None), user_with(client_id=" "), SimpleUser(""))
        ),
        # what is no text may be another one in each request
        *((user_with(client_id=wrong), "refused") for wrong in NO_TEXT),
        *((user_with(client_id="app", subject=wrong), "refused") for wrong in NO_TEXT),
        *(
            (user_with(client_id="app", claims={claim: wrong}), "refused")
            for claim in ("iss", "sub")
            for wrong in NO_TEXT
        ),
        (user_with(client_id="app", claims=[("sub", "alice")]), "refused"),
        *((SimpleNamespace(is_authenticated=True, identity=wrong), "refused") for wrong in NO_TEXT),
        (SimpleNamespace(is_authenticated=lambda: False, identity="eve"), "refused"),
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


BLANK = "", " ", "\t\n"


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        *((blank, "a blank text") for blank in BLANK),
        *((Principal(subject=blank), "a Principal whose subject is a blank text") for blank in BLANK),
        *((Principal("app", part, "ann"), "a Principal whose issuer is") for part in BLANK),
        *((Principal(part, None, "ann"), "a Principal whose client_id is") for part in (*BLANK, b"app")),  # type: ignore[arg-type]
        (Principal("app", None, ["ann"]), "a Principal whose subject is a value of type list"),  # type: ignore[arg-type]
        *((Principal(issuer=issuer), "a Principal without client_id and subject") for issuer in (None, "https://idp")),
    ],
)
def test_what_would_make_all_callers_one_is_refused(returned: Any, shown: str) -> None:
    """Each would have everybody's sessions; the message says what was returned, and what to return."""
    with pytest.raises(ConfigurationError, match="return text that identifies the caller") as refused:
        reader(lambda scope: returned)({})
    assert f"principal= returned {shown}" in str(refused.value)


def test_text_of_any_class_counts_by_its_characters() -> None:
    """In Python 3.10 and 3.14 alike: what `str()` or a format makes of it does not matter."""
    assert reader(lambda scope: Word.ALICE)({}) == Principal(subject="alice")
    (found,) = {reader(lambda scope: Principal(Word.APP, None, Word.ALICE))({})}
    assert found is not None
    assert (type(found.client_id), type(found.subject)) == (str, str)


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
        caplog.set_level(logging.INFO, "mcp_sessions")
        logs._warned.clear()
        client = Client(sessions(Server()), modern=modern)
        answer = await client.send(method, None, BEARER)
        assert answer.result["capabilities"]["tools"] == {}
        assert named_in not in answer.headers
        assert named_in in (await client.send(method)).headers
        await client.tool("asks", BEARER)
        assert "does not see who the caller is; pass principal=" in caplog.messages[-1]


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


@pytest.mark.parametrize("kind", ["session", "transport", "cookie", "field", "beside"])
@pytest.mark.parametrize("server", [Server, Stateful])
@pytest.mark.parametrize("options", DEPLOYMENTS)
async def test_no_answer_shows_that_an_id_is_authentic(kind: Kind, server: Any, options: dict[str, Any]) -> None:
    """Who is not its owner gets what a forged one gets, whatever it is used as, in every place and method."""
    app = sessions(server(), principal=user_of, **options)
    scope = http(headers=[by("ann")])
    request = Request(app._runtime, app.app, scope, Incoming(), Answer(), RequestHeaders(scope["headers"]))
    minted = await minting.mint_for(request, app._dialects.all[0], kind)

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
        forged = await answers(minted.id[:-4] + "AAAA", method, *user)
        assert await answers(minted.id, method, *user) == forged, (user, method)


# --- sessions of a principal ---

OTHER = "another-secret-of-tests-0123456789-abcdef"


async def count(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Count the calls of a session in its state and in its data, and say which one it is."""
    if session is None:
        return None
    session.state["n"] = session.state.get("n", 0) + 1
    assert await session.data.increment("n") == session.state["n"]
    return session.state["n"], session.ref


async def about(session: Session | None, arguments: dict[str, Any]) -> Any:
    return session and [session.kind, session.id, session.expires_at.timestamp()]


def server(clock: Clock | None = None, **options: Any) -> Client:
    app, clock = options.pop("app", None) or Server(count=count, about=about), clock or Clock()
    given = {"transport.per_user": "fallback", "principal": user_of, "clock": clock, "store": MemoryStore(clock=clock)}
    return Client(sessions(app, **{**given, **options}))


async def counted(client: Client, who: str = "ann") -> Any:
    """Return which call of their session one is; "" is nobody."""
    return ((await client.tool("count", by(who))).result["content"] or [None])[0]


async def ref_of(client: Client, *headers: Header, **more: Any) -> Any:
    """Return the ref of the session that a call of Ann's is in."""
    return ((await client.tool("count", by("ann"), *headers, **more)).result["content"] or [None, None])[1]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the driver of Redis knows nothing else
@pytest.mark.parametrize(("kind", "tracked"), [*((kind, True) for kind in STORES), ("redis", False)])
async def test_a_caller_whose_client_names_nothing_is_in_its_own_session(
    kind: str, tracked: bool, tmp_path: Path
) -> None:
    """In both eras, on every worker, by nothing but who it is; after the session's end in a new one."""
    clock = Clock()
    store = STORES[kind](clock, tmp_path)
    workers = [server(clock, store=store, tracked=tracked, idle_timeout=HOUR, store_timeout=10) for _ in range(2)]
    legacy = Client(workers[1].app, modern=False)
    turns = [*workers, legacy, workers[0]]
    assert [await counted(client) for client in turns] == [1, 2, 3, 4]
    assert [await counted(client, "bob") for client in turns] == [1, 2, 3, 4]
    assert [await counted(client, "") for client in turns] == [None] * 4
    await workers[0].tool("leave", by("ann"))
    assert [await counted(client) for client in reversed(turns)] == [1, 2, 3, 4]
    assert await counted(legacy, "bob") == 5
    clock.now += 50 * 60
    assert await counted(workers[0]) == 5
    clock.now += 50 * 60  # which is too long for Bob's
    assert [await counted(workers[1], name) for name in ("ann", "bob")] == [6, 1]
    clock.now += 31 * DAY
    assert [await counted(client) for client in turns] == [1, 2, 3, 4]
    await store.close()


async def test_it_gives_way_to_every_session_that_is_named() -> None:
    client = server()
    own = await ref_of(client)
    cookie = (await client.send("server/discover", None, by("ann"))).cookie
    legacy = Client(client.app, modern=False)
    header = (b"mcp-session-id", (await legacy.send("initialize", None, by("ann"))).headers[b"mcp-session-id"])
    held = [
        await ref_of(client, session=await client.create(by("ann"))),
        await ref_of(client, cookie),
        await ref_of(legacy, header),
    ]
    assert len({own, None, *held}) == 5
    assert await ref_of(legacy, (b"mcp-session-id", b"the-servers-own")) is None
    shared, dead = ((b"cookie", cookie[1].partition(b"=")[0] + value) for value in (b"=shared", b"=dead"))
    assert await ref_of(client, shared) == own
    assert (await client.tool("count", by("ann"), dead)).error["code"] == -32043
    assert await ref_of(client) == own


async def test_handshakes_pings_notifications_and_stable_lists_begin_none() -> None:
    """They use no session, and `sessions/*` concerns others; a list that may vary is in it."""
    store = MemoryStore(clock=Clock())
    off: dict[str, Any] = {"transport.cookie": False}
    client = server(store=store, tracked=True, **off)
    legacy = Client(client.app, modern=False)
    unused = (client, "server/discover"), (legacy, "ping"), (client, "tools/list"), (client, "sessions/list")
    for one, method in unused:
        assert "result" in (await one.send(method, None, by("ann"))).json
    assert (await legacy.send("notifications/initialized", None, by("ann"), id=None)).status == 202
    assert await store.list_sessions(audience="mcp-sessions", limit=9) == []
    await legacy.send("tools/list", None, by("ann"))
    [record] = await store.list_sessions(audience="mcp-sessions", limit=9)
    assert record.ref == await ref_of(client)


async def test_it_says_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """To handlers, listeners and the log; no token names it, and no answer has a trace of it."""
    caplog.set_level(logging.INFO, "mcp_sessions")
    events: list[Any] = []
    clock = Clock()
    client = server(clock, listen=events.append)
    answer = await client.tool("about", by("ann"))
    assert answer.result["content"] == ["user", "", clock.now + DAY]
    assert SESSION_KEY not in answer.body.decode()
    assert [name for name, _ in answer.start["headers"]] == [b"content-type", b"content-length"]
    [created] = [event for event in events if isinstance(event, SessionCreated)]
    assert created.kind == "user"
    assert f"session {created.ref} of a user created" in caplog.messages


async def test_an_idle_one_is_ended_by_its_successor() -> None:
    """`on_end` frees what it held; without `idle_timeout`, it ends after a day."""
    clock, ended = Clock(), list[str]()
    client = server(clock, on_end=lambda session, reason: ended.append(reason))
    for hours, expected in ((0, 1), (20, 2), (20, 3), (25, 1)):
        clock.now += hours * HOUR
        assert await counted(client) == expected
    assert ended == ["idle"]


async def test_a_worker_that_slept_follows_the_others() -> None:
    """What it remembers is older than what the store has, and counts no longer."""
    clock = Clock()
    store = MemoryStore(clock=clock)
    slow, busy = (server(clock, store=store) for _ in range(2))
    assert await counted(slow) == 1
    for expected in (2, 3, 4):
        clock.now += 20 * HOUR
        assert await counted(busy) == expected
    assert await counted(slow) == 5
    clock.now += 61
    assert await counted(busy) == 6
    clock.now += 61  # due again in both, and the slow one's swap fails
    assert await counted(slow) == 7


async def test_it_outlives_the_rotation_of_keys() -> None:
    store = MemoryStore(clock=Clock())
    before, between, after = (
        server(store=store, keys=KeyRing(keys)) for keys in ([SECRET], [SECRET, OTHER], [OTHER, SECRET])
    )
    assert [await counted(one) for one in (before, between, after, between)] == [1, 2, 3, 4]
    await after.tool("leave", by("ann"))
    assert [await counted(one) for one in (after, between, after)] == [1, 2, 3]
    assert await counted(server(store=store, keys=KeyRing([OTHER]))) == 4


@pytest.mark.parametrize("tracked", [False, True])
async def test_two_workers_that_begin_at_once_create_one_session(tracked: bool) -> None:
    """The other one's was never created: no hook and no event learns of it."""
    clock, begun, ended, events = Clock(), list[str](), list[str](), list[SessionEvent]()
    store = Failing(clock=clock)
    hooks = {
        "on_create": lambda session, *_: begun.append(session.ref),
        "on_end": lambda session, reason: ended.append(reason),
        "listen": events.append,
    }
    one, other = (server(clock, store=store, tracked=tracked, **hooks) for _ in range(2))
    store.before["compare_and_swap"] = lambda *_: other.tool("count", by("ann"))
    assert [await counted(client) for client in (one, other, one)] == [2, 3, 4]
    assert (len(begun), ended) == (1, [])
    assert [type(event) for event in events if not isinstance(event, SessionUsed)] == [SessionCreated]


async def test_requests_that_come_at_once_begin_one_session() -> None:
    """As an agent's do that calls several tools: `on_create` runs once, while the others wait."""
    begun: list[str] = []
    answers: list[Any] = []

    async def on_create(session: Session, params: Any, scope: Scope) -> None:
        begun.append(session.ref)
        await anyio.lowlevel.checkpoint()
        session.state["n"] = 10
        await session.data.set("n", 10)

    client = server(on_create=on_create)

    async def call() -> None:
        answers.append((await client.tool("about", by("ann"))).result["content"])

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(call)
    assert (len(begun), len(answers)) == (1, 5)
    assert await counted(client) == 11


async def test_a_caller_that_the_server_does_not_admit_begins_none() -> None:
    """A name that nothing has checked yet must not fill the store: the server's own answer is the answer."""

    async def guard(scope: Scope, send: Send) -> bool:
        is_mallory = user_of(scope) == "mallory"
        if is_mallory:
            await reply(send, b"no", status=401, media_type=b"text/plain")
        return is_mallory

    store, app = MemoryStore(clock=Clock()), Server(count=count, guard=guard)
    client = server(app=app, store=store, tracked=True)
    assert (await client.tool("count", by("mallory"))).status == 401
    assert await store.list_sessions(audience="mcp-sessions", limit=9) == []
    assert [await counted(client) for _ in range(2)] == [1, 2]
    assert app.methods[2:] == ["server/discover", "tools/call", "tools/call"]


@pytest.mark.parametrize("failing", ["look_up", "compare_and_swap"])
async def test_a_store_that_does_not_answer_refuses_or_leaves_out_the_session(
    failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As the deployment says; where only the note of its use is lost, the request is in it."""
    clock = Clock()
    for allowed in (False, True):
        store = Failing(clock=clock)
        options = {"on_store_error": "allow"} if allowed else {}
        client = server(clock, store=store, **options)
        assert await counted(client) == 1
        clock.now += 61
        store.failing = {failing}
        answer = await client.tool("whoami", by("ann"))
        if failing == "compare_and_swap" or allowed:
            assert answer.result["content"].startswith("ses_")
        else:
            assert (answer.status, answer.error["message"]) == (503, "Session store unavailable")
        store.failing = {"read", "compare_and_swap"}
        refused = await client.tool("whoami", by("bob"))
        assert refused.json.get("result") == ({"content": "nobody"} if allowed else None)
    assert "a request goes without the session of its user: store unavailable (store_unavailable)" in caplog.messages


def test_what_is_remembered_has_a_bound() -> None:
    remembered = PrincipalSessions(max_callers=2)
    for subject in "abc":
        remembered.put(subject, subject.encode())
    assert [remembered.get(subject) for subject in "abc"] == [None, None, b"c"]


async def test_who_gets_none_is_answered_why() -> None:
    """By a policy, `on_create`, a store that never swaps, or not at all, where keys die with the process."""

    def on_create(session: Session, params: Any, scope: Scope) -> None:
        raise CreateRefused(f"not for {user_of(scope)}")

    async def never(*_: object) -> bool:
        return False

    client = server(require="always")
    assert await counted(client) == 1
    assert "result" in (await client.send("tools/list", None, by("ann"))).json
    assert (await client.tool("count")).error["code"] == -31044
    refused = await server(on_create=on_create).tool("count", by("ann"))
    assert refused.error == {"code": -31045, "message": "not for ann"}
    store = Failing(clock=Clock())
    store.compare_and_swap = never  # type: ignore[assignment]
    refused = await server(store=store).tool("count", by("ann"))
    assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
    assert await counted(server(keys=None)) is None


# --- pages of other sites --------------------------------------------------------------------------

CROSS_SITE = (b"origin", b"https://evil.example"), (b"sec-fetch-site", b"cross-site")


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("kind", [b"text/plain", b"application/json", None])
async def test_page_of_another_site_is_in_no_session_of_the_user(kind: bytes | None, modern: bool) -> None:
    """A browser that authenticates by itself (a certificate, Basic, a cookie) does so for every page."""
    client = server()
    own = await ref_of(client)
    assert own is not None
    sender = Client(client.app, modern=modern, scheme="https")
    usual = [
        (b"host", b"mcp.example"),
        *sender.headers("tools/call")[2:],
        *([] if kind is None else [(b"content-type", kind)]),
    ]
    body = json.dumps(sender.message("tools/call", {"name": "count", "arguments": {}})).encode()

    async def refs(*headers: Header) -> Any:
        answer = await call(client.app, http(headers=[*usual, by("ann"), *headers], scheme="https"), body)
        return (answer.result["content"] or [None, None])[1]

    assert await refs() == own
    assert await refs((b"origin", b"https://mcp.example"), (b"sec-fetch-site", b"same-origin")) == own
    for foreign in (
        [*CROSS_SITE],
        [CROSS_SITE[0]],
        [CROSS_SITE[1]],
        [(b"origin", b"null")],
        [(b"origin", b"http://mcp.example")],
    ):
        assert await refs(*foreign) is None
    assert await ref_of(client) == own


async def test_page_of_another_site_begins_no_session_of_the_user() -> None:
    """Where a session is required it is refused."""
    begun: list[str] = []
    client = server(require="always", on_create=lambda session, *_: begun.append(session.ref))
    assert (await client.tool("count", by("ann"), *CROSS_SITE)).error["code"] == -31044
    assert begun == []
    assert "result" in (await client.tool("count", by("ann"))).json


async def test_session_that_the_client_sends_itself_is_not_affected() -> None:
    """No page of another site knows its id, and the wrapped server decides which origins it serves."""
    client = server()
    legacy = Client(client.app, modern=False)
    header = (b"mcp-session-id", (await legacy.send("initialize", None, by("ann"))).headers[b"mcp-session-id"])
    assert await ref_of(legacy, header, *CROSS_SITE) == await ref_of(legacy, header) is not None
    held = await client.create(by("ann"))
    answers = [await client.tool("whoami", by("ann"), *page, session=held) for page in ((), CROSS_SITE)]
    assert len({answer.result["content"] for answer in answers} - {"nobody"}) == 1


# --- users and clients -----------------------------------------------------------------------------

UUID = "5e8f3c1a-0000-4000-8000-000000000000"
CLIENTS: list[dict[str, Any]] = [
    {"client_id": "app"},
    {"client_id": "app", "subject": "app"},
    {"client_id": "app", "claims": {"sub": "app"}},
    {"client_id": "app", "subject": "", "claims": {"iss": "https://idp"}},
    {"client_id": "app", "claims": {"sub": "app@clients"}},
    {"client_id": None, "claims": {"sub": "another@clients"}},
    {"client_id": "app", "claims": {"sub": UUID, "idtyp": "app"}},
    {"client_id": "app", "claims": {"sub": UUID, "gty": "client-credentials"}},
    *({"client_id": "app", "claims": {"sub": UUID, name: UUID}} for name in ("client_id", "azp", "cid", "appid")),
]
USERS: list[dict[str, Any]] = [
    {"client_id": "app", "subject": "ann"},
    {"client_id": "app", "claims": {"sub": "ann", "azp": "app", "idtyp": "user", "gty": "password"}},
    {"client_id": None, "claims": {"sub": "ann"}},
    {"client_id": "app", "claims": {"sub": "app2"}},
    {"client_id": "app", "claims": {"sub": "ann@clients.example"}},
]


def of_token(token: dict[str, Any], **options: Any) -> Client:
    """A client whose requests an authentication outside has admitted by a token."""
    client = server(principal=None, tracked=True, **options)
    client.scope["user"] = user_with(**token)
    return client


@pytest.mark.parametrize("token", CLIENTS)
@pytest.mark.parametrize("modern", [True, False])
async def test_client_has_no_session_that_its_principal_alone_finds(
    token: dict[str, Any], modern: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor a list of sessions: either would be of all its users. The log says it once, with the remedy."""
    logs._warned.clear()
    client = of_token(token)
    client.modern = modern
    for _ in range(2):
        assert (await client.tool("count")).result["content"] is None
        assert (await client.send("sessions/list")).error == {
            "code": -31046,
            "message": REFUSALS["principal_is_client"].message,
        }
    held = await client.create()
    assert (await client.tool("whoami", session=held)).result["content"].startswith("ses_")
    assert (await Client(client.app).tool("whoami", session=held)).error["code"] == -32043
    [line] = [text for text in caplog.messages if "which many users may share" in text]
    assert "principal=" in line


@pytest.mark.parametrize("token", USERS)
async def test_token_with_a_subject_of_its_own_is_a_user_s(token: dict[str, Any]) -> None:
    client = of_token(token)
    refs = [(await client.tool("whoami")).result["content"] for _ in range(2)]
    assert refs == [refs[0]] * 2 != ["nobody"] * 2
    assert [one["ref"] for one in (await client.send("sessions/list")).result["sessions"]] == refs[:1]


@pytest.mark.parametrize(
    ("principal", "is_user"),
    [
        ("app@clients", True),
        ("app", True),
        (Principal(subject="app@clients"), True),
        (Principal("app", None, "ann"), True),
        (Principal("app"), False),
        (Principal("app", "https://idp"), False),
        (Principal("app", None, "app"), False),
        (Principal("app", None, "app@clients"), False),
        (Principal("app", None, UUID, is_client=True), False),
    ],
)
async def test_function_says_who_is_a_user(principal: Any, is_user: bool) -> None:
    """A text is one, and so is a principal with a subject that is not its client."""
    client = server(principal=lambda scope: principal)
    assert ((await client.tool("whoami")).result["content"] != "nobody") is is_user
    assert reader(lambda scope: principal)({}).is_user is is_user  # type: ignore[union-attr]


async def test_client_is_told_why_its_session_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mcp_sessions")
    logs._warned.clear()
    client = of_token({"client_id": "app"}, **{"transport.cookie": False})
    await client.tool("asks")
    assert "it is authenticated as an OAuth client and not as a user; see the warning" in caplog.messages[-1]


@pytest.mark.parametrize("by", ["scope", "state"])
@pytest.mark.parametrize("method", ["initialize", DISCOVER])
async def test_user_that_server_puts_on_scope_owns_no_session(by: str, method: str) -> None:
    """The caller is who it was before the server ran: its next request comes without that user again."""
    server, facts = Server(), list[SessionEvent]()

    async def authenticating(scope: Scope, receive: Receive, send: Send) -> None:
        scope["user"] = SimpleUser("ann")
        scope.setdefault("state", {})["user"] = "ann"
        await server(scope, receive, send)

    read = {} if by == "scope" else {"principal": lambda scope: scope.get("state", {}).get("user")}
    client = Client(sessions(authenticating, listen=facts.append, **read), modern=method == DISCOVER)
    answer = await client.send(method, INITIALIZE if method == "initialize" else None)
    held = answer.cookie if client.modern else (b"mcp-session-id", answer.headers[b"mcp-session-id"])
    assert (await client.send("tools/call", {"name": "count"}, held)).status == 200
    assert not [fact for fact in facts if isinstance(fact, RequestRefused)]


async def test_user_that_server_puts_on_scope_is_still_unseen() -> None:
    """Nobody sees whose credentials the request carries, whatever the server makes of them."""
    server = Server()

    async def authenticating(scope: Scope, receive: Receive, send: Send) -> None:
        scope["user"] = SimpleUser("ann")
        await server(scope, receive, send)

    client = Client(sessions(authenticating), modern=False)
    answer = await client.send("initialize", INITIALIZE, (b"authorization", b"Bearer x"))
    assert b"mcp-session-id" not in answer.headers


async def test_refusal_of_page_of_another_site_names_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    logs._warned.clear()
    caplog.set_level(logging.INFO, "mcp_sessions")
    options = {"transport": TransportSessions(per_user=True), "principal": user_of, "require": "always"}
    client = Client(sessions(Server(), **options), modern=False)
    foreign = (b"origin", b"https://evil.example"), (b"host", b"localhost")
    assert (await client.send("tools/call", {"name": "whoami"}, by("ann"), *foreign)).error["code"] == -31044
    assert "a page of another site sent the request" in caplog.text
    assert "X-Forwarded-Proto" in caplog.text

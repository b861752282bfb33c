"""What becomes of each message: the session that it goes in, and what its answer changes; and the client's own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, repeat
from typing import Any

import anyio
import pytest
from clients import SESSION_KEY
from opentelemetry import context, propagate

from mcp_sessions.client import MemoryStorage, NoAnswer, NotOffered, Refused, SessionNotFound, SessionPage
from mcp_sessions.client import _router as router

from .scripted import HEADERS, LOST, OFFER, Rule, Server, calling, error, item, losing, plain, session_of, storing, talk

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
eras = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])


@eras
async def test_a_session_is_created_by_the_first_request_that_needs_it(modern: bool) -> None:
    """Not by a request about sessions, nor by one that names its own; it tells no more than program and client say."""
    server, info = Server(), {"name": "kitchen", "version": "2"}
    async with talk(server, modern=modern) as (sessions, caller):
        await caller.ask("ping")
        await caller.ask("sessions/list")
        own = await caller.ask("tools/call", {"_meta": {SESSION_KEY: {"sessionId": "own"}}})
        assert not server.sent("sessions/create")
        ours = await caller.ask("tools/call")
        with sessions.use(sessions.new({"plan": "free"})):
            await caller.ask("tools/call")
        await caller.ask("initialize", {"clientInfo": info})
        with sessions.use(sessions.open("other", {"plan": "paid"})):
            await caller.ask("tools/call")
    # the session of a result answers the one in the request: the program sees it where it named one
    assert own["result"]["_meta"] == {SESSION_KEY: {"sessionId": "own"}, "other": 1}
    assert ours["result"]["_meta"] == {"other": 1}
    first, second, third = (message.get("params", {}) for message in server.sent("sessions/create"))
    assert set(first) == ({"_meta"} if modern else set())
    assert (second["plan"], third["plan"]) == ("free", "paid")
    assert modern or third["_meta"] == {"io.modelcontextprotocol/clientInfo": info}
    assert server.carried("tools/call") == ["own", "id-1", "id-2", "id-3"]
    assert [*server.carried("ping"), *server.carried("sessions/list"), *server.carried("sessions/create")] == [None] * 5
    assert {*server.carried("sessions/delete")} == {"id-1", "id-2", "id-3"}


async def test_the_state_that_comes_back_is_sent_from_then_on() -> None:
    """A result without one that can be read keeps the one before; a result about another session is not believed."""
    one, two = ({"sessionId": "id-1", "state": state} for state in ("one", "two"))
    odd = [{"sessionId": "id-1", "state": 7}, {"state": "nameless"}, {"sessionId": "id-2", "state": "forged"}]
    metas = [None, [1], *({SESSION_KEY: echoed} for echoed in ("x", *odd, {"sessionId": "id-1"}, two))]
    results = iter([{"_meta": {SESSION_KEY: one}}, {}, *({"_meta": meta} for meta in metas), {}])
    server = Server({"tools/call": lambda _: {"result": next(results)}})
    async with talk(server) as (_, caller):
        for _ in range(11):
            await caller.ask("tools/call")
    assert [(session_of(sent) or {}).get("state") for sent in server.sent("tools/call")] == [None, *["one"] * 9, "two"]


async def test_lists_are_never_kept_by_the_clients_cache() -> None:
    """On a server with sessions: its cache would serve them to another session, or to a call without one."""
    hints = {"ttlMs": 60_000, "cacheScope": "public"}
    server = Server({method: lambda _: {"result": hints} for method in ("tools/list", "tools/call", "server/discover")})
    without = Server({"tools/list": lambda _: {"result": hints}, "server/discover": lambda _: {"result": {}}})
    server.rules["server/discover"] = lambda _: {"result": {**OFFER, **hints}}
    async with talk(server) as (sessions, caller):
        for chosen in (None, sessions.current):
            with sessions.use(chosen):
                assert (await caller.ask("tools/list"))["result"] == {"ttlMs": 0, "cacheScope": "private"}
        assert (await caller.ask("tools/call"))["result"] == hints
        assert caller.answers[1]["result"] == {**OFFER, **hints}
    async with talk(without) as (_, caller):
        assert (await caller.ask("tools/list"))["result"] == hints
    async with calling(sessions, greet=False) as caller:
        with sessions.use(None):  # unknown yet, and what is kept now would be served to a session later
            assert (await caller.ask("tools/list"))["result"] == {"ttlMs": 0, "cacheScope": "private"}


@pytest.mark.parametrize(
    ("offer", "offered"),
    [
        (OFFER, True),
        ({"capabilities": {"sessions": {}}}, True),
        *(({"capabilities": unreadable}, False) for unreadable in (None, "text", {"experimental": [1]})),
    ],
)
async def test_a_client_that_never_asks_what_a_server_offers_has_it_asked(offer: dict[str, Any], offered: bool) -> None:
    """A modern client may be pinned to a version: then we ask, once for all requests that come at the same time."""
    server = Server({"server/discover": lambda _: {"result": offer}})
    async with talk(server, greet=False) as (sessions, caller):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(caller.ask, "tools/call")
        assert sessions.offered is offered
    assert len(server.sent("server/discover")) == 1
    assert server.carried("tools/call") == ["id-1" if offered else None] * 3


@pytest.mark.skipif(not HEADERS, reason="needs mcp>=2; the streams of mcp 1 carry no headers")
async def test_headers_stand_beside_what_is_ours() -> None:
    """As the message says, its id, too; each envelope says that the client knows sessions, so it is given none."""
    server = Server()
    async with talk(server) as (_, caller):
        await caller.ask("tools/call")
    headers = {item.message.method: item.metadata.headers for item in server.received}  # type: ignore[union-attr]
    envelopes = [plain(item)["params"]["_meta"] for item in server.received]
    assert all(meta[CAPABILITIES] == {"experimental": {"sessions": {}}} for meta in envelopes)
    version = {"mcp-protocol-version": "2026-07-28"}
    assert headers == {
        "server/discover": {**version, "mcp-method": "server/discover"},
        "sessions/create": {**version, "mcp-method": "sessions/create"},
        "tools/call": {**version, "mcp-method": "tools/call", "mcp-session-id": "id-1"},
        "sessions/delete": {**version, "mcp-method": "sessions/delete", "mcp-session-id": "id-1"},
    }


@eras
async def test_notifications_and_replies_pass_as_they_are(modern: bool) -> None:
    """With the context that the transport notes, of which SDK 2.x runs callbacks in; others note none."""
    server = Server()
    async with talk(server, modern=modern) as (_, caller):
        await caller.tell("notifications/progress", progress=1)
        await caller.write.send(item({"id": 1, "result": {}}))
        for pushed in (item({"id": "s-1", "method": "ping"}), ValueError("not JSON"), item({"id": 99, "result": {}})):
            await server.push(pushed)
        await anyio.wait_all_tasks_blocked()
        assert [type(other) for other in caller.others] == [dict, ValueError, dict]
        assert caller.others[-1]["id"] == 99
        assert caller.contexts == [None] * 4
    assert server.carried("notifications/progress") == [None]


async def test_requests_that_were_given_up_without_a_word_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK 1.x says nothing when a call times out; the oldest make room, and their answers pass as they are."""
    monkeypatch.setattr(router, "MAX_PENDING", 1)
    server = Server(late={"slow"})
    async with talk(server) as (_, caller), anyio.create_task_group() as tasks:
        tasks.start_soon(caller.ask, "slow")
        await server.asked.wait()
        await caller.ask("tools/call")
        server.go.set()
    assert SESSION_KEY in caller.answers[2]["result"]["_meta"]
    assert SESSION_KEY not in caller.answers[3]["result"]["_meta"]


# --- what is known of the server ---


def first(*answers: dict[str, Any]) -> Rule:
    following = chain(answers, repeat({"result": OFFER}))
    return lambda message: next(following)


async def test_a_refused_discovery_leaves_it_to_the_handshake_which_may_be_made_again() -> None:
    """A client tries the modern era first: each handshake that follows declares sessions, and one is created."""
    server = Server({"server/discover": first(error(-32601)), "initialize": first(error(-32603), {"result": {}})})
    async with talk(server) as (sessions, caller):
        assert sessions.offered is None
        caller.modern = False
        await caller.ask("tools/call")
        for _ in range(3):
            await caller.ask("initialize", {"capabilities": {}})
        await caller.ask("tools/call")
    declared = [sent["params"]["capabilities"] for sent in server.sent("initialize")]
    assert declared == [{"experimental": {"sessions": {}}}] * 3
    assert server.carried("tools/call") == [None, "id-1"]
    assert len(server.sent("server/discover")) == 1


async def test_our_own_discovery_is_sent_again_where_it_was_refused() -> None:
    """What is not known yet is not lacking: a request goes without a session, which was not sent and cannot be lost."""
    server = Server({"server/discover": first(*[error(-32603)] * 2), "tools/call": first(error(LOST))})
    server.rules["sessions/list"] = lambda _: {"result": {"sessions": []}}
    async with talk(server, greet=False) as (sessions, caller):
        with pytest.raises(NoAnswer, match="nothing was sent"):
            await sessions.list()
        held = sessions.new()
        with sessions.use(held):
            assert (await caller.ask("tools/call"))["error"]["code"] == LOST
            assert not held.ended
            with pytest.raises(NoAnswer, match="not answered yet what it offers"):
                await sessions.list()
            assert await sessions.list() == SessionPage([])
            await caller.ask("tools/call")
    assert server.carried("tools/call") == [None, "id-1"]
    assert len(server.sent("server/discover")) == 3
    for call in (sessions.list(), sessions.fork()):
        with pytest.raises(NoAnswer, match="not connected"):
            await call


# --- forks and lists ---

LISTED = {
    "ref": "ses_a",
    "createdAt": "2026-07-28T12:00:00Z",
    "lastSeenAt": "2026-07-28T12:01:00Z",
    "expiresAt": "2026-08-04T12:00:00Z",
    "current": True,
}


async def test_a_fork_is_a_session_like_any_other() -> None:
    """It begins what has not begun; the parent goes on, with the state of the answer; all are deleted on leaving."""
    server = Server()
    async with talk(server) as (sessions, caller):
        fork = await sessions.fork(params={"task": "pay"})
        with sessions.use(fork):
            await caller.ask("tools/call")
            second = await sessions.fork()
        await caller.ask("tools/call")
        assert (fork.id, second.id) == ("fork-1", "fork-2")
    assert [sent["params"].get("task") for sent in server.sent("sessions/fork")] == ["pay", None]
    assert server.carried("sessions/fork") == ["id-1", "fork-1"]
    assert server.carried("tools/call") == ["fork-1", "id-1"]
    assert session_of(server.sent("tools/call")[-1]) == {"sessionId": "id-1", "state": "moved on"}
    assert {*server.carried("sessions/delete")} == {"fork-1", "fork-2", "id-1"}


async def test_a_fork_with_a_name_has_it_from_the_start_and_is_kept() -> None:
    """A second one is refused before it is sent, or nobody would hold it; a call in it waits, and creates no other."""
    server, storage = Server(late={"sessions/fork"}), MemoryStorage()
    sessions = storing(server, storage)
    async with calling(sessions) as caller, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(sessions.fork, name="helper"))
        await server.asked.wait()
        with pytest.raises(ValueError, match="'helper'"):
            await sessions.fork(name="helper")
        with sessions.use(sessions.open("helper")):
            tasks.start_soon(caller.ask, "tools/call")
            await anyio.wait_all_tasks_blocked()
        server.go.set()
    sessions = storing(server, storage)
    async with calling(sessions):
        assert sessions.open("helper").id == "fork-1"
        for parent, name in ((None, "helper"), (sessions.open("thread"), "thread")):
            with pytest.raises(ValueError, match=f"'{name}'"):
                await sessions.fork(parent, name=name)
        with sessions.use(None), pytest.raises(ValueError, match="no session is selected"):
            await sessions.fork()
    assert server.carried("tools/call") == ["fork-1"]
    assert (len(server.sent("sessions/fork")), len(server.sent("sessions/create"))) == (1, 1)


async def test_what_the_server_refuses_or_does_not_answer_is_said() -> None:
    """A session that was lost has no forks, and is not asked for them again."""
    lost = error(-32043, sessionId="id-1")
    answers = iter([error(-31045), {"result": {}}, {"result": {"session": {"sessionId": ""}}}, lost])
    async with talk(Server({"sessions/fork": lambda _: next(answers)})) as (sessions, _):
        held = sessions.new()
        with pytest.raises(Refused, match="-31045"):
            await sessions.fork(held)
        for _ in range(2):
            with pytest.raises(NoAnswer, match="no session"):
                await sessions.fork(held)
        assert held.created
        for said in ("sessions/fork", "create another"):
            with pytest.raises(SessionNotFound, match=said):
                await sessions.fork(held)


async def test_a_list_is_read() -> None:
    """Public names and times; it is asked for in the session at hand, if there is one, which is marked then."""
    pages = iter([{"sessions": [LISTED], "nextCursor": "more"}, {"sessions": []}, {"sessions": [{"ref": 1}]}])
    server = Server({"sessions/list": lambda _: {"result": next(pages)}})
    async with talk(server) as (sessions, caller):
        page = await sessions.list()
        await caller.ask("tools/call")
        assert await sessions.list(page.next_cursor) == SessionPage([])
        with pytest.raises(NoAnswer, match="no list"):
            await sessions.list("more")
    (listed,) = page.sessions
    times = (listed.created_at, listed.last_seen_at, listed.expires_at)
    assert [at.strftime("%m-%d %H:%M %Z") for at in times] == ["07-28 12:00 UTC", "07-28 12:01 UTC", "08-04 12:00 UTC"]
    assert (listed.ref, listed.current) == ("ses_a", True)
    assert [sent["params"].get("cursor") for sent in server.sent("sessions/list")] == [None, "more", "more"]
    assert server.carried("sessions/list") == [None, "id-1", "id-1"]


@pytest.mark.parametrize("settings", [{}, {"fork": False, "list": False}, None, "fork"])
async def test_what_is_not_offered_is_not_asked_for(settings: Any) -> None:
    offer = {"capabilities": {"experimental": {"sessions": settings}}}
    server = Server({"server/discover": lambda _: {"result": offer}})
    async with talk(server) as (sessions, _):
        for call in (sessions.fork(sessions.new()), sessions.list()):
            with pytest.raises(NotOffered):
                await call
    assert len(server.received) == 1


# --- the program's trace, to which the client's own requests belong, as the SDK's own do ---

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CARRIED = {"traceparent": TRACE, "tracestate": "vendor=1", "baggage": "who=ann"}


@contextmanager
def traced() -> Iterator[None]:
    """A span of the program's, with a vendor's state and baggage."""
    token = context.attach(propagate.extract(CARRIED))
    try:
        yield
    finally:
        context.detach(token)


def traces(server: Server) -> list[tuple[str, dict[str, str]]]:
    """The requests that are ours, and the trace context in each."""
    ours = [message for message in map(plain, server.received) if str(message.get("id")).startswith("mcp-sessions-")]
    carried = [(message["method"], message.get("params", {}).get("_meta", {})) for message in ours]
    return [(method, {name: meta[name] for name in CARRIED if name in meta}) for method, meta in carried]


@eras
async def test_requests_of_our_own_carry_the_current_trace_context(modern: bool) -> None:
    """Also where a call is repeated, which happens in the context of its caller."""
    server = Server({"tools/call": losing("id-1"), "sessions/list": lambda _: {"result": {"sessions": []}}})
    async with talk(server, modern=modern, greet=not modern, on_not_found="recreate") as (sessions, caller):
        with traced():
            await caller.ask("tools/call")
            fork = await sessions.fork()
            await sessions.list()
            for session in (fork, sessions.open("")):
                await sessions.delete(session)
    discovery = ["server/discover"] if modern else []
    methods = [f"sessions/{name}" for name in ("create", "create", "fork", "list", "delete", "delete")]
    assert traces(server) == [(method, CARRIED) for method in discovery + methods]


async def test_without_a_span_or_opentelemetry_there_is_no_trace_context(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    async with talk(server) as (_, caller):
        await caller.ask("tools/call")
    monkeypatch.delitem(sys.modules, "opentelemetry.context")
    with traced():
        async with talk(server) as (_, caller):
            await caller.ask("tools/call")
    assert traces(server) == [("sessions/create", {}), ("sessions/delete", {})] * 2
    assert "opentelemetry.context" not in sys.modules

"""What becomes of each message: which session it goes in, and what its answer says of that session."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from integration.wire import SESSION_KEY
from mcp_sessions.client import ClientSessions, NoAnswer, Refused, SessionJar, SessionLost, with_sessions
from mcp_sessions.client import connection as rooms

from .scripted import HEADERS, OFFER, Answer, Server, calling, error, item, session_of

eras = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
LOST = -32043
REQUIRED = -31044


def sessions_on(server: Server, jar: SessionJar | None = None, /, **options: Any) -> ClientSessions:
    """Sessions on a scripted server."""
    return with_sessions(server.transport, jar, **options)


def echoing(**news: Any) -> Any:
    """A rule that says something of the session."""
    return lambda message: {"result": {"_meta": {SESSION_KEY: {**(session_of(message) or {}), **news}}}}


@eras
async def test_a_session_is_created_by_the_first_request_that_needs_it(modern: bool) -> None:
    """Not by the handshake, nor by a ping, nor by requests about sessions, nor where the sender names one itself."""
    server = Server()
    async with calling(sessions_on(server), modern=modern) as caller:
        await caller.ask("ping")
        await caller.ask("sessions/list")
        await caller.ask("tools/call", {"_meta": {SESSION_KEY: {"sessionId": "own"}}})
        assert not server.sent("sessions/create")
        await caller.ask("tools/call")
        assert server.carried("tools/call") == [{"sessionId": "own"}, {"sessionId": "id-1"}]
        assert server.carried("ping") + server.carried("sessions/list") == [None, None]
    assert server.carried("sessions/delete") == [{"sessionId": "id-1"}]


@eras
async def test_a_create_that_knows_nothing_sends_nothing_needless(modern: bool) -> None:
    """No session metadata, as the draft demands, and no empty `params`; what the program tells is sent along."""
    server = Server()
    sessions = sessions_on(server)
    async with calling(sessions, modern=modern) as caller:
        await caller.ask("tools/call")
        with sessions.use(sessions.new({"plan": "free"})):
            await caller.ask("tools/call")
        with sessions.use(sessions.open("other", {"plan": "paid"})):
            await caller.ask("tools/call")
    first, second, third = (message.get("params", {}) for message in server.sent("sessions/create"))
    assert set(first) == ({"_meta"} if modern else set())
    assert (second["plan"], third["plan"]) == ("free", "paid")
    assert all(session_of(message) is None for message in server.sent("sessions/create"))


async def test_who_the_client_is_goes_with_the_creation() -> None:
    """As its handshake said it: a server that keeps nothing of that has nowhere else to learn it from."""
    server, info = Server(), {"name": "kitchen", "version": "2"}
    async with calling(sessions_on(server), modern=False) as caller:
        await caller.ask("initialize", {"clientInfo": info})
        await caller.ask("tools/call")
    (created,) = server.sent("sessions/create")
    assert created["params"] == {"_meta": {"io.modelcontextprotocol/clientInfo": info}}


async def test_the_result_is_free_of_what_was_asked_for() -> None:
    """The session in a result answers the session that we put into the request, so the program does not see it."""
    server = Server(
        {"tools/call": lambda message: {"result": {"_meta": {SESSION_KEY: session_of(message), "other": 1}}}}
    )
    async with calling(sessions_on(server)) as caller:
        assert (await caller.ask("tools/call"))["result"]["_meta"] == {"other": 1}
        own = await caller.ask("tools/call", {"_meta": {SESSION_KEY: {"sessionId": "own"}}})
        assert own["result"]["_meta"] == {SESSION_KEY: {"sessionId": "own"}, "other": 1}


@pytest.mark.parametrize("meta", [None, {}, {"_meta": None}, {"_meta": {SESSION_KEY: 7}}, {"_meta": {SESSION_KEY: {}}}])
async def test_a_result_that_says_nothing_of_the_session_changes_nothing(meta: Any) -> None:
    """The same id and state go with the next request."""
    server = Server({"tools/call": lambda _: {"result": meta or {}}})
    async with calling(sessions_on(server)) as caller:
        await caller.ask("tools/call")
        await caller.ask("tools/call")
    assert server.carried("tools/call") == [{"sessionId": "id-1"}] * 2


async def test_the_state_that_comes_back_is_sent_from_then_on() -> None:
    """A result without one keeps the one before; a result about another session is not believed."""
    says = iter([{"state": "one"}, {}, {"sessionId": "id-2", "state": "forged"}, {"state": "two"}, {}])

    def answer(message: dict[str, Any]) -> Answer:
        rule: Answer = echoing(**next(says))(message)
        return rule

    server = Server({"tools/call": answer})
    async with calling(sessions_on(server)) as caller:
        for _ in range(5):
            await caller.ask("tools/call")
    assert [(sent or {}).get("state") for sent in server.carried("tools/call")] == [None, "one", "one", "one", "two"]


async def test_lists_are_never_kept_by_the_clients_cache() -> None:
    """On a server with sessions: its cache would serve them to another session, or a session's to nobody's."""
    hints = {"ttlMs": 60_000, "cacheScope": "public"}
    server = Server({method: lambda _: {"result": hints} for method in ("tools/list", "tools/call", "server/discover")})
    plain = Server({"tools/list": lambda _: {"result": hints}, "server/discover": lambda _: {"result": {}}})
    server.rules["server/discover"] = lambda _: {"result": {**OFFER, **hints}}
    sessions = sessions_on(server)
    async with calling(sessions) as caller:
        for chosen in (None, sessions.current):
            with sessions.use(chosen):
                assert (await caller.ask("tools/list"))["result"] == {"ttlMs": 0, "cacheScope": "private"}
        assert (await caller.ask("tools/call"))["result"] == hints
        assert caller.answers[1]["result"] == {**OFFER, **hints}
    async with calling(sessions_on(plain)) as caller:
        assert (await caller.ask("tools/list"))["result"] == hints
    async with calling(sessions, greet=False) as caller:
        with sessions.use(None):  # nobody knows yet, and what is kept now would be served to a session later
            assert (await caller.ask("tools/list"))["result"] == {"ttlMs": 0, "cacheScope": "private"}


@pytest.mark.parametrize("offer", [OFFER, {"capabilities": {"sessions": {}}}, {"capabilities": None}, {}])
async def test_a_client_that_never_asks_what_a_server_offers_is_told_apart(offer: dict[str, Any]) -> None:
    """A modern client may be pinned to a version: then we ask, once for all requests that come at the same time."""
    server = Server({"server/discover": lambda _: {"result": offer}})
    async with calling(sessions_on(server), greet=False) as caller, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(caller.ask, "tools/call")
    assert len(server.sent("server/discover")) == 1
    offered = bool(offer.get("capabilities"))
    assert server.carried("tools/call") == [{"sessionId": "id-1"} if offered else None] * 3


async def test_a_server_that_knows_no_discovery_has_no_sessions() -> None:
    """And a client of the handshake era that sends requests before the handshake gets none."""
    server = Server({"server/discover": lambda _: error(-32601)})
    for modern in (True, False):
        async with calling(sessions_on(server), modern=modern, greet=False) as caller:
            await caller.ask("tools/call")
    assert server.carried("tools/call") == [None, None]
    assert len(server.sent("server/discover")) == 1


@pytest.mark.skipif(not HEADERS, reason="needs mcp>=2; the streams of mcp 1 carry no headers")
async def test_headers_stand_beside_what_is_ours() -> None:
    """Version and method as the message says; the id is mirrored in the modern era, whose transports hold none."""
    server = Server()
    async with calling(sessions_on(server)) as caller:
        await caller.ask("tools/call")
    headers = {item.message.method: item.metadata.headers for item in server.received}  # type: ignore[union-attr]
    version = {"mcp-protocol-version": "2026-07-28"}
    assert headers == {
        "server/discover": {**version, "mcp-method": "server/discover"},
        "sessions/create": {**version, "mcp-method": "sessions/create"},
        "tools/call": {**version, "mcp-method": "tools/call", "mcp-session-id": "id-1"},
        "sessions/delete": {**version, "mcp-method": "sessions/delete", "mcp-session-id": "id-1"},
    }


@eras
async def test_notifications_and_replies_pass_as_they_are(modern: bool) -> None:
    """They carry no session; what the server asks or tells reaches the client."""
    server = Server()
    async with calling(sessions_on(server), modern=modern) as caller:
        await caller.tell("notifications/progress", progress=1)
        await caller.write.send(item({"id": 1, "result": {}}))
        got: Any = None
        for pushed in (item({"id": "s-1", "method": "ping"}), ValueError("not JSON"), item({"id": 99, "result": {}})):
            caller._another = anyio.Event()
            await server.push(pushed)
            got = await caller.another()
        assert [type(other) for other in caller.others] == [dict, ValueError, dict]
        assert got["id"] == 99
        await caller.ask("tools/call")
    assert server.carried("notifications/progress") == [None]


async def test_what_the_transport_noted_reaches_the_client_with_its_message() -> None:
    """SDK 2.x runs callbacks in the context of the request that they belong to; other transports note none."""
    server = Server()
    async with calling(sessions_on(server)) as caller:
        assert caller.contexts == [None]


# --- errors --------------------------------------------------------------------------------------


def losing(*lost: str) -> Any:
    """A rule that does not find some sessions."""

    def answer(message: dict[str, Any]) -> Answer:
        named = (session_of(message) or {}).get("sessionId", "")
        return error(LOST, sessionId=named, reason="ended") if named in lost else echoing()(message)

    return answer


async def test_a_lost_session_is_told_once_and_without_its_id() -> None:
    """The program gets the server's error; the next request begins anew."""
    server = Server({"tools/call": losing("id-1")})
    async with calling(sessions_on(server)) as caller:
        assert (await caller.ask("tools/call"))["error"] == {"code": LOST, "message": "no", "data": {"reason": "ended"}}
        assert "result" in await caller.ask("tools/call")
    assert server.carried("tools/call") == [{"sessionId": "id-1"}, {"sessionId": "id-2"}]
    assert server.carried("sessions/delete") == [{"sessionId": "id-2"}]


async def test_a_lost_session_without_a_name_is_done() -> None:
    """Its handle says so before anything is sent; others go on."""
    server = Server({"tools/call": losing("id-1")})
    sessions = sessions_on(server)
    async with calling(sessions) as caller:
        with sessions.use(sessions.new()) as held:
            assert "error" in await caller.ask("tools/call")
            assert held is not None
            assert held.ended
            with pytest.raises(SessionLost, match="begin another"):
                await caller.ask("tools/call")
        assert "result" in await caller.ask("tools/call")


async def test_recreating_sends_the_request_again_once() -> None:
    """The same request, in a new session; a second loss is an error."""
    server = Server({"tools/call": losing("id-1", "id-2", "id-3")})
    sessions = sessions_on(server, on_lost="recreate")
    async with calling(sessions) as caller:
        with sessions.use(sessions.new()):
            assert (await caller.ask("tools/call", {"name": "pay"}))["error"]["code"] == LOST
            assert "result" in await caller.ask("tools/call")
    assert [message["id"] for message in server.sent("tools/call")] == [2, 2, 3, 3]
    assert server.sent("tools/call")[1]["params"]["name"] == "pay"


@pytest.mark.parametrize(
    "answer", [error(LOST), error(LOST, sessionId="another"), error(LOST, other=1), error(-32000, sessionId="id-1")]
)
async def test_an_error_about_something_else_is_left_alone(answer: Answer) -> None:
    """A server that is a client of others may pass their errors on: only one about our session is one of ours."""
    server = Server({"tools/call": lambda _: answer})
    async with calling(sessions_on(server, on_lost="recreate")) as caller:
        for _ in range(2):
            assert (await caller.ask("tools/call"))["error"] == answer["error"]
    assert server.carried("tools/call") == [{"sessionId": "id-1"}] * 2


async def test_requests_that_lost_the_same_session_share_the_next() -> None:
    """An error that comes after the new session was made does not end that one; nor does a late result change it."""
    server = Server({"slow": losing("id-1"), "tools/call": losing("id-1")}, late=frozenset({"slow"}))
    sessions = sessions_on(server, on_lost="recreate")
    async with calling(sessions) as caller:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.ask, "slow")
            await server.asked.wait()
            await caller.ask("tools/call")
            server.go.set()
        assert server.carried("slow") == [{"sessionId": "id-1"}, {"sessionId": "id-2"}]
        server.rules["slow"] = echoing(state="late")
        server.go, server.asked = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.ask, "slow")
            await server.asked.wait()
            held = sessions.open("")
            await sessions.delete(held)
            server.go.set()
        assert not held.begun
    assert len(server.sent("sessions/create")) == 2


async def test_a_session_that_is_required_is_created() -> None:
    """Once: an error that comes again reaches the program, and so does one for a call that chose to have none."""
    server = Server(
        {
            "initialize": lambda _: {"result": {}},
            "tools/call": lambda message: echoing()(message) if session_of(message) else error(REQUIRED),
            "never": lambda _: error(REQUIRED),
        }
    )
    sessions = sessions_on(server)
    async with calling(sessions, modern=False) as caller:
        with sessions.use(None):
            assert (await caller.ask("tools/call"))["error"]["code"] == REQUIRED
        offered = sessions.offered
        assert "result" in await caller.ask("tools/call")
        assert (offered, sessions.offered) == (False, True)
        assert (await caller.ask("never"))["error"]["code"] == REQUIRED
    assert server.carried("tools/call") == [None, None, {"sessionId": "id-1"}]


async def test_the_first_answer_stands_where_trying_again_fails() -> None:
    """The server loses the session and makes no other."""
    server = Server({"tools/call": losing("id-1")})
    async with calling(sessions_on(server, on_lost="recreate")) as caller:
        server.rules["sessions/create"] = lambda message: (
            error(-32000) if server.sent("tools/call") else {"result": {"session": {"sessionId": "id-1"}}}
        )
        assert (await caller.ask("tools/call"))["error"]["code"] == LOST


async def test_a_request_that_was_given_up_is_not_sent_again() -> None:
    """The program gave up while the session was made anew, or before: the answer is nobody's."""
    server = Server({"tools/call": losing("id-1")})
    sessions = sessions_on(server, on_lost="recreate")
    async with calling(sessions) as caller, anyio.create_task_group() as tasks:
        await caller.ask("other")
        server.late = frozenset({"sessions/create"})
        tasks.start_soon(caller.ask, "tools/call")
        await server.asked.wait()
        await caller.tell("notifications/cancelled", requestId=3)
        await caller.tell("notifications/cancelled", requestId=77)
        server.go.set()
        await caller.ask("other")
        assert len(server.sent("tools/call")) == 1
        tasks.cancel_scope.cancel()


async def test_a_create_that_is_refused_is_the_callers_error() -> None:
    """With the code and the text of the server; the next call tries again."""
    server = Server({"sessions/create": lambda _: error(-31029)})
    async with calling(sessions_on(server)) as caller:
        for _ in range(2):
            with pytest.raises(Refused, match="sessions/create was refused: -31029 no") as refusal:
                await caller.ask("tools/call")
            assert (refusal.value.method, refusal.value.code) == ("sessions/create", -31029)
        del server.rules["sessions/create"]
        assert "result" in await caller.ask("tools/call")


@pytest.mark.parametrize("session", [None, {}, {"sessionId": 7}, {"sessionId": ""}, {"sessionId": "a b"}])
async def test_a_created_session_must_be_one(session: Any) -> None:
    """Ids are visible ASCII: what is not goes into no header and no request."""
    server = Server({"sessions/create": lambda _: {"result": {"session": session}}})
    async with calling(sessions_on(server)) as caller:
        with pytest.raises(NoAnswer, match="holds no session"):
            await caller.ask("tools/call")


async def test_a_server_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    """An answer that comes too late is nobody's, and not the client's either."""
    server = Server(late=frozenset({"sessions/create"}))
    async with calling(sessions_on(server, timeout=0.01)) as caller:
        with pytest.raises(NoAnswer, match=r"sessions/create was not answered: no answer within 0.01 s"):
            await caller.ask("tools/call")
        server.go.set()
        await caller.ask("ping")
        assert caller.others == []


async def test_a_connection_that_ends_while_a_session_is_made_ends_the_wait() -> None:
    """The caller is told at once."""
    server = Server(late=frozenset({"sessions/create"}))
    async with calling(sessions_on(server)) as caller, anyio.create_task_group() as tasks:
        tasks.start_soon(hang_up_when_asked, server)
        with pytest.raises(NoAnswer, match="the connection is gone"):
            await caller.ask("tools/call")


async def hang_up_when_asked(server: Server) -> None:
    """Close the connection in the middle of a request."""
    await server.asked.wait()
    server.hang_up()


async def test_a_caller_who_gives_up_takes_nothing_from_the_others() -> None:
    """The session is made all the same, once, for whoever still waits."""
    server = Server(late=frozenset({"sessions/create"}))
    async with calling(sessions_on(server)) as caller, anyio.create_task_group() as tasks:
        tasks.start_soon(caller.ask, "tools/call")
        await server.asked.wait()
        with anyio.move_on_after(0):
            await caller.ask("tools/call")
        server.go.set()
        await caller.ask("tools/call")
    assert len(server.sent("sessions/create")) == 1
    assert len(server.sent("tools/call")) == 2


async def test_what_cannot_be_written_is_not_waited_for() -> None:
    """The transport has closed: the client gets its error, as it would without us."""
    server = Server()
    async with calling(sessions_on(server)) as caller:
        await caller.ask("tools/call")
        server.hang_up()
        with pytest.raises((anyio.BrokenResourceError, anyio.ClosedResourceError)):
            await caller.ask("tools/call")


async def test_requests_that_were_given_up_without_a_word_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK 1.x says nothing when a call times out; the oldest make room, and their answers pass as they are."""
    monkeypatch.setattr(rooms, "MAX_UNDER_WAY", 1)
    server = Server(late=frozenset({"slow"}))
    async with calling(sessions_on(server)) as caller, anyio.create_task_group() as tasks:
        tasks.start_soon(caller.ask, "slow")
        await server.asked.wait()
        await caller.ask("tools/call")
        server.go.set()
    assert SESSION_KEY in caller.answers[2]["result"]["_meta"]
    assert SESSION_KEY not in caller.answers[3]["result"]["_meta"]


# --- contexts ------------------------------------------------------------------------------------

_who: ContextVar[str] = ContextVar("who", default="nobody")


async def test_a_request_is_sent_again_in_the_context_of_its_caller() -> None:
    """Traces and the like belong to the call, also where its request is sent a second time."""
    server = Server({"tools/call": losing("id-1")})
    seen: list[str] = []
    sessions = sessions_on(server, on_lost="recreate")
    async with calling(sessions) as caller:
        carrier = sessions._carrier
        assert carrier is not None
        write = carrier._link.write

        async def noting(item: Any) -> None:
            seen.append(_who.get())
            await write(item)

        carrier._link.write = noting  # type: ignore[method-assign]
        _who.set("ann")
        await caller.ask("tools/call")
    assert seen == ["ann", "ann"]


# --- endings -------------------------------------------------------------------------------------


async def test_deleting_ends_the_session_at_once() -> None:
    """One without a name is done, one with a name begins anew; one that has not begun asks the server nothing."""
    server = Server()
    sessions = sessions_on(server)
    async with calling(sessions) as caller:
        unnamed, named = sessions.new(), sessions.open("thread")
        for held in (unnamed, named):
            with sessions.use(held):
                await caller.ask("tools/call")
            await sessions.delete(held)
        assert server.carried("sessions/delete") == [{"sessionId": "id-1"}, {"sessionId": "id-2"}]
        await sessions.delete(named)
        assert len(server.sent("sessions/delete")) == 2
        with sessions.use(unnamed), pytest.raises(SessionLost):
            await caller.ask("tools/call")
        with sessions.use(named):
            await caller.ask("tools/call")
        assert (named.ended, unnamed.ended) == (False, True)


async def test_deleting_waits_for_a_session_that_is_being_made() -> None:
    """Else it would be left behind."""
    server = Server(late=frozenset({"sessions/create"}))
    sessions = sessions_on(server)
    async with calling(sessions) as caller, anyio.create_task_group() as tasks:
        tasks.start_soon(caller.ask, "tools/call")
        await server.asked.wait()
        server.go.set()
        held = sessions.current
        assert held is not None
        await sessions.delete(held)
        assert len(server.sent("sessions/delete")) == 1


@pytest.mark.parametrize(("code", "told"), [(LOST, False), (-32603, True)])
async def test_deleting_what_the_server_has_lost_is_no_error(code: int, told: bool) -> None:
    """Any other refusal is."""
    server = Server({"sessions/delete": lambda _: error(code)})
    sessions = sessions_on(server)
    async with calling(sessions) as caller:
        await caller.ask("tools/call")
        held = sessions.current
        assert held is not None
        if told:
            with pytest.raises(Refused):
                await sessions.delete(held)
        else:
            await sessions.delete(held)
        assert not held.begun


async def test_what_is_made_while_the_block_is_left_is_not_lost() -> None:
    """With a jar it is written down, without one it is deleted."""
    for jar in (None, SessionJar()):
        server = Server(late=frozenset({"sessions/create"}))
        sessions = sessions_on(server, jar, server="https://host/mcp")
        async with calling(sessions) as caller:
            with anyio.move_on_after(5) as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(caller.ask, "tools/call")
                    await server.asked.wait()
                    scope.cancel()
            server.go.set()
        assert len(server.sent("sessions/delete")) == (1 if jar is None else 0)
        assert (sessions.names == [""]) is (jar is not None)

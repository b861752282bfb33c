"""SEP-1364 on the wire, sentence by sentence: both alternatives, their field, and the header that mirrors it."""

import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from apps import Server, read, reply, sessions
from clients import Answer, Header
from failing import Failing
from sep1364 import OWN, SERVES, Speaker, Stateful
from starlette.types import Receive, Scope, Send

from mcp_sessions import Principal, Session
from mcp_sessions._dialects.sep1364 import MAX_WAITING
from mcp_sessions._errors import DataGone
from mcp_sessions._server import principal
from mcp_sessions.dialects import SEP1364Create, SEP1364Initialize

BESIDE: Header = (b"mcp-session-id", OWN.encode())
NOT_FOUND, INVALID, MISMATCH = -32043, -32602, -32020
EXCEEDING: dict[str, Any] = {"capabilities": {"experimental": {"x": {"y": "z" * 17_000}}}}


async def capabilities(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    return await session.client_capabilities()


@pytest.fixture
def server(anyio_backend: str) -> Server:
    """It answers in JSON on the one event loop, and with events on the other: that is every pair that matters."""
    return Server(sse=anyio_backend == "trio", capabilities=capabilities)


def first(server: Any, **options: Any) -> Speaker:
    return Speaker(sessions(server, dialects=[SEP1364Create()], **options))


def second(server: Any, **options: Any) -> Speaker:
    return Speaker(sessions(server, dialects=[SEP1364Initialize()], **options))


def said(answer: Answer) -> Any:
    return answer.result["content"]


def noting(made: list[str]) -> dict[str, Any]:
    """The hook of an application that makes something for each session."""
    return {"on_create": lambda session, params, scope: made.append(session.ref)}


async def test_an_answer_that_the_client_posts_names_a_live_one_or_is_refused(server: Server) -> None:
    """Made up, of the draft, or ended: HTTP 400, since nothing answers an answer, and nothing is forwarded."""
    client = first(server)
    ended, drafted = await client.create(), (await client.client.create())["sessionId"]
    assert (await client.say("sessions/delete", sessionId=ended)).result == {}
    server.seen.clear()
    for session in (ended, drafted, "made-up"):
        refused = await client.reply(session, (b"mcp-session-id", session.encode()))
        assert (refused.status, refused.error["code"]) == (400, NOT_FOUND)
    assert set(server.methods) == {"ping"}  # the question whether the caller may be answered at all


async def test_a_list_of_sessions_knows_which_one_is_used(server: Server) -> None:
    client = first(server, tracked=True, principal=lambda scope: Principal(subject="alice"))
    listed = await client.say("sessions/list", sessionId=await client.create())
    assert [shown["current"] for shown in listed.result["sessions"]] == [True]
    assert "_meta" not in listed.result


async def test_a_server_s_own_transport_session_may_hold_the_header(server: Server) -> None:
    """Where it did so when the session was created; and then it must, since the server needs it."""
    client = first(Stateful(server))
    session = (await client.say("sessions/create", {"capabilities": {}}, BESIDE)).result["sessionId"]
    answer = await client.tool("whoami", session, BESIDE, mirrored=False)
    assert said(answer).startswith("ses_")
    assert server.last.headers[b"mcp-session-id"] == OWN.encode()
    assert (await client.tool("whoami", session)).error["code"] == MISMATCH


class TestCreating:
    """Add a sessions/create Endpoint."""

    async def test_who_is_not_admitted_creates_and_renews_nothing(self) -> None:
        barred = False

        async def bar(scope: Any, send: Any) -> bool:
            if barred:
                await reply(send, b"", status=401)
            return barred

        client = first(Server(guard=bar))
        session = await client.create()
        barred = True
        for named in (None, session):
            assert (await client.say("session/create", {"capabilities": {}}, sessionId=named)).status == 401

    async def test_with_the_id_of_a_session_it_replaces_the_capabilities(self, server: Server) -> None:
        """A client goes on with its session, under the same id."""
        client = first(server)
        session = await client.create(roots={})
        params = {"capabilities": {"elicitation": {}}, "sessionId": session}
        again = await client.say("sessions/create", params, (b"mcp-session-id", session.encode()))
        assert again.result["sessionId"] == session
        assert said(await client.tool("capabilities", session)) == {"elicitation": {}}

    async def test_an_initialize_that_states_no_capabilities_states_empty_ones(self, server: Server) -> None:
        """Clients may state them in `sessions/create` alone; servers of today require them here."""
        await first(server).say("initialize", SERVES)
        assert server.last.json["params"]["capabilities"] == {}

    async def test_capabilities_count_for_what_their_principal_may_keep(self) -> None:
        options: dict[str, Any] = {"limits.anonymous_data_bytes": 300}
        client = first(Server(), **options)
        _, full = [await client.say("session/create", {"capabilities": {"roots": {}}}) for _ in range(2)]
        assert full.error["message"].startswith("Too much data in your sessions")

    async def test_a_session_whose_client_has_left_meanwhile_ends(self, server: Server) -> None:
        """One that ends otherwise meanwhile is not renewed."""
        lives, request = list[str](), anyio.CancelScope()

        async def leave(*_: object) -> None:
            request.cancel()
            await anyio.lowlevel.checkpoint()

        store = Failing()
        store.before["write"] = leave
        client = first(server, store=store, **noting(lives))
        with request:
            await client.say("session/create", {"capabilities": {}})
        assert request.cancelled_caught
        assert lives == []
        gone = first(Server(), store=Failing("write", error=DataGone))
        assert (await gone.say("session/create", {"capabilities": {}})).error["code"] == NOT_FOUND


async def test_capabilities_are_kept_and_bounded(server: Server) -> None:
    """Too many begin no session, and leave the one that is named as it is; so does stating none."""
    lives: list[str] = []
    client = second(server, **noting(lives))
    assert (await client.say("initialize", {**SERVES, **EXCEEDING})).error["code"] == INVALID
    assert lives == []
    session = (await client.initialize()).json["sessionId"]
    again = await client.say("initialize", {**SERVES, **EXCEEDING}, sessionId=session)
    assert again.error["code"] == INVALID
    assert (await client.say("initialize", SERVES, sessionId=session)).json["sessionId"] == session
    assert said(await client.tool("capabilities", session)) == {"sampling": {}}
    unstated = (await client.say("initialize", SERVES)).json["sessionId"]
    assert said(await client.tool("capabilities", unstated)) is None


@pytest.mark.parametrize("rest", ['"result":null', '"result":[1]', '"error":{"code":1,"message":"no"}'])
async def test_an_answer_that_can_hold_no_field_is_the_server_s_own(rest: str) -> None:
    """Whether it answers an `initialize` or a call in a session."""
    is_odd, body = False, b'{"jsonrpc":"2.0","id":1,%b}' % rest.encode()

    async def odd(scope: Scope, send: Send) -> bool:
        if is_odd:
            await reply(send, body)
        return is_odd

    client = second(Server(guard=odd))
    session = (await client.initialize()).json["sessionId"]
    is_odd = True
    assert (await client.tool("whoami", session)).body == body
    assert (await client.initialize()).body == body


async def test_an_answer_of_a_session_is_not_kept_for_others() -> None:
    """Caches of clients know no sessions, so the server's hints become private and stale."""
    hinted = b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"ttlMs":9,"cacheScope":"public"}}'

    async def hints(scope: Scope, send: Send) -> bool:
        if is_hinting:
            await reply(send, hinted)
        return is_hinting

    is_hinting = False
    client = first(Server(guard=hints))
    session = await client.create()
    is_hinting = True
    assert (await client.tool("whoami", session)).result == {"content": [], "ttlMs": 0, "cacheScope": "private"}


class TestOnAStatefulServer:
    """A server that keeps transport sessions of its own needs the header for them."""

    async def test_terminate_ends_the_server_s_own_with_it(self, server: Server) -> None:
        """The two began with one `initialize`. A session that only stands in its transport session leaves it open."""
        stateful = Stateful(server)
        client = Speaker(sessions(stateful, dialects=[SEP1364Create(), SEP1364Initialize()]))
        session = (await client.initialize()).json["sessionId"]
        created = await client.say("session/create", {"capabilities": {}}, BESIDE)
        ended = {"sessionId": created.result["sessionId"]}
        assert (await client.say("session/delete", ended, BESIDE, mirrored=False, **ended)).result == {}
        assert stateful.ended == []
        ended = {"sessionId": session}
        assert (await client.say("terminate", ended, BESIDE, mirrored=False, **ended)).result == {}
        assert stateful.ended == [OWN]

    async def test_what_could_not_be_ended_leaves_the_server_s_own(self, server: Server) -> None:
        stateful = Stateful(server)
        client = second(stateful, store=Failing("revoke"))
        session = (await client.initialize()).json["sessionId"]
        failed = await client.say("terminate", None, BESIDE, mirrored=False, sessionId=session)
        assert (failed.status, stateful.ended) == (503, [])

    @pytest.mark.parametrize(
        ("version", "says", "confirms"),
        [
            (SERVES["protocolVersion"], "ping", True),
            ("1999-01-01", "ping", False),
            (SERVES["protocolVersion"], "", False),
        ],
    )
    async def test_notifications_initialized_is_optional(
        self, version: object, says: str, confirms: bool, server: Server
    ) -> None:
        """A client of the same `protocolVersion` may skip it: then we send it, once, in time.

        The head names the server's session, the field ours; the client sends both back.
        """
        client = second(Stateful(server))
        answer = await client.say("initialize", {**SERVES, "protocolVersion": version})
        assert answer.headers[b"mcp-session-id"] == OWN.encode()
        more: dict[str, Any] = {"sessionId": answer.json["sessionId"], "mirrored": False}
        says, more_here = (says, more) if says else ("notifications/initialized", {**more, "id": None})
        await client.say(says, None, BESIDE, **more_here)
        counts = [said(await client.say("tools/call", {"name": "count"}, BESIDE, **more)) for _ in range(2)]
        assert counts == [1, 2]
        sent = ["initialize", says, *["notifications/initialized"] * confirms, "tools/call", "tools/call"]
        assert server.methods == sent
        assert {seen.headers[b"mcp-session-id"] for seen in server.seen[1:]} == {OWN.encode()}


class TestInFrontOfABridge:
    """There the header holds an id of ours in any case, with the server's sealed inside."""

    async def test_initialize_may_go_on_with_it(self, server: Server) -> None:
        """Under the same id, and in the same transport session of the server's."""
        client = second(Stateful(server), bridge=True)
        session = (await client.initialize()).json["sessionId"]
        again = await client.initialize(sessionId=session)
        assert (again.json["sessionId"], again.headers[b"mcp-session-id"]) == (session, session.encode())
        assert server.last.headers[b"mcp-session-id"] == OWN.encode()
        assert said(await client.tool("capabilities", session)) == {"sampling": {}}

    @pytest.mark.parametrize("exceeds", [False, True])
    async def test_where_no_session_can_be_made_none_is_left(self, server: Server, exceeds: bool) -> None:
        """Neither ours nor the server's own, of which no client knows."""
        lives, stateful = list[str](), Stateful(server)
        client = second(stateful, bridge=True, store=Failing("write"), **noting(lives))
        params = {**SERVES, **(EXCEEDING if exceeds else {"capabilities": {}})}
        refused = await client.say("initialize", params)
        assert refused.error["code"] == (INVALID if exceeds else -32603)
        assert b"mcp-session-id" not in refused.headers
        assert lives == []
        assert stateful.ended == [OWN]


def test_of_sessions_that_wait_to_be_confirmed_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of clients that never came back is bounded."""
    monkeypatch.setattr(principal, "MAX_WAITING", 1)
    pending = principal.PendingInitialized()
    pending.add("first")
    pending.add("second")
    assert [transport in pending for transport in ("first", "second")] == [False, True]


def test_transport_sessions_that_never_come_back_are_forgotten() -> None:
    """Those that began first, so that a process notes a bounded number of them."""
    dialect = SEP1364Initialize()
    for number in range(MAX_WAITING + 2):
        dialect.confirm_later(f"server-{number}")
    assert len(dialect._unconfirmed) == MAX_WAITING
    assert next(iter(dialect._unconfirmed)) == "server-2"


async def test_repeated_answer_to_initialize_begins_one_session() -> None:
    """A stream may repeat a message; the repetition leaves as it came."""
    made: list[str] = []

    async def twice(scope: Scope, receive: Receive, send: Send) -> None:
        message = json.loads(await read(receive))
        result = {"protocolVersion": "2025-11-25", "capabilities": {}}
        text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": f"data: {text}\n\ndata: {text}\n\n".encode()})

    answer = await second(twice, **noting(made)).initialize()
    assert (len(answer.events), len(made)) == (2, 1)


async def test_fork_of_session_in_the_field_is_refused(server: Server) -> None:
    """A fork begins with a state that its client carries."""
    client = first(server)
    assert (await client.say("sessions/fork", sessionId=await client.create())).error["code"] == INVALID

"""SEP-1364 on the wire, sentence by sentence: both alternatives, their field, and the header that mirrors it."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from apps import Server, sessions
from clients import SESSION_KEY, Answer, Client, Clock, Header
from failing import Failing
from sep1364 import OWN, SERVES, Speaker, Stateful

from mcp_sessions import EndedSession, Principal, SEP1364Create, SEP1364Initialize, Session
from mcp_sessions._errors import DataGone
from mcp_sessions._server.options import DAY
from mcp_sessions.stores._memory import MemoryStore

BESIDE: Header = (b"mcp-session-id", OWN.encode())
NOT_FOUND, REQUIRED, INVALID, MISMATCH = -32043, -31044, -32602, -32020
EXCEEDING: dict[str, Any] = {"capabilities": {"experimental": {"x": {"y": "z" * 17_000}}}}


async def capabilities(session: Session | None, arguments: dict[str, Any]) -> Any:
    """What the session's client said that it can do."""
    assert session is not None
    return await session.client_capabilities()


async def tally(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Count in the session's state, of which nothing reaches the client."""
    assert session is not None
    session.state["n"] = session.state.get("n", 0) + 1
    return session.state["n"]


@pytest.fixture
def server(anyio_backend: str) -> Server:
    """It answers in JSON on the one event loop, and with events on the other: that is every pair that matters."""
    return Server(sse=anyio_backend == "trio", capabilities=capabilities, tally=tally)


def first(server: Any, *, required: bool = False, **options: Any) -> Speaker:
    """A client of the first alternative."""
    return Speaker(sessions(server, dialects=[SEP1364Create(required=required)], **options))


def second(server: Any, *, sessionless: bool = False, **options: Any) -> Speaker:
    """A client of the second alternative."""
    return Speaker(sessions(server, dialects=[SEP1364Initialize(sessionless=sessionless)], **options))


def said(answer: Answer) -> Any:
    """What a tool said."""
    return answer.result["content"]


class Lives:
    """The hooks of an application that frees at the end what it makes at the beginning."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.freed: list[tuple[str, str]] = []

    @property
    def options(self) -> dict[str, Any]:
        """Both hooks."""
        return {"on_create": self.make, "on_end": self.free}

    def make(self, session: Session, params: Any, scope: Any) -> None:
        self.made.append(session.ref)

    def free(self, ended: EndedSession, reason: str) -> None:
        self.freed.append((ended.ref, reason))


class TestTheField:
    """Add an optional sessionId field to each RPC request and response."""

    async def test_a_request_is_associated_with_the_session_that_it_names(self, server: Server) -> None:
        """And its response names the same; the server's message and headers are rid of it."""
        client = first(server)
        session = await client.create()
        answer = await client.tool("whoami", session)
        assert said(answer).startswith("ses_")
        assert answer.json["sessionId"] == session
        assert SESSION_KEY.encode() not in answer.body
        assert session.encode() not in server.last.body
        assert b"mcp-session-id" not in server.last.headers
        assert int(server.last.headers[b"content-length"]) == len(server.last.body)

    async def test_an_answer_that_the_client_posts_names_a_live_one_or_is_refused(self, server: Server) -> None:
        """Made up, of the draft, or ended: HTTP 400, since nothing answers an answer, and nothing is forwarded."""
        client = first(server)
        ended, drafted = await client.create(), (await client.client.create())["sessionId"]
        assert (await client.say("sessions/delete", sessionId=ended)).result == {}
        server.seen.clear()
        for session in (ended, drafted, "made-up"):
            refused = await client.reply(session, (b"mcp-session-id", session.encode()))
            assert (refused.status, refused.error["code"]) == (400, NOT_FOUND)
        assert set(server.methods) == {"ping"}  # the question whether the caller may be answered at all

    async def test_a_session_of_the_draft_is_not_named_here(self, server: Server) -> None:
        """Its state travels in `_meta`, so a field alone would lose it; nor the other way round."""
        client = first(server)
        drafted = (await client.client.create())["sessionId"]
        assert (await client.tool("whoami", drafted)).error["code"] == NOT_FOUND
        made = {"sessionId": await client.create()}
        assert (await client.client.tool("whoami", session=made)).error["code"] == NOT_FOUND

    async def test_its_state_is_kept_on_the_server(self, server: Server) -> None:
        client = first(server)
        session, other = await client.create(), await client.create()
        counted = [said(await client.tool("tally", named)) for named in (session, session, other)]
        assert counted == [1, 2, 1]

    async def test_a_list_of_sessions_knows_which_one_is_used(self, server: Server) -> None:
        """And does not name it in `_meta`, where it would be refused."""
        client = first(server, tracked=True, principal=lambda scope: Principal(subject="alice"))
        listed = await client.say("sessions/list", sessionId=await client.create())
        assert [shown["current"] for shown in listed.result["sessions"]] == [True]
        assert "_meta" not in listed.result

    async def test_without_the_dialect_it_is_none_of_our_business(self, server: Server) -> None:
        answer = await Speaker(sessions(server)).say("tools/call", {"name": "whoami"}, sessionId="theirs")
        assert said(answer) == "nobody"
        assert server.last.json["sessionId"] == "theirs"


class TestTheHeader:
    """Require the Mcp-Session-Id HTTP header to mirror the value of the sessionId field."""

    async def test_a_header_that_differs_is_refused(self, server: Server) -> None:
        """Another session's, a transport session's, or anything else."""
        client = first(server)
        session, other = await client.create(), await client.create()
        transport = (await client.initialize()).headers[b"mcp-session-id"].decode()
        for header in (other, transport, "anything"):
            refused = await client.tool("whoami", session, (b"mcp-session-id", header.encode()), mirrored=False)
            assert (refused.status, refused.error["code"]) == (400, MISMATCH)

    async def test_a_server_s_own_transport_session_may_hold_the_header(self, server: Server) -> None:
        """Where it did so when the session was created; and then it must, since the server needs it."""
        client = first(Stateful(server))
        params: dict[str, Any] = {"capabilities": {}}
        session = (await client.say("sessions/create", params, BESIDE)).result["sessionId"]
        answer = await client.tool("whoami", session, BESIDE, mirrored=False)
        assert said(answer).startswith("ses_")
        assert server.last.headers[b"mcp-session-id"] == OWN.encode()
        assert (await client.tool("whoami", session)).error["code"] == MISMATCH


class TestTwoAtOnce:
    async def test_metadata_and_field_that_agree_name_one_session(self, server: Server) -> None:
        client = first(server)
        session = await client.client.create()
        meta = {SESSION_KEY: session}
        answer = await client.say("tools/call", {"name": "whoami", "_meta": meta}, sessionId=session["sessionId"])
        assert answer.session is not None
        assert answer.session["sessionId"] == answer.json["sessionId"] == session["sessionId"]

    async def test_metadata_and_field_that_disagree_are_refused(self, server: Server) -> None:
        client = first(server)
        meta = {SESSION_KEY: await client.client.create()}
        refused = await client.say("tools/call", {"name": "whoami", "_meta": meta}, sessionId=await client.create())
        assert refused.error["code"] == INVALID
        assert "tools/call" not in server.methods

    async def test_params_and_field_that_disagree_are_refused(self, server: Server) -> None:
        """Where a method has the session in its params."""
        client = first(server)
        one, other = await client.create(), await client.create()
        refused = await client.say("sessions/delete", {"sessionId": one}, sessionId=other)
        assert refused.error["code"] == INVALID
        assert said(await client.tool("whoami", one)) != said(await client.tool("whoami", other))


class TestAlternative1:
    """Add a sessions/create Endpoint."""

    @pytest.mark.parametrize(("in_field", "in_params"), [(True, False), (False, True), (True, True)])
    async def test_create_with_a_valid_session_updates_what_is_known_of_the_client(
        self, server: Server, in_field: bool, in_params: bool
    ) -> None:
        client = first(server)
        session = await client.create(roots={})
        assert said(await client.tool("capabilities", session)) == {"roots": {}}
        params: dict[str, Any] = {"capabilities": {"sampling": {}}, "sessionId": session if in_params else None}
        answer = await client.say("session/create", params, sessionId=session if in_field else None)
        assert answer.result == {"sessionId": session}
        assert said(await client.tool("capabilities", session)) == {"sampling": {}}

    async def test_who_is_not_admitted_creates_and_renews_nothing(self) -> None:
        barred = False

        async def bar(scope: Any, send: Any) -> bool:
            if barred:
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})
            return barred

        client = first(Server(guard=bar))
        session = await client.create()
        barred = True
        for named in (None, session):
            assert (await client.say("session/create", {"capabilities": {}}, sessionId=named)).status == 401

    async def test_capabilities_that_are_kept_are_bounded(self, server: Server) -> None:
        """Whoever may create a session could fill the store with them."""
        client = first(server)
        fits, exceeds = ({"capabilities": {"experimental": {"x": {"y": "z" * size}}}} for size in (16_000, 17_000))
        assert "result" in (await client.say("session/create", fits)).json
        assert (await client.say("session/create", exceeds)).error["code"] == INVALID

    async def test_capabilities_count_for_what_their_principal_may_keep(self) -> None:
        """As any other data of its sessions."""
        options: dict[str, Any] = {"limits.anonymous_data_bytes": 300}
        client = first(Server(), **options)
        assert "result" in (await client.say("session/create", {"capabilities": {"roots": {}}})).json
        answer = await client.say("session/create", {"capabilities": {"roots": {}}})
        assert answer.error["message"].startswith("Too much data in your sessions")

    async def test_capabilities_without_bounds_begin_no_session(self, server: Server) -> None:
        lives = Lives()
        client = first(server, **lives.options)
        assert (await client.say("session/create", EXCEEDING)).error["code"] == INVALID
        assert lives.made == []

    async def test_a_session_whose_client_is_not_told_of_it_ends(self, server: Server) -> None:
        """The application is not asked to fill it, so nothing has to be freed."""
        lives = Lives()
        refused = await first(server, store=Failing("write"), **lives.options).say(
            "session/create", {"capabilities": {}}
        )
        assert refused.error["message"] == "Session store unavailable"
        assert lives.made == []

    async def test_a_session_whose_client_has_left_meanwhile_ends(self, server: Server) -> None:
        lives, request = Lives(), anyio.CancelScope()

        class Leaving(MemoryStore):
            async def write(self, *_: Any, **__: Any) -> None:
                request.cancel()
                await anyio.lowlevel.checkpoint()

        client = first(server, store=Leaving(), **lives.options)
        with request:
            await client.say("session/create", {"capabilities": {}})
        assert request.cancelled_caught
        assert lives.made == []

    async def test_a_session_that_ends_meanwhile_is_not_renewed(self) -> None:
        class Ending(MemoryStore):
            async def write(self, *_: Any, **__: Any) -> None:
                raise DataGone

        client = first(Server(), store=Ending())
        assert (await client.say("session/create", {"capabilities": {}})).error["code"] == NOT_FOUND

    @pytest.mark.parametrize("method", ["sessions/delete", "session/delete"])
    @pytest.mark.parametrize("in_field", [False, True])
    async def test_delete_ends_the_session(self, server: Server, method: str, in_field: bool) -> None:
        """With the empty result; from then on it is not found."""
        client = first(server)
        session = await client.create()
        params: dict[str, Any] = {} if in_field else {"sessionId": session}
        ended = await client.say(method, params, sessionId=session if in_field else None)
        assert ended.result == {}
        gone = await client.tool("whoami", session)
        assert gone.error["data"] == {"sessionId": session, "reason": "ended"}

    async def test_where_sessions_are_required_three_methods_need_none(self, server: Server) -> None:
        """And an answer that the client posts, which has no method."""
        client = first(server, required=True)
        assert "result" in (await client.initialize()).json
        assert (await client.say("notifications/initialized", id=None)).status == 202
        assert (await client.say("ping")).result == {}
        assert (await client.client.post({"jsonrpc": "2.0", "id": 1, "result": {}})).status == 202

    async def test_where_sessions_are_required_a_transport_session_is_none(self, server: Server) -> None:
        """It is the very thing that is split off here."""
        client = first(server, required=True)
        header = (b"mcp-session-id", (await client.initialize()).headers[b"mcp-session-id"])
        assert (await client.say("tools/list", None, header)).error["code"] == REQUIRED

    async def test_its_sessions_live_as_long_as_any(self, server: Server) -> None:
        """`lifetime`, and not that of a transport session."""
        clock = Clock()
        client = first(server, clock=clock)
        session = await client.create()
        clock.now += 7 * DAY
        assert (await client.tool("whoami", session)).error["data"]["reason"] == "expired"


class TestAlternative2:
    """Use initialize method for session creation."""

    @pytest.mark.parametrize("session", ["valid elsewhere", "made-up"])
    async def test_an_id_and_a_sessionless_server_is_an_error(self, server: Server, session: str) -> None:
        """Second and third row, first column; on every other method, too."""
        if session != "made-up":
            session = (await second(server).initialize()).json["sessionId"]
        client = second(server, sessionless=True)
        assert (await client.initialize(sessionId=session)).error["code"] == NOT_FOUND
        assert (await client.tool("whoami", session)).error["code"] == NOT_FOUND
        assert (await client.say("terminate", {"sessionId": session})).error["code"] == NOT_FOUND

    async def test_whether_an_id_is_valid_is_judged_for_the_client_that_sends_it(self, server: Server) -> None:
        owner = "alice"
        client = second(server, principal=lambda scope: Principal(subject=owner))
        session = (await client.initialize()).json["sessionId"]
        owner = "bob"
        assert (await client.initialize(sessionId=session)).error["code"] == NOT_FOUND

    async def test_a_session_named_by_initialize_is_used_by_its_field(self, server: Server) -> None:
        """And by the header alone, as clients of today do; it is one session."""
        client = second(server)
        session = (await client.initialize()).json["sessionId"]
        by_field = await client.tool("tally", session)
        by_header = await client.client.tool("tally", (b"mcp-session-id", session.encode()))
        assert (said(by_field), said(by_header)) == (1, 2)
        assert "sessionId" not in by_header.json

    async def test_where_no_session_can_be_made_the_client_is_told(self, server: Server) -> None:
        """The server must respond with a new session, or with an error."""
        lives = Lives()
        refused = await second(server, store=Failing("write"), **lives.options).initialize()
        assert refused.error == {"code": -32603, "message": "Session store unavailable"}
        assert b"mcp-session-id" not in refused.headers
        assert lives.made == []

    async def test_capabilities_that_are_kept_are_bounded_here_too(self, server: Server) -> None:
        """They begin no session, and leave the one that is named as it is."""
        lives = Lives()
        client = second(server, **lives.options)
        assert (await client.say("initialize", {**SERVES, **EXCEEDING})).error["code"] == INVALID
        assert lives.made == []
        session = (await client.initialize()).json["sessionId"]
        again = await client.say("initialize", {**SERVES, **EXCEEDING}, sessionId=session)
        assert again.error["code"] == INVALID
        assert said(await client.tool("capabilities", session)) == {"sampling": {}}

    async def test_who_states_no_capabilities_anew_keeps_what_was_stated(self, server: Server) -> None:
        client = second(server)
        session = (await client.initialize()).json["sessionId"]
        assert (await client.say("initialize", SERVES, sessionId=session)).json["sessionId"] == session
        assert said(await client.tool("capabilities", session)) == {"sampling": {}}
        unstated = (await client.say("initialize", SERVES)).json["sessionId"]
        assert said(await client.tool("capabilities", unstated)) is None


class TestAlternative2OnAStatefulServer:
    """A server that keeps transport sessions of its own needs the header for them."""

    async def test_the_session_stands_beside_the_server_s_own(self, server: Server) -> None:
        """The head names the server's, the field ours; the client sends both back."""
        client = second(Stateful(server))
        answer = await client.initialize()
        assert answer.headers[b"mcp-session-id"] == OWN.encode()
        session = answer.json["sessionId"]
        counted = [said(await client.tool("tally", session, BESIDE, mirrored=False)) for _ in range(2)]
        assert counted == [1, 2]
        assert server.last.headers[b"mcp-session-id"] == OWN.encode()

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

    async def test_an_answer_that_the_client_posts_names_it_while_it_lives(self, server: Server) -> None:
        """When it has ended, an answer no longer reaches the server, whose own session may still be open."""
        client = second(Stateful(server))
        session = (await client.initialize()).json["sessionId"]
        assert (await client.reply(session, BESIDE)).status == 202
        assert server.last.json == {"jsonrpc": "2.0", "id": 7, "result": {}}
        assert (await client.say("terminate", None, BESIDE, mirrored=False, sessionId=session)).result == {}
        server.seen.clear()
        assert (await client.reply(session, BESIDE)).status == 400
        assert set(server.methods) == {"ping"}

    async def test_notifications_initialized_is_optional(self, server: Server) -> None:
        """The client may skip it if both sides have the same `protocolVersion`: then we send it, once, in time."""
        client = second(Stateful(server))
        session = (await client.initialize()).json["sessionId"]
        await client.say("ping", None, BESIDE, sessionId=session, mirrored=False)
        for _ in range(2):
            await client.tool("whoami", session, BESIDE, mirrored=False)
        sent = [(seen.json["method"], seen.headers.get(b"mcp-session-id")) for seen in server.seen]
        own = OWN.encode()
        assert sent == [
            ("initialize", None),
            ("ping", own),
            ("notifications/initialized", own),
            ("tools/call", own),
            ("tools/call", own),
        ]

    async def test_a_client_that_sends_it_is_not_helped(self, server: Server) -> None:
        client = second(Stateful(server))
        session = (await client.initialize()).json["sessionId"]
        await client.say("notifications/initialized", None, BESIDE, id=None, sessionId=session, mirrored=False)
        await client.tool("whoami", session, BESIDE, mirrored=False)
        assert server.methods.count("notifications/initialized") == 1

    async def test_where_the_version_was_negotiated_it_is_not_optional(self, server: Server) -> None:
        """The client has to say that it can live with the server's."""
        client = second(Stateful(server))
        asked = {**SERVES, "protocolVersion": "1999-01-01", "capabilities": {}}
        session = (await client.say("initialize", asked)).json["sessionId"]
        await client.tool("whoami", session, BESIDE, mirrored=False)
        assert "notifications/initialized" not in server.methods


class TestInFrontOfABridge:
    """There the header holds an id of ours in any case, with the server's sealed inside."""

    async def test_the_field_of_alternative_2_mirrors_it(self, server: Server) -> None:
        """One id in both places, as on a stateless server, and the server hears its own."""
        client = second(Stateful(server), bridge=True)
        opened = await client.initialize()
        session = opened.json["sessionId"]
        assert opened.headers[b"mcp-session-id"] == session.encode()
        assert [said(await client.tool("tally", session)) for _ in range(2)] == [1, 2]
        assert server.last.headers[b"mcp-session-id"] == OWN.encode()
        assert server.methods.count("notifications/initialized") == 1
        assert said(await client.client.tool("tally", (b"mcp-session-id", session.encode()))) == 3

    async def test_an_answer_that_the_client_posts_crosses_with_it(self, server: Server) -> None:
        """SessionMetadata by the field and mirrored, or by the header alone: the server hears its own id."""
        client = second(Stateful(server), bridge=True)
        session = (await client.initialize()).json["sessionId"]
        mirror = (b"mcp-session-id", session.encode())
        for named in (session, None):
            assert (await client.reply(named, mirror)).status == 202
            assert server.last.json == {"jsonrpc": "2.0", "id": 7, "result": {}}
            assert server.last.headers[b"mcp-session-id"] == OWN.encode()

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
        lives, stateful = Lives(), Stateful(server)
        client = second(stateful, bridge=True, store=Failing("write"), **lives.options)
        params = {**SERVES, **(EXCEEDING if exceeds else {"capabilities": {}})}
        refused = await client.say("initialize", params)
        assert refused.error["code"] == (INVALID if exceeds else -32603)
        assert b"mcp-session-id" not in refused.headers
        assert lives.made == []
        assert stateful.ended == [OWN]

    async def test_terminate_ends_it(self, server: Server) -> None:
        """And the server's own; nothing crosses any more."""
        stateful = Stateful(server)
        client = second(stateful, bridge=True)
        session = (await client.initialize()).json["sessionId"]
        assert (await client.say("terminate", {"sessionId": session}, sessionId=session)).result == {}
        assert (await client.tool("whoami", session)).error["code"] == NOT_FOUND
        assert stateful.ended == [OWN]

    async def test_a_session_of_alternative_1_stands_beside_it(self, server: Server) -> None:
        """The header holds the transport session, which has to live; anything else there is refused."""
        client = first(Stateful(server), bridge=True)
        bridged = (b"mcp-session-id", (await client.initialize()).headers[b"mcp-session-id"])
        created = await client.say("sessions/create", {"capabilities": {}}, bridged)
        session = created.result["sessionId"]
        counted = [said(await client.tool("tally", session, bridged, mirrored=False)) for _ in range(2)]
        assert counted == [1, 2]
        assert server.last.headers[b"mcp-session-id"] == OWN.encode()
        assert (await client.tool("tally", session)).error["code"] == MISMATCH
        assert (await client.tool("tally", session, mirrored=False)).error["code"] == MISMATCH


async def test_both_alternatives_at_once(server: Server) -> None:
    """Each method is told apart, and each session used in the same field."""
    client = Speaker(sessions(server, dialects=[SEP1364Initialize(), SEP1364Create()]))
    opened, created = (await client.initialize()).json["sessionId"], await client.create()
    assert said(await client.tool("whoami", opened)) != said(await client.tool("whoami", created))
    assert (await client.say("terminate", sessionId=opened)).result == {}
    assert (await client.say("sessions/delete", sessionId=created)).result == {}


@pytest.mark.parametrize(
    ("item", "status"),
    [
        ({"method": "notifications/progress"}, 202),
        ({"method": "notifications/progress", "sessionId": None}, 202),
        ({"method": "notifications/progress", "sessionId": "a"}, 400),
        ({"id": 1, "method": "session/create"}, 400),
        ({"id": 1, "method": "sessions/create"}, 400),
    ],
)
async def test_a_batch_passes_unless_it_involves_a_session(server: Server, item: dict[str, Any], status: int) -> None:
    """In any dialect: its answers could not be told apart."""
    client = Client(sessions(server, dialects=[SEP1364Create()]), modern=False)
    assert (await client.post([{"jsonrpc": "2.0", **item}])).status == status


async def test_a_batch_does_not_pass_where_sessions_are_required(server: Server) -> None:
    client = Client(sessions(server, dialects=[SEP1364Create(required=True)]), modern=False)
    assert (await client.post([{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}])).status == 400

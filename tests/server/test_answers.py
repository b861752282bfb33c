"""The answers that are ours: created, deleted, refused; in both eras, and to whom they say why."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from apps import Server, reply, sessions
from clients import LEGACY, MODERN, START, Answer, Client, Clock, Header, call, http
from starlette.types import Scope, Send
from streaming import SECRET_RESULT, Streaming

from mcp_sessions import Session
from mcp_sessions._server.options import DAY, HOUR
from mcp_sessions._session.claims import AUDIENCE, Claims
from mcp_sessions._session.events import Fact, RequestRefused
from mcp_sessions.errors import CreateRefused, StoreFull, StoreUnavailable
from mcp_sessions.stores.base import Standing
from mcp_sessions.stores.memory import MemoryStore


@pytest.fixture(params=["legacy", "modern"])
def modern(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "modern")


def client_of(modern: bool, **options: Any) -> Client:
    return Client(sessions(Server(), **options), modern=modern)


Failure = Callable[[], Exception]


class BrokenStore(MemoryStore):
    """A store whose connection is lost, or which is full."""

    def __init__(self, *, reading: Failure | None = None, writing: Failure | None = None) -> None:
        super().__init__()
        self._reading = reading
        self._writing = writing

    async def status(self, claims: Claims) -> Standing:
        if self._reading is not None:
            raise self._reading()
        return Standing.LIVE

    async def revoke(self, ref: str, *, audience: str, expires_at: int, reason: str, lease: float) -> bool:
        assert self._writing is not None
        raise self._writing()


class TestCreate:
    async def test_a_session_is_answered_at_once(self, modern: bool) -> None:
        """Id and end, no state yet; `resultType` where the era has one; nobody may cache it."""
        answer = await client_of(modern).send("sessions/create", id="a\u00e9")
        assert (answer.status, answer.json["id"]) == (200, "a\u00e9")
        result = answer.result
        assert set(result) == ({"session", "resultType"} if modern else {"session"})
        assert result.get("resultType", "complete") == "complete"
        assert set(result["session"]) == {"sessionId", "expiresAt"}
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", result["session"]["expiresAt"])
        assert answer.headers[b"cache-control"] == b"no-store"
        assert b"mcp-session-id" not in answer.headers

    async def test_with_idle_expiry_a_state_token_comes_with_it(self, modern: bool) -> None:
        """It carries when the session was last seen."""
        assert "state" in await client_of(modern, idle_timeout=HOUR).create()


class TestOnCreate:
    async def test_it_is_told_what_the_caller_asks_for(self, modern: bool) -> None:
        """The params but `_meta`, and the scope; what it writes into the state comes with the answer."""
        told: list[Any] = []

        def on_create(session: Session, params: dict[str, Any], scope: Scope) -> None:
            told.extend([params, scope["path"]])
            session.state.update(params)

        client = client_of(modern, on_create=on_create)
        answer = await client.send("sessions/create", {"plan": "free", "seats": [1, None]})
        assert told == [{"plan": "free", "seats": [1, None]}, "/mcp"]
        session = answer.result["session"]
        del session["expiresAt"]
        kept = (await client.tool("remember", session=session)).result["content"]
        assert kept == {"plan": "free", "seats": [1, None]}

    @pytest.mark.parametrize("params", [b"", b',"params":null', b',"params":{}'])
    async def test_who_asks_for_nothing_is_told_of_so(self, params: bytes) -> None:
        """There are params in any case."""
        told: list[Any] = []
        client = client_of(False, on_create=lambda session, params, scope: told.append(params))
        answer = await client.post(b'{"jsonrpc":"2.0","id":1,"method":"sessions/create"%b}' % params)
        assert (answer.status, told) == (200, [{}])

    async def test_what_python_does_not_read_is_refused(self) -> None:
        """A number of thousands of digits, that is; nobody needs one, and it costs more than its length."""
        client = client_of(False, on_create=lambda session, params, scope: None)
        body = b'{"jsonrpc":"2.0","id":1,"method":"sessions/create","params":{"a":%b}}'
        assert (await client.post(body % (b"7" * 5000))).error["code"] == -32602
        assert "session" in (await client.post(body % (b"7" * 4000))).result

    async def test_it_may_refuse_in_its_own_words(self, modern: bool) -> None:
        """A code of its own, so that a client can tell; the log is told the reason and not the words."""
        facts: list[Fact] = []

        async def on_create(session: Session, params: dict[str, Any], scope: Scope) -> None:
            raise CreateRefused("two baskets are enough")

        answer = await client_of(modern, on_create=on_create, listen=facts.append).send("sessions/create")
        assert (answer.status, answer.error) == (200, {"code": -31045, "message": "two baskets are enough"})
        assert facts == [RequestRefused("create_refused", -31045, "sessions/create")]

    async def test_a_store_that_is_away_is_said_to_be(self, modern: bool) -> None:
        """Whether the record or the hook's data could not be kept."""

        async def on_create(session: Session, params: dict[str, Any], scope: Scope) -> None:
            raise StoreUnavailable

        answer = await client_of(modern, on_create=on_create).send("sessions/create")
        assert (answer.status, answer.error["code"], answer.headers[b"retry-after"]) == (503, -32603, b"1")

    async def test_another_error_is_the_application_s_own(self, modern: bool) -> None:
        """It comes out as any error of a handler does, for the server to log."""

        def on_create(session: Session, params: dict[str, Any], scope: Scope) -> None:
            raise LookupError

        with pytest.raises(LookupError):
            await client_of(modern, on_create=on_create).send("sessions/create")

    async def test_it_runs_for_those_alone_whom_the_server_lets_in(self, modern: bool) -> None:
        """What it makes is not to be had without a good access token."""
        ran: list[str] = []

        async def guard(scope: Scope, send: Send) -> bool:
            await reply(send, b"who are you?", status=401)
            return True

        app = sessions(Server(guard=guard), on_create=lambda session, params, scope: ran.append(session.ref))
        assert (await Client(app, modern=modern).send("sessions/create")).status == 401
        assert ran == []


class TestDelete:
    async def test_a_deleted_session_is_gone(self, modern: bool) -> None:
        """The answer is empty and carries no session; the next request is told why."""
        client = client_of(modern)
        session = await client.create()
        answer = await client.delete(session)
        assert answer.result == ({"resultType": "complete"} if modern else {})
        error = (await client.tool(session=session)).error
        assert error["data"] == {"sessionId": session["sessionId"], "reason": "ended"}

    async def test_deleting_twice_is_not_found(self, modern: bool) -> None:
        """There is nothing left to delete."""
        client = client_of(modern)
        session = await client.create()
        await client.delete(session)
        assert (await client.delete(session)).error["code"] == -32043

    @pytest.mark.parametrize("failure", [StoreUnavailable, StoreFull])
    async def test_a_store_that_did_not_take_it_is_said_to_have_failed(self, modern: bool, failure: Failure) -> None:
        """Never success, never "not found": the client may try again, and is told when."""
        client = client_of(modern, store=BrokenStore(writing=failure))
        session = await client.create()
        answer = await client.delete(session)
        assert (answer.status, answer.error["code"]) == (503, -32603)
        assert answer.headers[b"retry-after"] == b"1"
        assert (await client.tool(session=session)).session is not None


class TestRefusals:
    async def test_what_was_sent_comes_back_in_the_error(self, modern: bool) -> None:
        """The id is its sender's own, so it is echoed; why it is refused is not said."""
        answer = await client_of(modern).tool(session={"sessionId": "no.such.token"})
        assert answer.status == 200
        assert answer.json == {
            "jsonrpc": "2.0",
            "id": 1,
            "error": {"code": -32043, "message": "Session not found", "data": {"sessionId": "no.such.token"}},
        }

    async def test_forged_foreign_and_unknown_look_alike(self, modern: bool) -> None:
        """There is no oracle: the same bytes but for the id that was sent."""
        server = Server()
        alice = Client(sessions(server, principal=lambda scope: "alice"), modern=modern)
        bob = Client(sessions(server, principal=lambda scope: "bob"), modern=modern)
        other = Client(sessions(server, principal=lambda scope: "alice", audience="other"), modern=modern)
        token = (await bob.create())["sessionId"]
        foreign = (await other.create())["sessionId"]
        forged = token[:-6] + "AAAAAA"
        bodies = {
            (await alice.tool(session={"sessionId": bad})).body.replace(b'"%s"' % bad.encode(), b'"ID"')
            for bad in (token, foreign, forged, "x", "")
        }
        assert len(bodies) == 1

    @pytest.mark.parametrize("over", ["expired", "ended"])
    async def test_only_the_owner_learns_that_a_session_is_over(self, modern: bool, over: str) -> None:
        """To everybody else it is simply not found."""
        clock, caller = Clock(), ["alice"]
        client = client_of(modern, clock=clock, principal=lambda scope: caller[0])
        session = await client.create()
        if over == "ended":
            await client.delete(session)
        else:
            clock.now = START + 7 * DAY
        assert (await client.tool(session=session)).error["data"]["reason"] == over
        caller[0] = "bob"
        assert (await client.tool(session=session)).error["data"] == {"sessionId": session["sessionId"]}

    async def test_a_store_out_of_reach_is_not_a_missing_session(self, modern: bool) -> None:
        """HTTP 503 and `Retry-After`: clients take "not found" as final."""
        client = client_of(modern, store=BrokenStore(reading=StoreUnavailable))
        answer = await client.tool(session=await client.create())
        assert (answer.status, answer.error["code"], answer.headers[b"retry-after"]) == (503, -32603, b"1")
        assert "data" not in answer.error

    async def test_malformed_metadata_keeps_its_code_in_either_era(self, modern: bool) -> None:
        """Handshake-era clients lose the code of a 4xx, so there it travels at HTTP 200."""
        answer = await client_of(modern).tool(session="a")
        assert (answer.status, answer.error["code"]) == (400 if modern else 200, -32602)

    @pytest.mark.parametrize(
        ("method", "session", "code"),
        [
            ("tools/call", {"sessionId": "x"}, -32043),
            ("notifications/cancelled", 1, -32602),
            ("sessions/create", None, -32600),
            ("sessions/delete", None, -32600),
        ],
    )
    async def test_a_refused_notification_is_told_by_the_status(
        self, modern: bool, method: str, session: Any, code: int
    ) -> None:
        """It has no answer that a client would read, so HTTP 400 says that it had no effect."""
        server = Server()
        answer = await Client(sessions(server), modern=modern).send(method, session=session, id=None)
        assert (answer.status, answer.error["code"], answer.json["id"]) == (400, code, None)
        assert method not in server.methods

    async def test_codes_can_be_chosen(self, modern: bool) -> None:
        """A deployment may prefer codes outside the range that the protocol reserves."""
        client = client_of(modern, not_found_code=-40001, required_code=-40002, require={"tools/call"})
        assert (await client.tool(session={"sessionId": "x"})).error["code"] == -40001
        assert (await client.tool()).error == {"code": -40002, "message": "Session required"}

    async def test_facts_tell_the_reason_that_the_wire_does_not(self, modern: bool) -> None:
        """For the log and the traces; the body that was never read has no method."""
        facts: list[Fact] = []
        client = client_of(modern, listen=facts.append)
        await client.tool(session={"sessionId": "x"})
        await client.post(b"{")
        assert facts == [
            RequestRefused("token_shape", -32043, "tools/call"),
            RequestRefused("not_json", -32700, None),
        ]


class TestASessionThatEndsUnderWay:
    async def test_a_call_that_is_answered_by_a_stream_is_told(self, modern: bool) -> None:
        """By its id, as a later call would be; the log is told, too."""
        facts: list[Fact] = []
        server = Streaming()
        client = Client(sessions(server, listen=facts.append), modern=modern)
        session = await client.create()
        answers: list[Answer] = []

        async def work() -> None:
            answers.append(await client.tool("work", session=session))

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await server.began.wait()
            await client.delete(session)
            server.go.set()
        data = {"sessionId": session["sessionId"], "reason": "ended"}
        assert answers[0].json["id"] == 1
        assert answers[0].error == {"code": -32043, "message": "Session not found", "data": data}
        assert [fact.method for fact in facts if isinstance(fact, RequestRefused)] == ["tools/call"]

    async def test_the_call_that_ends_its_own_session_gets_its_answer(self, modern: bool) -> None:
        """Whether its stream was open by then or not."""

        async def end(session: Session | None) -> None:
            assert session is not None
            await session.end()

        server = Streaming(end)
        server.go.set()
        client = Client(sessions(server), modern=modern)
        answer = await client.tool("work", session=await client.create())
        assert answer.result["content"] == SECRET_RESULT


class TestAnAnswerThatComesLate:
    """A second or more after the store was asked how the session stands."""

    def client(self, store: MemoryStore, clock: Clock, *, sse: bool, ends: bool) -> Client:
        """Of a server whose tool takes some seconds, while its session ends or lives."""

        async def slow(session: Session | None, arguments: dict[str, Any]) -> Any:
            assert session is not None
            if ends:  # as on another worker
                until = int(session.expires_at.timestamp())
                await store.revoke(session.ref, audience=AUDIENCE, expires_at=until, reason="deleted", lease=60)
            clock.now += arguments["seconds"]
            return "the result"

        async def end(session: Session | None, arguments: dict[str, Any]) -> Any:
            assert session is not None
            await session.end()
            clock.now += 1
            return "the result"

        return Client(sessions(Server(sse=sse, slow=slow, end=end), store=store, clock=clock))

    @pytest.mark.parametrize("sse", [False, True])
    async def test_is_not_that_of_a_session_that_has_ended(self, sse: bool) -> None:
        """Whether it is one piece of JSON or a stream that begins only now, it says what a later call would be told."""
        clock = Clock()
        client = self.client(MemoryStore(clock=clock), clock, sse=sse, ends=True)
        session = await client.create()
        answer = await client.tool("slow", session=session, seconds=1)
        assert (answer.status, answer.json["id"]) == (200, 1)
        assert answer.error["code"] == -32043
        assert answer.error["data"] == {"sessionId": session["sessionId"], "reason": "ended"}
        assert b"the result" not in answer.body

    @pytest.mark.parametrize("sse", [False, True])
    async def test_is_that_of_a_session_that_lives(self, sse: bool) -> None:
        """As ever."""
        clock = Clock()
        client = self.client(MemoryStore(clock=clock), clock, sse=sse, ends=False)
        answer = await client.tool("slow", session=await client.create(), seconds=10)
        assert b"the result" in answer.body
        assert answer.session is not None

    async def test_before_that_the_store_is_not_asked_again(self) -> None:
        """A call costs one question; what ended meanwhile ended while the answer was on its way."""
        clock = Clock()
        client = self.client(MemoryStore(clock=clock), clock, sse=False, ends=True)
        assert b"the result" in (await client.tool("slow", session=await client.create(), seconds=0.9)).body

    async def test_the_call_that_ends_its_own_session_gets_its_answer(self) -> None:
        """However long it takes."""
        clock = Clock()
        client = self.client(MemoryStore(clock=clock), clock, sse=False, ends=False)
        assert b"the result" in (await client.tool("end", session=await client.create())).body

    async def test_goes_out_where_the_store_does_not_answer(self) -> None:
        """Nobody knows, so the call that was let in is answered."""

        class Failing(MemoryStore):
            async def statuses(self, claims: Sequence[Claims]) -> list[Standing]:
                raise StoreUnavailable

        clock = Clock()
        client = self.client(Failing(clock=clock), clock, sse=False, ends=True)
        assert b"the result" in (await client.tool("slow", session=await client.create(), seconds=1)).body


class TestWithoutABody:
    """What a client says by HTTP DELETE alone: that it is done with its transport session."""

    async def connect(self, client: Client) -> Header:
        return (b"mcp-session-id", (await client.send("initialize")).headers[b"mcp-session-id"])

    async def hang_up(self, client: Client, header: Header) -> Answer:
        return await call(client.app, http("DELETE", headers=[header]))

    @pytest.mark.parametrize("admission", ["ask", "own"])
    async def test_a_transport_session_is_ended(self, admission: str) -> None:
        """The answer says no more than that."""
        client = client_of(False, admission=admission)
        header = await self.connect(client)
        answer = await self.hang_up(client, header)
        assert (answer.status, answer.body) == (200, b"")
        refused = await client.tool("whoami", header)
        assert (refused.status, refused.error["code"]) == (404, -32043)

    async def test_a_store_that_did_not_take_it_is_said_to_have_failed(self) -> None:
        """The client may try again."""
        client = client_of(False, store=BrokenStore(writing=StoreUnavailable))
        answer = await self.hang_up(client, await self.connect(client))
        assert (answer.status, answer.error["code"], answer.headers[b"retry-after"]) == (503, -32603, b"1")

    async def test_whom_the_server_turns_away_ends_nothing(self) -> None:
        """The server's own answer comes first."""
        shut = False

        async def guard(scope: Scope, send: Send) -> bool:
            if shut:
                await reply(send, b"who are you?", status=401)
            return shut

        client = Client(sessions(Server(guard=guard)), modern=False)
        header = await self.connect(client)
        mirror = (b"mcp-session-id", (await client.create())["sessionId"].encode())
        shut = True
        for one in (header, mirror):
            answer = await self.hang_up(client, one)
            assert (answer.status, answer.body) == (401, b"who are you?")
        shut = False
        assert "result" in (await client.tool("whoami", header)).json

    async def test_a_session_of_the_draft_is_not_ended_by_its_mirror(self, modern: bool) -> None:
        """It lives in the metadata; a header beside nothing is a mismatch."""
        client = client_of(modern)
        session = await client.create()
        for method in ("DELETE", "GET"):
            header = (b"mcp-session-id", session["sessionId"].encode())
            answer = await call(client.app, http(method, headers=[header]))
            assert (answer.status, answer.error["code"]) == (400, -32020)


async def test_another_era_is_told_which_is_served() -> None:
    """The versions to shake hands with, and the one that was asked for."""
    error = (await client_of(True, era="legacy").send("sessions/create")).error
    assert (error["code"], error["data"]["requested"]) == (-32022, MODERN)
    assert LEGACY in error["data"]["supported"]


class TestAdmission:
    @pytest.mark.parametrize("method", ["sessions/create", "sessions/delete", "tools/call"])
    async def test_whom_the_server_turns_away_gets_no_answer_of_ours(self, modern: bool, method: str) -> None:
        """Created, deleted or refused: the server's own answer comes first."""
        shut = False

        async def guard(scope: Scope, send: Send) -> bool:
            if shut:
                await reply(send, b"who are you?", status=401)
            return shut

        facts: list[Fact] = []
        client = Client(sessions(Server(guard=guard), listen=facts.append), modern=modern)
        session = None if method == "sessions/create" else await client.create()
        facts.clear()
        shut = True
        bad = {"sessionId": "x"} if method == "tools/call" else session
        answer = await client.send(method, session=bad)
        assert (answer.status, answer.body) == (401, b"who are you?")
        assert facts == []

    async def test_without_asking_the_answer_is_ours_at_once(self, modern: bool) -> None:
        """`admission="own"`: the guards stand outside."""
        server = Server()
        client = Client(sessions(server, admission="own"), modern=modern)
        assert "result" in (await client.delete(await client.create())).json
        assert not server.seen


class TestTheModernEnvelope:
    async def test_what_the_wrapped_server_would_check_is_checked(self) -> None:
        """On requests that we answer ourselves: envelope, version and method, in that order, before asking."""
        server = Server()
        client = Client(sessions(server))
        message = client.message("sessions/create")
        bare = {**message, "params": {}}
        wrong = client.message("sessions/create", {"_meta": {}})
        wrong["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01"
        for body, method, code in [
            (bare, "sessions/create", -32602),
            (wrong, "sessions/create", -32020),
            (message, "tools/call", -32020),
        ]:
            answer = await client.post(body, method=method)
            assert (answer.status, answer.error["code"], answer.json["id"]) == (400, code, 1)
        assert not server.seen

    async def test_the_era_is_told_by_the_header_alone(self) -> None:
        """A legacy request that carries a modern envelope is a legacy request."""
        client = client_of(modern=False)
        meta = {"io.modelcontextprotocol/protocolVersion": MODERN}
        assert "resultType" not in (await client.send("sessions/create", {"_meta": meta})).result

"""The answers that are ours: created, deleted, refused; in both eras, and to whom they say why."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Scope, Send

from apps import Server, reply, sessions
from clients import MODERN, START, Client, Clock
from mcp_sessions.errors import StoreFull, StoreUnavailable
from mcp_sessions.events import Fact, RequestRefused
from mcp_sessions.options import DAY, HOUR
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

    async def is_revoked(self, jti: str, *, expires_at: int) -> bool:
        if self._reading is not None:
            raise self._reading()
        return False

    async def revoke(self, jti: str, *, expires_at: int) -> None:
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

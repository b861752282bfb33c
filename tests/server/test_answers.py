"""The answers that are ours: created, deleted, refused; in both eras, and to whom they say why."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from apps import Server, sessions
from clients import START, Answer, Client, Clock, Header, call, http
from failing import Failing
from starlette.types import ASGIApp

from mcp_sessions import SEP1364Create, Session
from mcp_sessions._errors import StoreFull, StoreUnavailable
from mcp_sessions._server.logs import EventSink
from mcp_sessions._server.options import DAY
from mcp_sessions._session.events import SessionUsed
from mcp_sessions.stores._base import Record


@pytest.fixture(params=["legacy", "modern"])
def modern(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "modern")


def client_of(modern: bool, **options: Any) -> Client:
    return Client(sessions(Server(), **options), modern=modern)


@pytest.mark.parametrize("failure", [StoreUnavailable, StoreFull])
async def test_a_store_that_did_not_take_it_is_said_to_have_failed(modern: bool, failure: type[Exception]) -> None:
    """Never success, never "not found": the client may try again, and is told when."""
    client = client_of(modern, store=Failing("revoke", error=failure))
    session = await client.create()
    answer = await client.delete(session)
    assert (answer.status, answer.error["code"]) == (503, -32603)
    assert answer.headers[b"retry-after"] == b"1"
    assert (await client.tool(session=session)).session is not None


@pytest.mark.parametrize("over", ["expired", "ended"])
async def test_only_the_owner_learns_that_a_session_is_over(modern: bool, over: str) -> None:
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


class TestAnAnswerThatComesLate:
    """A second or more after the store was asked how the session stands."""

    async def answer(
        self, tool: str, seconds: float, *, sse: bool = False, fails: bool = False, **options: Any
    ) -> Answer:
        """Call a tool that takes this long; `slow` is ended meanwhile by another worker, `end` by itself."""
        clock = Clock()
        store = Failing(*["statuses"] * fails, clock=clock)

        async def slow(session: Session | None, arguments: dict[str, Any]) -> Any:
            assert session is not None
            until = int(session.expires_at.timestamp())
            await store.revoke(Record(session.ref, None, START, until, START), reason="deleted", lease=60)
            return await wait(session, arguments)

        async def end(session: Session | None, arguments: dict[str, Any]) -> Any:
            assert session is not None
            await session.end()
            return await wait(session, arguments)

        async def wait(session: Session | None, arguments: dict[str, Any]) -> Any:
            clock.now += seconds
            return "the result"

        client = Client(sessions(Server(sse=sse, slow=slow, end=end, wait=wait), store=store, clock=clock, **options))
        session = await client.create()
        answer = await client.tool(tool, session=session)
        if b"the result" not in answer.body and not fails:
            assert answer.error["data"] == {"sessionId": session["sessionId"], "reason": "ended"}
        return answer

    @pytest.mark.parametrize("sse", [False, True])
    async def test_is_not_that_of_a_session_that_has_ended(self, sse: bool) -> None:
        """In JSON, or as a stream that begins only now, it says what a later call would be told."""
        answer = await self.answer("slow", 1, sse=sse)
        assert (answer.status, answer.json["id"], answer.error["code"]) == (200, 1, -32043)

    @pytest.mark.parametrize(
        ("tool", "seconds", "fails"),
        [("wait", 10, False), ("slow", 0.9, False), ("end", 1, False), ("slow", 1, True)],
        ids=["it lives", "too early to ask again", "ended by the call itself", "the store does not answer"],
    )
    @pytest.mark.parametrize("sse", [False, True])
    async def test_goes_out_otherwise(self, tool: str, seconds: float, fails: bool, sse: bool) -> None:
        """Also while the store is away, where the deployment says so."""
        allowed = {"on_store_error": "allow"} if fails else {}
        answer = await self.answer(tool, seconds, sse=sse, fails=fails, **allowed)
        assert answer.result["content"] == "the result"

    @pytest.mark.parametrize("sse", [False, True])
    async def test_is_not_let_out_while_nobody_knows_how_its_session_is(self, sse: bool) -> None:
        answer = await self.answer("slow", 1, sse=sse, fails=True)
        assert (answer.json["id"], answer.error["code"]) == (1, -32603)


async def named_by(app: ASGIApp) -> Header:
    return await Client(app, modern=False).initialize()


async def bodyless(app: ASGIApp, method: str, named: Header) -> Answer:
    return await call(app, http(method, headers=[named]))


class TestWithoutABody:
    """GET and DELETE that name a session of ours in the header."""

    @pytest.mark.parametrize("failing", ["status", "revoke"])
    async def test_a_store_that_does_not_answer_is_no_dead_session(self, failing: str) -> None:
        """Clients take a 404 as final; with 503 they may try again."""
        app = sessions(Server(), store=Failing(failing))
        answer = await bodyless(app, "DELETE", await named_by(app))
        assert (answer.status, answer.error["code"], answer.headers[b"retry-after"]) == (503, -32603, b"1")

    @pytest.mark.parametrize("transport", ["auto", "off"])
    async def test_a_session_of_the_field_has_no_stream_and_is_deleted_by_a_message(self, transport: str) -> None:
        """Its clients mirror it in the header of every request, so a GET is answered as any other of theirs."""
        app = sessions(Server(), dialects=[SEP1364Create()], transport=transport)
        created = await Client(app, modern=False).send("sessions/create", {"capabilities": {}})
        named = b"mcp-session-id", created.result["sessionId"].encode()
        answer = await bodyless(app, "GET", named)
        assert (answer.status, answer.headers[b"allow"]) == (405, b"POST, DELETE")
        deleted = await bodyless(app, "DELETE", named)
        expected = (404, -32043) if transport == "auto" else (400, -32020)  # as any id that is not live there
        assert (deleted.status, deleted.error["code"]) == expected

    @pytest.mark.parametrize("method", ["GET", "DELETE"])
    async def test_where_none_are_named_an_id_of_ours_is_out_of_place(self, method: str) -> None:
        answer = await bodyless(sessions(Server(), transport="off"), method, await named_by(sessions(Server())))
        assert (answer.status, answer.error["code"]) == (400, -32020)


class TestTheLog:
    async def test_each_fact_is_a_line(self, caplog: pytest.LogCaptureFixture) -> None:
        client = client_of(True)
        with caplog.at_level(logging.INFO, logger="mcp_sessions"):
            root = await client.create()
            fork = await client.fork(root)
            refs = [(await client.tool(session=session)).result["content"] for session in (root, fork)]
            await client.delete(root)
            await client.tool(session=root)
            await client.post(b"{")
        assert [line for line in caplog.messages if "at a restart" not in line] == [
            f"session {refs[0]} created",
            f"session {refs[1]} created",
            f"session {refs[0]} ended: deleted",
            f"refused 'tools/call' of session {refs[0]}: ended (-32043)",
            "refused a request without a readable message: not_json (-32700)",
        ]

    async def test_a_method_name_cannot_forge_a_line(self, caplog: pytest.LogCaptureFixture) -> None:
        """What a client wrote is quoted and cut: no line break, no terminal code, no flood."""
        method = "x\nERROR all is lost\x1b[2J\u202e" + "y" * 1000
        with caplog.at_level(logging.INFO, logger="mcp_sessions"):
            await client_of(False).send(method, session={"sessionId": "x"})
        (line,) = [line for line in caplog.messages if "at a restart" not in line]
        assert line.isprintable()
        assert len(line) < 160

    def test_a_use_is_no_line(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG, logger="mcp_sessions"):
            EventSink(None, bool, pytest.fail)(SessionUsed("ses_a", "ping"))
        assert not caplog.records

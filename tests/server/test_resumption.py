"""A broken stream that is taken up again: what it still holds is for a live session alone."""

import re
from typing import Any

import anyio
import pytest
from apps import sessions
from clients import DEADLINE, START, Answer, Client, Clock, Header, by, call, http, user_of
from failing import Failing
from starlette.types import Message, Receive, Scope, Send
from streaming import SECRET_RESULT, Streaming

from mcp_sessions import Session
from mcp_sessions._errors import StateClosed
from mcp_sessions._server.options import DAY, HOUR
from mcp_sessions.events import RequestRefused, SessionCreated, SessionEvent

TRANSPORT: Header = (b"mcp-session-id", b"the-server-s-own")


class Broken:
    """A call whose stream broke before its result, and what is needed to take it up."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.facts: list[SessionEvent] = []
        self.server = Streaming()
        self.app = sessions(self.server, clock=self.clock, listen=self.facts.append, **options)
        self.client = Client(self._hear, modern=False)
        self.event_ids: list[bytes] = []  # as clients got them

    async def _hear(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def hear(message: Message) -> None:
            self.event_ids += re.findall(rb"(?m)^id: (.+)$", message.get("body", b""))
            await send(message)

        await self.app(scope, receive, hear)

    async def happen(self, *headers: Header) -> dict[str, str]:
        """Create a session and call a tool in it; the connection is lost when the call has begun."""
        session = await self.client.create(*headers)
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: self.client.tool("work", *headers, session=session))
                await self.server.began.wait()
                group.cancel_scope.cancel()
        self.server.go.set()
        return session

    async def resume(self, *headers: Header) -> Answer:
        self.facts.clear()
        with anyio.fail_after(DEADLINE):
            return await call(self.app, http("GET", headers=[*headers, (b"last-event-id", self.event_ids[0])]))

    @property
    def refusals(self) -> list[tuple[str, str | None, str | None]]:
        refused = [fact for fact in self.facts if isinstance(fact, RequestRefused)]
        return [(fact.reason, fact.method, fact.ref) for fact in refused]

    @property
    def handler_s(self) -> Session:
        """The session as the handler of the last call has it."""
        assert self.server.session is not None
        return self.server.session


@pytest.mark.parametrize(
    ("options", "later", "reason"),
    [({}, 0, "ended"), ({}, 7 * DAY, "expired"), ({"tracked": True, "idle_timeout": HOUR}, 2 * HOUR, "expired")],
    ids=["deleted", "expired", "idle"],
)
async def test_one_that_is_over_answers_its_call(options: dict[str, Any], later: int, reason: str) -> None:
    """By the id of the call, since clients take a status for a lost stream, and wait; as often as they ask."""
    broken = Broken(**options)
    session = await broken.happen()
    if not later:
        await broken.client.delete(session)
    broken.clock.now = START + later
    for _ in range(2):
        broken.facts.clear()
        answer = await broken.resume()
        assert (answer.status, answer.headers[b"content-type"]) == (200, b"text/event-stream")
        assert answer.headers[b"cache-control"] == b"no-store"
        assert answer.events == [
            {
                "jsonrpc": "2.0",
                "id": answer.events[0]["id"],
                "error": {"code": -32043, "message": "Session not found", "data": {"reason": reason, "executed": True}},
            }
        ]
    assert not broken.server.resumed.is_set()
    assert broken.refusals == [(reason, "tools/call", broken.handler_s.ref)]


async def test_while_nobody_knows_it_waits() -> None:
    """503 and when to try again, and the stream can be taken up when the store is back."""
    store = Failing()
    broken = Broken(store=store, on_store_error="allow")
    await broken.happen()
    store.failing.add("look_up")
    answer = await broken.resume()
    assert (answer.status, answer.error["code"], answer.headers[b"retry-after"]) == (503, -32603, b"1")
    assert not broken.server.resumed.is_set()
    store.failing.clear()
    assert (await broken.resume()).status == 200


async def test_an_event_belongs_to_the_transport_session_and_the_principal_of_its_call() -> None:
    """Servers find it by its id alone, so another client would hear what it has not asked."""
    broken = Broken(principal=user_of)
    await broken.happen(TRANSPORT, by("alice"))
    (ref,) = {fact.ref for fact in broken.facts if isinstance(fact, SessionCreated)}
    strange: list[list[Header]] = [[(b"mcp-session-id", b"another"), by("alice")], [by("alice")]]
    for headers in (*strange, [TRANSPORT], [TRANSPORT, by("bob")]):
        answer = await broken.resume(*headers)
        assert (answer.status, answer.error["code"]) == (404, -32043)
        assert broken.refusals == [("event_foreign", "GET", ref)]
    assert not broken.server.resumed.is_set()
    assert (await broken.resume(TRANSPORT, by("alice"))).status == 200


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_stream_that_was_taken_up_ends_with_its_session(is_answered: bool) -> None:
    """And says so by the id of the call, unless its client has the answer, and waits for nothing."""
    broken = Broken()
    session = await broken.happen()
    broken.server.go, broken.server.is_done = anyio.Event(), is_answered
    answers: list[Answer] = []

    async def resume() -> None:
        answers.append(await broken.resume())

    async with anyio.create_task_group() as group:
        group.start_soon(resume)
        await broken.server.resumed.wait()
        await broken.client.delete(session)
        assert answers == []  # the server goes on, and is not heard any more
        broken.server.go.set()
    if is_answered:
        assert answers[0].result["content"] == SECRET_RESULT
        assert b"error" not in answers[0].body
    else:
        data = {"reason": "ended", "executed": True}
        error = {"code": -32043, "message": "Session not found", "data": data}
        assert answers[0].json == {"jsonrpc": "2.0", "id": 1, "error": error}
    # The official TypeScript client takes a stream up after each error; 405 says that there is none.
    assert (await broken.resume()).status == 405
    assert not broken.app._runtime.streams._open


class TestACallThatGoesOn:
    """A server with an event store runs a call to its end, and its client collects the answer later."""

    async def test_its_state_is_open_until_the_answer_and_leaves_with_it(self) -> None:
        broken = Broken()
        session = await broken.happen()
        broken.handler_s.state["n"] = 1
        answer = await broken.resume()
        assert answer.session is not None
        with pytest.raises(StateClosed):
            broken.handler_s.state["n"] = 2
        again = await broken.resume()  # as the first was lost on its way
        assert again.session is not None
        assert "state" in again.session
        await broken.client.tool("work", session={**session, "state": answer.session["state"]})
        assert broken.handler_s.state == {"n": 1}

    async def test_it_may_end_its_own_session(self) -> None:
        """As with a connection, where the answer of that request still leaves."""
        broken = Broken()
        session = await broken.happen()
        await broken.handler_s.end()
        assert (await broken.resume()).result["content"] == SECRET_RESULT
        assert (await broken.client.tool(session=session)).error["code"] == -32043

    async def test_so_many_are_kept(self) -> None:
        """The oldest gives way, and is closed."""
        broken = Broken()
        broken.app._runtime.calls._max_calls = 1
        await broken.happen()
        first = broken.handler_s
        broken.server.began, broken.server.go = anyio.Event(), anyio.Event()
        await broken.happen()
        broken.handler_s.state["n"] = 1
        with pytest.raises(StateClosed):
            first.state["n"] = 1

    @pytest.mark.parametrize("resumed", [False, True])
    async def test_an_answered_call_is_closed(self, resumed: bool) -> None:
        """At once; one that was answered by an error, when its stream is taken up."""
        broken = Broken()
        if resumed:
            await broken.happen()
            (request,) = broken.app._runtime.calls._by_name.values()
            request.answered = True
            await broken.resume()
        else:
            broken.server.go.set()
            await broken.client.tool("work", session=await broken.client.create())
        with pytest.raises(StateClosed):
            broken.handler_s.state["n"] = 2


@pytest.mark.parametrize(
    ("named", "params", "is_settled"),
    [
        ("session", {"requestId": 1}, True),
        ("transport", {"requestId": 1}, True),
        ("another transport", {"requestId": 1}, False),
        ("nothing", {"requestId": 1}, False),  # it could be any client's
        *(("session", params, False) for params in ({"requestId": 2}, {"requestId": "1"}, {})),
    ],
)
async def test_a_cancelled_call_gets_no_error_when_its_session_ends(
    named: str, params: dict[str, Any], is_settled: bool
) -> None:
    """Its client expects nothing more, and takes an error for a fault."""
    broken, answers = Broken(), list[Answer]()
    headers = [TRANSPORT] if "transport" in named else []
    own = [(b"mcp-session-id", b"another")] if named == "another transport" else headers
    session = await broken.client.create()

    async def work() -> None:
        answers.append(await broken.client.tool("work", *headers, session=session))

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await broken.server.began.wait()
            carried = session if named == "session" else None
            await broken.client.send("notifications/cancelled", params, *own, id=None, session=carried)
            await broken.client.delete(session)
            broken.server.go.set()
    assert (b"error" not in answers[0].body) is is_settled


@pytest.mark.parametrize("modern", [False, True])
async def test_events_are_not_known_by_a_mirror_of_ours(modern: bool) -> None:
    """No server sees it, so a client names no transport session when it takes the stream up."""
    broken = Broken()
    broken.server.go.set()
    client = Client(broken._hear, modern=modern)
    session = await client.create()
    await client.tool("work", (b"mcp-session-id", session["sessionId"].encode()), session=session)
    assert (await broken.resume()).status == 200
    await client.delete(session)
    assert (await broken.resume()).status == 405

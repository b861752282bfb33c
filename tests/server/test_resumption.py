"""A broken stream that is taken up again: what it still holds is for a live session alone."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from apps import sessions
from clients import START, Answer, Client, Clock, Header, call, http
from failing import Failing
from streaming import SECRET_RESULT, Streaming

from mcp_sessions._server.options import DAY, HOUR
from mcp_sessions._session.events import Fact, RequestRefused

TRANSPORT: Header = (b"mcp-session-id", b"the-server-s-own")
DEADLINE = 30  # seconds after which a test that hangs fails


class Broken:
    """A call whose stream broke before its result, and what is needed to take it up."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.facts: list[Fact] = []
        self.server = Streaming()
        self.app = sessions(self.server, clock=self.clock, listen=self.facts.append, **options)
        self.client = Client(self.app, modern=False)

    async def happen(self, *headers: Header) -> dict[str, str]:
        """Create a session and call a tool in it; the connection is lost when the call has begun."""
        session = await self.client.create()
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: self.client.tool("work", *headers, session=session))
                await self.server.began.wait()
                group.cancel_scope.cancel()
        self.server.go.set()
        return session

    async def resume(self, *headers: Header, method: str = "GET", last: bytes = b"1") -> Answer:
        """Take the stream up where it broke."""
        self.facts.clear()
        with anyio.fail_after(DEADLINE):
            return await call(self.app, http(method, headers=[*headers, (b"last-event-id", last)]))


async def test_a_live_session_gets_what_it_missed() -> None:
    broken = Broken()
    await broken.happen()
    answer = await broken.resume()
    assert answer.messages == (await call(broken.server, http("GET"))).messages
    assert SECRET_RESULT.encode() in answer.body


async def test_one_that_was_deleted_gets_nothing() -> None:
    """As a stream that the server does not have; the log is told of whose request it was."""
    broken = Broken()
    session = await broken.happen()
    await broken.client.delete(session)
    answer = await broken.resume()
    assert (answer.status, answer.json["id"]) == (404, None)
    assert answer.error == {"code": -32043, "message": "Session not found"}
    assert not broken.server.resumed.is_set()
    (fact,) = broken.facts
    assert isinstance(fact, RequestRefused)
    assert (fact.reason, fact.method) == ("ended", "tools/call")


@pytest.mark.parametrize(("options", "later"), [({}, 7 * DAY), ({"tracked": True, "idle_timeout": HOUR}, 2 * HOUR)])
async def test_nor_does_one_that_expired_or_stood_idle(options: dict[str, Any], later: int) -> None:
    broken = Broken(**options)
    await broken.happen()
    broken.clock.now = START + later
    assert (await broken.resume()).status == 404
    assert [fact.reason for fact in broken.facts if isinstance(fact, RequestRefused)] == ["expired"]


async def test_while_nobody_knows_it_waits() -> None:
    """503 and when to try again, and the stream can be taken up when the store is back."""
    store = Failing()
    broken = Broken(store=store, on_store_error="allow")
    await broken.happen()
    store.failing.add("status")
    answer = await broken.resume()
    assert (answer.status, answer.error["code"], answer.headers[b"retry-after"]) == (503, -32603, b"1")
    assert not broken.server.resumed.is_set()
    store.failing.clear()
    assert (await broken.resume()).status == 200


async def test_ids_of_events_are_those_of_a_transport_session() -> None:
    """Another one's event may have the same id; it is none of our business, nor is an id that was never seen."""
    broken = Broken()
    session = await broken.happen(TRANSPORT)
    await broken.client.delete(session)
    assert (await broken.resume(TRANSPORT)).status == 404
    assert (await broken.resume((b"mcp-session-id", b"another"))).status == 200
    assert (await broken.resume()).status == 200
    assert (await broken.resume(TRANSPORT, last=b"3")).status == 200


async def test_only_a_get_takes_up_a_stream() -> None:
    broken = Broken()
    await broken.client.delete(await broken.happen())
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    headers = [(b"content-type", b"application/json"), (b"last-event-id", b"1")]
    assert (await call(broken.app, http(headers=headers), body)).result == {}
    assert (await call(broken.app, http("PUT", headers=headers), body)).result == {}


async def test_a_stream_that_was_taken_up_ends_with_its_session() -> None:
    """And says so by the id of the call, so that the client does not go on waiting for it."""
    broken = Broken()
    session = await broken.happen()
    broken.server.go = anyio.Event()
    answers: list[Answer] = []

    async def resume() -> None:
        answers.append(await broken.resume())

    async with anyio.create_task_group() as group:
        group.start_soon(resume)
        await broken.server.resumed.wait()
        await broken.client.delete(session)
        assert answers == []  # the server goes on, and is not heard any more
        broken.server.go.set()
    assert answers[0].json == {"jsonrpc": "2.0", "id": 1, "error": {"code": -32043, "message": "Session not found"}}
    assert not broken.app._options.streams._open

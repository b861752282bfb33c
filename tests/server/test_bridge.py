"""Clients of a server that keeps transport sessions see our ids, and the server sees its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from apps import sessions
from clients import DEADLINE, Answer, Client, Header, Incoming, call, http
from starlette.types import Receive, Scope, Send
from stateful import HEADER, Stateful

from mcp_sessions import MCPSessionMiddleware, Session
from mcp_sessions._errors import CreateRefused, StoreUnavailable
from mcp_sessions._server.active import Bridged as Crossing
from mcp_sessions._session.events import RequestRefused, SessionEvent


@dataclass
class Bridged:
    """A stateful server behind the bridge, and clients of it."""

    server: Stateful
    app: MCPSessionMiddleware
    facts: list[SessionEvent]
    answers: list[Answer] = field(default_factory=list)

    async def opens(self, *headers: Header) -> str:
        """Shake hands as a client does; the id that it gets."""
        answer = await self.send("initialize", None, *headers)
        return answer.headers[HEADER].decode()

    async def send(self, method: str, ours: str | None, *headers: Header, **more: Any) -> Answer:
        """Send a message with a transport id of ours; what the client sees."""
        named = [] if ours is None else [(HEADER, ours.encode())]
        return self._seen(await Client(self.app, modern=False).send(method, {}, *named, *headers, **more))

    async def bodyless(self, method: str, ours: str | None, *headers: Header) -> Answer:
        """Send a GET or DELETE."""
        named = [] if ours is None else [(HEADER, ours.encode())]
        return self._seen(await call(self.app, http(method=method, headers=[*named, *headers])))

    def _seen(self, answer: Answer) -> Answer:
        self.answers.append(answer)
        return answer

    def reasons(self) -> list[str]:
        """Why requests were refused."""
        return [fact.reason for fact in self.facts if isinstance(fact, RequestRefused)]


def bridged(server: Stateful | None = None, **options: Any) -> Bridged:
    server, facts = server or Stateful(), list[SessionEvent]()
    app = sessions(server, bridge=True, listen=facts.append, **options)
    return Bridged(server, app, facts)


@pytest.mark.parametrize("options", [{"transport": "off"}, {"keys": None}], ids=["off", "keys that die"])
async def test_it_needs_no_dialect_and_no_lasting_key(options: dict[str, Any]) -> None:
    """The server's own sessions die with the process, too."""
    world = bridged(**options)
    ours = await world.opens()
    assert (await world.send("tools/call", ours)).result == {"content": 1}


@pytest.mark.parametrize(
    ("named", "seen"),
    [([], []), ([b"servers-1"], [b"ours"]), ([b"servers-2"], []), ([b"servers-1", b"servers-2"], [])],
    ids=["none", "its own", "another", "two"],
)
async def test_no_response_names_another_id(named: list[bytes], seen: list[bytes]) -> None:
    server = Stateful()
    world = bridged(server)
    ours = await world.opens()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(HEADER, value) for value in named]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    world.app.app = app
    answer = await world.send("tools/call", ours)
    found = [value for name, value in answer.start["headers"] if name == HEADER]
    assert found == [ours.encode() for _ in seen]


@pytest.mark.parametrize("fails", [False, True])
async def test_the_session_of_a_handshake_does_not_stick_to_the_scope_that_the_server_keeps(fails: bool) -> None:
    """Servers with transport sessions keep the request that began one, also where they fail."""
    kept: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        kept.append(scope)
        if fails:
            raise LookupError
        await Stateful()(scope, receive, send)

    client = Client(sessions(app, bridge=True, admission="own"), modern=False)
    held = await client.create()
    with pytest.raises(LookupError) if fails else nullcontext():
        assert (await client.send("initialize", session=held)).status == 200
    (scope,) = kept
    assert scope["mcp_session"] is scope["state"]["mcp_session"] is None


@pytest.mark.parametrize(
    ("refusal", "status", "code"), [(CreateRefused("not today"), 200, -31045), (StoreUnavailable(), 503, -32603)]
)
async def test_who_gets_no_id_is_told_and_leaves_nothing_behind(refusal: Exception, status: int, code: int) -> None:
    """Nobody could ever use what the server has begun, so it is ended there."""

    def refuse(_session: Session, _params: dict[str, Any], _scope: Scope) -> None:
        raise refusal

    world = bridged(Stateful(sse=True), on_create=refuse)
    answer = await world.send("initialize", None)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert HEADER not in answer.headers
    assert world.server.counts == {}
    assert [seen.scope["method"] for seen in world.server.seen] == ["POST", "DELETE"]


async def test_an_id_that_cannot_be_carried_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    """The specification asks for visible ASCII; the log says what is wrong."""
    world = bridged(Stateful(names="servers "), transport="off")
    assert HEADER not in (await world.send("initialize", None)).headers
    assert "not visible ASCII, or too long" in caplog.text


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_the_servers_guards_come_first(method: str) -> None:
    world = bridged()
    await world.opens()
    world.server.guard = 401
    answer = (
        await world.send("tools/call", "servers-1") if method == "POST" else await world.bodyless("DELETE", "servers-1")
    )
    assert answer.status == 401


async def test_what_the_server_has_forgotten_is_a_404() -> None:
    """Its own, as it came; ours lives on, since another worker may remember: the caller was led astray."""
    world = bridged()
    ours = await world.opens()
    remembered = world.server.counts.pop("servers-1")
    answer = await world.send("tools/call", ours)
    assert (answer.status, answer.error["message"]) == (404, "Session not found")
    world.server.counts["servers-1"] = remembered
    assert (await world.send("tools/call", ours)).result == {"content": 1}


@pytest.mark.parametrize(("said", "answered"), [(405, 200), (404, 200), (403, 403), (500, 500)])
async def test_delete_ends_ours_unless_the_server_refuses(said: int, answered: int) -> None:
    """A server that ends nothing, or has forgotten, keeps nobody from leaving; one that forbids it does."""
    world = bridged(Stateful(deletes=said))
    ours = await world.opens()
    assert (await world.bodyless("DELETE", ours)).status == answered
    lives = (await world.send("tools/call", ours)).status == 200
    assert lives is (answered != 200)


@asynccontextmanager
async def listening(world: Bridged, ours: str, *headers: Header) -> AsyncIterator[Answer]:
    """A client that has opened a stream."""
    answer = Answer()
    scope = http(method="GET", headers=[(HEADER, ours.encode()), *headers])
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.app, scope, Incoming(), answer)
            await world.server.listening.wait()
            yield answer
            tasks.cancel_scope.cancel()


async def test_a_stream_ends_with_its_session() -> None:
    """Nothing is said: no request waits for an answer there."""
    world = bridged()
    ours = await world.opens()
    await world.send("tools/call", ours)
    session = world.server.sessions[-1]
    assert session is not None
    async with listening(world, ours) as answer:
        before = len(answer.messages)
        await session.end("over")
        assert [message["body"] for message in answer.messages[before:]] == [b""]
        assert answer.messages[-1]["more_body"] is False


async def test_a_stream_of_a_session_that_has_ended_is_not_taken_up() -> None:
    """Event 2 answered a request of it; the transport session lives, and listens to others."""
    world = bridged(Stateful(sse=True))
    ours = await world.opens()
    held = {"sessionId": (await world.send("sessions/create", ours)).result["session"]["sessionId"]}
    await world.send("tools/call", ours, session=held)
    await world.send("sessions/delete", ours, session=held)
    answer = await world.bodyless("GET", ours, (b"last-event-id", b"2"))
    assert (answer.status, world.reasons()) == (405, [])
    async with listening(world, ours, (b"last-event-id", b"9")) as other:
        assert other.status == 200


async def test_a_stream_of_another_transport_session_is_not_taken_up() -> None:
    """By its event's id, which the server finds by that alone, with an id of ours that is live."""
    world = bridged()
    mine, other = await world.opens(), await world.opens()
    world.server.sse = True
    await world.send("tools/call", mine)
    world.server.seen.clear()
    answer = await world.bodyless("GET", other, (b"last-event-id", b"2"))
    assert (answer.status, answer.error["code"], world.reasons()) == (404, -32043, ["event_foreign"])
    assert world.server.seen == []


async def test_the_server_sees_nothing_of_the_bridge() -> None:
    """Its scope holds what it would hold without one, and what crosses cannot be printed by accident."""
    world = bridged()
    ours = await world.opens()
    await world.send("tools/call", ours)
    plain = {"type", "asgi", "method", "path", "headers", "state", "mcp_session", "mcp_sessions.missing_session"}
    assert all(set(seen.scope) - plain == set(http()) - plain for seen in world.server.seen)
    assert repr(Crossing(ours, "servers-1")) == "<Bridged>"

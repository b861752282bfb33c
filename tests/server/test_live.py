"""The life of a session: made and filled, idle, ended; while its store is away; and what it may not change."""

import json
import logging
from datetime import datetime
from typing import Any

import anyio
import pytest
from apps import Server, read, sessions
from clients import LEGACY, START, Answer, Client, Clock, Incoming, chunks, http
from failing import Failing
from starlette.types import Receive, Scope, Send

from mcp_sessions import CreateRefused, Session
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import logs
from mcp_sessions._server.options import HOUR
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.session import EndedSession
from mcp_sessions.events import RequestRefused
from mcp_sessions.stores import MemoryStore
from mcp_sessions.stores._timeout import TimeoutStore

Params = dict[str, Any]


@pytest.fixture(params=["legacy", "modern"])
def modern(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "modern")


def expires_in(answer: Answer) -> float:
    assert answer.session is not None
    return datetime.fromisoformat(answer.session["expiresAt"].replace("Z", "+00:00")).timestamp() - START


async def test_idleness_ends_a_session_sooner_and_never_later(clock: Clock) -> None:
    """Where the client carries the state, it is counted from the last request that the state has seen.

    Nothing of the state is lost when only the time is renewed; one that is withheld or replayed only shortens.
    """
    client = Client(sessions(Server(), clock=clock, lifetime=10 * HOUR, idle_timeout=6 * HOUR))
    first = await client.create()
    sent = await client.tool("remember", session=first, n=1)
    assert expires_in(sent) == 6 * HOUR
    clock.now += 6 * HOUR - 1
    sent = await client.tool(session=sent.session)
    assert expires_in(sent) == 10 * HOUR
    clock.now += 1
    assert (await client.tool("remember", session=sent.session)).result["content"] == {"n": 1}
    for dead in first, {"sessionId": first["sessionId"]}:
        assert (await client.tool(session=dead)).error["data"]["reason"] == "expired"


class TestOnCreate:
    @pytest.mark.parametrize("tracked", [True, False])
    @pytest.mark.parametrize("error", [CreateRefused("no more"), StoreUnavailable(), LookupError()])
    async def test_what_it_refuses_was_never_there(
        self, tracked: bool, error: Exception, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """No data, no record and no fact is left, and `on_end` has nothing to free. A bug stands in the log."""
        told, refused, store = list[object](), list[Session](), MemoryStore(clock=clock)

        async def on_create(session: Session, params: Params, scope: Scope) -> None:
            await session.data.set("browser", 7)
            refused.append(session)
            raise error

        def on_end(session: EndedSession, reason: str) -> None:
            told.append(reason)

        hooks = {"on_create": on_create, "on_end": on_end, "listen": told.append}
        client = Client(sessions(Server(), clock=clock, store=store, tracked=tracked, **hooks))
        code = -31045 if isinstance(error, CreateRefused) else -32603
        assert (await client.send("sessions/create")).error["code"] == code
        is_bug = isinstance(error, LookupError)
        assert (f"on_create of session {refused[0].ref} raised LookupError" in caplog.text) is is_bug
        assert await refused[0].data.get("browser") is None
        assert await store.get(refused[0].ref) is None
        clock.now += 8 * 24 * HOUR
        assert await store.claim_ended(audience=AUDIENCE, idle_timeout=None, lease=60, limit=10) == []
        assert [fact for fact in told if not isinstance(fact, RequestRefused)] == []

    async def test_a_caller_who_leaves_leaves_nothing_behind(self) -> None:
        """What was kept is forgotten, even though the request is being cancelled."""
        inside, made = anyio.Event(), list[Session]()

        async def on_create(session: Session, params: Params, scope: Scope) -> None:
            await session.data.set("browser", 7)
            made.append(session)
            inside.set()
            await anyio.sleep_forever()

        async with anyio.create_task_group() as group:
            group.start_soon(Client(sessions(Server(), on_create=on_create)).create)
            await inside.wait()
            group.cancel_scope.cancel()
        assert await made[0].data.get("browser") is None


async def test_what_cannot_be_changed_is_kept_from_the_server(modern: bool) -> None:
    """No compression is asked for, and no file is sent around us: only where the response must change."""
    server, gzip = Server(), (b"accept-encoding", b"gzip")
    harmless: dict[str, Any] = {"http.response.push": {}}
    extensions = {"http.response.pathsend": {}, "http.response.zerocopysend": {}, **harmless}
    client = Client(sessions(server), modern=modern, extensions=extensions)
    session = await client.create()
    for given, left in ((extensions, harmless), (harmless, harmless), (None, None)):  # optional in ASGI, or null
        client.scope["extensions"] = given
        for headers in ([], [gzip]):
            await client.tool("whoami", *headers, session=session)
            assert server.last.scope["extensions"] == left
            assert gzip[0] not in server.last.headers
        await client.tool("whoami", gzip)
        assert server.last.scope["extensions"] is given
        assert server.last.headers[gzip[0]] == b"gzip"


@pytest.mark.parametrize(
    ("by_header", "value", "words"),
    [
        (False, "x" * 5000, "the limit is 4096"),
        *((by_header, {1}, "state must be JSON") for by_header in (False, True)),
    ],
)
async def test_a_state_that_cannot_be_kept_makes_the_answer_an_error(by_header: bool, value: Any, words: str) -> None:
    """Nothing is lost in silence, whether its client carries it or the store keeps it."""

    async def spoil(session: Session | None, _arguments: dict[str, Any]) -> str:
        assert session is not None
        session.state["list"] = []
        session.state["list"].append(value)
        return "said"

    client = Client(sessions(Server(sse=True, spoil=spoil)), modern=False)
    if by_header:
        answer = await client.tool("spoil", await client.initialize())
    else:
        answer = await client.tool("spoil", session=await client.create())
    assert answer.error["code"] == -32603
    assert words in answer.error["message"]
    assert b"said" not in answer.body


class TestWhileTheStoreIsAway:
    async def test_a_deployment_may_let_sessions_in(self, modern: bool, caplog: pytest.LogCaptureFixture) -> None:
        """Not where one is required, since a gate that opens then is none, nor to be ended or forked."""
        require = {"tools/call": ["whoami"], "notifications/cancelled": True}
        options = {"store": Failing("look_up"), "on_store_error": "allow", "require": require}
        client = Client(sessions(server := Server(), **options), modern=modern)
        session = await client.create()
        assert (await client.tool("remember", session=session)).session is not None
        assert (await client.send("tools/list", session=session)).session is not None
        assert caplog.text.count("without a revocation check: store unavailable (store_unavailable)") == 2
        assert (await client.tool("remember", session={"sessionId": "x"})).error["code"] == -32043
        server.seen.clear()
        for attempt in (
            client.tool("whoami", session=session),
            client.send("notifications/cancelled", session=session, id=None),
            client.delete(session),
            client.send("sessions/fork", session=session),
        ):
            assert (await attempt).status == 503
        assert {*server.methods} == {"server/discover" if modern else "ping"}

    async def test_who_got_no_session_from_it_learns_why(
        self, modern: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not that one is required, as long as the store is away; nor does the log blame the client for it."""
        monkeypatch.setattr(logs, "_warned", set())
        caplog.set_level(logging.INFO, "mcp_sessions")
        failing = Failing("open", "look_up")
        options: dict[str, Any] = {"store": TimeoutStore(failing, seconds=60), "require": {"tools/call": ["whoami"]}}
        client = Client(sessions(Server(), **options), modern=modern)
        assert (await client.send("server/discover" if modern else "initialize", {"protocolVersion": LEGACY})).result
        answer = await client.tool("whoami")
        assert (answer.status, answer.error["code"], answer.headers[b"retry-after"]) == (503, -32603, b"1")
        await client.tool("asks")
        assert "has no session: the session store does not answer" in caplog.text
        failing.failing.clear()
        assert (await client.tool("whoami")).error["code"] == -31044

    @pytest.mark.parametrize("sent", ["nothing", "the start", "an event"])
    async def test_a_handler_that_leaves_us_its_error_is_answered(self, modern: bool, sent: str) -> None:
        """Unless a part of an answer has left; and what handles errors around us finds no session that is over."""
        kind = b"text/event-stream" if sent == "an event" else b"application/json"

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await read(receive)
            if sent != "nothing":
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
            if sent == "an event":
                await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
            await scope["mcp_session"].data.increment("n")

        client = Client(sessions(app, store=Failing("add"), admission="own"), modern=modern)
        session, answer = await client.create(), Answer()
        scope = http(headers=client.headers("tools/call"))
        body = json.dumps(client.message("tools/call", session=session)).encode()
        called = client.app(scope, Incoming(*chunks(body)), answer)
        if sent == "an event":
            with pytest.raises(StoreUnavailable):
                await called
        else:
            await called
            assert (answer.status, answer.json["id"], answer.error["code"]) == (503, 1, -32603)
        assert scope["mcp_session"] is scope["state"]["mcp_session"] is None

    @pytest.mark.parametrize(("on_store_error", "first"), [("allow", 200), ("refuse", 503)])
    async def test_a_transport_session_goes_on_without_its_state(
        self, on_store_error: str, first: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What is kept for it is neither shown as empty nor written over: to look at it is an error."""
        store = Failing("look_up", error=lambda: StoreUnavailable("store_timeout"))
        app = sessions(Server(), store=store, on_store_error=on_store_error, require={"tools/call": ["remember"]})
        client = Client(app, modern=False)
        named = await client.initialize()
        assert [(await client.tool(name, named)).status for name in ("whoami", "remember")] == [first, 503]
        line = "accepted without a revocation check and without its state: store unavailable (store_timeout)"
        assert caplog.text.count(line) == (on_store_error == "allow")


@pytest.mark.parametrize("by_header", [False, True])
async def test_the_request_that_ends_it_outlives_it(by_header: bool) -> None:
    """And is a request like any other again where the store did not take the end; what it wrote goes with it."""
    store = Failing("revoke")

    async def leave(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        session.state["n"] = 1
        with pytest.raises(StoreUnavailable):
            await session.end()
        before = session._ended_by_own_request
        store.failing.clear()
        await session.end()
        return [before, session._ended_by_own_request]

    client = Client(sessions(Server(leave=leave), store=store), modern=False)
    header = [await client.initialize()] if by_header else []
    session = None if by_header else await client.create()
    assert (await client.tool("leave", *header, session=session)).result["content"] == [False, True]
    assert (await client.tool("leave", *header, session=session)).error["code"] == -32043

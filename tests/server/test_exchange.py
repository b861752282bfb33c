"""One request's way: what reaches the application, what is attached, and what comes back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apps import Server, read, sessions
from clients import LEGACY, Answer, Client, Header, Incoming, call, chunks, http
from failing import Failing
from starlette.types import Receive, Scope, Send
from streaming import Streaming

from mcp_sessions import Session, current_session
from mcp_sessions._errors import StoreUnavailable
from mcp_sessions._server import logs
from mcp_sessions.stores._timeout import TimeoutStore


@pytest.fixture(params=["legacy", "modern"])
def modern(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "modern")


def mirror(session: dict[str, str]) -> Header:
    return (b"mcp-session-id", session["sessionId"].encode())


async def test_a_session_around_is_not_its_own(modern: bool) -> None:
    """A middleware may stand within a handler of another, whose session is current there."""
    seen: list[Session | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(current_session())
        await Server()(scope, receive, send)

    inner = Client(sessions(app), modern=modern)

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(current_session())
        await inner.tool()
        seen.append(current_session())
        await Server()(scope, receive, send)

    client = Client(sessions(outer, admission="own"), modern=modern)
    await client.tool(session=await client.create())
    before, within, after = seen
    assert within is None
    assert before is after is not None


class TestWithASession:
    async def test_what_cannot_be_changed_is_kept_from_the_server(self, modern: bool) -> None:
        """No compression is asked for, and no file is sent around us: only where the response must change."""
        server, gzip = Server(), (b"accept-encoding", b"gzip")
        harmless: dict[str, Any] = {"http.response.push": {}}
        extensions = {"http.response.pathsend": {}, "http.response.zerocopysend": {}, **harmless}
        client = Client(sessions(server), modern=modern, extensions=extensions)
        session = await client.create()
        await client.tool("whoami", gzip, session=session)
        assert gzip[0] not in server.last.headers
        assert server.last.scope["extensions"] == harmless
        await client.tool("whoami", gzip)
        assert server.last.headers[gzip[0]] == b"gzip"
        assert server.last.scope["extensions"] == extensions
        for left in (harmless, None):  # which is optional in ASGI, and may be null
            client.scope["extensions"] = left
            for headers in ([], [gzip]):
                assert (await client.tool("whoami", *headers, session=session)).session is not None
                assert server.last.scope["extensions"] is left
                assert gzip[0] not in server.last.headers


class TestWhileTheStoreIsAway:
    async def test_a_deployment_may_let_them_in(self, modern: bool, caplog: pytest.LogCaptureFixture) -> None:
        client = Client(sessions(Server(), store=Failing("status"), on_store_error="allow"), modern=modern)
        session = await client.create()
        assert (await client.tool(session=session)).session is not None
        assert (await client.send("tools/list", session=session)).session is not None
        assert caplog.text.count("without a revocation check: store unavailable (store_unavailable)") == 2
        assert (await client.tool(session={"sessionId": "x"})).error["code"] == -32043

    async def test_but_not_where_a_session_is_required_or_to_be_ended(self, modern: bool) -> None:
        """A gate that opens when the store is pulled out is none, and a deletion that is not kept is none."""
        server = Server()
        require = {"tools/call": ["whoami"], "notifications/cancelled": True}
        options: dict[str, Any] = {"store": Failing("status"), "on_store_error": "allow", "require": require}
        client = Client(sessions(server, **options), modern=modern)
        session = await client.create()
        assert (await client.tool("whoami", session=session)).status == 503
        assert (await client.send("notifications/cancelled", session=session, id=None)).status == 503
        assert (await client.delete(session)).status == 503
        assert not {"tools/call", "notifications/cancelled"}.intersection(server.methods)
        assert (await client.tool("remember", session=session)).session is not None

    async def test_who_got_no_session_from_it_learns_why(
        self, modern: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not that one is required, as long as the store is away; nor does the log blame the client for it."""
        monkeypatch.setattr(logs, "_warned", set())
        failing = Failing("open", "statuses")
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

    async def test_a_transport_session_goes_on_without_its_state(self, caplog: pytest.LogCaptureFixture) -> None:
        """What is kept for it is neither shown as empty nor written over: to look at it is an error."""
        for on_store_error, statuses in (("allow", [200, 503]), ("refuse", [503, 503])):
            require = {"tools/call": ["remember"]}
            store = Failing("read", error=lambda: StoreUnavailable("store_timeout"))
            app = sessions(Server(), store=store, on_store_error=on_store_error, require=require)
            client = Client(app, modern=False)
            named = await client.initialize()
            answers = [await client.tool(name, named) for name in ("whoami", "remember")]
            assert [answer.status for answer in answers] == statuses
        assert caplog.text.count("continues without its state: store unavailable (store_timeout)") == 1


async def test_events_are_not_known_by_a_mirror_of_ours(modern: bool) -> None:
    """No server sees it, so a client names no transport session when it takes the stream up."""
    server = Streaming()
    server.go.set()
    client = Client(sessions(server), modern=modern)
    session = await client.create()
    await client.tool("work", mirror(session), session=session)
    resume = http("GET", headers=[(b"last-event-id", b"1")])
    assert (await call(client.app, resume)).status == 200
    await client.delete(session)
    assert (await call(client.app, resume)).status == 405


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

"""One request's way: what reaches the application, what is attached, and what comes back."""

from __future__ import annotations

import json
import logging
from typing import Any

import anyio
import pytest
from apps import RESULTS, Server, read, reply, sessions
from clients import LEGACY, OFFERED, SESSION_KEY, START, Answer, Client, Header, Incoming, call, chunks, http
from starlette.types import Message, Receive, Scope, Send
from streaming import Streaming

from mcp_sessions import Session, current_session
from mcp_sessions._protocol.headers import HANDSHAKE_VERSIONS
from mcp_sessions._session.claims import Claims
from mcp_sessions._session.data import Namespace
from mcp_sessions._session.events import Fact, SessionUsed
from mcp_sessions.errors import StoreUnavailable
from mcp_sessions.stores.base import Standing
from mcp_sessions.stores.memory import MemoryStore

LISTS = ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover"]


@pytest.fixture(params=["legacy", "modern"])
def modern(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "modern")


def mirror(session: dict[str, str]) -> Header:
    return (b"mcp-session-id", session["sessionId"].encode())


class TestWithoutASession:
    @pytest.mark.parametrize(
        "body", [b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', b' {"id" : 1e400, "jsonrpc":"2.0"}']
    )
    async def test_request_and_response_are_byte_for_byte_the_server_s(self, body: bytes) -> None:
        """Same body in, same messages out, no header changed, and the scope says that there is no session."""
        sent: list[Message] = [
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]},
            {"type": "http.response.body", "body": b' {"jsonrpc":"2.0","id":1,"result":{ }} ', "more_body": False},
        ]
        seen: list[Any] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            seen.extend([scope, await read(receive)])
            for message in sent:
                await send(message)

        headers: list[Header] = [(b"content-type", b"application/json"), (b"accept-encoding", b"gzip")]
        extensions: dict[str, Any] = {"http.response.pathsend": {}, "http.response.zerocopysend": {}}
        answer = await call(sessions(app), http(headers=headers, extensions=extensions), body)
        assert all(one is other for one, other in zip(answer.messages, sent, strict=True))
        assert seen[1] == body
        assert (seen[0]["headers"], seen[0]["extensions"]) == (headers, extensions)
        assert seen[0]["mcp_session"] is None

    async def test_an_answer_of_the_server_s_client_passes(self, modern: bool) -> None:
        """A posted response has no method and needs no session, whatever the policy."""
        server = Server()
        client = Client(sessions(server, require="always"), modern=modern)
        assert (await client.post({"jsonrpc": "2.0", "id": 1, "result": {}})).status == 202

    async def test_a_policy_can_ask_for_one(self, modern: bool) -> None:
        """By method and by name; what needs none passes."""
        server = Server()
        client = Client(sessions(server, require={"tools/call": ["remember"]}), modern=modern)
        assert (await client.tool("remember", a=1)).error == {"code": -31044, "message": "Session required"}
        assert (await client.tool("whoami")).result["content"] == "nobody"
        assert (await client.tool("remember", session=await client.create(), a=1)).result["content"] == {"a": 1}

    async def test_a_session_around_is_not_its_own(self, modern: bool) -> None:
        """A middleware may stand within a handler of another, whose session is current there."""
        seen: list[Session | None] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await read(receive)
            seen.append(current_session())
            await reply(send, b'{"jsonrpc":"2.0","id":1,"result":{}}')

        inner = sessions(app)

        async def outer(scope: Scope, receive: Receive, send: Send) -> None:
            body = json.dumps(Client(inner, modern=modern).message("tools/call")).encode()
            headers = Client(inner, modern=modern).headers("tools/call")
            seen.append(current_session())
            await inner(http(headers=headers), Incoming(*chunks(body)), Answer())
            seen.append(current_session())
            await reply(send, b'{"jsonrpc":"2.0","id":1,"result":{}}')

        client = Client(sessions(outer, admission="own"), modern=modern)
        await client.tool(session=await client.create())
        before, within, after = seen
        assert within is None
        assert before is after is not None


class TestWithASession:
    @pytest.mark.parametrize("sse", [False, True])
    async def test_it_is_attached_and_echoed(self, modern: bool, sse: bool) -> None:
        """On the scope, on `request.state`, as a fact, and in the result, under the identical id."""
        facts: list[Fact] = []
        server = Server(sse=sse)
        client = Client(sessions(server, listen=facts.append), modern=modern, state={"lifespan": 1})
        session = await client.create()
        answer = await client.tool(session=session)
        scope = server.last.scope
        assert answer.result["content"] == scope["mcp_session"].ref == scope["state"]["mcp_session"].ref
        assert scope["state"]["lifespan"] == 1
        assert answer.session is not None
        assert answer.session["sessionId"] == session["sessionId"]
        assert facts[-1] == SessionUsed(scope["mcp_session"].ref, "tools/call")
        assert answer.body.count(SESSION_KEY.encode()) == 1  # the notification before it carries none

    async def test_errors_never_carry_it(self, modern: bool) -> None:
        """The server's own error keeps its bytes."""
        client = Client(sessions(Server()), modern=modern)
        answer = await client.send("no/such", session=await client.create())
        assert answer.json == {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "Method not found"}}

    async def test_a_notification_gets_the_session_and_no_echo(self, modern: bool) -> None:
        """There is no result that could carry one."""
        server = Server()
        client = Client(sessions(server), modern=modern)
        answer = await client.send("notifications/progress", session=await client.create(), id=None)
        assert (answer.status, answer.body) == (202, b"")
        assert isinstance(server.last.scope["mcp_session"], Session)
        assert SESSION_KEY.encode() not in server.last.body  # SDK 1.x would write it to its log

    @pytest.mark.parametrize("lists", ["stable", "session", "untouched"])
    async def test_cache_hints_become_private_and_stale(self, modern: bool, lists: Any) -> None:
        """When and only when the session is written into a result: client caches do not know whose it is."""
        client = Client(sessions(Server(), lists=lists), modern=modern)
        result = (await client.send("tools/list", session=await client.create())).result
        hints = (result["cacheScope"], result["ttlMs"])
        assert hints == (("public", 60_000) if lists == "untouched" else ("private", 0))
        assert (await client.send("tools/list")).result == RESULTS["tools/list"]

    async def test_what_cannot_be_changed_is_kept_from_the_server(self, modern: bool) -> None:
        """No compression is asked for, and no file is sent around us: only where the response must change."""
        server = Server()
        extensions: dict[str, Any] = {
            "http.response.pathsend": {},
            "http.response.zerocopysend": {},
            "http.response.push": {},
        }
        client = Client(sessions(server), modern=modern, extensions=extensions)
        gzip = (b"accept-encoding", b"gzip")
        session = await client.create()
        await client.tool("whoami", gzip, session=session)
        assert gzip[0] not in server.last.headers
        assert server.last.scope["extensions"] == {"http.response.push": {}}
        await client.tool("whoami", gzip)
        assert server.last.headers[gzip[0]] == b"gzip"
        assert server.last.scope["extensions"] == extensions

    async def test_what_does_no_harm_is_left_to_the_server(self, modern: bool) -> None:
        """Extensions that send no body around us, beside an encoding or alone."""
        server = Server()
        extensions: dict[str, Any] = {"http.response.push": {}}
        client = Client(sessions(server), modern=modern, extensions=extensions)
        session = await client.create()
        for headers in ([], [(b"accept-encoding", b"gzip")]):
            await client.tool("whoami", *headers, session=session)
            assert server.last.scope["extensions"] is extensions
            assert b"accept-encoding" not in server.last.headers

    async def test_a_scope_without_extensions_is_as_good(self, modern: bool) -> None:
        """They are optional in ASGI, and may be null."""
        client = Client(sessions(Server()), modern=modern, extensions=None)
        assert (await client.tool(session=await client.create())).session is not None

    async def test_a_compressed_response_passes_with_an_error_in_the_log(
        self, modern: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A server that compresses unasked is passed on as it is."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            headers = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"\x1f\x8b"})

        client = Client(sessions(app, admission="own"), modern=modern)
        assert (await client.tool(session=await client.create())).body == b"\x1f\x8b"
        assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == [logging.ERROR]

    async def test_the_server_s_own_receive_goes_on_after_the_body(self, modern: bool) -> None:
        """The next message that the application gets is the server's, with no disconnect made up."""
        heard: list[Message] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await read(receive)
            heard.append(await receive())
            await reply(send, b"{}")

        client = Client(sessions(app, admission="own"), modern=modern)
        left: Message = {"type": "http.disconnect"}
        body = json.dumps(client.message("tools/call", session=await client.create())).encode()
        await call(client.app, http(headers=client.headers("tools/call")), Incoming(*chunks(body), left))
        assert heard[0] is left

    async def test_cancelling_a_request_while_its_body_is_awaited_leaves_nothing_behind(self, modern: bool) -> None:
        """The application was never called."""
        server = Server()
        with anyio.move_on_after(0.001) as scope:
            await call(sessions(server), http(), Incoming())
        assert scope.cancelled_caught
        assert not server.seen


class TestLists:
    @pytest.mark.parametrize("method", LISTS)
    @pytest.mark.parametrize("lists", [None, "stable", "session", "untouched"])
    async def test_a_list_varies_by_session_only_where_it_may(self, modern: bool, method: str, lists: Any) -> None:
        """Stable: taken out and echoed. By session: attached and echoed. Untouched: neither."""
        server = Server()
        client = Client(sessions(server, lists=lists), modern=modern)
        session = await client.create()
        answer = await client.send(method, session=session)
        kind = lists or ("stable" if modern else "session")
        assert (server.last.scope["mcp_session"] is not None) is (kind == "session")
        assert (SESSION_KEY in server.last.json["params"]["_meta"]) is (kind != "stable")
        echoed = SESSION_KEY in answer.json.get("result", {}).get("_meta", {})
        assert echoed is (kind != "untouched" and method in RESULTS)
        if kind == "stable":
            assert int(server.last.headers[b"content-length"]) == len(server.last.body)
            assert SESSION_KEY.encode() not in server.last.body

    async def test_taking_it_out_leaves_the_rest_of_the_body(self) -> None:
        """Cursor, other metadata and the id stay as they were written."""
        server = Server()
        client = Client(sessions(server))
        session = await client.create()
        await client.send("tools/list", {"cursor": "c", "_meta": {"own": 1}}, session=session, id="\u00e9")
        assert server.last.json == client.message("tools/list", {"cursor": "c", "_meta": {"own": 1}}, id="\u00e9")

    async def test_a_dead_session_fails_a_list_too(self, modern: bool) -> None:
        """An invalid session fails every request that carries it, whatever the option."""
        client = Client(sessions(Server(), lists="untouched"), modern=modern)
        assert (await client.send("tools/list", session={"sessionId": "x"})).error["code"] == -32043


class TestAdvertising:
    @pytest.mark.parametrize("method", ["initialize", "server/discover"])
    @pytest.mark.parametrize("sse", [False, True])
    async def test_the_handshake_says_that_sessions_exist(self, modern: bool, method: str, sse: bool) -> None:
        """In both capabilities, and nothing else in the result changes."""
        result = (await Client(sessions(Server(sse=sse), require="always"), modern=modern).send(method)).result
        advertised = {"sessions": {}, "experimental": {"sessions": {"required": "always", **OFFERED}}}
        expected = RESULTS[method]
        assert result == {**expected, "capabilities": {**expected["capabilities"], **advertised}}


class TestTheMirror:
    async def test_it_may_repeat_what_the_metadata_says(self, modern: bool) -> None:
        """And is never forwarded."""
        server = Server()
        client = Client(sessions(server), modern=modern)
        session = await client.create()
        assert (await client.tool("whoami", mirror(session), session=session)).session is not None
        assert b"mcp-session-id" not in server.last.headers

    async def test_another_session_or_none_is_a_mismatch(self, modern: bool) -> None:
        """HTTP 400; nothing is forwarded but the question, and that without the header."""
        server = Server()
        client = Client(sessions(server), modern=modern)
        one, other = await client.create(), await client.create()
        for session in (other, None):
            answer = await client.tool("whoami", mirror(one), session=session)
            assert (answer.status, answer.error["code"]) == (400, -32020)
        assert "tools/call" not in server.methods
        assert all(b"mcp-session-id" not in seen.headers for seen in server.seen)

    async def test_a_forged_mirror_is_ours_too(self, modern: bool) -> None:
        """What looks like ours and is not is refused and never reaches the server."""
        server = Server()
        client = Client(sessions(server), modern=modern)
        forged = {"sessionId": (await client.create())["sessionId"][:-8] + "AAAAAAAA"}
        assert (await client.tool("whoami", mirror(forged))).status == 404  # as a transport session that is over
        answer = await client.tool("whoami", mirror(forged), session=forged)
        assert answer.error["code"] == -32043
        assert all(b"mcp-session-id" not in seen.headers for seen in server.seen)

    async def test_what_is_not_ours_is_the_server_s_transport_session(self, modern: bool) -> None:
        """It passes untouched, beside a session in the metadata or without one."""
        server = Server()
        client = Client(sessions(server), modern=modern)
        own = (b"mcp-session-id", b"0123456789abcdef")
        for session in (await client.create(), None):
            await client.tool("whoami", own, session=session)
            assert server.last.headers[own[0]] == own[1]

    async def test_a_body_that_is_not_one_message_cannot_have_one(self) -> None:
        """A batch names no session, so a mirror beside it stands alone."""
        client = Client(sessions(Server()), modern=False)
        batch = [client.message("ping")]
        answer = await client.post(batch, mirror(await client.create()))
        assert (answer.status, answer.error["code"]) == (400, -32020)


class TestBatches:
    async def test_a_batch_without_sessions_passes_untouched(self) -> None:
        """As the bytes that came."""
        server = Server()
        client = Client(sessions(server), modern=False)
        body = json.dumps([client.message("ping"), client.message("tools/call", id=None)], indent=1).encode()
        assert (await client.post(body)).status == 202
        assert server.last.body == body
        assert server.last.scope["mcp_session"] is None

    @pytest.mark.parametrize(
        ("method", "session", "require"),
        [
            ("tools/call", {"sessionId": "x"}, "never"),
            ("tools/call", 1, "never"),
            ("sessions/create", None, "never"),
            ("sessions/delete", None, "never"),
            ("tools/call", None, {"tools/call"}),
        ],
    )
    async def test_a_batch_that_speaks_of_or_needs_a_session_is_refused(
        self, method: str, session: Any, require: Any
    ) -> None:
        """As a whole, with a message that says why; a batch is no way round a policy."""
        server = Server()
        client = Client(sessions(server, require=require), modern=False)
        batch = [client.message("ping"), client.message(method, {"name": "whoami"}, session=session)]
        answer = await client.post(batch)
        assert (answer.status, answer.error["code"], answer.json["id"]) == (400, -32600, None)
        assert "send its messages one by one" in answer.error["message"]
        assert not server.seen


class TestOtherBodies:
    async def test_at_the_endpoint_every_body_must_be_json_rpc(self) -> None:
        """What is not understood is not forwarded."""
        server = Server()
        answer = await Client(sessions(server)).post(b'{"client_name":"x"}')
        assert (answer.status, answer.error["code"]) == (400, -32600)
        assert not server.seen

    @pytest.mark.parametrize("path", ["/register", "/mcp/register"])
    async def test_where_other_things_may_live_other_json_passes(self, path: str) -> None:
        """A dynamic client registration is JSON and no JSON-RPC."""
        server = Server()
        body = b'{"client_name":"x", "redirect_uris":[]}'
        for app in (sessions(server, path=None), sessions(server, path="/")):
            assert (await call(app, http(path=path), body)).status == 202
            assert server.last.body == body

    async def test_a_body_that_is_nested_too_deeply_is_refused_unread(self) -> None:
        """Each level costs a parser some of its stack."""
        body = b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":%b}}'
        client = Client(sessions(Server(), max_nesting=10))
        assert (await client.post(body % (b"[" * 8 + b"]" * 8))).error["code"] == -32601
        assert (await client.post(body % (b"[" * 9 + b"]" * 9))).error["code"] == -32700

    async def test_even_there_a_body_that_is_not_json_is_refused(self) -> None:
        """It claims to be JSON, and two parsers would not agree."""
        answer = await call(sessions(Server(), path=None), http(path="/x"), b'{"a":')
        assert (answer.status, answer.error["code"]) == (400, -32700)


class Away(MemoryStore):
    """A store that does not answer."""

    async def status(self, claims: Claims) -> Standing:
        raise StoreUnavailable


class TestWhileTheStoreIsAway:
    @pytest.mark.parametrize("method", ["tools/call", "tools/list", "sessions/delete"])
    async def test_nobody_is_let_in_by_default(self, modern: bool, method: str) -> None:
        """503 and nothing forwarded, whether the call needs a session or not."""
        server = Server()
        client = Client(sessions(server, store=Away()), modern=modern)
        answer = await client.send(method, {"name": "whoami"}, session=await client.create())
        assert (answer.status, answer.error["code"], answer.headers[b"retry-after"]) == (503, -32603, b"1")
        assert method not in server.methods

    async def test_a_deployment_may_let_them_in(self, modern: bool, caplog: pytest.LogCaptureFixture) -> None:
        """Each with a warning in the log; an id that does not verify is refused as ever."""
        client = Client(sessions(Server(), store=Away(), on_store_error="allow"), modern=modern)
        session = await client.create()
        assert (await client.tool(session=session)).session is not None
        assert (await client.send("tools/list", session=session)).session is not None
        assert caplog.text.count("without a revocation check: store unavailable") == 2
        assert (await client.tool(session={"sessionId": "x"})).error["code"] == -32043

    async def test_but_not_where_a_session_is_required_or_to_be_ended(self, modern: bool) -> None:
        """A gate that opens when the store is pulled out is none, and a deletion that is not kept is none."""
        server = Server()
        require = {"tools/call": ["whoami"], "notifications/cancelled": True}
        options: dict[str, Any] = {"store": Away(), "on_store_error": "allow", "require": require}
        client = Client(sessions(server, **options), modern=modern)
        session = await client.create()
        assert (await client.tool("whoami", session=session)).status == 503
        assert (await client.send("notifications/cancelled", session=session, id=None)).status == 503
        assert (await client.delete(session)).status == 503
        assert not {"tools/call", "notifications/cancelled"}.intersection(server.methods)
        assert (await client.tool("remember", session=session)).session is not None

    async def test_a_transport_session_goes_on_without_its_state(self, caplog: pytest.LogCaptureFixture) -> None:
        """What is kept for it is neither shown as empty nor written over: to look at it is an error."""

        class Nothing(MemoryStore):
            async def read(self, shelf: Namespace, key: str) -> bytes | None:
                raise StoreUnavailable("store_timeout")

        for on_store_error, statuses in (("allow", [200, 503]), ("refuse", [503, 503])):
            require = {"tools/call": ["remember"]}
            app = sessions(Server(), store=Nothing(), on_store_error=on_store_error, require=require)
            client = Client(app, modern=False)
            named = (await client.send("initialize")).headers[b"mcp-session-id"]
            answers = [await client.tool(name, (b"mcp-session-id", named)) for name in ("whoami", "remember")]
            assert [answer.status for answer in answers] == statuses
        assert caplog.text.count("goes on without its state, which is out of reach (store_timeout)") == 1


class TestStreams:
    async def under_way(self, client: Client, server: Streaming, *headers: Header) -> None:
        """Create a session, and delete it while a call of it is answered by a stream."""
        session = await client.create()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: client.tool("work", *headers, session=session))
            await server.began.wait()
            assert await self.open_streams(client) == 1
            await client.delete(session)
            assert await self.open_streams(client) == 0
            server.go.set()

    async def open_streams(self, client: Client) -> int:
        opened = client.app._options.streams._open  # type: ignore[attr-defined]
        return sum(len(streams) for streams in opened.values())

    async def test_a_stream_is_known_while_it_is_open(self, modern: bool) -> None:
        """And ended with its session."""
        server = Streaming()
        await self.under_way(Client(sessions(server), modern=modern), server)

    async def test_one_without_a_session_is_none_of_our_business(self, modern: bool) -> None:
        """It ends when the server ends it."""
        server = Streaming()
        client = Client(sessions(server), modern=modern)
        async with anyio.create_task_group() as group:
            group.start_soon(client.tool, "work")
            await server.began.wait()
            assert await self.open_streams(client) == 0
            server.go.set()

    @pytest.mark.parametrize("ours", [True, False])
    async def test_its_events_are_known_by_the_server_s_transport_session(self, modern: bool, ours: bool) -> None:
        """Not by a mirror of ours, which no server sees."""
        server = Streaming()
        client = Client(sessions(server), modern=modern)
        session = await client.create()
        named = session["sessionId"] if ours else "the-server-s-own"
        server.go.set()
        await client.tool("work", (b"mcp-session-id", named.encode()), session=session)
        origin_of = client.app._options.streams.origin_of  # type: ignore[attr-defined]
        assert origin_of(None if ours else named, "1").label == "tools/call"
        assert origin_of(named if ours else None, "1") is None


class TestTransportSessions:
    """Sessions that are named in the header, for clients of the legacy era that know of no other way."""

    async def connect(self, client: Client) -> Header:
        named = (await client.send("initialize")).headers[b"mcp-session-id"]
        return (b"mcp-session-id", named)

    async def test_every_request_of_the_client_is_of_one_session(self) -> None:
        """The header is taken out on the way in, and nothing is written into the answers."""
        server = Server()
        client = Client(sessions(server), modern=False)
        header = await self.connect(client)
        first, second = await client.tool("whoami", header), await client.tool("whoami", header)
        assert first.result == second.result
        assert first.result["content"].startswith("ses_")
        assert all(b"mcp-session-id" not in seen.headers for seen in server.seen)

    async def test_its_state_is_kept_in_the_store(self) -> None:
        """The client carries none; sessions do not see each other's, and a state that cannot be kept is an error."""
        client = Client(sessions(Server()), modern=False)
        one, two = await self.connect(client), await self.connect(client)
        await client.tool("remember", one, a=1)
        assert (await client.tool("remember", one, b=2)).result["content"] == {"a": 1, "b": 2}
        assert (await client.tool("remember", two)).result["content"] == {}

        async def spoil(session: Session | None, _arguments: dict[str, Any]) -> str:
            assert session is not None
            session.state["list"] = []
            session.state["list"].append({1})
            return "said"

        client = Client(sessions(Server(sse=True, spoil=spoil)), modern=False)
        answer = await client.tool("spoil", await self.connect(client))
        assert b"session state must be JSON" in answer.body
        assert b"said" not in answer.body

    async def test_a_session_in_the_metadata_goes_before_it(self) -> None:
        """The transport session only has to live; one that has ended is told by 404, whatever stands beside it."""
        client = Client(sessions(Server()), modern=False)
        header, session = await self.connect(client), await client.create()
        own = (await client.tool("whoami", header)).result["content"]
        assert (await client.tool("whoami", header, session=session)).result["content"] != own
        assert (await client.send("sessions/create", None, header)).result["session"]
        assert (await client.send("sessions/delete", None, header)).error["code"] == -32602
        await call(client.app, http(method="DELETE", headers=[header]))
        answer = await client.tool("whoami", header, session=session)
        assert (answer.status, answer.error["code"]) == (404, -32043)

    async def test_a_policy_is_met_by_it(self) -> None:
        """It is a session like any other."""
        client = Client(sessions(Server(), require="always"), modern=False)
        assert (await client.tool("whoami")).error["code"] == -31044
        assert (await client.tool("whoami", await self.connect(client))).result["content"].startswith("ses_")

    async def test_a_token_of_the_other_kind_is_no_good(self) -> None:
        """A transport id is never accepted in `_meta`."""
        client = Client(sessions(Server()), modern=False)
        _, named = await self.connect(client)
        assert (await client.tool(session={"sessionId": named.decode()})).error["code"] == -32043

    async def test_clients_of_the_modern_era_get_none(self) -> None:
        """Its servers ignore the header, and its clients send none."""
        client = Client(sessions(Server()), modern=True)
        assert b"mcp-session-id" not in (await client.send("initialize")).headers

    async def test_whom_the_application_refuses_goes_without(self) -> None:
        """The handshake succeeds as it would without sessions."""
        client = Client(sessions(Server(), create_limit=1), modern=False)
        await self.connect(client)
        assert b"mcp-session-id" not in (await client.send("initialize")).headers

    async def test_a_deployment_may_serve_the_legacy_era_alone(self) -> None:
        """Modern requests are told which versions to shake hands with, and forwarded nowhere."""
        server = Server()
        app = sessions(server, era="legacy")
        answer = await Client(app, modern=True).tool()
        assert (answer.status, answer.error["code"]) == (400, -32022)
        assert answer.error["data"] == {"supported": sorted(HANDSHAKE_VERSIONS), "requested": "2026-07-28"}
        assert "tools/call" not in server.methods
        assert (await Client(app, modern=False).tool()).result["content"] == "nobody"


async def test_no_log_line_of_a_whole_flow_holds_the_token(modern: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Nor a recognisable part of it: creation, use, state, refusal, mismatch, deletion and expiry."""
    with caplog.at_level(logging.DEBUG):
        clock = [START]
        client = Client(sessions(Server(), clock=lambda: clock[0], idle_timeout=60), modern=modern)
        session = await client.create()
        answer: Answer = await client.tool("remember", session=session, a=1)
        state = (answer.session or {})["state"]
        await client.tool(session={**session, "state": state[:-4]})
        await client.tool("whoami", mirror(session))
        clock[0] += 61
        await client.tool(session=session)
        clock[0] -= 61
        await client.delete(session)
        await client.tool(session=session)
    assert len(caplog.messages) > 5
    for secret in (*session["sessionId"].split("."), state.rpartition(".")[2]):
        assert secret[:16] not in caplog.text


def test_the_legacy_version_is_a_handshake_version() -> None:
    """So that the tests above speak of two eras."""
    assert Client(Server(), modern=False).headers("ping")[-1] == (b"mcp-protocol-version", LEGACY.encode())

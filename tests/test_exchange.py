"""One request's way: what reaches the application, what is attached, and what comes back."""

from __future__ import annotations

import json
import logging
from typing import Any

import anyio
import pytest
from starlette.types import Message, Receive, Scope, Send

from apps import RESULTS, Server, read, reply, sessions
from clients import LEGACY, SESSION_KEY, START, Answer, Client, Header, Incoming, call, chunks, http
from mcp_sessions import Session
from mcp_sessions.events import Fact, SessionUsed

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

    async def test_cache_hints_become_private_and_stale(self, modern: bool) -> None:
        """Client caches do not know sessions, and one session must not read another's answer."""
        client = Client(sessions(Server(), lists="session"), modern=modern)
        result = (await client.send("tools/list", session=await client.create())).result
        assert (result["cacheScope"], result["ttlMs"]) == ("private", 0)
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
        advertised = {"sessions": {}, "experimental": {"sessions": {"required": "always"}}}
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
        assert (await client.tool("whoami", mirror(forged))).status == 400
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

    async def test_even_there_a_body_that_is_not_json_is_refused(self) -> None:
        """It claims to be JSON, and two parsers would not agree."""
        answer = await call(sessions(Server(), path=None), http(path="/x"), b'{"a":')
        assert (answer.status, answer.error["code"]) == (400, -32700)


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

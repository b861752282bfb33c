"""The question before an answer of our own: what is asked, in whose name, and what admits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apps import Server, reply, sessions
from clients import SESSION_KEY, Answer, Client, Header, Incoming, http
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_sessions._protocol.headers import RequestHeaders
from mcp_sessions._protocol.jsonrpc import Message, parse
from mcp_sessions._server.answers import ResponseRecorder as Judged
from mcp_sessions._server.answers import preflight
from mcp_sessions._server.context import RequestContext

META = {
    SESSION_KEY: {"sessionId": "a"},
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "progressToken": "p",
    "com.example/own": 1,
}
HEADERS: list[Header] = [
    (b"authorization", b"Bearer x"),
    (b"origin", b"https://app"),
    (b"content-length", b"999"),
    (b"mcp-method", b"tools/call"),
    (b"mcp-name", b"checkout"),
    (b"accept-encoding", b"gzip"),  # a compressed answer could not be judged
    (b"transfer-encoding", b"chunked"),  # beside a length, a way to smuggle
]


def request(**members: Any) -> Message:
    params = {"name": "checkout", "arguments": {"card": 1}, "_meta": META}
    return parse(json.dumps({"jsonrpc": "2.0", "method": "tools/call", "params": params, **members}).encode())


async def ask(app: ASGIApp, scope: Scope, receive: Receive, request: Message, *, modern: bool) -> bool:
    era = [(b"mcp-protocol-version", b"2026-07-28")] if modern else []
    headers = RequestHeaders([*scope["headers"], *era])
    return await preflight(
        RequestContext(sessions(app)._runtime, app, scope, receive, Answer(), headers, at_endpoint=True), request
    )


class TestTheQuestion:
    @pytest.mark.parametrize(("modern", "method"), [(False, "ping"), (True, "server/discover")])
    async def test_it_is_the_caller_s_own_envelope_and_nothing_of_the_request(self, modern: bool, method: str) -> None:
        """Same headers and `_meta` envelope; no name, no arguments, no session, and a true length."""
        server = Server()
        scope = http(headers=HEADERS, state={"kept": 1}, user="alice")
        assert await ask(server, scope, Incoming(), request(id="x"), modern=modern)
        envelope = {name: META[name] for name in META if name.startswith("io.") and name != SESSION_KEY}
        assert server.last.json == {"jsonrpc": "2.0", "id": "x", "method": method, "params": {"_meta": envelope}}
        headers = {b"authorization": b"Bearer x", b"origin": b"https://app"}
        headers[b"content-length"] = b"%d" % len(server.last.body)
        assert server.last.headers == {**headers, **({b"mcp-method": method.encode()} if modern else {})}
        assert server.last.scope["user"] == "alice"

    async def test_it_leaves_the_caller_s_scope_alone(self) -> None:
        """What the server writes on its scope for the question does not show in the request."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope["user"] = scope["state"]["user"] = "asked"
            assert scope["mcp_session"] is None

        scope = http(headers=HEADERS, state={})
        await ask(app, scope, Incoming(), request(id=1), modern=True)
        assert scope == http(headers=HEADERS, state={})

    async def test_a_notification_is_asked_about_with_an_id(self) -> None:
        """So that the server answers at all; with one of its own, since a server may await only one of each."""
        server = Server()
        assert await ask(server, http(), Incoming(), request(), modern=False)
        assert await ask(server, http(), Incoming(), request(), modern=False)
        ids = [seen.json["id"] for seen in server.seen]
        assert ids[0] != ids[1]
        assert all(one.startswith("admission-") for one in ids)

    async def test_a_caller_who_leaves_ends_the_question_too(self) -> None:
        """After the body the server's own `receive` goes on."""
        heard: list[str] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            heard.extend([(await receive())["type"], (await receive())["type"]])

        await ask(app, http(), Incoming({"type": "http.disconnect"}), request(id=1), modern=False)
        assert heard == ["http.request", "http.disconnect"]


class TestWhatAdmits:
    @pytest.mark.parametrize(
        ("rest", "admits"),
        [
            ('"id":7,"result":{}', True),
            ('"id":7,"error":{"code":-32601,"message":"Method not found"}', True),
            *((f'"id":7,"error":{error}', False) for error in ("null", '{"message":"x"}', '{"code":-32600}')),
            *((f'{other}"error":{{"code":-32601,"message":"x"}}', False) for other in ('"id":8,', "")),
            *((text, False) for text in ('"id":"7","result":{}', '"method":"notifications/message"')),
        ],
    )
    @pytest.mark.parametrize("status", [200, 404])
    @pytest.mark.parametrize("sse", [False, True])
    async def test_a_success_and_a_missing_method_do(self, rest: str, admits: bool, status: int, sse: bool) -> None:
        """Modern servers answer an unknown method with HTTP 404; events count like a body."""
        judged = Judged(b"7")
        text = f'{{"jsonrpc":"2.0",{rest}}}'
        await reply(judged.send, (f"event: message\r\ndata: {text}\r\n\r\n" if sse else text).encode(), status=status)
        assert judged.allowed is admits


class TestThroughTheMiddleware:
    @pytest.mark.parametrize(("status", "text"), [(401, b""), (404, b"gone"), (200, b"data: {}\n\n")])
    @pytest.mark.parametrize("modern", [False, True])
    async def test_the_server_s_refusal_reaches_the_caller_as_it_came(
        self, status: int, text: bytes, modern: bool
    ) -> None:
        """An expired access token must give 401, not "Session not found"; nothing is created, ended or told of."""
        shut, told = False, list[object]()

        async def guard(scope: Scope, send: Send) -> bool:
            if shut:
                await reply(send, text, status=status, media_type=b"text/own")
            return shut

        server = Server(guard=guard)
        app = sessions(server, listen=told.append, on_create=lambda session, *_: told.append(session.ref))
        client = Client(app, modern=modern)
        session = await client.create()
        shut = True
        told.clear()
        attempts = client.send("sessions/create"), client.delete(session), client.tool(session={"sessionId": "forged"})
        for attempt in attempts:
            answer = await attempt
            assert (answer.status, answer.body) == (status, text)
            assert answer.headers[b"content-type"] == b"text/own"
        assert server.methods == ["server/discover" if modern else "ping"] * 4
        assert told == []

    async def test_a_token_in_the_header_never_reaches_the_question(self) -> None:
        """Neither the mirror nor the metadata; and what is forwarded is not asked about."""
        server = Server()
        client = Client(sessions(server))
        session = await client.create()
        await client.tool(session=session)
        assert server.methods == ["server/discover", "tools/call"]
        server.seen.clear()
        token = session["sessionId"].encode()
        answer: Answer = await client.send("sessions/delete", None, (b"mcp-session-id", token), session=session)
        assert answer.result == {"resultType": "complete"}
        assert not any(token in repr((seen.scope, seen.body)).encode() for seen in server.seen)

"""Answers of our own: the question to the server before one, what admits, and what a caller is told."""

import json
from pathlib import Path
from typing import Any

import pytest
from apps import Server, reply, sessions
from clients import ENVELOPE, START, Client, Clock, Header, call, http
from failing import Failing
from starlette.types import Receive, Scope, Send

from mcp_sessions import Session
from mcp_sessions._server.options import DAY, OnStoreError
from mcp_sessions.dialects import SEP1364Create
from mcp_sessions.stores import Record

TOKEN = {"sessionId": "forged"}
KEPT: list[Header] = [(b"authorization", b"Bearer x"), (b"origin", b"https://app")]
DROPPED: list[Header] = [
    (b"mcp-name", b"checkout"),
    (b"accept-encoding", b"gzip"),  # a compressed answer could not be judged
    (b"transfer-encoding", b"chunked"),  # beside a length, a way to smuggle
]


@pytest.fixture(params=["legacy", "modern"])
def modern(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "modern")


class TestTheQuestion:
    async def test_it_is_the_caller_s_own_envelope_and_nothing_of_the_request(self, modern: bool) -> None:
        """Same headers and `_meta` envelope; no name, no arguments, no session, and a true length."""
        server = Server()
        client = Client(sessions(server, principal=lambda scope: None), modern=modern, user="alice")
        session = await client.create()
        params = {"name": "checkout", "_meta": {**ENVELOPE, "progressToken": "p", "com.example/own": 1}}
        mirror = (b"mcp-session-id", session["sessionId"].encode())
        await client.send("sessions/delete", params, *KEPT, *DROPPED, mirror, session=session, id="x")
        method = "server/discover" if modern else "ping"
        assert server.last.json == {"jsonrpc": "2.0", "id": "x", "method": method, "params": {"_meta": ENVELOPE}}
        length = (b"content-length", b"%d" % len(server.last.body))
        headers = server.last.headers
        headers.pop(b"traceparent", None)  # where a test before has set up tracing
        assert headers == dict([*client.headers(method), *KEPT, length])
        assert server.last.scope["user"] == "alice"

    async def test_it_leaves_the_caller_s_scope_alone(self) -> None:
        """What the server writes on its scope for the question does not show in the request."""
        asked: list[Scope] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope["user"] = scope["state"]["user"] = "asked"
            asked.append(scope)

        client, method = Client(app), "sessions/create"
        scope = http(headers=client.headers(method), state={})
        await call(sessions(app), scope, json.dumps(client.message(method)).encode())
        assert [one["mcp_session"] for one in asked] == [None]
        assert "user" not in {*scope, *scope["state"]}

    @pytest.mark.parametrize("rest", ['"id":1,"result":{}', '"id":1,"error":{"code":-32601,"message":"x"}'])
    @pytest.mark.parametrize("status", [401, 403, 421, 429, 503])
    async def test_status_of_guard_admits_nobody(self, status: int, rest: str, modern: bool) -> None:
        body = f'{{"jsonrpc":"2.0",{rest}}}'.encode()

        async def guard(scope: Scope, send: Send) -> bool:
            await reply(send, body, status=status)
            return True

        answer = await Client(sessions(Server(guard=guard)), modern=modern).send("sessions/create")
        assert (answer.status, answer.body) == (status, body)

    @pytest.mark.parametrize(
        ("rest", "admits"),
        [
            ('"id":1,"result":{}', True),
            ('"id":1,"error":{"code":-32601,"message":"Method not found"}', True),
            *((f'"id":1,"error":{error}', False) for error in ("null", '{"message":"x"}', '{"code":-32600}')),
            *((f'{other}"error":{{"code":-32601,"message":"x"}}', False) for other in ('"id":8,', "")),
            *((text, False) for text in ('"id":"1","result":{}', '"method":"notifications/message"')),
        ],
    )
    @pytest.mark.parametrize(("status", "sse"), [(200, False), (200, True), (404, False)])
    async def test_a_success_and_a_missing_method_admit(
        self, rest: str, admits: bool, status: int, sse: bool, modern: bool
    ) -> None:
        """Modern servers answer an unknown method with HTTP 404; events count like a body."""
        text = f'{{"jsonrpc":"2.0",{rest}}}'
        body, kind = (f"event: message\r\ndata: {text}\r\n\r\n", "event-stream") if sse else (text, "json")

        async def guard(scope: Scope, send: Send) -> bool:
            await reply(send, body.encode(), status=status, media_type=kind.encode())
            return True

        answer = await Client(sessions(Server(guard=guard)), modern=modern).send("sessions/create")
        assert (b'"sessionId"' in answer.body, answer.body == body.encode()) == (admits, not admits)

    @pytest.mark.parametrize(("status", "text"), [(401, b""), (200, b"data: {}\n\n")])
    async def test_the_server_s_refusal_reaches_the_caller_as_it_came(
        self, status: int, text: bytes, modern: bool
    ) -> None:
        """An expired access token must give 401, not "Session not found"; nothing is created, ended or told of."""
        shut, told = False, list[object]()

        async def guard(scope: Scope, send: Send) -> bool:
            if shut:
                await reply(send, text, status=status, media_type=b"text/own")
            return shut

        app = sessions(Server(guard=guard), listen=told.append, on_create=lambda session, *_: told.append(session.ref))
        client = Client(app, modern=modern)
        session = await client.create()
        shut = True
        told.clear()
        for attempt in client.send("sessions/create"), client.delete(session), client.tool(session=TOKEN):
            answer = await attempt
            assert (answer.status, answer.body, answer.headers[b"content-type"]) == (status, text, b"text/own")
        assert told == []

    async def test_a_notification_is_asked_about_with_an_id(self) -> None:
        """So that the server answers at all; with one of its own, since a server may await only one of each."""
        client = Client(sessions(server := Server()))
        for _ in range(2):
            assert (await client.send("notifications/x", session=TOKEN, id=None)).status == 400
        one, other = [seen.json["id"] for seen in server.seen]
        assert one != other
        assert (one + other).count("admission-") == 2


@pytest.mark.parametrize("over", ["expired", "ended"])
async def test_only_the_owner_learns_that_a_session_is_over(modern: bool, over: str) -> None:
    clock, caller = Clock(), ["alice"]
    client = Client(sessions(Server(), clock=clock, principal=lambda scope: caller[0]), modern=modern)
    session = await client.create()
    if over == "ended":
        await client.delete(session)
    else:
        clock.now = START + 7 * DAY
    assert (await client.tool(session=session)).error["data"]["reason"] == over
    caller[0] = "bob"
    assert (await client.tool(session=session)).error["data"] == {"sessionId": session["sessionId"]}


async def test_what_began_before_its_store_was_made_is_refused_as_lost(tmp_path: Path, modern: bool) -> None:
    """It may have ended meanwhile, which nobody knows any more."""
    clock, refused = Clock(), list[object]()
    old, new = (
        Client(sessions(Server(), clock=clock, store=f"sqlite:{tmp_path / name}", listen=refused.append), modern=modern)
        for name in ("old.db", "new.db")
    )
    session = await old.create()
    clock.now += 9
    refused.clear()
    assert (await new.tool(session=session)).error["code"] == -32043
    assert [getattr(fact, "reason", None) for fact in refused] == ["store_lost"]


LATE: dict[str, tuple[str, float, OnStoreError | None, int | None]] = {
    "its session lives": ("wait", 10, None, None),
    "its session has ended elsewhere": ("slow", 1, None, -32043),
    "it is too early to ask again": ("slow", 0.9, None, None),
    "the call has ended its session itself": ("end", 1, None, None),
    "nobody knows how its session is": ("slow", 1, "refuse", None),
    "nobody knows, and deleted sessions are let in": ("slow", 1, "allow", None),
}


@pytest.mark.parametrize(("tool", "seconds", "away", "code"), LATE.values(), ids=LATE)
@pytest.mark.parametrize("sse", [False, True])
async def test_an_answer_that_comes_late_leaves_while_its_session_lives(
    tool: str, seconds: float, away: OnStoreError | None, code: int | None, sse: bool
) -> None:
    """A second after the store was asked, it is asked again, also where a stream begins only now."""
    clock = Clock()
    store = Failing(clock=clock)

    async def wait(session: Session | None, arguments: dict[str, Any]) -> Any:
        clock.now += seconds
        return "the result"

    async def slow(session: Session | None, arguments: dict[str, Any]) -> Any:
        """Another worker ends the session meanwhile."""
        assert session is not None
        until = int(session.expires_at.timestamp())
        await store.revoke(Record(session.ref, None, START, until, START), reason="deleted", lease=60)
        store.failing |= {"look_up"} if away is not None else set()
        return await wait(session, arguments)

    async def end(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        await session.end()
        return await wait(session, arguments)

    server = Server(sse=sse, slow=slow, end=end, wait=wait)
    client = Client(sessions(server, store=store, clock=clock, on_store_error=away or "refuse"))
    session = await client.create()
    answer = await client.tool(tool, session=session)
    assert (answer.status, answer.json["id"], answer.json.get("error", {}).get("code")) == (200, 1, code)
    assert (b"the result" in answer.body) is (code is None)
    if code == -32043:
        assert answer.error["data"] == {"sessionId": session["sessionId"], "reason": "ended", "executed": True}


async def test_a_store_that_does_not_answer_is_no_dead_session() -> None:
    """Clients that end a transport session take a 404 as final; with 503 they may try again."""
    app = sessions(Server(), store=Failing("revoke"))
    answer = await call(app, http("DELETE", headers=[await Client(app, modern=False).initialize()]))
    assert (answer.status, answer.error["code"], answer.headers[b"retry-after"]) == (503, -32603, b"1")


@pytest.mark.parametrize("transport", ["auto", "off"])
async def test_a_session_of_the_field_has_no_stream_and_is_deleted_by_a_message(transport: str) -> None:
    """Its clients mirror it in the header of every request, so a GET is answered as any other of theirs."""
    app = sessions(Server(), dialects=[SEP1364Create()], transport=transport)
    created = await Client(app, modern=False).send("sessions/create", {"capabilities": {}})
    named = b"mcp-session-id", created.result["sessionId"].encode()
    answer, deleted = [await call(app, http(method, headers=[named])) for method in ("GET", "DELETE")]
    assert (answer.status, answer.headers[b"allow"]) == (405, b"POST, DELETE")
    expected = (404, -32043) if transport == "auto" else (400, -32020)  # as any id that is not live there
    assert (deleted.status, deleted.error["code"]) == expected

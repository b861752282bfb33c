"""Event ids that leave signed: each works for its own session and caller only, on every worker."""

import json
from typing import Any

import anyio
import pytest
from apps import Server, reply, sessions
from clients import DEADLINE, DISCOVER, SECRET, Answer, Client, Clock, Header, by, call, http, user_of
from starlette.types import Receive, Scope, Send
from stateful import Stateful

from mcp_sessions import Principal, Sessions
from mcp_sessions._server.options import DAY
from mcp_sessions._tokens.event_ids import MAX_EVENT_ID_BYTES
from mcp_sessions.events import RequestRefused, SessionEvent
from mcp_sessions.stores import MemoryStore

RESULT = "what only its owner may hear"


class Shop:
    """A server whose event store all workers share: it finds events by their id alone, which is a number."""

    def __init__(self, first: bytes = b"1") -> None:
        self.first = first
        self.resumed_from: list[bytes | None] = []
        self.sent: list[list[Header]] = []  # the headers of each request
        self.done: anyio.Event | None = None  # a resumed stream has the result then
        self.resumed = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.sent.append(scope["headers"])
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        request_id: object = 1
        if scope["method"] == "GET":
            self.resumed_from.append(dict(scope["headers"]).get(b"last-event-id"))
            self.resumed.set()
            if self.done is not None:
                await self.done.wait()
        else:
            request_id = json.loads((await receive())["body"] or b"{}").get("id")
            await send({"type": "http.response.body", "body": b"id: %b\ndata: \n\n" % self.first, "more_body": True})
        answer = json.dumps({"jsonrpc": "2.0", "id": request_id, "result": {"content": RESULT}})
        await send({"type": "http.response.body", "body": b"id: 2\ndata: %b\n\n" % answer.encode()})


class Workers:
    """Workers of one deployment: their store, their keys and the wrapped server's events are shared."""

    def __init__(self, count: int = 2, **options: Any) -> None:
        self.shop, self.clock, self.facts = Shop(), Clock(), list[SessionEvent]()
        shared = {"store": MemoryStore(clock=self.clock), "clock": self.clock, "listen": self.facts.append}
        self.apps = [sessions(self.shop, **{**shared, **options}) for _ in range(count)]

    def client(self, worker: int = 0, *, modern: bool = False) -> Client:
        return Client(self.apps[worker], modern=modern)

    async def resume(self, event_id: bytes, *headers: Header, worker: int = 1) -> Answer:
        self.facts.clear()
        return await call(self.apps[worker], http("GET", headers=[*headers, (b"last-event-id", event_id)]))

    @property
    def reasons(self) -> list[str]:
        return [fact.reason for fact in self.facts if isinstance(fact, RequestRefused)]


def ids(answer: Answer) -> list[bytes]:
    """Return the event ids of a stream, as its client keeps them."""
    return [line.removeprefix(b"id: ") for line in answer.body.splitlines() if line.startswith(b"id: ")]


async def test_stolen_event_id_is_refused_on_another_worker() -> None:
    workers = Workers(principal=user_of)
    client = workers.client()
    first, _ = ids(await client.tool("work", by("ann"), session=await client.create(by("ann"))))
    for caller in ([by("bob")], []):
        answer = await workers.resume(first, *caller)
        assert (answer.status, answer.error) == (404, {"code": -32043, "message": "Session not found"})
        assert workers.reasons == ["event_foreign"]
    assert workers.shop.resumed_from == []
    assert (await workers.resume(first, by("ann"))).result["content"] == RESULT


async def test_ended_session_is_not_resumed_on_another_worker() -> None:
    workers = Workers()
    client = workers.client()
    session = await client.create()
    first, _ = ids(await client.tool("work", session=session))
    await client.delete(session)
    assert (await workers.resume(first)).error["data"]["executed"]
    assert workers.reasons == ["ended"]
    assert workers.shop.resumed_from == []


@pytest.mark.parametrize("worker", [0, 1])
async def test_raw_event_id_is_refused(worker: int) -> None:
    """The server would find the event by it, whoever sends it."""
    workers = Workers()
    client = workers.client()
    await client.tool("work", session=await client.create())
    assert (await workers.resume(b"1", worker=worker)).status == 404
    assert workers.shop.resumed_from == []


async def test_stream_resumes_on_any_worker_by_the_servers_own_id() -> None:
    """And its events are signed alike there, so that a client knows what it has."""
    workers = Workers()
    client = workers.client()
    first, last = ids(await client.tool("work", session=await client.create()))
    for worker in (0, 1):
        assert ids(await workers.resume(first, worker=worker)) == [last]
    assert workers.shop.resumed_from == [b"1", b"1"]


async def test_sign_out_by_subject_ends_streams_on_other_workers() -> None:
    """The cut-off is for an alias of the principal, which each event id carries."""
    store = MemoryStore()

    def who(scope: Scope) -> Principal | None:
        user = user_of(scope)
        return None if user is None else Principal(client_id="desk", issuer="https://idp", subject=user)

    workers = Workers(store=store, principal=who)
    client = workers.client()
    session = await client.create(by("ann"))
    first, _ = ids(await client.tool("work", by("ann"), session=session))
    workers.clock.now += 1
    operator = Sessions(store=store, keys=SECRET, clock=workers.clock)
    await operator.end_all(Principal(subject="ann"))
    assert (await workers.resume(first, by("ann"))).error["data"] == {"reason": "ended", "executed": True}


async def test_expired_session_is_not_resumed_on_another_worker() -> None:
    workers = Workers()
    client = workers.client()
    first, _ = ids(await client.tool("work", session=await client.create()))
    workers.clock.now += 7 * DAY
    assert (await workers.resume(first)).error["data"]["executed"]
    assert workers.reasons == ["expired"]


async def test_expired_access_token_gets_the_servers_answer() -> None:
    """A client with "Session not found" would throw its session away, and the log would report a theft."""
    workers = Workers(principal=user_of)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if user_of(scope) is None:
            await reply(send, b"", status=401)
        else:
            await workers.shop(scope, receive, send)

    for app in workers.apps:
        app.app = guarded
    client = workers.client()
    session = await client.create(by("ann"))
    for first, _ in [ids(await client.tool("work", by("ann"), session=one)) for one in (session, None)]:
        assert [(await workers.resume(first)).status, *workers.reasons] == [401]
        assert [(await workers.resume(first, by("bob"))).status, *workers.reasons] == [404, "event_foreign"]


async def test_guards_answer_before_an_ended_session_does() -> None:
    """A call whose session ended while its client was away is refused only to a caller whom the server admits."""
    workers, statuses = Workers(principal=user_of), [200]

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if statuses[-1] != 200:
            await reply(send, b"", status=statuses[-1])
        else:
            await workers.shop(scope, receive, send)

    for app in workers.apps:
        app.app = guarded
    client = workers.client()
    session = await client.create(by("ann"))
    first, _ = ids(await client.tool("work", by("ann"), session=session))
    await client.send("sessions/delete", {}, by("ann"), session=session)
    for status in (429, 200):
        statuses.append(status)
        assert (await workers.resume(first, by("ann"))).status == status


async def test_stream_without_session_resumes_for_its_caller_only() -> None:
    """As on the bare server, where the id is enough, but for callers who are known."""
    workers = Workers(principal=user_of)
    first, _ = ids(await workers.client().tool("work", by("ann")))
    anonymous, _ = ids(await workers.client().tool("work"))
    assert [(await workers.resume(first, by("bob"))).status, *workers.reasons] == [404, "event_foreign"]
    assert [(await workers.resume(first)).status, *workers.reasons] == [404, "event_foreign"]
    assert [(await workers.resume(anonymous, by("bob"))).status, *workers.reasons] == [404, "event_foreign"]
    assert (await workers.resume(first, by("ann"))).result["content"] == RESULT
    assert (await workers.resume(anonymous)).result["content"] == RESULT
    assert workers.shop.resumed_from == [b"1", b"1"]


class Handshakes(Shop):
    """The same, with handshakes in JSON, in which a stateless server names no transport session."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = json.loads((await receive())["body"] or b"{}")
        if message.get("method") in {"initialize", DISCOVER}:
            result = {"protocolVersion": "2025-11-25", "capabilities": {}}
            await reply(send, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())
            return

        async def again() -> Any:
            return {"type": "http.request", "body": json.dumps(message).encode()}

        await super().__call__(scope, again, send)


async def test_header_session_resumes_by_its_header_only() -> None:
    workers = Workers()
    for app in workers.apps:
        app.app = Handshakes()
    client = workers.client()
    ours, other = await client.initialize(), await client.initialize()
    first, _ = ids(await client.tool("work", ours))
    for headers in ([], [other]):
        assert [(await workers.resume(first, *headers)).status, *workers.reasons] == [404, "event_foreign"]
    assert (await workers.resume(first, ours)).result["content"] == RESULT
    await call(client.app, http("DELETE", headers=[ours]))
    assert (await workers.resume(first, ours)).status == 404


async def test_cookie_session_resumes_by_its_cookie_only() -> None:
    workers = Workers()
    for app in workers.apps:
        app.app = Handshakes()
    client = workers.client(modern=True)
    ours, other = (await client.send(DISCOVER)).cookie, (await client.send(DISCOVER)).cookie
    first, _ = ids(await client.tool("work", ours))
    modern = (b"mcp-protocol-version", b"2026-07-28")
    for headers in ([], [other], [(b"cookie", ours[1] + b"x")]):
        assert (await workers.resume(first, modern, *headers)).status == 404
        assert workers.reasons[-1] == "event_foreign"
    assert (await workers.resume(first, modern, ours)).result["content"] == RESULT


async def test_session_of_principal_resumes_for_the_principal() -> None:
    workers = Workers(principal=user_of, **{"transport.per_user": True})
    first, _ = ids(await workers.client().tool("work", by("ann")))
    assert (await workers.resume(first, by("bob"))).status == 404
    assert (await workers.resume(first, by("ann"))).result["content"] == RESULT


async def test_header_may_mirror_the_session_of_the_event() -> None:
    """As in its other requests, but not another session; a header that names none of ours is refused."""
    workers = Workers()
    client = workers.client()
    session, other = await client.create(), await client.create()
    first, _ = ids(await client.tool("work", session=session))
    mirrored = (b"mcp-session-id", session["sessionId"].encode())
    assert (await workers.resume(first, (b"mcp-session-id", other["sessionId"].encode()))).status == 404
    assert workers.reasons == ["event_foreign"]
    assert (await workers.resume(first, (b"mcp-session-id", mirrored[1][:-4] + b"AAAA"))).status == 404
    assert (await workers.resume(first, mirrored)).result["content"] == RESULT
    assert (await call(client.app, http("GET", headers=[mirrored]))).status == 405


OLD, NEW = SECRET, "another-secret-for-tests-0123456789-abcdef"


async def test_event_ids_outlive_a_rotation_of_keys() -> None:
    """Every key of the ring verifies; without the key, the id is unknown."""
    workers = Workers(keys=[OLD, NEW])
    client = workers.client()
    first, _ = ids(await client.tool("work", session=await client.create()))
    shop = workers.shop
    for keys, status in (([NEW, OLD], 200), ([NEW], 404)):
        workers.apps[1] = sessions(shop, keys=keys, clock=workers.clock, store=MemoryStore(clock=workers.clock))
        assert (await workers.resume(first)).status == status


@pytest.mark.parametrize("options", [{"audience": "another"}, {"issuer": "another"}, {"keys": None}])
async def test_event_ids_of_other_deployments_are_refused(options: dict[str, Any]) -> None:
    workers = Workers()
    first, _ = ids(await workers.client().tool("work"))
    workers.apps[1] = Workers(**options).apps[0]
    assert (await workers.resume(first)).status == 404


async def test_changed_event_id_is_refused() -> None:
    workers = Workers()
    first, _ = ids(await workers.client().tool("work"))
    last = b"A" if first[-1:] != b"A" else b"Q"
    for forged in (first[:-1] + last, first[:-1], first + b"!", b"v1.kkkkkkkk.AAAA", first[:12], b"x" * 10_000):
        assert (await workers.resume(forged)).status == 404
        assert workers.reasons == ["event_unknown"]
    assert workers.shop.resumed_from == []


@pytest.mark.parametrize("name", [b"last-event-id", b"last_event_id", b"Last-Event-Id"])
async def test_two_event_ids_are_refused(name: bytes) -> None:
    """Two readers may take different ones, and some take an underscore for a hyphen."""
    workers = Workers()
    first, _ = ids(await workers.client().tool("work"))
    answer = await workers.resume(first, (name, b"1"))
    assert (answer.status, answer.error["message"]) == (400, "Invalid request: Last-Event-ID is given twice")
    assert workers.shop.resumed_from == []


async def test_only_get_carries_an_event_id_to_the_server() -> None:
    """With other methods it means nothing to MCP, and an empty one means nothing at all."""
    workers = Workers()
    await workers.client().tool("work", (b"last-event-id", b"1"), (b"last-event-id", b"2"))
    await workers.resume(b"")
    assert all(name != b"last-event-id" for headers in workers.shop.sent for name, _ in headers)


async def test_ended_stream_says_on_any_worker_that_it_is_over() -> None:
    """The error that ends it has an id, with which the official TypeScript client comes back."""
    workers, answer = Workers(), Answer()
    client = workers.client()
    session = await client.create()
    first, _ = ids(await client.tool("work", session=session))
    workers.shop.done, done = anyio.Event(), anyio.Event()

    async def resume() -> None:
        answer.messages += (await workers.resume(first)).messages
        done.set()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(resume)
            await workers.shop.resumed.wait()
            await Client(workers.apps[1], modern=False).delete(session)
            workers.shop.done.set()
    data = {"reason": "ended", "executed": True}
    assert answer.json["error"] == {"code": -32043, "message": "Session not found", "data": data}
    (over,) = ids(answer)
    assert [(await workers.resume(over, worker=worker)).status for worker in (0, 1)] == [405, 405]


async def test_answered_stream_of_ended_session_is_over_on_any_worker() -> None:
    workers = Workers()
    client = workers.client()
    session = await client.create()
    _, last = ids(await client.tool("work", session=session))
    await client.delete(session)
    assert [(await workers.resume(last, worker=worker)).status for worker in (0, 1)] == [405, 405]


async def test_event_id_that_fits_no_header_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers()
    workers.shop.first = b"x" * MAX_EVENT_ID_BYTES
    answer = await workers.client().tool("work")
    assert len(ids(answer)) == 1
    assert answer.body.startswith(b":id: xxx")
    assert "use shorter ids in the event store" in caplog.text


async def test_stream_of_other_transport_session_is_refused() -> None:
    """The transport session that an `initialize` begins counts for its own events, too."""
    server = Stateful(sse=True)
    facts = list[SessionEvent]()
    client = Client(sessions(server, listen=facts.append), modern=False)
    (answer, other) = [await client.send("initialize") for _ in range(2)]
    first, _ = ids(answer)
    server.seen.clear()
    for headers in ([], [(b"mcp-session-id", other.headers[b"Mcp-Session-Id"])]):
        assert (await call(client.app, http("GET", headers=[*headers, (b"last-event-id", first)]))).status == 404
    assert [fact.reason for fact in facts if isinstance(fact, RequestRefused)] == ["event_foreign"] * 2
    assert all(b'"ping"' in one.body for one in server.seen)  # which asks whether the caller is admitted


async def test_compressed_stream_outside_of_sessions_passes(caplog: pytest.LogCaptureFixture) -> None:
    """Its ids are refused when they come back, and the log says why."""
    sent = [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": sent})
        await send({"type": "http.response.body", "body": b"\x1f"})

    answer = await Client(sessions(app)).tool("work")
    assert (answer.start["headers"], answer.body) == (sent, b"\x1f")
    assert "put compression outside MCPSessionMiddleware" in caplog.text


async def test_relayed_refusal_has_signed_event_ids() -> None:
    """What the server answers to our question, in place of an answer of ours."""

    async def guard(scope: Scope, send: Send) -> bool:
        await reply(send, b"id: 1\ndata: no\n\n", status=401, media_type=b"text/event-stream")
        return True

    answer = await Client(sessions(Server(guard=guard)), modern=False).send("sessions/create")
    assert answer.status == 401
    assert answer.body.startswith(b"id: v1.")


async def test_compressed_stream_is_not_resumed() -> None:
    """It could not end with its session."""
    workers = Workers()
    client = workers.client()
    first, _ = ids(await client.tool("work", session=await client.create()))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    workers.apps[1].app = app
    answer = await workers.resume(first)
    assert (answer.status, answer.error["code"], answer.json["id"]) == (500, -32603, None)
    assert workers.reasons == ["events_compressed"]


async def test_notification_that_is_answered_by_events_has_ids_of_its_session() -> None:
    """Its stream answers no request, and ends unanswered."""
    workers = Workers()
    client = workers.client()
    session = await client.create()
    answer = await client.send("notifications/progress", {"progressToken": 1, "progress": 1}, session=session, id=None)
    first, *_ = ids(answer)
    assert (await workers.resume(first)).status == 200
    await client.delete(session)
    assert [(await workers.resume(first)).status, *workers.reasons] == [404, "ended"]


async def test_expired_access_token_of_listening_client_gets_the_servers_answer() -> None:
    """Across the bridge, where a GET without an event id is refused by its header."""
    server, facts = Stateful(), list[SessionEvent]()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if user_of(scope) is None:
            await reply(send, b"", status=401)
        else:
            await server(scope, receive, send)

    client = Client(sessions(guarded, bridge=True, principal=user_of, listen=facts.append), modern=False)
    header = (b"mcp-session-id", (await client.send("initialize", None, by("ann"))).headers[b"mcp-session-id"])
    facts.clear()
    assert (await call(client.app, http("GET", headers=[header]))).status == 401
    assert facts == []
    assert (await call(client.app, http("GET", headers=[header, by("bob")]))).status == 404
    assert [fact.reason for fact in facts if isinstance(fact, RequestRefused)] == ["token_principal"]

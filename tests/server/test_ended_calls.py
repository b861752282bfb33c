"""Calls that are under way when their session ends: whoever ends it, on whichever worker, each gets `-32043`."""

import functools
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from json import dumps as json_text
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import pytest
from apps import read, reply, sessions, sweeper_of
from clients import DEADLINE, SECRET, Answer, Client, Clock, Header, Incoming, by, call, chunks, http, user_of
from sep1364 import Speaker
from starlette.types import Message, Receive, Scope, Send
from streaming import SECRET_RESULT, Streaming
from streaming import START as STREAM

from mcp_sessions import MCPSessionMiddleware, Sessions
from mcp_sessions import _cli as cli
from mcp_sessions._server.inspected import Inspected
from mcp_sessions._server.options import DAY, HOUR
from mcp_sessions._session.claims import Principal, utc
from mcp_sessions.dialects import SEP1364Create, SEP1364Initialize
from mcp_sessions.stores import MemoryStore, SQLiteStore, Store
from mcp_sessions.telemetry import Inspector
from mcp_sessions.telemetry._inspector import SessionToEnd

ANN = by("ann")


@dataclass
class Deployment:
    """Two workers, or one, with a call under way on the first; whoever ends its session asks the second."""

    here: MCPSessionMiddleware
    there: MCPSessionMiddleware
    server: Streaming
    clock: Clock
    store: Store
    folder: Path
    over: anyio.Event = field(default_factory=anyio.Event)  # the response has ended
    session: dict[str, str] | None = None  # that requests name in `_meta`
    in_field: str | None = None  # that they name in SEP-1364's field
    headers: list[Header] = field(default_factory=lambda: [ANN])

    @property
    def client(self) -> Client:
        return Client(self.there, modern=False)

    async def call_here(self) -> Answer:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            async def note(message: Message) -> None:
                await send(message)
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    self.over.set()

            await self.here(scope, receive, note)

        if self.in_field is not None:
            return await Speaker(app).tool("work", self.in_field, *self.headers)
        return await Client(app, modern=False).tool("work", *self.headers, session=self.session)

    @property
    def ref(self) -> str:
        assert self.server.session is not None
        return self.server.session.ref


async def by_draft(deployment: Deployment) -> None:
    deployment.session = await deployment.client.create(*deployment.headers)


async def by_header(deployment: Deployment) -> None:
    answer = await deployment.client.send("initialize", None, *deployment.headers)
    deployment.headers.append((b"mcp-session-id", answer.headers[b"mcp-session-id"]))


async def by_field(deployment: Deployment) -> None:
    begun = await Speaker(deployment.there).say("sessions/create", {"capabilities": {}}, *deployment.headers)
    deployment.in_field = begun.result["sessionId"]


async def by_initialize(deployment: Deployment) -> None:
    begun = await Speaker(deployment.there).initialize(*deployment.headers)
    deployment.in_field = begun.json["sessionId"]


async def by_caller(deployment: Deployment) -> None:
    """Nothing names it."""


async def http_delete(deployment: Deployment) -> None:
    assert (await call(deployment.there, http("DELETE", headers=deployment.headers))).status == 200


async def sessions_delete(deployment: Deployment) -> None:
    assert (await deployment.client.send("sessions/delete", None, ANN, session=deployment.session)).result == {}


async def other_handler(deployment: Deployment) -> None:
    async with anyio.create_task_group() as group:
        left = functools.partial(deployment.client.tool, "leave", *deployment.headers, session=deployment.session)
        group.start_soon(left)
        await deployment.server.left.wait()
        group.cancel_scope.cancel()


async def field_delete(deployment: Deployment) -> None:
    answer = await Speaker(deployment.there).say("sessions/delete", None, ANN, sessionId=deployment.in_field)
    assert "result" in answer.json


async def terminate(deployment: Deployment) -> None:
    answer = await Speaker(deployment.there).say("terminate", None, ANN, sessionId=deployment.in_field)
    assert "result" in answer.json


async def operator_ends_one(deployment: Deployment) -> None:
    async with Sessions(store=deployment.store, keys=SECRET, clock=deployment.clock) as operator:
        assert await operator.end(deployment.ref)


async def operator_ends_all(deployment: Deployment) -> None:
    async with Sessions(store=deployment.store, keys=SECRET, clock=deployment.clock) as operator:
        await operator.end_all(Principal(subject="ann"))


async def operator_ends_all_before(deployment: Deployment) -> None:
    deployment.clock.now += 1
    async with Sessions(store=deployment.store, keys=SECRET, clock=deployment.clock) as operator:
        await operator.end_all_before(utc(deployment.clock.now))


async def command_line(deployment: Deployment) -> None:
    words = ["end", "--ref", deployment.ref, "--store", f"sqlite:{deployment.folder / 'sessions.db'}"]
    assert await anyio.to_thread.run_sync(cli.main, words) == 0


async def inspector(deployment: Deployment) -> None:
    (page,) = [one for one in deployment.there._runtime.background_services if isinstance(one, Inspected)]
    assert await page.end(SessionToEnd(deployment.ref, 1, 1 << 40))


async def expiry(deployment: Deployment) -> None:
    deployment.clock.now += 30 * DAY


async def idleness(deployment: Deployment) -> None:
    deployment.clock.now += 2 * HOUR
    await sweeper_of(deployment.there).sweep()


async def next_of_principal(deployment: Deployment) -> None:
    """The present session of a principal is idle, so that the next request begins another one in its place."""
    deployment.clock.now += 2 * HOUR
    async with anyio.create_task_group() as group:
        deployment.server.began = anyio.Event()
        group.start_soon(functools.partial(deployment.client.tool, "work", ANN))
        await deployment.server.began.wait()
        group.cancel_scope.cancel()


@dataclass(frozen=True)
class Way:
    """Who ends a session, and how it began."""

    end: Callable[[Deployment], Awaitable[None]]
    begin: Callable[[Deployment], Awaitable[None]] = by_draft
    options: dict[str, Any] = field(default_factory=dict)


TRACKED = {"tracked": True}
OWN = {"transport.per_user": True, "transport.header": False, "transport.cookie": False, "idle_timeout": HOUR}
WAYS = {
    "HTTP DELETE": Way(http_delete, by_header),
    "sessions/delete": Way(sessions_delete),
    "session.end() in another request": Way(other_handler),
    "session.end() by header": Way(other_handler, by_header),
    "SEP-1364 sessions/delete": Way(field_delete, by_field, {"dialects": [SEP1364Create()]}),
    "SEP-1364 terminate": Way(terminate, by_initialize, {"dialects": [SEP1364Initialize()]}),
    "Sessions.end": Way(operator_ends_one, options=TRACKED),
    "Sessions.end_all": Way(operator_ends_all),
    "Sessions.end_all_before": Way(operator_ends_all_before),
    "mcp-sessions end": Way(command_line, options={**TRACKED, "store": "sqlite"}),
    "inspector": Way(inspector, options={**TRACKED, "inspector": Inspector}),
    "expiry": Way(expiry),
    "expiry, tracked": Way(expiry, options=TRACKED),
    "idleness": Way(idleness, options={**TRACKED, "idle_timeout": HOUR}),
    "another session of the principal": Way(next_of_principal, by_caller, OWN),
}


AT_ONCE = {http_delete, sessions_delete, other_handler, field_delete, terminate, next_of_principal}


def deployed(way: Way, *, workers: int, json: bool, folder: Path) -> Deployment:
    options = dict(way.options)
    is_file = options.pop("store", None) is not None
    clock = Clock(time.time()) if is_file else Clock()  # a command has no other clock
    store: Store = SQLiteStore(str(folder / "sessions.db"), clock=clock) if is_file else MemoryStore(clock=clock)
    server = Streaming(json=json)
    made = list[MCPSessionMiddleware]()
    for _ in range(workers):
        given = {name: value() if value is Inspector else value for name, value in options.items()}
        made.append(sessions(server, store=store, clock=clock, principal=user_of, **given))
    for app in made:  # what ends here ends without asking the store
        app._runtime.streams._interval = 3600 if workers == 1 and way.end in AT_ONCE else 0.01
    return Deployment(made[0], made[-1], server, clock, store, folder)


@pytest.mark.parametrize("json", [True, False], ids=["JSON", "events"])
@pytest.mark.parametrize("workers", [1, 2], ids=["same worker", "another worker"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_each_unanswered_call_gets_session_not_found(way: Way, workers: int, json: bool, tmp_path: Path) -> None:
    """Its response ends with that, while the server still works on the call."""
    deployment, answers = deployed(way, workers=workers, json=json, folder=tmp_path), list[Answer]()
    await way.begin(deployment)

    async def work() -> None:
        answers.append(await deployment.call_here())

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await deployment.server.began.wait()
            await way.end(deployment)
            await deployment.over.wait()
            deployment.server.go.set()
    (answer,) = answers
    assert answer.error["code"] == -32043
    assert SECRET_RESULT.encode() not in answer.body


@pytest.mark.parametrize("json", [True, False], ids=["JSON", "events"])
async def test_call_that_ends_its_session_goes_on(json: bool, tmp_path: Path) -> None:
    """On both workers nobody cuts it, though it works on for long."""
    deployment = deployed(Way(other_handler), workers=2, json=json, folder=tmp_path)
    await by_draft(deployment)
    answers = list[Answer]()

    async def leave() -> None:
        answers.append(await Client(deployment.here, modern=False).tool("leave", ANN, session=deployment.session))

    async with anyio.create_task_group() as group:
        group.start_soon(leave)
        await deployment.server.left.wait()
        for _ in range(3):
            await deployment.here._runtime.streams._check_once()
        deployment.server.go.set()
    assert answers[0].result["content"] == SECRET_RESULT


class Dropping:
    """A server that keeps transport sessions, whose DELETE ends the calls of one first, as the SDK's does.

    Args:
        how: How it ends a call: `"events"`, `"JSON"` with HTTP 500, `"error"`, `"nothing"`, or never: `"wait"`.
        status: Its answer to DELETE.
    """

    def __init__(self, how: str, status: int) -> None:
        self.how, self.status = how, status
        self.began, self.dropped = anyio.Event(), anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read(receive)
        if scope["method"] == "DELETE":
            self.dropped.set()
            await anyio.wait_all_tasks_blocked()
            await reply(send, b"", status=self.status)
        elif b"tools/" not in body:
            await reply(send, b'{"jsonrpc": "2.0", "id": 1, "result": {}}', named=b"server-1")
        else:
            await self._call(send)

    async def _call(self, send: Send) -> None:
        if self.how == "events":
            await send(STREAM)
        self.began.set()
        await (anyio.sleep_forever() if self.how == "wait" else self.dropped.wait())
        if self.how == "error":
            raise LookupError
        if self.how == "JSON":
            error = b'{"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32603, "message": "no response"}}'
            await reply(send, error, status=500)
        elif self.how == "events":
            await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("how", ["events", "JSON", "error", "nothing"])
@pytest.mark.parametrize(("method", "lists"), [("tools/call", "stable"), ("tools/list", "untouched")])
async def test_server_that_ends_its_calls_does_not_hide_the_error(
    how: str, method: str, lists: Literal["stable", "untouched"]
) -> None:
    """The caller gets it, though the server has closed the stream before we have ended the session."""
    server, answer = Dropping(how, 200), Answer()
    client, deleted = Client(sessions(server, bridge=True, lists=lists), modern=False), list[int]()
    header = await client.initialize()

    async def work() -> None:
        body = json_text(client.message(method, {"name": "work"})).encode()
        with suppress(LookupError):
            await client.app(http(headers=[*client.headers(method), header]), Incoming(*chunks(body)), answer)

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await server.began.wait()
            deleted.append((await call(client.app, http("DELETE", headers=[header]))).status)
    assert deleted == [200]
    assert answer.error == {
        "code": -32043,
        "message": "Session not found",
        "data": {"reason": "ended", "executed": True},
    }


async def test_call_ends_with_either_session_that_it_carries() -> None:
    """A client of the draft sends the header, too; the session of the header is ended, here and on another worker."""
    for worker in (0, 1):
        server, answer, store = Dropping("events" if worker == 0 else "wait", 200), Answer(), MemoryStore()
        workers = [sessions(server, bridge=True, store=store) for _ in range(2)]
        client, deleted = Client(workers[0], modern=False), list[int]()
        header = await client.initialize()
        session = await client.create(header)

        async def work(client: Client, header: Header, session: Any, answer: Answer) -> None:
            body = json_text(client.message("tools/call", {"name": "work"}, session=session)).encode()
            await client.app(http(headers=[*client.headers("tools/call"), header]), Incoming(*chunks(body)), answer)

        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as group:
                group.start_soon(work, client, header, session, answer)
                await server.began.wait()
                deleted.append((await call(workers[worker], http("DELETE", headers=[header]))).status)
                for _ in range(2):
                    await workers[0]._runtime.streams._check_once()
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
        assert deleted == [200]
        assert answer.error["code"] == -32043


async def test_waiting_stream_does_not_change_the_error_of_calls() -> None:
    """Each response has a refusal of its own: a GET whose start is held gets 404, and a call in JSON gets 200."""
    store, began = MemoryStore(), anyio.Event()

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "DELETE":
            await reply(send, b"")
        elif scope["method"] == "GET":
            await anyio.sleep_forever()
        elif b"tools/call" not in await read(receive):
            await reply(send, b'{"jsonrpc": "2.0", "id": 1, "result": {}}', named=b"server-1")
        else:
            began.set()
            await anyio.sleep_forever()

    here, there = (sessions(server, bridge=True, store=store) for _ in range(2))
    client, answer = Client(here, modern=False), Answer()
    header = await client.initialize()
    body = json_text(client.message("tools/call", {"name": "work"})).encode()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(here, http("GET", headers=[header]), Incoming(), Answer())
            await anyio.wait_all_tasks_blocked()
            group.start_soon(here, http(headers=[*client.headers("x"), header]), Incoming(*chunks(body)), answer)
            await began.wait()
            await call(there, http("DELETE", headers=[header]))
            for _ in range(2):
                await here._runtime.streams._check_once()
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert (answer.status, answer.error["code"]) == (200, -32043)


class Failing(MemoryStore):
    """A store whose driver raises a foreign error, but answers the first question."""

    questions = 0

    async def look_up(self, *claims: Any, **options: Any) -> Any:
        self.questions += 1
        if self.questions > 1:
            raise LookupError("of the driver")
        return await super().look_up(*claims, **options)


async def test_store_that_raises_anything_does_not_stop_the_checks() -> None:
    """Calls go on without an answer of the store, and their results are delivered."""
    server, clock = Streaming(json=True), Clock()
    client = Client(sessions(server, store=Failing(), clock=clock), modern=False)
    session, answers = await client.create(), list[Answer]()

    async def work() -> None:
        answers.append(await client.tool("work", session=session))

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await server.began.wait()
            for _ in range(2):
                await client.app._runtime.streams._check_once()  # type: ignore[attr-defined]
            clock.now += 5
            server.go.set()
    assert answers[0].result["content"] == SECRET_RESULT


@pytest.mark.parametrize(("how", "status"), [("events", 200), ("JSON", 500)])
async def test_server_that_refuses_to_delete_ends_its_calls_itself(how: str, status: int) -> None:
    """The session lives, so what the server says passes."""
    server, answers = Dropping(how, 403), list[Answer]()
    client = Client(sessions(server, bridge=True), modern=False)
    header = await client.initialize()

    async def work() -> None:
        answers.append(await client.tool("work", header))

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await server.began.wait()
            assert (await call(client.app, http("DELETE", headers=[header]))).status == 403
    assert (answers[0].status, b"-32043" in answers[0].body) == (status, False)


async def test_call_without_an_answer_stays_without_one_if_the_store_raises() -> None:
    """Nobody knows whether its session has ended, and nothing was delivered that the log should name."""

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        await send(STREAM)
        await send({"type": "http.response.body", "body": b""})

    client = Client(sessions(silent, store=Failing(), admission="own"), modern=False)
    answer = await client.tool("work", session=await client.create())
    assert (answer.status, answer.body) == (200, b"")

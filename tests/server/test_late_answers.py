"""An answer that comes late: delivered where nobody knows that its session has ended, else withheld, and said so."""

import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import DEADLINE, Answer, Client, Clock, Header, Incoming, chunks, http
from failing import Failing
from starlette.types import Message
from streaming import SECRET_RESULT, Streaming

from mcp_sessions import MCPSessionMiddleware, Session
from mcp_sessions._errors import DataGone, StoreUnavailable
from mcp_sessions.stores import MemoryStore
from mcp_sessions.stores._timeout import TimeoutStore

LATE = 2  # seconds that a call takes


class Late:
    """A call on one of two workers that takes longer than its session's last check counts; what happens meanwhile."""

    def __init__(self, *, json: bool, by_header: bool = False, **options: Any) -> None:
        self.clock = options.setdefault("clock", Clock())
        self.store = Failing(clock=self.clock)
        self.server = Streaming(json=json)
        timed = TimeoutStore(self.store, seconds=0.05)
        self.here, self.there = (sessions(self.server, store=store, **options) for store in (timed, self.store))
        self.by_header, self.header = by_header, list[Header]()
        self.session: Any = None

    async def run(self, meanwhile: Callable[[], Awaitable[object]]) -> Answer:
        client, answers = Client(self.here, modern=False), list[Answer]()
        if self.by_header:
            self.header = [await client.initialize()]
        else:
            self.session = await client.create()

        async def work() -> None:
            answers.append(await client.tool("work", *self.header, session=self.session))

        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as group:
                group.start_soon(work)
                await self.server.began.wait()
                self.clock.now += LATE
                await meanwhile()
                self.server.go.set()
        return answers[0]

    async def delete_elsewhere(self) -> None:
        assert (await Client(self.there, modern=False).delete(self.session)).result == {}

    @property
    def ref(self) -> str:
        assert self.server.session is not None
        return self.server.session.ref


KINDS = pytest.mark.parametrize("json", [True, False], ids=["JSON", "events"])


@KINDS
@pytest.mark.parametrize("by_header", [False, True], ids=["draft", "header"])
@pytest.mark.parametrize("on_store_error", ["refuse", "allow"])
async def test_unavailable_store_does_not_withhold_result(
    json: bool, by_header: bool, on_store_error: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The session was live when the call began, and the tool has run: a retry would run it twice."""
    late = Late(json=json, by_header=by_header, on_store_error=on_store_error, require={"tools/call": ["work"]})

    async def goes_away() -> None:
        late.store.failing |= {"look_up"}

    answer = await late.run(goes_away)
    assert answer.result["content"] == SECRET_RESULT
    (line,) = [record for record in caplog.records if "delivered" in record.getMessage()]
    assert late.ref in line.getMessage()
    assert "store_unavailable" in line.getMessage()
    assert (line.levelno, getattr(line, "session.id")) == (logging.WARNING, late.ref)


@KINDS
async def test_hanging_store_does_not_withhold_result(json: bool, caplog: pytest.LogCaptureFixture) -> None:
    """With the timeout of a real store, though another worker that reaches it has deleted the session."""
    late = Late(json=json)

    async def hangs() -> None:
        await late.delete_elsewhere()
        late.store.before["look_up"] = hang

    async def hang(*_: object) -> None:
        late.store.before["look_up"] = hang
        await anyio.sleep_forever()

    answer = await late.run(hangs)
    assert answer.result["content"] == SECRET_RESULT
    assert f"session {late.ref} delivered" in caplog.text
    late.store.before.clear()
    assert (await Client(late.here, modern=False).tool("work", session=late.session)).error["code"] == -32043


@KINDS
async def test_withheld_result_says_that_the_call_was_executed(json: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Else its client repeats what must not happen twice; the log names the session."""
    caplog.set_level(logging.INFO, "mcp_sessions")
    late = Late(json=json)
    answer = await late.run(late.delete_elsewhere)
    data = {"sessionId": late.session["sessionId"], "reason": "ended", "executed": True}
    assert answer.error == {"code": -32043, "message": "Session not found", "data": data}
    (line,) = [text for text in caplog.messages if text.startswith("refused ")]
    assert line.startswith(f"refused 'tools/call' of session {late.ref}: ended (-32043); ")


async def test_refusal_before_the_call_says_nothing_of_execution() -> None:
    """The server has not seen it."""
    client = Client(sessions(Server()), modern=False)
    session = await client.create()
    await client.delete(session)
    assert (await client.tool(session=session)).error["data"] == {**session, "reason": "ended"}


@KINDS
@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [(StoreUnavailable("store_timeout"), -32603, None), (DataGone("the session has ended"), -32043, "ended")],
)
async def test_state_that_is_not_stored_withholds_the_result(
    json: bool, error: Exception, code: int, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Its change would be lost in silence; the answer and the log say that the call was executed."""

    async def write(session: Session | None, arguments: dict[str, Any]) -> str:
        assert session is not None
        session.state["n"] = 1
        return session.ref

    caplog.set_level(logging.INFO, "mcp_sessions")
    store = Failing(error=lambda: error)
    client = Client(sessions(Server(sse=not json, write=write), store=store), modern=False)
    header = await client.initialize()
    store.failing.add("write")
    answer = await client.tool("write", header)
    expected = {"executed": True} if reason is None else {"reason": reason, "executed": True}
    assert (answer.error["code"], answer.error["data"]) == (code, expected)
    ref = next(seen.scope["mcp_session"].ref for seen in client.app.app.seen if seen.scope["mcp_session"])  # type: ignore[attr-defined]
    assert [text for text in caplog.messages if ref in text and "tools/call" in text]


class Unread:
    """A connection whose client reads nothing once the response has begun."""

    def __init__(self) -> None:
        self.began = anyio.Event()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.body" and self.began.is_set():
            await anyio.sleep_forever()
        if message["type"] == "http.response.body":
            self.began.set()


async def open_stream(app: MCPSessionMiddleware, send: Any, session: Any) -> None:
    client = Client(app, modern=False)
    body = json.dumps(client.message("tools/call", {"name": "work"}, session=session)).encode()
    await app(http(headers=client.headers("tools/call")), Incoming(*chunks(body)), send)


@pytest.mark.parametrize("workers", [1, 2], ids=["same worker", "another worker"])
async def test_clients_that_do_not_read_delay_nobody(workers: int) -> None:
    """Neither the end of another stream, nor the answer to the deletion; each is in a session of its own."""
    store = MemoryStore()
    made = [sessions(Streaming(), store=store) for _ in range(workers)]
    here, there = made[0], made[-1]
    here._runtime.streams._interval = 0.01
    client = Client(there, modern=False)
    held = [await client.create() for _ in range(21)]
    unread, heard = [Unread() for _ in range(20)], Answer()
    over = anyio.Event()

    async def hear(message: Message) -> None:
        await heard(message)
        if not message.get("more_body", True):
            over.set()

    async with anyio.create_task_group() as group:
        for send, session in zip(unread, held, strict=False):
            group.start_soon(partial(open_stream, here, send, session))
            await send.began.wait()
        group.start_soon(partial(open_stream, here, hear, held[20]))
        while not heard.messages:
            await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            for session in held:
                await client.delete(session)
            await over.wait()
        group.cancel_scope.cancel()
    assert heard.error["code"] == -32043


@KINDS
async def test_answer_after_expiry_is_withheld(json: bool) -> None:
    """Though nobody has looked in between."""
    late = Late(json=json)

    async def expires() -> None:
        late.clock.now += 30 * 24 * 3600

    answer = await late.run(expires)
    assert (answer.error["code"], answer.error["data"]["reason"]) == (-32043, "expired")


async def test_cancelled_call_in_json_ends_without_an_error() -> None:
    """Its client expects nothing more, and takes an error for a fault."""
    late = Late(json=True)

    async def cancel_and_delete() -> None:
        client = Client(late.here, modern=False)
        await client.send("notifications/cancelled", {"requestId": 1}, id=None, session=late.session)
        await client.delete(late.session)

    answer = await late.run(cancel_and_delete)
    assert (answer.status, answer.body) == (202, b"")

"""A session that a cookie names begins with its first use: a client that only asks what there is leaves nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import DISCOVER, START, Client, Clock, Header
from failing import Failing

from mcp_sessions import CreateRefused, Limits, Record, Session, SessionCreated, SessionEvent
from mcp_sessions._server.lifecycle import LEASE
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores import MemoryStore


async def count(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    return await session.data.increment("n")


async def counted(client: Client, cookie: Header) -> Any:
    return (await client.tool("count", cookie)).result["content"]


@pytest.mark.parametrize("tracked", [False, True])
async def test_a_discover_alone_leaves_nothing(tracked: bool, caplog: pytest.LogCaptureFixture) -> None:
    """No record, no event, no log line and no `on_create`, nor do lists make any; the first call makes all of them."""
    caplog.set_level("INFO", "mcp_sessions")
    events: list[SessionEvent] = []
    created: list[str] = []
    store = MemoryStore()
    hooks: dict[str, Any] = {"listen": events.append, "on_create": lambda session, *_: created.append(session.ref)}
    client = Client(sessions(Server(count=count), store=store, tracked=tracked, **hooks))
    cookies = [(await client.send(DISCOVER)).cookie for _ in range(3)]
    for method in (DISCOVER, "tools/list"):
        assert "result" in (await client.send(method, None, cookies[0])).json
    assert (events, created, [line for line in caplog.messages if "created" in line]) == ([], [], [])
    assert await store.count(audience="mcp-sessions") == 0
    assert [await counted(client, cookies[1]) for _ in range(3)] == [1, 2, 3]
    assert [event.ref for event in events if isinstance(event, SessionCreated)] == created
    assert caplog.messages.count(f"session {created[0]} created") == 1
    assert await store.count(audience="mcp-sessions") == (int(tracked))


@pytest.mark.parametrize("workers", [1, 2])
async def test_calls_that_come_first_at_once_begin_it_once(workers: int) -> None:
    """On one worker or on several: the others wait until `on_create` has filled it."""
    entered, store, refs = anyio.Event(), MemoryStore(), list[str]()

    async def welcome(session: Session, params: Any, scope: Any) -> None:
        refs.append(session.ref)
        entered.set()
        await anyio.wait_all_tasks_blocked()
        session.state["n"] = 10

    async def state(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        return session.state["n"]

    clients = [Client(sessions(Server(state=state), store=store, on_create=welcome)) for _ in range(workers)]
    cookie = (await clients[0].send(DISCOVER)).cookie
    seen: list[Any] = []

    async def call(client: Client) -> None:
        seen.append((await client.tool("state", cookie)).result["content"])

    async with anyio.create_task_group() as group:
        group.start_soon(call, clients[0])
        await entered.wait()
        for client in clients * 2:
            group.start_soon(call, client)
    assert seen == [10] * (1 + 2 * workers)
    assert len(refs) == 1


class Overtaken(MemoryStore):
    """Lets others act between a look at the store and the change that follows."""

    between: list[Callable[[Namespace], Awaitable[object]]]

    async def compare_and_swap(self, *args: Any) -> bool:
        while self.between:
            await self.between.pop()(args[0])
        return await super().compare_and_swap(*args)


async def test_of_two_workers_the_faster_one_begins_it() -> None:
    store, refs = Overtaken(), list[str]()
    clients = [
        Client(sessions(Server(count=count), store=store, on_create=lambda session, *_: refs.append(session.ref)))
        for _ in range(2)
    ]
    cookie = (await clients[0].send(DISCOVER)).cookie
    store.between = [lambda place: counted(clients[1], cookie)]
    assert await counted(clients[0], cookie) == 2
    assert len(refs) == 1


async def test_one_that_is_ended_before_it_begins_has_ended() -> None:
    store = Overtaken()
    client = Client(sessions(Server(count=count), store=store))
    cookie = (await client.send(DISCOVER)).cookie

    async def end(place: Namespace) -> None:
        await store.revoke(Record(place.owner, None, START, place.expires_at, START), reason="deleted", lease=None)

    store.between = [end]
    assert (await client.tool("count", cookie)).error["code"] == -32043


async def test_what_a_worker_began_and_did_not_finish_is_begun_by_another() -> None:
    """It was killed: until its lease runs out the others wait, since `on_create` may still run there."""
    store, clock, ways = Failing("register"), Clock(), ["dies"]

    async def dies(session: Session, params: Any, scope: Any) -> None:
        if ways:
            store.failing.update({"purge", "compare_and_swap"})
            raise CreateRefused(ways.pop())

    client = Client(sessions(Server(count=count), store=store, clock=clock, on_create=dies))
    cookie = (await client.send(DISCOVER)).cookie
    assert (await client.tool("count", cookie)).error["message"] == "dies"
    store.failing.clear()
    seen: list[Any] = []

    async def call() -> None:
        seen.append(await counted(client, cookie))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        assert seen == []
        clock.now += LEASE
    assert seen == [1]


@pytest.mark.parametrize(
    "limits", [{"creates_per_minute": 1}, {"anonymous_sessions": 1}, {"anonymous_data_bytes": 300}]
)
async def test_limits_count_what_is_used(limits: dict[str, int]) -> None:
    """Any number of cookies may be offered; the second one that is used is over the limit."""
    client = Client(sessions(Server(), limits=Limits(**limits), tracked="anonymous_sessions" in limits))
    cookies = [(await client.send(DISCOVER)).cookie for _ in range(3)]
    assert "result" in (await client.tool("whoami", cookies[0])).json
    assert "error" in (await client.tool("whoami", cookies[1])).json
    assert "result" in (await client.tool("whoami", cookies[0])).json
    assert "result" in (await client.send("tools/list", None, cookies[1])).json


async def test_it_is_idle_from_its_first_use_on() -> None:
    clock = Clock()
    client = Client(sessions(Server(count=count), clock=clock, tracked=True, idle_timeout=600))
    cookie = (await client.send(DISCOVER)).cookie
    clock.now += 3600
    assert [await counted(client, cookie) for _ in range(2)] == [1, 2]
    clock.now += 3600
    assert (await client.tool("count", cookie)).error["code"] == -32043

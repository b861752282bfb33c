"""Sessions made from others: what they begin with, how long they live, and what refuses them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from apps import Server, sessions
from clients import SECRET, START, Client, Clock
from failing import Failing
from starlette.types import Scope

from mcp_sessions import MCPSessionMiddleware, Principal, Session, Sessions
from mcp_sessions._errors import CreateRefused
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores._memory import MemoryStore


async def put(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    return await session.data.increment(arguments["item"])


async def get(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    return await session.data.get(arguments["item"], 0)


@pytest.fixture(params=[False, True], ids=["untracked", "tracked"])
def tracked(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def shop(**options: Any) -> MCPSessionMiddleware:
    return sessions(Server(put=put, get=get), **options)


async def in_cart(client: Client, session: Any, item: str = "tea") -> int:
    return int((await client.tool("get", session=session, item=item)).result["content"])


async def test_a_fork_begins_with_a_copy_of_the_data(tracked: bool) -> None:
    """From then on each has its own, over generations, and outlives the other."""
    client = Client(shop(tracked=tracked))
    root = await client.create()
    await client.tool("put", session=root, item="tea")
    copy = await client.fork(await client.fork(root))
    await client.tool("put", session=copy, item="tea")
    await client.tool("put", session=root, item="cup")
    assert [await in_cart(client, one) for one in (root, copy)] == [1, 2]
    assert [await in_cart(client, one, "cup") for one in (root, copy)] == [1, 0]
    await client.delete(root)
    assert await in_cart(client, copy) == 2


async def test_a_fork_expires_no_later_than_its_parent(tracked: bool) -> None:
    """And a parent that has expired or is idle is not forked."""
    clock = Clock()
    idle: dict[str, Any] = {"idle_timeout": 70} if tracked else {}
    client = Client(shop(tracked=tracked, clock=clock, lifetime=100, store=MemoryStore(clock=clock), **idle))
    root = await client.create()
    clock.now += 60
    fork = await client.fork(root)
    assert len(fork["sessionId"]) <= 768
    clock.now = START + 99
    assert (await client.tool(session=fork)).session is not None
    clock.now = START + 100
    assert (await client.tool(session=fork)).error["data"]["reason"] == "expired"
    assert (await client.send("sessions/fork", session=root)).error["data"]["reason"] == "expired"


async def test_a_fork_belongs_to_who_its_parent_belongs_to() -> None:
    """Nobody else can fork a session, nor use a fork: both are not found, with no word of why."""
    app = shop(principal=lambda scope: scope.get("who"))
    alice, bob = Client(app, who="alice"), Client(app, who="bob")
    root = await alice.create()
    fork = await alice.fork(root)
    for refused in (
        await bob.send("sessions/fork", session=root),
        await bob.tool(session=fork),
        await Client(app).tool(session=fork),
    ):
        assert (refused.error["code"], set(refused.error["data"])) == (-32043, {"sessionId"})


async def test_a_fork_is_never_made_of_what_nobody_knows_to_live() -> None:
    client = Client(shop(store=Failing("status"), on_store_error="allow"))
    root = await client.create()
    assert (await client.send("sessions/fork", session=root)).status == 503


async def test_on_create_sees_a_fork_with_all_that_it_begins_with(tracked: bool) -> None:
    """The params, the data and the state; what it writes stays."""
    told: list[Any] = []

    async def on_create(session: Session, params: dict[str, Any], scope: Scope) -> None:
        told.append((params, await session.data.get("tea", 0), dict(session.state)))
        session.state["born"] = len(told)

    client = Client(shop(tracked=tracked, on_create=on_create))
    root = await client.create()
    await client.tool("put", session=root, item="tea")
    answer = await client.send("sessions/fork", {"task": "pay"}, session=root)
    fork = {name: answer.result["session"][name] for name in ("sessionId", "state")}
    assert told == [({}, 0, {}), ({"task": "pay"}, 1, {"born": 1})]
    assert (await client.tool("remember", session=fork)).result["content"] == {"born": 2}


async def test_on_create_may_refuse_a_fork_and_nothing_is_left_behind(tracked: bool) -> None:
    """No record, no copy of the data; the parent is as it was."""

    def on_create(session: Session, params: dict[str, Any], scope: Scope) -> None:
        if "task" in params:
            raise CreateRefused("one cart is enough")

    store = MemoryStore(clock=Clock())
    client = Client(shop(tracked=tracked, on_create=on_create, store=store))
    root = await client.create()
    await client.tool("put", session=root, item="tea")
    refused = await client.send("sessions/fork", {"task": "pay"}, session=root)
    assert refused.error == {"code": -31045, "message": "one cart is enough"}
    assert (len(store._data._values), len(store._entries)) == (1, int(tracked))
    assert await in_cart(client, root) == 1


class Meeting(MemoryStore):
    """Lets something happen while a fork gets its data."""

    meet: Callable[[], Awaitable[object]] | None = None

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        await super().copy(namespace, target)
        if self.meet is not None:
            await self.meet()


@pytest.mark.parametrize("all_of_them", [False, True])
async def test_a_fork_that_meets_the_end_of_its_parent_is_refused(tracked: bool, all_of_them: bool) -> None:
    """By name or with all of its principal's: who holds a stolen session cannot save it by forking it in time."""
    store = Meeting(clock=Clock())
    client = Client(shop(tracked=tracked, store=store, principal=lambda scope: "alice"))
    root = await client.create()
    await client.tool("put", session=root, item="tea")

    async def end() -> None:
        if all_of_them:
            operator = Sessions(store=store, keys=SECRET, clock=Clock())
            await operator.end_all(Principal(subject="alice"))
        else:
            await client.delete(root)

    store.meet = end
    refused = await client.send("sessions/fork", session=root)
    assert (refused.error["code"], refused.error["data"]["reason"]) == (-32043, "ended")
    assert len(store._entries) <= int(all_of_them)
    assert store._data.bytes == 0 or all_of_them

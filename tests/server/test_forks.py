"""Sessions made from others: what they begin with, how long they live, and what ends them."""

from __future__ import annotations

from typing import Any

import pytest
from apps import Server, sessions
from clients import START, Client, Clock
from failing import Failing
from starlette.types import Scope

from mcp_sessions import EndedSession, MCPSessionMiddleware, Session
from mcp_sessions._errors import CreateRefused
from mcp_sessions._session.events import Fact, SessionCreated
from mcp_sessions.stores._memory import MemoryStore


async def put(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Add to the cart."""
    assert session is not None
    return await session.data.increment(arguments["item"])


async def get(session: Session | None, arguments: dict[str, Any]) -> Any:
    """Look into the cart."""
    assert session is not None
    return await session.data.get(arguments["item"], 0)


async def origin(session: Session | None, arguments: dict[str, Any]) -> Any:
    """The session's name, and its parent's."""
    assert session is not None
    return [session.ref, session.parent]


@pytest.fixture(params=[False, True], ids=["untracked", "tracked"])
def tracked(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def shop(**options: Any) -> MCPSessionMiddleware:
    return sessions(Server(put=put, get=get, origin=origin), **options)


async def in_cart(client: Client, session: Any, item: str = "tea") -> int:
    return int((await client.tool("get", session=session, item=item)).result["content"])


# --- what a fork begins with ---------------------------------------------------------------------


async def test_a_fork_that_shares_has_the_same_data(tracked: bool) -> None:
    """In both directions, over generations, until either ends; the owner's end is the end of the data."""
    client = Client(shop(tracked=tracked))
    root = await client.create()
    await client.tool("put", session=root, item="tea")
    child = await client.fork(root, "share")
    grandchild = await client.fork(child, "share")
    await client.tool("put", session=grandchild, item="tea")
    assert [await in_cart(client, one) for one in (root, child, grandchild)] == [2, 2, 2]
    await client.delete(child)
    assert [await in_cart(client, one) for one in (root, grandchild)] == [2, 2]


async def test_a_copy_is_as_the_parent_was(tracked: bool) -> None:
    client = Client(shop(tracked=tracked))
    root = await client.create()
    await client.tool("put", session=root, item="tea")
    copy = await client.fork(await client.fork(root, "share"), "copy")
    await client.tool("put", session=copy, item="tea")
    await client.tool("put", session=root, item="cup")
    assert [await in_cart(client, one) for one in (root, copy)] == [1, 2]
    assert [await in_cart(client, one, "cup") for one in (root, copy)] == [1, 0]
    await client.delete(root)
    assert await in_cart(client, copy) == 2


async def test_a_fresh_fork_begins_empty(tracked: bool) -> None:
    client = Client(shop(tracked=tracked))
    root = {**await client.create()}
    root["state"] = ((await client.tool("remember", session=root, seen=1)).session or {})["state"]
    await client.tool("put", session=root, item="tea")
    fresh = await client.fork(root, "fresh")
    assert "state" not in fresh
    assert await in_cart(client, fresh) == 0
    assert (await client.tool("remember", session=fresh)).result["content"] == {}


@pytest.mark.parametrize("mode", ["share", "copy"])
async def test_the_state_is_copied_wherever_the_data_goes_along(mode: str) -> None:
    """The client holds it, so two sessions cannot share it; it is sealed anew, for the fork alone."""
    client = Client(shop())
    root = {**await client.create()}
    root["state"] = ((await client.tool("remember", session=root, seen=1)).session or {})["state"]
    fork = await client.fork(root, mode)
    assert (await client.tool("remember", session=fork, more=2)).result["content"] == {"seen": 1, "more": 2}
    assert (await client.tool("remember", session=root)).result["content"] == {"seen": 1}
    mixed = await client.tool(session={**fork, "state": root["state"]})
    assert mixed.error["code"] == -32602


# --- on the wire ---------------------------------------------------------------------------------


async def test_the_application_sees_the_lineage(tracked: bool) -> None:
    client = Client(shop(tracked=tracked))
    root = await client.create()
    child = await client.fork(root, "fresh")
    ref, parent = (await client.tool("origin", session=root)).result["content"]
    assert parent is None
    assert (await client.tool("origin", session=child)).result["content"][1] == ref


async def test_a_fork_lives_no_longer_than_its_root(tracked: bool) -> None:
    clock = Clock()
    client = Client(shop(tracked=tracked, clock=clock, lifetime=100, store=MemoryStore(clock=clock)))
    root = await client.create()
    clock.now += 60
    fork = await client.fork(root)
    assert len(fork["sessionId"]) <= 768
    clock.now = START + 99
    assert (await client.tool(session=fork)).session is not None
    clock.now = START + 100
    assert (await client.tool(session=fork)).error["data"]["reason"] == "expired"


async def test_a_fork_belongs_to_who_its_parent_belongs_to() -> None:
    """Nobody else can fork a session, nor use a fork: both are not found, with no word of why."""
    app = shop(principal=lambda scope: scope.get("who"))
    alice, bob = Client(app, who="alice"), Client(app, who="bob")
    root = await alice.create()
    fork = await alice.fork(root)
    for refused in (
        await bob.send("sessions/fork", {"mode": "share"}, session=root),
        await bob.tool(session=fork),
        await Client(app).tool(session=fork),
    ):
        assert (refused.error["code"], set(refused.error["data"])) == (-32043, {"sessionId"})


async def test_a_deleted_parent_has_no_forks(tracked: bool) -> None:
    client = Client(shop(tracked=tracked))
    root = await client.create()
    fork = await client.fork(root, "fresh")
    await client.delete(root)
    refused = await client.send("sessions/fork", {"mode": "fresh"}, session=root)
    assert (refused.error["code"], refused.error["data"]["reason"]) == (-32043, "ended")
    assert (await client.tool(session=fork)).session is not None


async def test_a_fork_is_never_made_of_what_nobody_knows_to_live() -> None:
    """Not even where requests are let in while the store is away."""
    client = Client(shop(store=Failing("status"), on_store_error="allow"))
    root = await client.create()
    assert (await client.send("sessions/fork", {"mode": "share"}, session=root)).status == 503


# --- the application's hooks ---------------------------------------------------------------------


async def test_on_create_sees_a_fork_with_all_that_it_begins_with(tracked: bool) -> None:
    """Its parent, the params, the data and the state; what it writes stays."""
    told: list[Any] = []

    async def on_create(session: Session, params: dict[str, Any], scope: Scope) -> None:
        told.append((session.parent is not None, params, await session.data.get("tea", 0), dict(session.state)))
        session.state["born"] = len(told)

    facts: list[Fact] = []
    client = Client(shop(tracked=tracked, on_create=on_create, listen=facts.append))
    root = await client.create()
    await client.tool("put", session=root, item="tea")
    answer = await client.send("sessions/fork", {"mode": "copy", "task": "pay"}, session=root)
    fork = {name: answer.result["session"][name] for name in ("sessionId", "state")}
    assert told == [(False, {}, 0, {}), (True, {"mode": "copy", "task": "pay"}, 1, {"born": 1})]
    assert (await client.tool("remember", session=fork)).result["content"] == {"born": 2}
    one, other = (fact for fact in facts if isinstance(fact, SessionCreated))
    assert (one.parent, other.parent) == (None, one.ref)


async def test_on_create_may_refuse_a_fork_and_nothing_is_left_behind(tracked: bool) -> None:
    """No record, no copy of the data; the parent is as it was."""

    def on_create(session: Session, params: dict[str, Any], scope: Scope) -> None:
        if session.parent is not None:
            raise CreateRefused("one cart is enough")

    store = MemoryStore(clock=Clock())
    client = Client(shop(tracked=tracked, on_create=on_create, store=store))
    root = await client.create()
    await client.tool("put", session=root, item="tea")
    refused = await client.send("sessions/fork", {"mode": "copy"}, session=root)
    assert refused.error == {"code": -31045, "message": "one cart is enough"}
    assert (len(store._data._values), len(store._records)) == (1, int(tracked))
    assert await in_cart(client, root) == 1


# --- the end of a lineage ------------------------------------------------------------------------


async def test_a_root_can_end_all_that_was_forked_from_it(tracked: bool) -> None:
    """On every worker, once it is answered, at any depth; other sessions live on."""
    store = MemoryStore(clock=Clock())
    one, other = (Client(shop(tracked=tracked, store=store)) for _ in range(2))
    root, stranger = await one.create(), await one.create()
    child = await one.fork(root, "share")
    grandchild = await other.fork(child, "fresh")
    ended = await one.delete(root, descendants=True)
    assert "error" not in ended.json
    for session in (root, child, grandchild):
        refused = await other.tool(session=session)
        assert (refused.error["code"], refused.error["data"]["reason"]) == (-32043, "ended")
        assert (await other.send("sessions/fork", {"mode": "copy"}, session=session)).error["code"] == -32043
    assert (await other.tool(session=stranger)).session is not None


async def test_an_application_can_end_a_lineage_itself(tracked: bool) -> None:
    """From within a call of the root; its forks are refused from then on."""

    async def leave(session: Session | None, arguments: dict[str, Any]) -> Any:
        assert session is not None
        await session.end("logout", descendants=True)
        return "bye"

    client = Client(sessions(Server(leave=leave), tracked=tracked))
    root = await client.create()
    fork = await client.fork(root)
    assert (await client.tool("leave", session=root)).result["content"] == "bye"
    for session in (root, fork):
        assert (await client.tool(session=session)).error["data"]["reason"] == "ended"


@pytest.mark.parametrize("flag", [None, 0, 1, "true", [], {}])
async def test_whether_descendants_end_is_said_by_true_or_false(flag: object) -> None:
    """Nothing else is guessed at, and nothing has ended."""
    client = Client(shop())
    root = await client.create()
    assert (await client.delete(root, descendants=flag)).error["code"] == -32602
    assert (await client.tool(session=root)).session is not None
    assert "error" not in (await client.delete(root, descendants=False)).json


async def test_the_hooks_of_ended_forks_are_run() -> None:
    """By whichever worker looks next, with why; a fork that shared had nothing of its own."""
    told: list[tuple[str, str]] = []

    def on_end(session: EndedSession, reason: str) -> None:
        told.append((session.ref, reason))

    app = shop(tracked=True, on_end=on_end)
    client = Client(app)
    root = await client.create()
    forks = [await client.fork(root, mode) for mode in ("share", "fresh")]
    refs = [(await client.tool(session=session)).result["content"] for session in (root, *forks)]
    await client.delete(root, descendants=True)
    sweeper = app._options.sweeper
    assert sweeper is not None
    await sweeper.sweep()
    assert sorted(told) == sorted([(refs[0], "deleted"), (refs[1], "root_ended"), (refs[2], "root_ended")])
    await sweeper.stop()


class Meeting(MemoryStore):
    """Ends a lineage in the very moment at which a fork has been recorded."""

    forking = False

    async def register(self, record: Any, **limits: Any) -> None:
        await super().register(record, **limits)
        if self.forking:
            self.forking = False
            await self.meet()

    async def meet(self) -> None:
        """Set by who makes it."""


@pytest.mark.parametrize("descendants", [False, True])
async def test_a_fork_that_meets_the_end_of_its_parent_is_refused(descendants: bool) -> None:
    """Where sessions are tracked it would else be on no list that ends it; its record goes, too."""
    store = Meeting(clock=Clock())
    client = Client(shop(tracked=True, store=store))
    root = await client.create()

    async def meet() -> None:
        await client.delete(root, descendants=descendants)

    store.meet = meet  # type: ignore[method-assign]  # a closure knows the session
    store.forking = True
    refused = await client.send("sessions/fork", {"mode": "fresh"}, session=root)
    assert (refused.error["code"], refused.error["data"]["reason"]) == (-32043, "ended")
    assert store._records == {}


async def test_a_store_that_did_not_take_it_is_said_to_have_failed() -> None:
    """And the root still lives, so that its owner can try again."""
    client = Client(shop(store=Failing("revoke")))
    root = await client.create()
    assert (await client.delete(root, descendants=True)).status == 503
    assert (await client.tool(session=root)).session is not None

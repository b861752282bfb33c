"""`sessions/fork` and `sessions/list`: what a fork begins with and what refuses it, and who is shown which sessions."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from apps import Server, sessions
from clients import SECRET, SESSION_KEY, START, Client, Clock, credentials
from starlette.types import Scope

from mcp_sessions import CreateRefused, Principal, Session, Sessions
from mcp_sessions._dialects import draft
from mcp_sessions._session.claims import AUDIENCE
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores import MemoryStore


async def put(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    return await session.data.increment(arguments["item"])


async def get(session: Session | None, arguments: dict[str, Any]) -> Any:
    assert session is not None
    return await session.data.get(arguments["item"], 0)


def shop(**options: Any) -> Client:
    return Client(sessions(Server(put=put, get=get), **options))


async def in_cart(client: Client, session: Any, item: str = "tea") -> int:
    return int((await client.tool("get", session=session, item=item)).result["content"])


@pytest.mark.parametrize("tracked", [False, True], ids=["untracked", "tracked"])
class TestAFork:
    async def test_begins_with_a_copy_of_the_data(self, tracked: bool) -> None:
        """From then on each has its own, over generations, and outlives the other."""
        client = shop(tracked=tracked)
        root = await client.create()
        await client.tool("put", session=root, item="tea")
        copy = await client.fork(await client.fork(root))
        await client.tool("put", session=copy, item="tea")
        await client.tool("put", session=root, item="cup")
        assert [await in_cart(client, one) for one in (root, copy)] == [1, 2]
        assert [await in_cart(client, one, "cup") for one in (root, copy)] == [1, 0]
        await client.delete(root)
        assert await in_cart(client, copy) == 2

    async def test_expires_no_later_than_its_parent(self, tracked: bool) -> None:
        """And a parent that has expired is not forked."""
        clock = Clock()
        client = shop(tracked=tracked, clock=clock, lifetime=100, store=MemoryStore(clock=clock))
        root = await client.create()
        clock.now += 60
        fork = await client.fork(root)
        assert len(fork["sessionId"]) <= 768
        clock.now = START + 99
        assert (await client.tool(session=fork)).session is not None
        clock.now = START + 100
        for refused in (await client.tool(session=fork), await client.send("sessions/fork", session=root)):
            assert refused.error["data"]["reason"] == "expired"

    async def test_is_seen_by_on_create_with_all_that_it_begins_with(self, tracked: bool) -> None:
        """The params, the data, the state and the request that asks; what it writes stays."""
        told: list[Any] = []

        async def on_create(unused: None, session: Session, params: dict[str, Any], scope: Scope) -> None:
            assert (session.principal, scope["path"]) == (Principal(subject="alice"), "/mcp")
            told.append((params, await session.data.get("tea", 0), dict(session.state)))
            session.state["born"] = len(told)

        client = shop(tracked=tracked, on_create=partial(on_create, None), principal=lambda scope: "alice")
        root = await client.create()
        await client.tool("put", session=root, item="tea")
        fork = credentials((await client.send("sessions/fork", {"task": "pay"}, session=root)).result["session"])
        assert told == [({}, 0, {}), ({"task": "pay"}, 1, {"born": 1})]
        assert (await client.tool("remember", session=fork)).result["content"] == {"born": 2}

    @pytest.mark.parametrize("all_of_them", [False, True])
    async def test_that_meets_the_end_of_its_parent_is_refused(self, tracked: bool, all_of_them: bool) -> None:
        """By name or with all of its principal's: a thief cannot save a stolen session by forking it in time."""
        store = Meeting(clock=Clock())
        client = shop(tracked=tracked, store=store, principal=lambda scope: "alice")
        root = await client.create()
        await client.tool("put", session=root, item="tea")

        async def end() -> None:
            if all_of_them:
                await Sessions(store=store, keys=SECRET, clock=Clock()).end_all(Principal(subject="alice"))
            else:
                await client.delete(root)

        store.meet = end
        refused = await client.send("sessions/fork", session=root)
        assert (refused.error["code"], refused.error["data"]["reason"]) == (-32043, "ended")
        assert len(store._audiences[AUDIENCE].records) <= int(all_of_them)
        assert store._audiences[AUDIENCE].data.bytes == 0 or all_of_them

    async def test_that_on_create_refuses_leaves_nothing_behind(self, tracked: bool) -> None:
        """No record, no copy of the data; the parent is as it was."""

        def on_create(session: Session, params: dict[str, Any], scope: Scope) -> None:
            if "task" in params:
                raise CreateRefused("one cart is enough")

        store = MemoryStore(clock=Clock())
        client = shop(tracked=tracked, on_create=on_create, store=store)
        root = await client.create()
        await client.tool("put", session=root, item="tea")
        refused = await client.send("sessions/fork", {"task": "pay"}, session=root)
        assert refused.error == {"code": -31045, "message": "one cart is enough"}
        assert (len(store._audiences[AUDIENCE].data._owners), len(store._audiences[AUDIENCE].records)) == (
            1,
            int(tracked),
        )
        assert await in_cart(client, root) == 1


class Meeting(MemoryStore):
    """Lets something happen while a fork gets its data."""

    meet: Callable[[], Awaitable[object]] | None = None

    async def copy(self, namespace: Namespace, target: Namespace) -> None:
        await super().copy(namespace, target)
        if self.meet is not None:
            await self.meet()


@pytest.fixture
def worker(clock: Clock) -> Callable[..., Client]:
    """Return what makes somebody's client, on a worker of its own."""
    deployment: dict[str, Any] = {"tracked": True, "lifetime": 3600, "clock": clock, "store": MemoryStore(clock=clock)}

    def client(who: str = "alice", *, modern: bool = True, **options: Any) -> Client:
        app = sessions(Server(), principal=lambda scope: scope["who"], **deployment, **options)
        return Client(app, modern=modern, who=who)

    return client


async def refs(client: Client) -> list[str]:
    """Return what is shown on all pages."""
    shown: list[str] = []
    params: dict[str, str] | None = {}
    while params is not None:
        page = (await client.send("sessions/list", params)).result
        shown += [session["ref"] for session in page["sessions"]]
        params = {"cursor": page["nextCursor"]} if "nextCursor" in page else None
    return shown


async def created(client: Client) -> str:
    return str((await client.tool(session=await client.create())).result["content"])


class TestAList:
    @pytest.mark.parametrize("modern", [False, True])
    async def test_shows_sessions_by_public_names_and_times(self, modern: bool, worker: Any, clock: Clock) -> None:
        """Oldest first; when it was made, last seen and will end; never an id."""
        alice = worker(modern=modern)
        one = await alice.create()
        clock.now += 90
        other = await created(alice)
        ref = (await alice.tool(session=one)).result["content"]
        answer = await alice.send("sessions/list")
        assert answer.result.get("resultType") == ("complete" if modern else None)
        first, second = answer.result["sessions"]
        assert first == {
            "ref": ref,
            "createdAt": "2027-01-15T08:00:00Z",
            "lastSeenAt": "2027-01-15T08:01:30Z",
            "expiresAt": "2027-01-15T09:00:00Z",
        }
        assert second["ref"] == other
        assert b"sessionId" not in answer.body
        assert one["sessionId"].encode() not in answer.body

    async def test_marks_and_echoes_the_session_that_asks(self, worker: Any) -> None:
        alice = worker()
        own, other = await alice.create(), await created(alice)
        result = (await alice.send("sessions/list", session=own)).result
        ref = (await alice.tool(session=own)).result["content"]
        assert {shown["ref"]: shown.get("current") for shown in result["sessions"]} == {ref: True, other: None}
        assert result["_meta"][SESSION_KEY]["sessionId"] == own["sessionId"]

    async def test_comes_in_pages(self, worker: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each begins where the last one ended, also where that session has gone; a cursor shows nobody else's."""
        monkeypatch.setattr(draft, "PAGE", 2)
        alice = worker()
        made, names = list[Any](), list[str]()
        for _ in range(5):
            made.append(await alice.create())
            names.append((await alice.tool(session=made[-1])).result["content"])
            clock.now += 1
        assert await refs(alice) == names
        cursor = {"cursor": (await alice.send("sessions/list")).result["nextCursor"]}
        await alice.delete(made[1])
        rest = (await alice.send("sessions/list", cursor)).result
        assert [session["ref"] for session in rest["sessions"]] == names[2:4]
        assert (await worker("bob").send("sessions/list", cursor)).result["sessions"] == []

    @pytest.mark.parametrize("cursor", [7, "", "next", "MQ", "MSBz=", "LTEgc2Vz", "MSBz\u00e9", "_w"])
    async def test_has_no_page_at_a_cursor_that_was_not_given_out(self, cursor: object, worker: Any) -> None:
        alice = worker()
        assert (await alice.send("sessions/list", {"cursor": cursor})).error["code"] == -32602
        assert "sessions" in (await alice.send("sessions/list", {"cursor": "MSBz"})).result

"""Sessions that the store remembers: per user, whatever its clients do with headers and cookies."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from apps import Server, reply, sessions
from clients import INITIALIZE, Client, Clock, Header, by, call, http, user_of
from starlette.types import Scope, Send
from stateful import Stateful

from mcp_sessions import ConfigurationError, CreateRefused, MCPSessionMiddleware, Session, TransportSessions
from mcp_sessions._dialects.remembered import ENTRY_KEY
from mcp_sessions._server.options import HOUR
from mcp_sessions._session.data import Namespace
from mcp_sessions.stores import MemoryStore

HEADER = b"mcp-session-id"


def workers(server: Any = None, **options: Any) -> list[MCPSessionMiddleware]:
    """Two workers that share a store, in front of one server."""
    clock = options.setdefault("clock", Clock())
    given = {"principal": user_of, "store": MemoryStore(clock=clock), "transport.per_user": True, **options}
    return [sessions(server or Server(), **given) for _ in range(2)]


async def refs(app: Any, *headers: Header, modern: bool = False, **more: Any) -> Any:
    return (await Client(app, modern=modern).tool("whoami", *headers, **more)).result["content"]


async def reconnecting(app: Any, who: str) -> list[Any]:
    """Connect as a legacy client, and call a tool with the header that the server names, if it names one."""
    client = Client(app, modern=False)
    answer = await client.send("initialize", INITIALIZE, by(who))
    named = answer.headers.get(HEADER)
    held = [] if named is None else [(HEADER, named)]
    await client.send("notifications/initialized", None, by(who), *held, id=None)
    return [named, (await client.tool("whoami", by(who), *held)).result["content"]]


async def looking_around(app: Any, who: str) -> list[Any]:
    """Connect as a modern client that keeps cookies."""
    client = Client(app)
    answer = await client.send("server/discover", None, by(who))
    held = [answer.cookie] if b"set-cookie" in answer.headers else []
    return [b"set-cookie" in answer.headers or None, await refs(app, by(who), *held, modern=True)]


@pytest.mark.parametrize("connect", [reconnecting, looking_around])
async def test_user_who_connects_for_each_call_is_in_one_session(
    connect: Callable[..., Awaitable[list[Any]]],
) -> None:
    """On every worker; no header and no cookie is made that would not count."""
    here, there = workers(tracked=True)
    seen = [await connect(app, who) for app in (here, there, here) for who in ("ann", "bob")]
    assert seen == [seen[0], seen[1]] * 3
    assert seen[0][1] != seen[1][1]
    assert {named for named, _ in seen} == {None}


async def test_header_of_the_wrapped_server_does_not_part_a_user_from_its_session() -> None:
    """A server that keeps transport sessions names another one with each connection."""
    server = Stateful()
    for app in (*workers(server), *workers(server, bridge=True)[:1]):
        for _ in range(2):
            client = Client(app, modern=False)
            start = (await client.send("initialize", INITIALIZE, by("ann"))).start
            (named,) = [value for name, value in start["headers"] if name.lower() == HEADER]
            assert (await client.tool("any", by("ann"), (HEADER, named))).result["content"] == 1
    found = [seen.scope["mcp_session"] for seen in server.seen if b"tools/call" in seen.body]
    assert [session.kind for session in found] == ["user"] * 6
    assert len({session.ref for session in found[:4]}) == len({session.ref for session in found[4:]}) == 1


async def test_bridged_header_leads_to_the_servers_own_session() -> None:
    """While the user's session is the one that handlers see; it ends calls, too."""
    server = Stateful()
    here, there = workers(server, bridge=True)
    ids = [
        (await Client(here, modern=False).send("initialize", INITIALIZE, by("ann"))).headers[HEADER] for _ in range(2)
    ]
    counts = [
        (await Client(app, modern=False).tool("any", by("ann"), (HEADER, ids[place]))).result["content"]
        for app, place in ((here, 0), (there, 0), (there, 1), (here, 0))
    ]
    assert counts == [1, 2, 1, 3]
    assert (await call(there, http("DELETE", headers=[(HEADER, ids[0]), by("ann")]))).status == 200
    assert (await Client(here, modern=False).tool("any", by("ann"), (HEADER, ids[0]))).status == 404
    assert (await Client(here, modern=False).tool("any", by("bob"), (HEADER, ids[1]))).status == 404


async def test_anonymous_caller_has_a_header_or_a_cookie() -> None:
    here, there = workers()
    named = (await Client(here, modern=False).send("initialize", INITIALIZE)).headers[HEADER]
    cookie = (await Client(here).send("server/discover")).cookie
    assert len({await refs(app, (HEADER, named)) for app in (here, there)} - {"nobody"}) == 1
    assert len({await refs(app, cookie, modern=True) for app in (here, there)} - {"nobody"}) == 1
    assert await refs(here) == "nobody"


async def test_session_in_the_message_goes_before_that_of_the_user() -> None:
    here, there = workers()
    held = await Client(here).create(by("ann"))
    own = await refs(here, by("ann"))
    assert own != await refs(there, by("ann"), session=held) == await refs(here, by("ann"), session=held)


async def test_fallback_leaves_clients_the_session_that_they_hold() -> None:
    """A header or a cookie; whoever holds none is in the session of its user."""
    here, there = workers(**{"transport.per_user": "fallback"})
    named, first = await reconnecting(here, "ann")
    own = await refs(there, by("ann"))
    cookie = (await Client(here).send("server/discover", None, by("ann"))).cookie
    by_cookie = await refs(there, by("ann"), cookie, modern=True)
    assert len({first, own, by_cookie, "nobody"}) == 4
    assert await refs(there, by("ann"), (HEADER, named)) == first
    assert (await reconnecting(there, "ann"))[1] not in {first, own}


async def test_end_of_a_session_leaves_nothing_under_its_key() -> None:
    """Its entry would stay in the store for as long as its lifetime."""
    clock = Clock()
    here, there = workers(clock=clock, store=Swapping(clock=clock))
    first = await refs(here, by("ann"))
    store = here._runtime.store
    assert isinstance(store, Swapping)
    (place,) = {place for place, key in store.swapped if key == ENTRY_KEY}
    assert await store.read(place, ENTRY_KEY) is not None
    await Client(there).tool("leave", by("ann"))
    assert await store.read(place, ENTRY_KEY) is None
    second = await refs(here, by("ann"))
    assert second not in {first, "nobody"}
    assert await refs(there, by("ann")) == second


async def test_refused_session_is_created_for_the_next_admitted_call() -> None:
    """Neither for a caller that the server keeps out, nor ended when another takes its place: it never was."""
    refuses, asked, ended = ["no"], list[str](), list[str]()

    def on_create(session: Session, *_: Any) -> None:
        asked.append(session.ref)
        if refuses:
            raise CreateRefused(refuses[0])

    async def guard(scope: Scope, send: Send) -> bool:
        is_kept_out = (b"x-late", b"1") in scope["headers"]
        if is_kept_out:
            await reply(send, b"no", status=401)
        return is_kept_out

    clock = Clock()
    hooks = {"on_create": on_create, "on_end": lambda session, reason: ended.append(reason)}
    here, there = workers(Server(guard=guard), clock=clock, **hooks)
    assert (await Client(here).tool("whoami", by("ann"))).error["code"] == -31045
    assert (await Client(there).tool("whoami", by("ann"), (b"x-late", b"1"))).status == 401
    assert len(asked) == 1
    clock.now += 30 * HOUR
    refuses.clear()
    assert await refs(there, by("ann")) == await refs(here, by("ann")) == asked[1] != asked[0]
    assert (len(asked), ended) == (2, [])


class Swapping(MemoryStore):
    """A store that notes what was exchanged in it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.swapped: list[tuple[Namespace, str]] = []

    async def compare_and_swap(self, namespace: Namespace, key: str, old: bytes | None, new: bytes | None) -> bool:
        self.swapped.append((namespace, key))
        return await super().compare_and_swap(namespace, key, old, new)


@pytest.mark.parametrize("wrong", ["last", 1, None])
def test_option_names_one_of_three_ways(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"per_user=.* must be True, False or 'fallback'"):
        TransportSessions(per_user=wrong)

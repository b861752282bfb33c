"""Sessions per conversation, as hosts name it: the id selects among the caller's own sessions alone."""

from typing import Any

import anyio
import pytest
from apps import Server, sessions
from clients import INITIALIZE, Client, Clock, by, user_of
from every_store import STORES
from failing import Failing

from mcp_sessions import ConfigurationError, MCPSessionMiddleware, Principal, Session, TransportSessions
from mcp_sessions._dialects import per_conversation
from mcp_sessions._dialects.per_conversation import MAX_CONVERSATIONS
from mcp_sessions._server.options import DAY, HOUR
from mcp_sessions.stores import MemoryStore

CHATGPT, VSCODE, CODEX = "openai/session", "vscode.conversationId", "threadId"


def workers(**options: Any) -> list[MCPSessionMiddleware]:
    """Two workers that share a store."""
    clock = options.setdefault("clock", Clock())
    given = {"principal": user_of, "store": MemoryStore(clock=clock), "transport.per_conversation": True, **options}
    return [sessions(Server(), **given) for _ in range(2)]


async def ref(app: Any, who: str, tool: str = "whoami", *, modern: bool = False, **meta: Any) -> Any:
    """Return the session of a call whose `_meta` has these members; "" is nobody."""
    params = {"name": tool, "arguments": {}, "_meta": {name.replace("__", "/"): value for name, value in meta.items()}}
    return await outcome(app, who, params, modern=modern)


async def outcome(app: Any, who: str, params: dict[str, Any], *headers: Any, modern: bool = False) -> Any:
    answer = await Client(app, modern=modern).send("tools/call", params, *([by(who)] if who else []), *headers)
    return answer.json.get("result", {}).get("content", answer.json.get("error", {}).get("code"))


@pytest.mark.parametrize("key", [CHATGPT, VSCODE, CODEX, "agent-session-id"])
@pytest.mark.parametrize("modern", [True, False])
async def test_conversation_of_a_host_has_one_session_on_every_worker(key: str, modern: bool) -> None:
    here, there = workers()
    found = [await ref(app, "ann", modern=modern, **{key: chat}) for app in (here, there) for chat in ("one", "two")]
    assert found[:2] == found[2:]
    assert len({*found, "nobody"}) == 3
    assert await ref(there, "ann", "leave", modern=modern, **{key: "one"}) is None
    again = [await ref(app, "ann", modern=modern, **{key: "one"}) for app in (here, there)]
    assert again[0] == again[1] != found[0]


async def test_two_users_who_send_one_id_never_meet() -> None:
    """Nor does one in two deployments, in two hosts, or in parts that would join to the same text."""
    clock = Clock()
    store = MemoryStore(clock=clock)
    here, there = workers(clock=clock, store=store)
    other = workers(clock=clock, store=store, audience="other")[0]
    found = [
        await ref(here, "ann", threadId="one"),
        await ref(there, "bob", threadId="one"),
        await ref(other, "ann", threadId="one"),
        await ref(here, "ann", openai__session="one"),
        await ref(here, "ann", contextId="threadId one"),
    ]
    assert len({*found, "nobody"}) == 6
    assert await ref(here, "", threadId="one") == "nobody"
    assert await ref(there, "ann", threadId="one") == found[0]


async def test_only_a_user_has_conversations() -> None:
    """The users of an OAuth client share its principal, and would share conversations of one name."""
    (here, _) = workers(principal=lambda scope: Principal("app"))
    assert await ref(here, "", threadId="one", openai__session="one") == "nobody"


async def test_parallel_first_calls_make_one_session() -> None:
    """As an agent's do that calls several tools at once, on two workers: `on_create` runs once for all of them."""
    begun, refs = list[str](), list[Any]()

    async def on_create(session: Session, *_: Any) -> None:
        begun.append(session.ref)
        for _turn in range(3):
            await anyio.lowlevel.checkpoint()
        session.state["n"] = 10

    here, there = workers(on_create=on_create, tracked=True)

    async def one(app: Any) -> None:
        refs.append(await ref(app, "ann", openai__session="chat"))

    async with anyio.create_task_group() as tasks:
        for app in (here, there) * 4:
            tasks.start_soon(one, app)
    assert (len(begun), refs) == (1, [begun[0]] * 8)
    assert await ref(there, "ann", "count", openai__session="chat") == 11


async def test_conversation_goes_before_user_and_header() -> None:
    """And `_meta` before all; without an id, the user's session is found."""
    here, there = workers(**{"transport.per_user": True})
    client = Client(there, modern=False)
    held = await client.create(by("ann"))
    chat, own = await ref(here, "ann", threadId="one"), await ref(here, "ann")
    assert len({chat, own, "nobody"}) == 3
    params: dict[str, Any] = {"name": "whoami", "arguments": {}, "_meta": {"threadId": "one"}}
    by_meta = (await client.send("tools/call", params, by("ann"), session=held)).result["content"]
    assert by_meta not in {chat, own, "nobody"}
    here, there = workers()  # without sessions per user
    named = (await Client(here, modern=False).send("initialize", INITIALIZE, by("ann"))).headers[b"mcp-session-id"]
    header = (b"mcp-session-id", named)
    alone = await outcome(there, "ann", {"name": "whoami"}, header)
    beside = await outcome(there, "ann", params, header)
    assert len({alone, beside, "nobody"}) == 3
    assert await ref(here, "ann", threadId="one") == beside


async def test_page_of_another_site_selects_no_conversation() -> None:
    """A browser that authenticates by itself does so for every page, and a page may guess ids."""
    (here, _) = workers()
    own = await ref(here, "ann", threadId="1")
    params = {"name": "whoami", "arguments": {}, "_meta": {"threadId": "1"}}
    assert await outcome(here, "ann", params, (b"origin", b"https://evil.example"), (b"host", b"localhost")) == "nobody"
    assert await outcome(here, "ann", params) == own


async def test_sources_that_are_no_hosts_count_only_if_named() -> None:
    """Baggage may name a browser's session, and proxies add headers."""
    meta = {"baggage": "session.id=browser,gen_ai.conversation.id=chat"}
    params = {"name": "whoami", "arguments": {}, "_meta": meta}
    header = (b"x-openai-session", b"chat")
    assert await outcome(workers()[0], "ann", params, header) == "nobody"
    sources = ["header:x-openai-session", "baggage:session.id"]
    here, there = workers(**{"transport.per_conversation": sources})
    by_header, by_baggage = await outcome(here, "ann", params, header), await outcome(there, "ann", params)
    assert len({by_header, by_baggage, "nobody"}) == 3
    assert await outcome(there, "ann", {"name": "whoami"}, header) == by_header


@pytest.mark.parametrize("wrong", ["", " ", "\n", 7, None, ["one"], {"id": "one"}, "x" * 257, "a\u202eb"])
async def test_unfit_id_names_no_conversation(wrong: Any) -> None:
    """A cut id could become another one; the next source counts in its place."""
    (here, _) = workers()
    assert await ref(here, "ann", openai__session=wrong) == "nobody"
    assert await ref(here, "ann", openai__session=wrong, threadId="one") == await ref(here, "ann", threadId="one")


# --- limits ----------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    assert MAX_CONVERSATIONS == 100
    monkeypatch.setattr(per_conversation, "MAX_CONVERSATIONS", 5)
    return 5


@pytest.mark.parametrize("tracked", [False, True])
async def test_flood_of_conversation_ids_is_refused(few: int, tracked: bool) -> None:
    """A user's conversations are bounded, on all workers together; other users are not affected."""
    here, there = workers(tracked=tracked)
    assert "nobody" not in [await ref((here, there)[n % 2], "ann", threadId=str(n)) for n in range(few)]
    assert [await ref(here, "ann", threadId=f"flood-{n}") for n in range(20)] == [-31047] * 20
    assert str(await ref(there, "ann", threadId="0")).startswith("ses_")
    assert str(await ref(there, "bob", threadId="flood-0")).startswith("ses_")


@pytest.mark.parametrize("tracked", [False, True])
async def test_conversation_that_is_idle_for_an_hour_makes_room(few: int, tracked: bool) -> None:
    """The one that was used least recently, whose session ends; those in use stay."""
    clock, ended = Clock(), list[Any]()
    hooks = {"on_end": lambda session, reason: ended.append((session.ref, reason)), "tracked": tracked}
    here, there = workers(clock=clock, **hooks)
    first = []
    for n in range(few):
        first.append(await ref(here, "ann", threadId=str(n)))
        clock.now += 60
    clock.now += HOUR / 2
    assert await ref(there, "ann", threadId="0") == first[0]
    clock.now += HOUR - 400
    assert await ref(there, "ann", threadId="5") not in {*first, "nobody", -31047}
    assert ended == [(first[1], "idle")]
    again = [await ref(there, "ann", threadId=str(n)) for n in (0, 3, 4)]
    assert again == [first[0], *first[3:]]
    assert await ref(here, "ann", threadId="1") not in {*first, "nobody", -31047}
    assert ended == [(first[1], "idle"), (first[2], "idle")]
    assert await ref(here, "ann", threadId="6") == -31047


class Reading(MemoryStore):
    """A store that counts what is read from it."""

    reads = 0

    async def read(self, *args: Any) -> bytes | None:
        self.reads += 1
        return await super().read(*args)


async def test_flood_does_not_read_all_conversations_again(few: int) -> None:
    """When each was last used is looked up once, and noted."""
    clock = Clock()
    store = Reading(clock=clock)
    here, _ = workers(clock=clock, store=store)
    for minutes in (0, 50, 50):
        clock.now += 60 * minutes
        assert -31047 not in [await ref(here, "ann", threadId=str(n)) for n in range(few)]
    reads = []
    for n in range(3):
        before = store.reads
        assert await ref(here, "ann", threadId=f"flood-{n}") == -31047
        reads.append(store.reads - before)
    assert reads[0] > few > reads[1] == reads[2]


async def test_conversation_that_has_ended_makes_room_at_once(few: int) -> None:
    here, there = workers()
    for n in range(few):
        await ref(here, "ann", threadId=str(n))
    assert await ref(here, "ann", threadId="more") == -31047
    await ref(there, "ann", "leave", threadId="3")
    assert str(await ref(here, "ann", threadId="more")).startswith("ses_")
    assert await ref(there, "ann", threadId="3") == -31047


async def test_idle_conversation_begins_anew_after_a_day() -> None:
    clock = Clock()
    here, there = workers(clock=clock)
    first = await ref(here, "ann", threadId="1")
    clock.now += DAY - 60
    assert await ref(there, "ann", threadId="1") == first
    clock.now += DAY + 60
    assert await ref(here, "ann", threadId="1") not in {first, "nobody"}


async def test_list_that_never_changes_refuses_as_an_unavailable_store() -> None:
    store = Failing(clock=Clock())

    async def never(*_: object) -> bool:
        return False

    store.compare_and_swap = never  # type: ignore[assignment]
    (here, _) = workers(store=store)
    answer = await Client(here, modern=False).send("tools/call", {"name": "x", "_meta": {"threadId": "1"}}, by("ann"))
    assert (answer.status, answer.error["code"]) == (503, -32603)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the driver of Redis knows nothing else
@pytest.mark.parametrize("kind", STORES)
async def test_every_store_remembers_conversations(kind: str, few: int, tmp_path: Any) -> None:
    clock = Clock()
    store = STORES[kind](clock, tmp_path)
    here, there = workers(clock=clock, store=store, store_timeout=10)
    found = [await ref((here, there)[n % 2], "ann", threadId=str(n)) for n in range(few)]
    assert [await ref(there, "ann", threadId=str(n)) for n in range(few)] == found
    assert await ref(there, "ann", threadId="more") == -31047
    await ref(there, "ann", "leave", threadId="0")
    assert str(await ref(here, "ann", threadId="more")).startswith("ses_")
    await store.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (7, "per_conversation=7 must be True, False or a list"),
        (["openai/session"], "is not a source"),
        (["header:authorization"], "is a credential"),
        (["meta:io.modelcontextprotocol/session"], "is a credential"),
    ],
)
def test_option_names_sources(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TransportSessions(per_conversation=wrong)

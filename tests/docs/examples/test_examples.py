"""The examples do what their first lines say: servers, for a client of either era, and programs that print."""

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from clients import SECRET, SESSION_KEY, Clock, RealClient, lifespan
from pages import EXAMPLES, example
from starlette.types import ASGIApp, Receive, Scope, Send

import client_sdk
import client_two_conversations
import subagents
from integration.serving import serving


@dataclass(eq=False)
class Failed:  # noqa: PLW1641  # it is only compared
    """A call that failed, with the text of the tool's error or of the protocol's; it equals one with a part of it."""

    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failed) and (self.text in other.text or other.text in self.text)


Step = tuple[str, str, dict[str, Any], Any]  # session, tool, arguments, and the value or a part of its `Failed.text`

REQUIRED = Failed("-31044 Session required")
PATHS = {"fastapi_app": "/api/mcp", "starlette_app": "/tools/mcp"}
STORIES: dict[str, list[Step]] = {
    "counter: each session counts for itself": [
        *(("a", "count", {}, 1), ("a", "count", {}, 2), ("b", "count", {}, 1), ("a", "count", {}, 3)),
        ("none", "count", {}, REQUIRED),
    ],
    "notebook: a notebook has its own notes in order, up to the limit": [
        *(("a", "append", {"note": "one"}, ["one"]), ("b", "append", {"note": "other"}, ["other"])),
        *(("a", "append", {"note": "two"}, ["one", "two"]), ("b", "read", {}, ["other"])),
        ("a", "append", {"note": "long" * 2000}, Failed("the limit is 4096")),
        *(("a", "read", {}, ["one", "two"]), ("none", "append", {"note": "x"}, REQUIRED)),
    ],
    "sandbox: files belong to a session": [
        ("a", "write", {"name": "notes.txt", "text": "mine"}, ["notes.txt"]),
        ("b", "read", {"name": "notes.txt"}, Failed("there is no notes.txt in this session")),
        ("b", "write", {"name": "notes.txt", "text": "other"}, ["notes.txt"]),
        *(("a", "read", {"name": "notes.txt"}, "mine"), ("b", "read", {"name": "notes.txt"}, "other")),
    ],
    "sandbox: a name cannot leave the folder": [
        ("a", "write", {"name": name, "text": "out"}, Failed("is not a plain file name"))
        for name in ("../out", "/etc/passwd", "..", "a/b", "")
    ],
    "transaction: others see values once they are committed": [
        ("a", "write", {"name": "size", "value": "9"}, Failed("call begin first")),
        ("a", "begin", {}, "open"),
        ("a", "write", {"name": "color", "value": "red"}, {"color": "red"}),
        ("a", "write", {"name": "size", "value": "9"}, {"color": "red", "size": "9"}),
        *(("a", "read", {"name": "size"}, "9"), ("b", "read", {"name": "size"}, None), ("a", "commit", {}, 2)),
        *(("a", "read", {"name": "size"}, "9"), ("b", "read", {"name": "color"}, "red")),
    ],
    "transaction: the end of a session rolls back": [
        *(("a", "begin", {}, "open"), ("a", "write", {"name": "color", "value": "red"}, {"color": "red"})),
        *(("a", "delete", {}, None), ("b", "read", {"name": "color"}, None)),
    ],
    "fastapi_app: a basket for each session": [
        *(("a", "add", {"item": "pen"}, ["pen"]), ("b", "add", {"item": "book"}, ["book"])),
        *(("a", "add", {"item": "book"}, ["pen", "book"]), ("a", "total", {}, 15), ("b", "total", {}, 12)),
        ("a", "add", {"item": "ship"}, Failed("there is no ship; there are: pen, book")),
    ],
    "starlette_app: a session remembers who was greeted": [
        *(("a", "greet", {"name": "Ann"}, "Hello, Ann."), ("a", "greet", {"name": "Ann"}, "Hello again, Ann.")),
        ("b", "greet", {"name": "Ann"}, "Hello, Ann."),
    ],
    "fastmcp_app: a session keeps its language and its history": [
        ("a", "choose_language", {"language": "Greek"}, "From now on: Greek."),
        ("none", "say", {"word": "x"}, Failed("Session required")),
        *(("a", "say", {"word": "moon"}, "moon, in Greek"), ("b", "say", {"word": "sun"}, "sun, in English")),
        *(("a", "history", {}, ["moon"]), ("b", "history", {}, ["sun"])),
    ],
    "progressive_tools: a call is guarded until its session unlocks the tool": [
        ("a", "unlock", {"word": "now"}, Failed("that is not the word")),
        ("a", "restart", {}, Failed("locked in this session; call unlock first")),
        *(("a", "unlock", {"word": "please"}, "restart is unlocked"), ("a", "restart", {}, "restarted")),
        ("b", "restart", {}, Failed("locked in this session; call unlock first")),
    ],
}

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")  # FastMCP's


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what examples store in a temporary folder, and close the database of `transaction`."""
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)
    monkeypatch.setenv("SANDBOXES", str(tmp_path))
    monkeypatch.delenv("SETTINGS_DB", raising=False)
    yield
    if "transaction" in sys.modules:
        sys.modules.pop("transaction").database.close()


@asynccontextmanager
async def running(name: str) -> AsyncIterator[ASGIApp]:
    """Run a new app of an example within the block."""
    app, state = example(name), dict[str, Any]()

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = state if scope["type"] == "lifespan" else dict(state)  # as servers do
        await app(scope, receive, send)

    async with lifespan(served):
        yield served


async def use(client: RealClient, tool: str, held: dict[str, str] | None = None, /, **arguments: Any) -> Any:
    """Call a tool, and return its value, or how it failed."""
    answer = (await client.send("tools/call", {"name": tool, "arguments": arguments}, session=held)).json
    if "error" in answer:
        return Failed(f"{answer['error']['code']} {answer['error']['message']}")
    result = answer["result"]
    if result.get("isError"):
        return Failed(result["content"][0]["text"])
    content = result["structuredContent"]
    return content["result"] if content.keys() == {"result"} else content  # objects come as they are


@pytest.mark.parametrize("modern", [True, False], ids=["modern", "legacy"])
@pytest.mark.parametrize("story", STORIES)
async def test_an_example_serves_its_sessions(story: str, *, modern: bool) -> None:
    """What one session does shows in no other, and each step has its value or its error."""
    name = story.partition(":")[0]
    async with running(name) as app:
        client, sessions = RealClient(app, modern=modern, path=PATHS.get(name, "/mcp")), dict[str, dict[str, str]]()
        for session, tool, arguments, expected in STORIES[story]:
            if session != "none" and session not in sessions:
                sessions[session] = await client.create()
            if tool == "delete":
                await client.delete(sessions.pop(session))
                continue
            assert await use(client, tool, sessions.get(session), **arguments) == expected, tool


async def test_a_sandbox_is_removed_with_its_session(tmp_path: Path) -> None:
    """Its folder alone; a session without files can be deleted, too."""
    async with running("sandbox") as app:
        client = RealClient(app)
        one, other, empty = [await client.create() for _ in range(3)]
        for session, text in ((one, "mine"), (other, "other")):
            await use(client, "write", session, name="notes.txt", text=text)
        for session in (one, empty):
            assert (await client.delete(session)).status == 200
    kept = await anyio.to_thread.run_sync(lambda: [file.read_text("utf-8") for file in tmp_path.glob("*/notes.txt")])
    assert kept == ["other"]


async def test_one_of_two_parallel_commits_makes_the_changes() -> None:
    """The other commit finds no open transaction."""
    outcomes = list[Any]()
    async with running("transaction") as app:
        client = RealClient(app)
        session = await client.create()
        await use(client, "begin", session)

        async def commit() -> None:
            outcomes.append(await use(client, "commit", dict(session)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit)
            tasks.start_soon(commit)
    assert sorted(outcomes, key=str) == [0, Failed("no transaction is open; call begin first")]


async def test_the_routes_beside_an_mcp_endpoint_are_unchanged() -> None:
    """The lifespan ran, the OpenAPI document has no MCP endpoint, and only responses in a session name one."""
    async with running("fastapi_app") as app:
        assert json.loads((await RealClient(app, path="/catalogue").http("GET")).body) == {"pen": 3, "book": 12}
        assert [*json.loads((await RealClient(app, path="/openapi.json").http("GET")).body)["paths"]] == ["/catalogue"]
    async with running("starlette_app") as app:
        client = RealClient(app, path="/tools/mcp")
        session = await client.create()
        refs = [
            (await client.send("ping", session=held)).headers.get(b"x-session-ref") for held in (session, session, None)
        ]
        health = await RealClient(app, path="/health").http("GET")
    assert refs[0] == refs[1]
    assert str(refs[0]).startswith("b'ses_")
    assert refs[2] is health.headers.get(b"x-session-ref") is None
    assert health.body == b"well"


def bearer(app: Any, user: str) -> RealClient:
    return RealClient(app, headers={"authorization": f"Bearer token-of-{user}"})


async def test_the_audit_log_names_user_action_and_session(capsys: pytest.CaptureFixture[str]) -> None:
    """It covers a session from its beginning to its end, with a failed and a refused call."""
    async with running("audit_log") as app:
        ann = bearer(app, "ann")
        session = await ann.create()
        assert await use(ann, "pay", session, amount=5) == "paid 5"
        assert await use(ann, "pay", session, amount=500) == Failed("more than 100")
        await ann.delete(session)
        assert await use(bearer(app, "bob"), "pay", session, amount=5) == Failed("-32043 Session not found")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (ref,) = {line.pop("session") for line in lines}
    assert ref.startswith("ses_")
    assert [{name: line[name] for name in line if name != "time"} for line in lines] == [
        {"who": "ann", "what": "begin"},
        {"who": "ann", "what": "call", "tool": "pay", "outcome": "done"},
        {"who": "ann", "what": "call", "tool": "pay", "outcome": "failed"},
        {"who": None, "what": "end", "reason": "deleted"},
        {"who": None, "what": "refuse", "reason": "token_principal"},
    ]


async def test_a_new_session_brings_no_fresh_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions of a user share a budget, which is renewed after a minute; another user has another."""
    async with running("rate_limit") as app:
        clock = Clock()
        monkeypatch.setattr(sys.modules["rate_limit"], "clock", clock)
        ann, bob = bearer(app, "ann"), bearer(app, "bob")
        one, other = await ann.create(), await ann.create()
        for session in (one, one, other, other):
            await use(ann, "search", session, words="socks")
        clock.now += 18
        text = await use(ann, "search", other, words="socks")
        assert text == "search 3 of this session for socks; 0 more this minute"
        for session in (one, await ann.create()):
            refused = Failed("all used; wait 42 s. A new session brings no new ones")
            assert await use(ann, "search", session, words="socks") == refused
        assert (await use(bob, "search", await bob.create(), words="hats")).endswith("4 more this minute")
        clock.now += 42
        assert (await use(ann, "search", one, words="socks")).endswith("3 more this minute")
        assert (await bearer(app, "nobody").send("sessions/create")).status == 401


@pytest.mark.parametrize("modern", [True, False], ids=["modern", "legacy"])
async def test_a_list_grows_in_the_legacy_era_alone(*, modern: bool) -> None:
    """And in the session alone that unlocked the tool; in the modern era the list is the same for all."""
    async with running("progressive_tools") as app:
        client = RealClient(app, modern=modern)
        early, late = await client.create(), await client.create()

        async def listed(held: dict[str, str] | None) -> set[str]:
            result = (await client.send("tools/list", session=held)).result
            assert (SESSION_KEY in result.get("_meta", {})) is (held is not None)
            return {tool["name"] for tool in result["tools"]}

        whole = {"unlock", "restart"}
        locked = whole if modern else {"unlock"}
        assert [await listed(early), await listed(late)] == [locked, locked]
        await use(client, "unlock", late, word="please")
        assert [await listed(early), await listed(late)] == [locked, whole]
        if modern:
            assert await listed(None) == whole


# --- programs, against servers on a network ----------------------------------------------------------

ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # Uvicorn runs on it alone


async def printed(capsys: pytest.CaptureFixture[str], app: Any, *mains: Any) -> list[str]:
    """Return what programs print that run one after another against a server."""
    async with serving(app) as url:
        for main in mains:
            await main(url)
    return capsys.readouterr().out.splitlines()


@ASYNCIO
async def test_a_session_outlives_its_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second start continues the count."""

    async def main(url: str) -> None:
        await client_sdk.main(str(tmp_path / "sessions.db"), url)

    assert await printed(capsys, example("counter"), main, main) == [
        *("begins a session", "count() -> 1", "count() -> 2", "count() -> 3"),
        *("continues a session", "count() -> 4", "count() -> 5", "count() -> 6"),
    ]


@ASYNCIO
async def test_each_conversation_has_its_own_notes(capsys: pytest.CaptureFixture[str]) -> None:
    """Parallel conversations over one connection keep separate notes, and one is continued by its name."""
    lines = await printed(capsys, example("notebook"), client_two_conversations.main)
    assert sorted(lines[:4]) == [
        *("packing: ['socks', 'a hat']", "packing: ['socks']"),
        *("shopping: ['milk', 'eggs']", "shopping: ['milk']"),
    ]
    assert lines[4:] == ["shopping: ['milk', 'eggs', 'butter']"]


@ASYNCIO
async def test_sub_agents_share_a_cart_and_have_a_browser_each(capsys: pytest.CaptureFixture[str]) -> None:
    """What is tried out on a copy shows nowhere else."""
    lines = await printed(capsys, subagents.server(), subagents.main)
    visits = [line for line in lines if "visit" in line and "agent:" in line]
    assert visits == ["milk agent: visit -> ['/milk']", "tea agent: visit -> ['/tea']"]
    assert lines[-4:] == [
        *("trial: visit -> ['/bread', '/caviar']", "trial: put -> ['bread', 'caviar', 'milk', 'tea']"),
        *("orchestrator: visit -> ['/bread', '/salt']", "orchestrator: put -> ['bread', 'milk', 'salt', 'tea']"),
    ]


def test_the_demo_prints_every_step_and_no_credential() -> None:
    """Each conversation has its own cart, which processes that were started later continue."""
    command = [sys.executable, str(EXAMPLES / "demo.py")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search(r"eyJ|\x1b", done.stdout)
    carts = re.findall(r"([AB]) +add\(.*?\) +-> \[(.*?)\], +process (\d+)", done.stdout)
    assert [f"{name} {cart}".replace("'", "") for name, cart, _ in carts] == [
        *("A milk", "B socks", "A milk, eggs", "B socks, a hat"),
        *("A milk, eggs, bread", "B socks, a hat, tickets", "A tea", "B socks, a hat, tickets, a map"),
    ]
    before, after = ({process for _, _, process in part} for part in (carts[:4], carts[4:]))
    assert not before & after

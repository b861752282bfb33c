"""The code on the pages runs as it stands there: in the README, the quickstart, and the pages that explain.

A comment before a block names its needs, as in `<!-- run: mcp>=2; keeps -->`. Its words are a distribution that must be
installed, `counts` and `keeps` (its `app` counts the calls of each session, or keeps its cart), `serves` (the README's
app is at the address that the block calls), `prints` (its output) and `seen` (added to the README's server, it shows
each session). `<!-- client: ... -->` is for `python -m tests.tools.frameworks`.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from clients import SECRET, Clock, RealClient, lifespan
from environments import lacking, needs
from otlp import receiving
from pages import ROOT, rows, run
from pages import blocks as blocks_of

from integration.serving import serving
from mcp_sessions import Principal, require_session
from mcp_sessions.handles import ALPHABET, BITS, LAYOUT, MAX_CHARS, MAX_TYPE_CHARS, HandleError, Handles
from mcp_sessions.testing import session_for_test

PAGES = ("README.md", *(f"docs/{name}.md" for name in ("quickstart", "clients", "concepts", "migrating", "recipes")))
FENCE = re.compile(r"(?:<!-- (run|client): (.*?) -->\n)?```python\n(.*?)```", re.DOTALL)
ADDRESS = "http://127.0.0.1:8000/mcp"
ITEMS = ("bread", "milk", "tea")
WORDS = {"counts", "keeps", "serves", "prints", "seen"}
CALL = """
import anyio
from clients import RealClient, lifespan

async def call():
    async with lifespan(app):
        await RealClient(app).call("add", await RealClient(app).create(), item="bread")

anyio.run(call)
provider.shutdown()
"""


@dataclass(frozen=True)
class Block:
    """A block of Python on a page."""

    name: str
    words: dict[str, str]  # each word, with what follows it
    code: str

    def run(self, url: str = ADDRESS) -> dict[str, Any]:
        return run(self.code.replace(ADDRESS, url), self.name)


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in their order."""
    found = enumerate(FENCE.findall((ROOT / page).read_text("utf-8")), 1)
    return [
        Block(f"{Path(page).stem}-{number}", dict(word.partition(" ")[::2] for word in words.split("; ") if word), code)
        for number, (kind, words, code) in found
        if kind != "client"
    ]


ALL = [block for page in PAGES for block in blocks(page)]
(SERVED,) = (one for one in ALL if one.name.startswith("README") and "keeps" in one.words)


def those(*words: str) -> pytest.MarkDecorator:
    """Ask for the blocks that have one of the words, or none at all; each is skipped without what it needs."""
    found = [one for one in ALL if one.words.keys() & {*words} or not (words or one.words.keys() & WORDS)]
    needed = [[needs(word) for word in one.words if word not in WORDS] for one in found]
    rows = [pytest.param(one, marks=marks, id=one.name) for one, marks in zip(found, needed, strict=True)]
    return pytest.mark.parametrize("block", rows)


@pytest.fixture
def anyio_backend() -> str:
    """Uvicorn runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(autouse=True)
def somewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty folder with the keys in the environment, as a reader does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)


@those()
async def test_a_block_runs(block: Block) -> None:
    """As it stands on the page; the others are run below."""
    await anyio.to_thread.run_sync(block.run)


@those("counts", "keeps")
async def test_a_server_keeps_sessions_apart(block: Block) -> None:
    """The server counts or keeps a cart for an unchanged legacy client, and for one that creates a session."""
    app = block.run()["app"]
    async with lifespan(app):
        unchanged, asking = RealClient(app), RealClient(app)
        await unchanged.connect()
        held = await asking.create()
        for number, item in enumerate(ITEMS, 1):
            for client, session in ((unchanged, None), (asking, held)):
                if "counts" in block.words:
                    assert await client.call("count", session) == str(number)
                else:
                    assert await client.call("add", session, item=item) == ", ".join(ITEMS[:number])


@those("serves")
async def test_a_client_prints_what_the_page_shows(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """Against the README's server, the client prints the output on the page."""
    async with serving(SERVED.run()["app"]) as url:
        await anyio.to_thread.run_sync(block.run, url)
    assert " / ".join(capsys.readouterr().out.splitlines()) == block.words["prints"]


@those("seen")
def test_a_session_is_seen(block: Block) -> None:
    """On the console, or in a tool that takes OTLP at Phoenix's address. A process has one tracer provider for ever."""
    with receiving() as tool:
        code = block.code.replace("http://localhost:6006", tool.url)
        program = f"{SERVED.code}\n{code}\n{CALL}"
        path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
        ran = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, check=True, stdout=subprocess.PIPE
        )
    printed = [line.split(" ", 2)[1:] for line in ran.stdout.decode().splitlines()]
    sent = [[str(span.attributes.get("session.id")), span.name] for span in tool.spans]
    (ref,) = {ref for ref, name in printed + sent if name == "tools/call add"}
    assert ref.startswith("ses_")


def test_the_tests_on_the_page_about_tests_pass() -> None:
    """Each block in a file of its own, in a folder without settings; of the store's contract a part."""
    pasted = [block for block in blocks("docs/testing.md") if not any(map(lacking, block.words))]
    for block in pasted:
        Path(f"test_{block.name.replace('-', '_')}.py").write_text(block.code, "utf-8")
    command = "-m pytest -q -p no:cacheprovider -k".split()
    chosen = "cart or counts_on or revocation_is_seen"
    ran = subprocess.run([sys.executable, *command, chosen], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert len(pasted) >= 2


def recipe(word: str) -> Any:
    """Run the one recipe with this word in it, and return its app."""
    (block,) = (one for one in blocks("docs/recipes.md") if word in one.code)
    return block.run()["app"]


@needs("mcp>=2")
async def test_a_session_belongs_to_the_user_of_ones_own_authentication() -> None:
    """Another user's token does not open it, and without a token there is no answer of ours."""
    app = recipe("class Authenticate")
    async with lifespan(app):
        ann, bob, nobody = (
            RealClient(app, headers={"authorization": f"Bearer token-of-{name}"}) for name in ("ann", "bob", "nobody")
        )
        held = await ann.create()
        assert await ann.call("whose", held) == "ann"
        stolen = await bob.send("tools/call", {"name": "whose", "arguments": {}}, session=held)
        assert stolen.error["code"] == -32043
        assert (await nobody.send("sessions/create")).status == 401


@needs("mcp>=2")
async def test_a_page_of_an_allowed_origin_reads_its_session() -> None:
    """A browser asks first, and shows a page only the headers that are exposed; the SDK refuses other origins."""
    app = recipe("CORSMiddleware")
    page = {"origin": "https://app.example", "host": "mcp.example"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "mcp-protocol-version"}
    async with lifespan(app):
        preflight = await RealClient(app, headers={**page, **asked}).http("OPTIONS")
        answer = await RealClient(app, headers=page).connect()
        elsewhere = await RealClient(app, headers={**page, "origin": "https://evil.example"}).connect()
    assert (preflight.status, elsewhere.status) == (200, 403)
    assert answer.headers[b"access-control-allow-origin"] == b"https://app.example"
    assert answer.headers[b"access-control-expose-headers"] == b"Mcp-Session-Id"
    assert answer.headers[b"mcp-session-id"]


def test_a_thread_of_ones_own_has_the_session() -> None:
    """The recipe's call runs in a copy of the context."""
    (call,) = re.findall(r"`(pool\.submit\(.*?\))`", (ROOT / "docs" / "recipes.md").read_text("utf-8"))
    with session_for_test() as session, ThreadPoolExecutor() as pool:
        names = {"pool": pool, "copy_context": copy_context, "render": lambda: require_session().ref}
        assert eval(call, names).result() == session.ref  # the page's own code


# --- handles -----------------------------------------------------------------------------------------

HANDLES = (ROOT / "docs" / "handles.md").read_text("utf-8")
SDK, FASTMCP, BY_HAND, KEEPING = blocks_of(HANDLES)


@needs("mcp>=2")
async def test_servers_mint_and_verify_handles() -> None:
    """With the client of each framework, a handle is taken back, and another text is refused with the page's words."""
    import fastmcp
    import mcp

    names = run(SDK)
    async with mcp.Client(names["mcp"]) as client:
        basket = ((await client.call_tool("create_basket")).structured_content or {})["result"]
        added = await client.call_tool("add_item", {"basket": basket, "item": "shoes"})
        refused = await client.call_tool("add_item", {"basket": basket[:-1], "item": "shoes"})
    assert added.structured_content == {"result": ["shoes"]}
    assert refused.is_error
    assert "this basket handle was cut short: copy all 55 characters of it" in refused.content[0].text  # type: ignore[union-attr]
    names = run(FASTMCP)
    async with fastmcp.Client(names["mcp"]) as peer:
        browser = (await peer.call_tool("open_browser")).data
        closed = await peer.call_tool("close_browser", {"browser": browser})
        with pytest.raises(fastmcp.exceptions.ToolError, match="those begin with browser_"):
            await peer.call_tool("close_browser", {"browser": "the first"})
    assert closed.data == f"closed {names['handles'].verify('browser', browser)}"


@needs("mcp>=2")
async def test_a_session_lists_its_handles(capsys: pytest.CaptureFixture[str]) -> None:
    """Verified by hand, another text prints the error on the page; three tools create, list and forget a handle."""
    names = run(FASTMCP + BY_HAND + KEEPING)
    assert capsys.readouterr().out == BY_HAND.split("  # ")[1].splitlines()[0] + "\n"
    with session_for_test() as session:
        browser = await names["create_browser"](session)
        assert await names["list_browsers"](session) == [browser]
        await names["forget_browser"](session, names["handles"].verify("browser", browser))
        assert await names["list_browsers"](session) == []


def test_the_layout_and_the_errors_of_handles_are_those_on_the_page(clock: Clock) -> None:
    layout = {row[0]: row[1:3] for row in rows(HANDLES, "The layout")}
    assert layout.items() >= {part: [str(width), str(BITS * width)] for part, width in LAYOUT.items()}.items()
    assert layout["type"][0] == f"1 to {MAX_TYPE_CHARS}"
    assert f"`{ALPHABET}`" in HANDLES
    assert f"That is {MAX_CHARS} characters at most." in HANDLES
    handles = Handles(SECRET, lifetimes={"basket": 86_400}, clock=clock)
    good = handles.mint("basket", principal=None)
    reasons = {}
    for sent in (handles.mint("basket", principal=Principal("desk")), handles.mint("browser"), good[:-1], good):
        clock.now += 86_400 * (sent == good)
        with pytest.raises(HandleError) as refused:
            handles.verify("basket", sent)
        reasons[refused.value.reason] = str(refused.value)
    assert {row[0].strip("`"): row[2] for row in rows(HANDLES, "Error messages")} == reasons


# --- all pages ---------------------------------------------------------------------------------------


@needs("ruff")
def test_every_block_is_whole() -> None:
    """A block can be pasted: it takes no name from elsewhere, awaits in functions alone, and calls its `main`.

    Servers of the SDK that are wrapped have `stateless_http=`.
    """
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")):
        for number, code in enumerate(blocks_of(page.read_text("utf-8"))):
            read = code.replace('HandleOf["', 'HandleOf[b"')  # which ruff takes for a name
            Path(f"{page.stem}_{number}.py").write_text(read, "utf-8")
            assert "def main(" not in code or len(re.findall(r"\bmain\b", code)) > 1, (page.name, code)
            assert "streamable_http_app(" not in code or "mcp_sessions" not in code or "stateless_http=" in code, code
    check = "-m ruff check --isolated --no-cache --select F704,F821 .".split()
    ran = subprocess.run([sys.executable, *check], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_json_on_a_page_is_json() -> None:
    """A request and its answer may stand in one block, a line apart."""
    for page in ROOT.glob("docs/*.md"):
        for message in "\n\n".join(blocks_of(page.read_text("utf-8"), "json")).split("\n\n"):
            assert not message.strip() or json.loads(message), page.name

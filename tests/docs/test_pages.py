"""The code on the pages runs as it stands there: in the README, the quickstart, and the pages that explain.

A comment before a block names its needs, as in `<!-- run: mcp>=2; counts -->`. Its words are a distribution that must
be installed, `counts` (its `app` counts the calls of each session), `serves` (such an app is at the address that the
block calls), `prints` (its output), `given` (names that it finds) and `continues` (after the block before it).
"""

from __future__ import annotations

import json
import re
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from collections.abc import Awaitable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest
from apps import Server
from clients import SECRET
from environments import needs

from integration.serving import serving
from integration.wire import Client, lifespan

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in ("index", "quickstart", "concepts", "coming-from", "stores", "dialects", "performance")
    ),
)
EVERY = (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
FENCE = re.compile(r"(?:<!-- run: (.*?) -->\n)?```python\n(.*?)```", re.DOTALL)
ADDRESS = "http://127.0.0.1:8000/mcp"
ELSEWHERE = "redis://sessions:6379/0"
"""The store on the pages, which a file replaces here."""
GIVEN = {
    "mcp": lambda: import_module("mcp.server.mcpserver").MCPServer("given"),
    "scope": lambda: {"mcp_correlation": None},
    "server": Server,
    "session": lambda: import_module("integrations.test_explicit_handles").held("page"),
    "browsers": object,
}
"""The names that a block may be given."""


@dataclass(frozen=True)
class Block:
    """A block of Python on a page."""

    page: str
    number: int
    words: tuple[str, ...]
    code: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"

    def after(self, word: str) -> list[str]:
        """Return what follows one of the words, as in `given mcp`."""
        return [name for words in self.words if words.split()[0] == word for name in words.split()[1:]]

    @property
    def needed(self) -> list[pytest.MarkDecorator]:
        """Marks for the distributions that must be installed."""
        known = {"counts", "serves", "prints", "given", "continues"}
        return [needs(words) for words in self.words if words.split()[0] not in known]

    @property
    def before(self) -> str:
        """The code of the blocks that this one continues."""
        former = ALL[ALL.index(self) - 1] if "continues" in self.words else None
        return former.before + former.code if former else ""

    @property
    def names_given(self) -> list[str]:
        """The names given to this block and to those that it continues."""
        former = ALL[ALL.index(self) - 1].names_given if "continues" in self.words else []
        return [*former, *self.after("given")]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in their order."""
    found = enumerate(FENCE.findall((ROOT / page).read_text("utf-8")), 1)
    return [
        Block(Path(page).stem, number, tuple(filter(None, words.split("; "))), code) for number, (words, code) in found
    ]


ALL = [block for page in PAGES for block in blocks(page)]


def having(word: str) -> list[Any]:
    """Return the blocks that have a word, as parameters."""
    return [
        pytest.param(one, marks=one.needed, id=str(one)) for one in ALL if word in {w.split()[0] for w in one.words}
    ]


def begin(block: Block, code: str) -> tuple[dict[str, Any], Awaitable[None] | None]:
    """Run code as a program with the given names; return its names and what is left to be awaited."""
    names: dict[str, Any] = {"__name__": "page", **{name: GIVEN[name]() for name in block.names_given}}
    code = code.replace(ELSEWHERE, "sqlite:sessions.db")
    return names, eval(compile(code, str(block), "exec", PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), names)


async def run(block: Block) -> dict[str, Any]:
    """Run a block after those that it continues; some stand within an async function of the reader's."""
    names, rest = begin(block, block.before + block.code)
    if rest is not None:
        await rest
    return names


@pytest.fixture
def anyio_backend() -> str:
    """Uvicorn runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(autouse=True)
def somewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty folder with the keys in the environment, as a reader does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MCP_SESSION_KEYS", SECRET)


@pytest.mark.parametrize(
    "block", [pytest.param(one, marks=one.needed, id=str(one)) for one in ALL if "serves" not in one.words]
)
async def test_a_block_runs(block: Block) -> None:
    """A block runs as it stands on the page, with what its comment names."""
    await run(block)


@pytest.mark.parametrize("block", having("counts"))
async def test_a_server_counts_in_each_session(block: Block) -> None:
    """The server counts for an unchanged legacy client, and for one that creates a session."""
    app = (await run(block))["app"]
    async with lifespan(app):
        unchanged, asking = Client(app), Client(app)
        await unchanged.connect()
        held = await asking.create()
        for number in "123":
            assert await unchanged.call("count") == number
            assert await asking.call("count", held) == number


@pytest.mark.parametrize("block", having("serves"))
async def test_a_client_prints_what_the_page_shows(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """Against the README's server, the client prints the output on the page."""
    (served,) = (one for one in ALL if one.page == "README" and "counts" in one.words)
    async with serving((await run(served))["app"]) as url:
        await anyio.to_thread.run_sync(begin, block, block.code.replace(ADDRESS, url))
    assert capsys.readouterr().out.split() == block.after("prints")


@pytest.mark.parametrize("page", EVERY, ids=lambda page: page.stem)
def test_json_on_a_page_is_json(page: Path) -> None:
    """Every JSON block is valid JSON; a request and its answer may stand in one block, a line apart."""
    for text in re.findall(r"```json\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        for message in text.split("\n\n"):
            json.loads(message)


@pytest.mark.parametrize("page", EVERY, ids=lambda page: page.stem)
def test_a_picture_has_valid_syntax_and_no_colours(page: Path) -> None:
    """A picture has no semicolon, which ends a statement anywhere, and leaves colours to the reader's theme."""
    for kind, drawn in re.findall(r"```\{?mermaid\}?\n(\w+)(.*?)```", page.read_text("utf-8"), re.DOTALL):
        assert kind in {"flowchart", "sequenceDiagram", "stateDiagram"}
        assert not re.search(r";|#[0-9a-fA-F]{3}|\b(style|classDef|linkStyle|fill|rgb|theme)\b", drawn)


def test_every_page_has_code() -> None:
    """Blocks are found on every page, so the pattern matches."""
    assert {block.page for block in ALL} == {Path(page).stem for page in PAGES}


def test_every_example_is_named() -> None:
    """`docs/examples.md` names every program and server, and nothing that does not exist."""
    page = (ROOT / "docs" / "examples.md").read_text("utf-8")
    examples = {path.name: path.read_text("utf-8") for path in (ROOT / "examples").glob("*.py")}
    runs = {name for name, code in examples.items() if re.search(r"^app = |__main__", code, re.MULTILINE)}
    assert runs <= set(re.findall(r"\w+\.py", page)) <= set(examples)

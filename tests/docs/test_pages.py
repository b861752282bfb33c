"""The code on the pages runs as it stands there: in the README, the quickstart, and the pages that explain.

A comment before a block says what it needs, as in `<!-- run: mcp>=2; counts -->`. Its words are a distribution that
must be installed, `counts` (its `app` counts the calls of each session), `serves` (such an app is at the address that
the block calls), `prints` (what it prints), `given` (names that it finds there) and `continues` (after the block
before it). A block without one runs alone.
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
"""A store that the pages name and nobody has here: a file is taken in its place."""
GIVEN = {
    "mcp": lambda: import_module("mcp.server.mcpserver").MCPServer("given"),
    "scope": lambda: {"mcp_correlation": None},
    "server": Server,
    "session": lambda: import_module("integrations.test_explicit_handles").held("page"),
    "browsers": object,
}
"""What a block may find there, as its comment says."""


@dataclass(frozen=True)
class Block:
    """A block of Python on a page."""

    page: str
    number: int
    words: tuple[str, ...]
    code: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"

    def said(self, word: str) -> list[str]:
        """What follows one of the words, as in `given mcp`."""
        return [name for words in self.words if words.split()[0] == word for name in words.split()[1:]]

    @property
    def needed(self) -> list[pytest.MarkDecorator]:
        """What must be installed."""
        known = {"counts", "serves", "prints", "given", "continues"}
        return [needs(words) for words in self.words if words.split()[0] not in known]

    @property
    def before(self) -> str:
        """The code that it goes on from."""
        former = ALL[ALL.index(self) - 1] if "continues" in self.words else None
        return former.before + former.code if former else ""

    @property
    def names_given(self) -> list[str]:
        """What it finds there, and what the block that it goes on from does."""
        former = ALL[ALL.index(self) - 1].names_given if "continues" in self.words else []
        return [*former, *self.said("given")]


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in their order."""
    found = enumerate(FENCE.findall((ROOT / page).read_text("utf-8")), 1)
    return [
        Block(Path(page).stem, number, tuple(filter(None, words.split("; "))), code) for number, (words, code) in found
    ]


ALL = [block for page in PAGES for block in blocks(page)]


def saying(word: str) -> list[Any]:
    """The blocks with a word among theirs, as parameters."""
    return [
        pytest.param(one, marks=one.needed, id=str(one)) for one in ALL if word in {w.split()[0] for w in one.words}
    ]


def begin(block: Block, code: str) -> tuple[dict[str, Any], Awaitable[None] | None]:
    """Run code as a program of its own would, with what it is given: its names, and what is left to be awaited."""
    names: dict[str, Any] = {"__name__": "page", **{name: GIVEN[name]() for name in block.names_given}}
    code = code.replace(ELSEWHERE, "sqlite:sessions.db")
    return names, eval(compile(code, str(block), "exec", PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), names)


async def run(block: Block) -> dict[str, Any]:
    """Run a block after what it goes on from. Some stand within an async function of the reader's."""
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
    """Where a reader types it: an empty folder, with the keys in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MCP_SESSION_KEYS", SECRET)


@pytest.mark.parametrize(
    "block", [pytest.param(one, marks=one.needed, id=str(one)) for one in ALL if "serves" not in one.words]
)
async def test_a_block_runs(block: Block) -> None:
    """As it stands on the page, after what it says that it needs."""
    await run(block)


@pytest.mark.parametrize("block", saying("counts"))
async def test_a_server_counts_in_each_session(block: Block) -> None:
    """For a client of the legacy era that nobody changed, and for one that asks for a session."""
    app = (await run(block))["app"]
    async with lifespan(app):
        unchanged, asking = Client(app), Client(app)
        await unchanged.connect()
        held = await asking.create()
        for number in "123":
            assert await unchanged.call("count") == number
            assert await asking.call("count", held) == number


@pytest.mark.parametrize("block", saying("serves"))
async def test_a_client_prints_what_the_page_says(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """In a thread of its own, against the README's server on a free port."""
    (served,) = (one for one in ALL if one.page == "README" and "counts" in one.words)
    async with serving((await run(served))["app"]) as url:
        await anyio.to_thread.run_sync(begin, block, block.code.replace(ADDRESS, url))
    assert capsys.readouterr().out.split() == block.said("prints")


@pytest.mark.parametrize("page", EVERY, ids=lambda page: page.stem)
def test_json_on_a_page_is_json(page: Path) -> None:
    """Nobody copies a comma too many. A request and its answer may stand in one block, a line apart."""
    for text in re.findall(r"```json\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        for message in text.split("\n\n"):
            json.loads(message)


@pytest.mark.parametrize("page", EVERY, ids=lambda page: page.stem)
def test_a_picture_can_be_drawn_and_read_on_light_and_dark(page: Path) -> None:
    """A semicolon ends a statement, wherever it stands; colours are left to the reader's theme."""
    for kind, drawn in re.findall(r"```\{?mermaid\}?\n(\w+)(.*?)```", page.read_text("utf-8"), re.DOTALL):
        assert kind in {"flowchart", "sequenceDiagram", "stateDiagram"}
        assert not re.search(r";|#[0-9a-fA-F]{3}|\b(style|classDef|linkStyle|fill|rgb|theme)\b", drawn)


def test_every_page_has_code() -> None:
    """A pattern that matches nothing would find nothing wrong."""
    assert {block.page for block in ALL} == {Path(page).stem for page in PAGES}


def test_every_example_is_named() -> None:
    """Programs and servers alike; a module that only helps them holds neither."""
    page = (ROOT / "docs" / "examples.md").read_text("utf-8")
    examples = {path.name: path.read_text("utf-8") for path in (ROOT / "examples").glob("*.py")}
    runs = {name for name, code in examples.items() if re.search(r"^app = |__main__", code, re.MULTILINE)}
    assert runs <= set(re.findall(r"\w+\.py", page)) <= set(examples)

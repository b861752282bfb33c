"""Recipes that need more than running a block: servers that call each other's sessions, and threads of a graph."""

from pathlib import Path

import pytest
from clients import SECRET, RealClient, lifespan
from environments import needs
from pages import DOCS, blocks, run

from integration.serving import serving

RECIPES = blocks((DOCS / "recipes.md").read_text("utf-8"))


def recipe(words: str) -> str:
    """Return the block that has these words."""
    (code,) = [code for code in RECIPES if words in code]
    return code


@pytest.fixture
def anyio_backend() -> str:
    """Uvicorn runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)


@needs("mcp>=2")
async def test_servers_in_one_application_keep_their_sessions_apart() -> None:
    app = run(recipe('"notes": notes'))["app"]
    async with lifespan(app):
        shop, notes = RealClient(app, path="/shop/mcp"), RealClient(app, path="/notes/mcp")
        held = await shop.create()
        assert "error" not in (await shop.send("tools/list", session=held)).json
        assert (await notes.send("tools/list", session=held)).error["code"] == -32043
        await notes.create()


@needs("mcp>=2")
async def test_each_thread_of_a_graph_has_its_session() -> None:
    """Also if every call connects anew."""
    readme = blocks((DOCS.parent / "README.md").read_text("utf-8"))[0]
    async with serving(run(readme)["app"]) as url:
        add = run(recipe("thread_id").replace("http://127.0.0.1:8000/mcp", url))["add_to_cart"]
        carts = [await add(item, thread) for item, thread in [("bread", "1"), ("milk", "2"), ("tea", "1")]]
    assert carts == ["bread", "milk", "bread, tea"]

"""The recipes do what their page says; that they run at all is shown with the other pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from clients import SECRET
from environments import needs
from test_pages import blocks, run

from integration.wire import Client, lifespan

RECIPES = blocks("docs/recipes.md")
pytestmark = needs("mcp>=2")


@pytest.fixture
def anyio_backend() -> str:
    """One event loop is enough: the middleware itself runs on both elsewhere."""
    return "asyncio"


@pytest.fixture(autouse=True)
def somewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty folder with the keys in the environment, as a reader does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)


async def test_a_session_belongs_to_the_user_of_ones_own_authentication() -> None:
    """Another user's token does not open it, and without a token there is no answer of ours."""
    (recipe,) = (one for one in RECIPES if "class Authenticate" in one.code)
    app = run(recipe)["app"]
    async with lifespan(app):
        ann, bob, nobody = (
            Client(app, headers={"authorization": f"Bearer token-of-{name}"}) for name in ("ann", "bob", "nobody")
        )
        held = await ann.create()
        assert await ann.call("whose", held) == "ann"
        stolen = await bob.request("tools/call", {"name": "whose", "arguments": {}}, held)
        assert stolen.error["code"] == -32043
        assert (await nobody.request("sessions/create")).status == 401


async def test_a_page_of_an_allowed_origin_reads_its_session() -> None:
    """A browser asks first, and shows a page only the headers that are exposed; the SDK refuses other origins."""
    (recipe,) = (one for one in RECIPES if "CORSMiddleware" in one.code)
    app = run(recipe)["app"]
    page = {"origin": "https://app.example", "host": "mcp.example"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "mcp-protocol-version"}
    async with lifespan(app):
        preflight = await Client(app, headers={**page, **asked}).send("OPTIONS")
        answer = await Client(app, headers=page).connect()
        elsewhere = await Client(app, headers={**page, "origin": "https://evil.example"}).connect()
    assert preflight.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert answer.headers["access-control-expose-headers"] == "Mcp-Session-Id"
    assert answer.headers["mcp-session-id"]
    assert elsewhere.status == 403


async def test_a_thread_of_ones_own_has_the_session() -> None:
    """The pool's thread runs in a copy of the call's context."""
    (recipe,) = (one for one in RECIPES if "copy_context" in one.code)
    app = run(recipe)["app"]
    async with lifespan(app):
        client = Client(app)
        assert (await client.call("draw", await client.create())).startswith("rendered for ses_")

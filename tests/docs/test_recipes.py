"""The recipes do what their page says; that they run at all is shown with the other pages."""

from __future__ import annotations

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
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys are in the environment, as on the page."""
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

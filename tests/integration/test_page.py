"""`docs/integrations.md` says what is so: its code runs, and its tools answer as the page says."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from clients import SECRET, Client, RealClient, lifespan
from environments import needs
from starlette.types import ASGIApp

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "integrations.md").read_text("utf-8")
DEPENDING, RESOLVING, FASTMCP = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)


def app_of(block: str) -> ASGIApp:
    """The application of a block, as in a file of its own."""
    names: dict[str, Any] = {}
    exec(compile(block, "integrations.md", "exec", dont_inherit=True), names)  # the page's own code
    app: ASGIApp = names["app"]
    return app


@asynccontextmanager
async def served(block: str, path: str = "/mcp") -> AsyncIterator[RealClient]:
    """A client of a block's application, in the modern era."""
    app = app_of(block)
    async with lifespan(app):
        yield RealClient(app, modern=True, path=path)


async def test_an_endpoint_that_depends_on_the_session() -> None:
    client = Client(app_of(DEPENDING), query_string=b"")
    assert (await client.tool(session=await client.create())).result["ref"].startswith("ses_")
    assert (await client.tool()).error["code"] == -31044


@needs("mcp>=2")
async def test_tools_of_the_official_sdk() -> None:
    """`Resolve(current_session)`, which the page names, is in `test_sdk.py`."""
    async with served(RESOLVING) as client:
        held = await client.create()
        assert [await client.call("note", held, text=text) for text in ("one", "two")] == ["1", "2"]
        reply = await client.send("tools/call", {"name": "note", "arguments": {"text": "lost"}})
        assert reply.error["code"] == -31044


async def test_data_and_state_of_fastmcp() -> None:
    app = app_of(FASTMCP.replace("stateless_http=True", 'stateless_http=True, allowed_hosts=["127.0.0.1:8000"]'))
    async with lifespan(app):
        client = RealClient(app)
        held = await client.create()
        assert [await client.call("note", held, text=text) for text in ("one", "two")] == ["1", "2"]
        for color, before in (("red", "None"), ("blue", "red")):
            assert await client.call("color", held, name=color) == f"{color}, and before it {before}"

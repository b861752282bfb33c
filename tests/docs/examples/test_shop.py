"""The example `shop`: a cart and a browser in each session."""

from __future__ import annotations

import pytest
from example_servers import connected
from mcp import MCPError

from session_client import HeldSession


async def test_every_session_has_its_own_cart_and_browser() -> None:
    """The server keeps a cart and a browser for each session, which other sessions do not see."""
    async with connected("shop") as client:
        a, b = await HeldSession.create(client), await HeldSession.create(client)
        assert await a.call("put", item="tea") == ["tea"]
        assert await a.call("put", item="bread") == ["bread", "tea"]
        assert await a.call("visit", page="/") == ["/"]
        assert await b.call("put", item="milk") == ["milk"]
        assert await b.call("visit", page="/milk") == ["/milk"]
        assert await a.call("visit", page="/tea") == ["/", "/tea"]


@pytest.mark.parametrize("tool", ["put", "visit"])
async def test_both_tools_need_a_session(tool: str) -> None:
    """A call without a session is refused before the tool sees it."""
    async with connected("shop") as client:
        with pytest.raises(MCPError, match="Session required"):
            await client.call_tool(tool, {"item": "tea", "page": "/"})

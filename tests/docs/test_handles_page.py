"""`docs/handles.md` is right: its code runs, its errors are those raised, and its figures are computed."""

import pytest
from environments import require

require("mcp>=2")

import fastmcp
import mcp
from clients import SECRET, Clock
from mcp.types import TextContent
from pages import DOCS, blocks, rows, run

from mcp_sessions import Principal
from mcp_sessions.handles import ALPHABET, BITS, LAYOUT, MAX_CHARS, MAX_TYPE_CHARS, HandleError, Handles
from mcp_sessions.testing import session_for_test

PAGE = (DOCS / "handles.md").read_text("utf-8")
SDK, FASTMCP, BY_HAND, KEEPING = blocks(PAGE)


@pytest.fixture
def anyio_backend() -> str:
    """FastMCP's client runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_SESSIONS_KEYS", SECRET)


async def test_the_server_of_the_sdk_mints_and_verifies_handles() -> None:
    """With the SDK's own client an item goes into its basket, and a misquoted handle is refused."""
    names = run(SDK)
    async with mcp.Client(names["mcp"]) as client:
        created = await client.call_tool("create_basket")
        basket = (created.structured_content or {})["result"]
        added = await client.call_tool("add_item", {"basket": basket, "item": "shoes"})
        refused = await client.call_tool("add_item", {"basket": basket[:-1], "item": "shoes"})
    assert added.structured_content == {"result": ["shoes"]}
    assert refused.is_error
    assert isinstance(refused.content[0], TextContent)
    assert "this basket handle was cut short: copy all 55 characters of it" in refused.content[0].text
    assert len(names["baskets"]) == 1


async def test_the_server_of_fastmcp_mints_and_verifies_handles() -> None:
    """With FastMCP's own client a handle is taken back, and another text is refused."""
    names = run(FASTMCP)
    async with fastmcp.Client(names["mcp"]) as client:
        browser = (await client.call_tool("open_browser")).data
        closed = await client.call_tool("close_browser", {"browser": browser})
        with pytest.raises(fastmcp.exceptions.ToolError, match="those begin with browser_"):
            await client.call_tool("close_browser", {"browser": "the first"})
    assert closed.data == f"closed {names['handles'].verify('browser', browser)}"


async def test_a_session_lists_its_handles(capsys: pytest.CaptureFixture[str]) -> None:
    """Verified by hand, another text prints the error on the page; three tools create, list and forget a handle."""
    names = run(FASTMCP + BY_HAND + KEEPING)
    assert capsys.readouterr().out == BY_HAND.split("  # ")[1].splitlines()[0] + "\n"
    with session_for_test() as session:
        browser = await names["create_browser"](session)
        assert await names["list_browsers"](session) == [browser]
        await names["forget_browser"](session, names["handles"].verify("browser", browser))
        assert await names["list_browsers"](session) == []


def test_the_layout_is_the_one_in_force() -> None:
    """The page states the parts, widths and bits, the alphabet and the limits of the code."""
    table = {row[0]: row[1:3] for row in rows(PAGE, "The layout")}
    assert {part: cells for part, cells in table.items() if part in LAYOUT} == {
        part: [str(width), str(BITS * width)] for part, width in LAYOUT.items()
    }
    assert table["type"][0] == f"1 to {MAX_TYPE_CHARS}"
    assert f"`{ALPHABET}`" in PAGE
    assert f"That is {MAX_CHARS} characters at most." in PAGE


def test_the_errors_of_the_page_are_raised() -> None:
    """Each reason on the page has an error that is raised for it."""
    clock = Clock()
    handles = Handles(SECRET, lifetimes={"basket": 86_400}, clock=clock)
    good = handles.mint("basket", principal=None)
    reasons = {}
    for sent in (handles.mint("basket", principal=Principal("desk")), handles.mint("browser"), good[:-1], good):
        clock.now += 86_400 * (sent == good)
        with pytest.raises(HandleError) as refused:
            handles.verify("basket", sent)
        reasons[refused.value.reason] = str(refused.value)
    assert {row[0].strip("`"): row[2] for row in rows(PAGE, "Error messages")} == reasons

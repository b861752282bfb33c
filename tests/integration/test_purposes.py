"""The use cases of "Clarifications on the intent/use-case for sessions", on real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .purposes import ADMIN_ONLY, open_office
from .servers import COVERING, Cell
from .wire import SESSION_KEY, Client, Held

STATELESS = [cell for cell in COVERING if not cell.stateful]

every_cell = pytest.mark.parametrize("cell", STATELESS, ids=str)
legacy = pytest.mark.parametrize("cell", [cell for cell in STATELESS if not cell.modern], ids=str)
modern = pytest.mark.parametrize("cell", [cell for cell in STATELESS if cell.modern], ids=str)


async def tools(client: Client, held: Held | None = None) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await client.request("tools/list", {}, held)).result["tools"]
    return listed


async def names(client: Client, held: Held | None = None) -> set[str]:
    return {tool["name"] for tool in await tools(client, held)}


@every_cell
async def test_a_transaction_spans_the_calls_of_a_session(cell: Cell, tmp_path: Path) -> None:
    async with open_office(cell, tmp_path) as (office, client):
        session = await client.create()
        await client.call("begin_transaction", session)
        assert await client.call("read_contents", session) == ""
        await client.call("write_contents", session, line="hello")
        assert await client.call("read_contents", session) == "hello"
        assert office.contents == []  # not committed yet
        await client.call("end_transaction", session)
        assert office.contents == ["hello"]
        assert office.transactions == {}


@every_cell
async def test_the_end_of_a_session_rolls_its_transaction_back(cell: Cell, tmp_path: Path) -> None:
    async with open_office(cell, tmp_path) as (office, client):
        gone, next_one = await client.create(), await client.create()
        await client.call("begin_transaction", gone)
        await client.call("write_contents", gone, line="half done")
        locked = await client.request("tools/call", {"name": "begin_transaction", "arguments": {}}, next_one)
        assert locked.result["isError"]
        await client.delete(gone)
        assert [reason for _, reason in office.freed] == ["deleted"]
        assert (office.contents, office.transactions) == ([], {})
        assert await client.call("begin_transaction", next_one) == "begun"
        await client.call("end_transaction", next_one)


@legacy
async def test_transport_and_logical_sessions_live_at_once(cell: Cell, tmp_path: Path) -> None:
    async with open_office(cell, tmp_path) as (_, client):
        assert client.headers["mcp-session-id"].count(".") == 2
        logical = await client.create()
        assert [await client.call("count"), await client.call("count")] == ["1", "2"]
        assert await client.call("count", logical) == "1"
        await client.delete(logical)
        assert await client.call("count") == "3"


@legacy
async def test_what_a_server_offers_may_change_within_one_session(cell: Cell, tmp_path: Path) -> None:
    async with open_office(cell, tmp_path) as (_, client):
        mine, yours = await client.create(), await client.create()
        assert ADMIN_ONLY not in await names(client, mine)
        await client.call("enable_admin", mine)
        assert ADMIN_ONLY in await names(client, mine)
        assert ADMIN_ONLY not in await names(client, yours)
        assert await client.call(ADMIN_ONLY, mine) == "dropped"


@every_cell
async def test_a_stale_call_names_the_tool_that_is_no_longer_offered(cell: Cell, tmp_path: Path) -> None:
    """A client without notifications learns of a withdrawn tool by the error of its call."""
    async with open_office(cell, tmp_path) as (_, client):
        session = await client.create()
        await client.call("enable_admin", session)
        assert await client.call(ADMIN_ONLY, session) == "dropped"
        await client.call("disable_admin", session)
        stale = await client.request("tools/call", {"name": ADMIN_ONLY, "arguments": {}}, session)
        assert stale.result["isError"]
        assert "ToolNotOffered: drop_contents is not offered in this session" in stale.text
        assert await client.call("count", session) == "1"  # the session goes on


@modern
async def test_in_the_modern_era_a_list_does_not_depend_on_sessions(cell: Cell, tmp_path: Path) -> None:
    """By default a list is the same with a session and without one, whatever the session did before."""
    async with open_office(cell, tmp_path) as (_, client):
        session = await client.create()
        before = await tools(client)
        assert await tools(client, session) == before
        await client.call("enable_admin", session)
        await client.call("count", session)
        assert await tools(client, session) == await tools(client) == before


@modern
async def test_in_the_modern_era_lists_may_vary_by_session(cell: Cell, tmp_path: Path) -> None:
    """With `lists="session"` a list within a session varies and forbids caching, and one without does neither."""
    async with open_office(cell, tmp_path, lists="session") as (_, client):
        session = await client.create()
        await client.call("enable_admin", session)
        listed = (await client.request("tools/list", {}, session)).result
        assert ADMIN_ONLY in {tool["name"] for tool in listed["tools"]}
        assert (listed["ttlMs"], listed["cacheScope"]) == (0, "private")
        assert SESSION_KEY in listed["_meta"]
        plain = (await client.request("tools/list")).result
        assert ADMIN_ONLY not in {tool["name"] for tool in plain["tools"]}
        assert SESSION_KEY not in plain.get("_meta", {})
